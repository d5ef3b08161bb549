//! Both ends of the router: replicas that answer the same to everything, and clients in a closed loop.
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"cost-model","choices":[{"index":0,"message":{"role":"assistant","content":"An answer of a few words, as short ones are."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"total_tokens":512,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":0}}}"#;

/// One side of a connection, with what was read too far.
struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(64 * 1024) })
    }

    /// Takes one message with a content length (or no body) off the wire; its first line, `None` at the end.
    async fn message(&mut self) -> io::Result<Option<String>> {
        let mut looked = 0;
        let head = loop {
            let from = usize::saturating_sub(looked, 3);
            if let Some(at) = memchr::memmem::find(&self.read[from..], b"\r\n\r\n") {
                break from + at + 4;
            }
            looked = self.read.len();
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Ok(None);
            }
        };
        let text = String::from_utf8_lossy(&self.read[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let end = head + length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        while self.read.len() < end {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.read.drain(..end);
        Ok(text.lines().next().map(str::to_owned))
    }
}

/// Starts a replica on a free port; it ends with the runtime.
pub async fn replica() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
        ANSWER.len()
    );
    let answer: Arc<[u8]> = answer.into_bytes().into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut wire = Wire::new(stream)?;
                while wire.message().await?.is_some() {
                    wire.stream.write_all(&answer).await?;
                }
                io::Result::Ok(())
            });
        }
    });
    Ok(address)
}

/// One request on a connection of its own; whether its answer's status is 200.
pub async fn once(router: SocketAddr, request: &[u8]) -> io::Result<bool> {
    let mut wire = Wire::new(TcpStream::connect(router).await?)?;
    wire.stream.write_all(request).await?;
    Ok(wire.message().await?.is_some_and(|line| line.contains(" 200 ")))
}

/// An answered request: when it was sent, counted from the load's begin, and how long it took.
pub type Took = (Duration, Duration);

/// Sends what `next` gives on so many connections, each waiting for its answer, until it gives nothing more.
pub async fn load<N>(router: SocketAddr, connections: usize, next: N) -> io::Result<Vec<Took>>
where
    N: Fn() -> Option<Arc<Vec<u8>>> + Clone + Send + 'static,
{
    let begun = Instant::now();
    let mut clients: JoinSet<io::Result<Vec<Took>>> = JoinSet::new();
    for _ in 0..connections {
        let next = next.clone();
        clients.spawn(async move {
            let mut wire = Wire::new(TcpStream::connect(router).await?)?;
            let mut took = Vec::new();
            while let Some(request) = next() {
                let sent = Instant::now();
                wire.stream.write_all(&request).await?;
                match wire.message().await? {
                    Some(line) if line.contains(" 200 ") => took.push((sent - begun, sent.elapsed())),
                    said => return Err(io::Error::other(format!("the router said {said:?}"))),
                }
            }
            Ok(took)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = clients.join_next().await {
        all.extend(ended.map_err(io::Error::other)??);
    }
    Ok(all)
}
