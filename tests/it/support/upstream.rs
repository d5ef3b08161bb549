//! A fake engine that is only a socket: a test scripts the bytes it sends and sees the bytes it gets.
//!
//! `GET /health` is answered 200 and not recorded, so that probes do not stand in the way.
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::http::{Body, Head, find};
use super::{PATIENCE, wait_until};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub head: Head,
    pub body: Vec<u8>,
    /// Which connection it came on, from 0.
    pub connection: usize,
}

impl Seen {
    pub fn method(&self) -> &str {
        self.head.start.split(' ').next().unwrap_or("")
    }

    pub fn target(&self) -> &str {
        self.head.start.split(' ').nth(1).unwrap_or("")
    }
}

/// The connection a request came on, in the hands of the test's script.
pub struct Wire {
    stream: TcpStream,
    buffer: BytesMut,
    connection: usize,
    /// Requests served on it before this one.
    pub served: usize,
}

impl Wire {
    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Sends a whole response with a length.
    pub async fn reply(&mut self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        self.send(respond(status, headers, body)).await
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// Waits until the other side is gone (end of stream, or an error).
    pub async fn gone(&mut self) {
        while matches!(self.stream.read_buf(&mut self.buffer).await, Ok(n) if n > 0) {}
    }

    async fn request(&mut self) -> Option<Seen> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            self.fill().await?;
        };
        let head = Head::parse(&self.buffer[..end]);
        self.buffer.advance(end + 4);
        let framing = Body::of_fields(&head).unwrap_or(Body::Done);
        let body = match framing {
            Body::Length(length) => self.take(length).await?,
            Body::Chunked => self.chunks().await?,
            _ => Vec::new(),
        };
        Some(Seen { head, body, connection: self.connection })
    }

    async fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = loop {
                if let Some(line) = find(&self.buffer, b"\r\n") {
                    break line;
                }
                self.fill().await?;
            };
            let hex = String::from_utf8_lossy(&self.buffer[..line]).into_owned();
            self.buffer.advance(line + 2);
            let size = usize::from_str_radix(&hex, 16).unwrap_or_else(|_| panic!("the proxy sent chunk size {hex:?}"));
            let chunk = self.take(size + 2).await?;
            if size == 0 {
                return Some(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    async fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            self.fill().await?;
        }
        Some(self.buffer.split_to(length).to_vec())
    }

    async fn fill(&mut self) -> Option<()> {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(n) if n > 0).then_some(())
    }
}

/// The fake engine; gone when dropped.
pub struct Upstream {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Upstream {
    /// Runs `script` for each request. It gives the wire back to keep the connection, or lets it go to close it.
    pub async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Seen, Wire) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Wire>> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), script).await
    }

    /// The same at a given address: one that was there before.
    pub async fn start_at<F, Fut>(address: SocketAddr, script: F) -> Self
    where
        F: Fn(Seen, Wire) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Wire>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(serve(listener, Arc::new(script), seen.clone(), connections.clone()));
        Self { address, seen, connections, task }
    }

    /// Answers every request with the same status, header fields and body.
    pub async fn fixed(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let bytes = respond(status, headers, &body.into());
        Self::start(move |_, mut wire| {
            let bytes = bytes.clone();
            async move {
                wire.send(bytes).await.ok()?;
                Some(wire)
            }
        })
        .await
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests to `path` (query left out) so far.
    pub fn seen(&self, path: &str) -> Vec<Seen> {
        let at = |seen: &&Seen| seen.target().split('?').next() == Some(path);
        self.seen.lock().unwrap().iter().filter(at).cloned().collect()
    }

    /// The one request to `path`, once it has come.
    pub async fn only(&self, path: &str) -> Seen {
        wait_until(&format!("a request to {path}"), PATIENCE, || async { !self.seen(path).is_empty() }).await;
        let mut seen = self.seen(path);
        assert_eq!(seen.len(), 1, "one request to {path}");
        seen.remove(0)
    }

    /// Connections accepted so far, those of probes included.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve<F, Fut>(
    listener: TcpListener,
    script: Arc<F>,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
) where
    F: Fn(Seen, Wire) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Option<Wire>> + Send + 'static,
{
    // Dropped with the listener's task: the connections of a fake engine end with it.
    let mut open = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let connection = connections.fetch_add(1, Ordering::SeqCst);
        let _ = stream.set_nodelay(true);
        let (script, seen) = (script.clone(), seen.clone());
        open.spawn(async move {
            let mut wire = Wire { stream, buffer: BytesMut::new(), connection, served: 0 };
            while let Some(request) = wire.request().await {
                if request.head.start.starts_with("GET /health ") {
                    if wire.reply(200, &[], b"").await.is_err() {
                        return;
                    }
                    continue;
                }
                seen.lock().unwrap().push(request.clone());
                match script(request, wire).await {
                    Some(kept) => wire = kept,
                    None => return,
                }
                wire.served += 1;
            }
        });
    }
}

/// The bytes of a response with a length.
pub fn respond(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status} Whatever\r\n");
    for (name, value) in headers {
        out += &format!("{name}: {value}\r\n");
    }
    out += &format!("Content-Length: {}\r\n\r\n", body.len());
    let mut out = out.into_bytes();
    out.extend_from_slice(body);
    out
}

/// A listener that never accepts, with its queue filled: connecting hangs. It lasts as long as the sockets given back.
pub fn full_listener() -> (SocketAddr, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut held = vec![listener];
    for _ in 0..4 {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&address.into());
        held.push(socket);
    }
    (address, held)
}
