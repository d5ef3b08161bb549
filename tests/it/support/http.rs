//! An HTTP/1.1 client that hides nothing: exact bytes out, exact head, chunks and ending in.
use std::io;
use std::net::SocketAddr;

use bytes::{Buf, BytesMut};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{PATIENCE, within};

/// A request, written exactly as given; `Host` and `Content-Length` are added unless present.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        Self { method: method.into(), target: target.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A POST of JSON.
    pub fn post(target: &str, body: &Value) -> Self {
        Self::new("POST", target).header("content-type", "application/json").body(body.to_string())
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))
    }

    pub fn bytes(&self, host: SocketAddr) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.has("host") {
            out += &format!("Host: {host}\r\n");
        }
        for (name, value) in &self.headers {
            out += &format!("{name}: {value}\r\n");
        }
        let sized = self.has("content-length") || self.has("transfer-encoding");
        if !sized && (!self.body.is_empty() || self.method == "POST") {
            out += &format!("Content-Length: {}\r\n", self.body.len());
        }
        out += "\r\n";
        let mut out = out.into_bytes();
        out.extend_from_slice(&self.body);
        out
    }
}

/// A head as received: start line and header fields in order, duplicates and all.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub start: String,
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or("").to_string();
        let headers = lines
            .filter(|line| !line.is_empty())
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                (name.to_ascii_lowercase(), value.trim().to_string())
            })
            .collect();
        Self { start, headers }
    }

    pub fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
    }
}

/// How a body is delimited, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    Length(usize),
    Chunked,
    UntilClose,
    Done,
}

impl Body {
    fn of_response(head: &Head, method: &str) -> Self {
        let status = head.status();
        if method == "HEAD" || status == 204 || status == 304 || (100..200).contains(&status) {
            return Self::Done;
        }
        Self::of_fields(head).unwrap_or(Self::UntilClose)
    }

    /// What the framing fields of a head say, if anything.
    pub fn of_fields(head: &Head) -> Option<Self> {
        if head.get("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Some(Self::Chunked);
        }
        match head.get("content-length")?.parse().ok()? {
            0 => Some(Self::Done),
            length => Some(Self::Length(length)),
        }
    }
}

/// A whole exchange.
#[derive(Clone, Debug)]
pub struct Response {
    pub head: Head,
    pub body: Vec<u8>,
    /// Whether the body ended as its framing says; `false` when the connection ended first.
    pub complete: bool,
}

impl Response {
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.get(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("not JSON ({error}); status {}, body: {}", self.status(), self.text());
        })
    }
}

/// What carries a connection.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// One connection.
pub struct Client {
    stream: Box<dyn Io>,
    peer: SocketAddr,
    buffer: BytesMut,
    method: String,
    body: Body,
    cut: bool,
}

impl Client {
    pub async fn connect(peer: SocketAddr) -> Self {
        let stream = within("a connection", PATIENCE, TcpStream::connect(peer)).await.expect("the listener accepts");
        Self::over(stream, peer)
    }

    /// A client over a connection made elsewhere (socket options set, say).
    pub fn over(stream: TcpStream, peer: SocketAddr) -> Self {
        let _ = stream.set_nodelay(true);
        Self::on(stream, peer)
    }

    /// A client on any stream (TLS, say).
    pub fn on(stream: impl Io + 'static, peer: SocketAddr) -> Self {
        Self {
            stream: Box::new(stream),
            peer,
            buffer: BytesMut::new(),
            method: "GET".into(),
            body: Body::Done,
            cut: false,
        }
    }

    pub async fn send(&mut self, request: &Request) {
        self.try_send(request).await.expect("the request is taken");
    }

    /// Sends a request that the peer may refuse before it is whole.
    pub async fn try_send(&mut self, request: &Request) -> io::Result<()> {
        self.method = request.method.clone();
        self.stream.write_all(&request.bytes(self.peer)).await
    }

    pub async fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Closes the sending side only.
    pub async fn half_close(&mut self) {
        self.stream.shutdown().await.expect("an open connection");
    }

    /// The next head, even when it is only an interim one (1xx).
    pub async fn interim(&mut self) -> Head {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = Head::parse(&self.buffer[..end]);
                self.buffer.advance(end + 4);
                return head;
            }
            assert!(self.fill().await, "the connection ended before a head");
        }
    }

    /// Reads the next head (1xx heads are skipped) and gets ready for its body.
    pub async fn head(&mut self) -> Head {
        let head = within("a response head", PATIENCE, self.try_head()).await;
        head.expect("the connection ended before a response head")
    }

    /// The next head, or `None` when the connection ends first.
    pub async fn try_head(&mut self) -> Option<Head> {
        loop {
            while let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let head = Head::parse(&self.buffer[..end]);
                self.buffer.advance(end + 4);
                if (100..200).contains(&head.status()) {
                    continue;
                }
                self.body = Body::of_response(&head, &self.method);
                return Some(head);
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// The next piece of the body as framed (a chunk, or what has come of a sized one); `None` at its end.
    pub async fn piece(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.body {
                Body::Done => return None,
                Body::Length(left) if !self.buffer.is_empty() => {
                    let take = left.min(self.buffer.len());
                    self.body = if take == left { Body::Done } else { Body::Length(left - take) };
                    return Some(self.buffer.split_to(take).to_vec());
                }
                Body::UntilClose if !self.buffer.is_empty() => return Some(self.buffer.split().to_vec()),
                Body::Chunked => {
                    if let Some(chunk) = self.chunk() {
                        if chunk.is_empty() {
                            self.body = Body::Done;
                            return None;
                        }
                        return Some(chunk);
                    }
                }
                _ => {}
            }
            if !self.fill().await {
                self.cut = self.body != Body::UntilClose;
                self.body = Body::Done;
                return None;
            }
        }
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = find(&self.buffer, b"\r\n")?;
        let size = std::str::from_utf8(&self.buffer[..line]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let size = size.expect("a chunk size in plain hex");
        if self.buffer.len() < line + 2 + size + 2 {
            return None;
        }
        self.buffer.advance(line + 2);
        let chunk = self.buffer.split_to(size).to_vec();
        assert_eq!(&self.buffer[..2], b"\r\n", "a chunk ends with CRLF (no trailers are sent)");
        self.buffer.advance(2);
        Some(chunk)
    }

    /// The next piece, in good time.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        within("the next piece of a body", PATIENCE, self.piece()).await
    }

    /// Reads on until `needle` has been seen in the body; returns all read.
    pub async fn until(&mut self, needle: &[u8]) -> Vec<u8> {
        let mut seen = Vec::new();
        while find(&seen, needle).is_none() {
            let piece = self.next().await;
            seen.extend(piece.unwrap_or_else(|| {
                panic!(
                    "the body ended without {:?}: {}",
                    String::from_utf8_lossy(needle),
                    String::from_utf8_lossy(&seen)
                )
            }));
        }
        seen
    }

    /// The rest of the body.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await {
            all.extend(piece);
        }
        all
    }

    /// Whether the connection ended inside a body.
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// Sends and reads one whole exchange on this connection.
    pub async fn exchange(&mut self, request: &Request) -> Response {
        // A refusal may come while the body is still on its way: the answer counts, not the write.
        let _ = self.try_send(request).await;
        let head = self.head().await;
        let body = self.rest().await;
        Response { head, body, complete: !self.cut }
    }

    /// True when the peer has closed and nothing unread is left; waits for the close.
    pub async fn closed(&mut self) -> bool {
        within("the peer closes", PATIENCE, async { while self.fill().await {} }).await;
        self.buffer.is_empty()
    }

    async fn fill(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(n) if n > 0)
    }
}

/// One exchange on a connection of its own.
pub async fn exchange(peer: SocketAddr, request: &Request) -> Response {
    Client::connect(peer).await.exchange(request).await
}

/// GET on a connection of its own.
pub async fn get(peer: SocketAddr, target: &str) -> Response {
    exchange(peer, &Request::get(target)).await
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub name: Option<String>,
    pub data: String,
}

impl Event {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.data))
    }
}

/// The events of an SSE body (HTML standard, section 9.2.6; no BOM, no `retry`).
pub fn sse_events(body: &[u8]) -> Vec<Event> {
    let text = String::from_utf8_lossy(body).replace("\r\n", "\n");
    let mut events = Vec::new();
    for block in text.split("\n\n") {
        let mut name = None;
        let mut data: Vec<&str> = Vec::new();
        for line in block.lines() {
            if let Some(value) = line.strip_prefix("data:") {
                data.push(value.strip_prefix(' ').unwrap_or(value));
            } else if let Some(value) = line.strip_prefix("event:") {
                name = Some(value.trim().to_string());
            }
        }
        if !data.is_empty() {
            events.push(Event { name, data: data.join("\n") });
        }
    }
    events
}

/// Where `needle` first stands.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(haystack, needle)
}
