//! HTTP/2: a client (the h2 crate's), and frames made by hand for what no client would send.
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{PATIENCE, Request, within};

/// A client's connection.
pub struct Http2 {
    sender: SendRequest<Bytes>,
    /// Ends with the connection, and says how.
    pub ended: JoinHandle<Result<(), h2::Error>>,
}

/// One request under way.
pub struct Sent {
    pub response: ResponseFuture,
    pub body: SendStream<Bytes>,
}

impl Http2 {
    /// With prior knowledge, in plain text.
    pub async fn connect(peer: SocketAddr) -> Self {
        let stream = within("a connection", PATIENCE, TcpStream::connect(peer)).await.expect("the listener accepts");
        stream.set_nodelay(true).unwrap();
        Self::over(stream, h2::client::Builder::new()).await
    }

    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        builder: h2::client::Builder,
    ) -> Self {
        let (sender, connection) = builder.handshake(stream).await.expect("a preface can be sent");
        Self { sender, ended: tokio::spawn(connection) }
    }

    /// Sends a request for the authority `router.example`; its body and its end too, unless there is more to come.
    pub async fn send(&mut self, request: &Request, more: bool) -> Sent {
        let uri = format!("http://router.example{}", request.target);
        let mut head = http::Request::builder().method(request.method.as_str()).uri(uri);
        for (name, value) in &request.headers {
            head = head.header(name, value);
        }
        let mut ready = within("room for a stream", PATIENCE, self.sender.clone().ready()).await.expect("it is open");
        let end = request.body.is_empty() && !more;
        let (response, mut body) = ready.send_request(head.body(()).unwrap(), end).expect("a request is taken");
        if !end {
            body.send_data(request.body.clone().into(), !more).expect("a body is taken");
        }
        Sent { response, body }
    }

    /// One whole exchange: status, headers, body.
    pub async fn exchange(&mut self, request: &Request) -> (http::response::Parts, Vec<u8>) {
        let sent = self.send(request, false).await;
        let (head, mut body) = within("an answer", PATIENCE, sent.response).await.expect("an answer").into_parts();
        (head, rest(&mut body).await.expect("a whole body"))
    }

    /// Waits for the connection's end.
    pub async fn end(self) -> Result<(), h2::Error> {
        within("the connection ends", PATIENCE, self.ended).await.expect("no panic")
    }
}

impl Sent {
    pub fn reset(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }

    /// The response head, and its body.
    pub async fn answer(self) -> (http::response::Parts, RecvStream) {
        within("an answer", PATIENCE, self.response).await.expect("an answer").into_parts()
    }
}

/// The next piece of a body; `None` at its end.
pub async fn piece(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let piece = within("a piece of a body", PATIENCE, body.data()).await?;
    if let Ok(piece) = &piece {
        let _ = body.flow_control().release_capacity(piece.len());
    }
    Some(piece)
}

/// The rest of a body.
pub async fn rest(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(piece) = piece(body).await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

/// One frame (RFC 9113, section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// What a client begins with: the preface and empty SETTINGS.
pub fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, &[])].concat()
}

/// A header block: the pseudo-headers of a request, then fields, all as literals that no table keeps (RFC 7541, 6.2.2).
pub fn request_block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "router.example")];
    for (name, value) in pseudo.iter().chain(fields) {
        block.push(0);
        for text in [name, value] {
            integer(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of 7 bits (RFC 7541, 5.1).
fn integer(block: &mut Vec<u8>, mut value: usize) {
    if value < 127 {
        return block.push(value as u8);
    }
    block.push(127);
    value -= 127;
    while value >= 128 {
        block.push((value % 128) as u8 | 128);
        value /= 128;
    }
    block.push(value as u8);
}

/// Time given to a server to end a connection that it must end.
pub const ENDS: Duration = Duration::from_secs(20);
