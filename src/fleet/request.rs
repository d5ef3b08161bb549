//! A request to a replica, as it is written.
use bytes::Buf;
use bytes::buf::Chain;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, header};

use super::payload::Payload;
use crate::http1::write;

/// Room for a head, of which most have some hundred bytes.
const HEAD: usize = 512;

/// A request. Its framing is not the caller's to say: it follows from the body.
#[derive(Debug, Clone)]
pub struct Request {
    method: Method,
    head: Vec<u8>,
    body: Payload,
}

impl Request {
    /// One to a target (the replica's base path included), without a body.
    pub fn new(method: Method, target: &PathAndQuery, host: &HeaderValue) -> Self {
        let mut head = Vec::with_capacity(HEAD);
        write::request_line(&mut head, &method, target.as_str());
        write::field(&mut head, header::HOST.as_str(), host.as_bytes());
        Self { method, head, body: Payload::default() }
    }

    /// With one more header field.
    pub fn field(&mut self, name: &HeaderName, value: &HeaderValue) {
        if !is_framing(name) {
            write::field(&mut self.head, name.as_str(), value.as_bytes());
        }
    }

    /// With a body.
    pub fn body(mut self, body: Payload) -> Self {
        self.body = body;
        self
    }

    /// Its head, but for the end.
    #[cfg(test)]
    pub fn head(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }

    /// Whether its answer has no body, whatever its head says.
    pub(super) fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// Its bytes.
    pub(super) fn into_bytes(self) -> Written {
        let Self { method, mut head, body } = self;
        // Where a body is expected and none comes, a server may ask for its length (411).
        if !body.is_empty() || matches!(method, Method::POST | Method::PUT | Method::PATCH) {
            write::length(&mut head, body.len() as u64);
        }
        head.extend_from_slice(write::END);
        std::io::Cursor::new(head).chain(body)
    }
}

/// Head and body.
pub(super) type Written = Chain<std::io::Cursor<Vec<u8>>, Payload>;

/// What a second time would make two requests of one.
fn is_framing(name: &HeaderName) -> bool {
    *name == header::HOST
        || *name == header::CONTENT_LENGTH
        || *name == header::TRANSFER_ENCODING
        || *name == header::CONNECTION
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(request: Request) -> String {
        let mut bytes = request.into_bytes();
        let length = bytes.remaining();
        String::from_utf8(bytes.copy_to_bytes(length).to_vec()).unwrap()
    }

    fn request(method: Method) -> Request {
        Request::new(method, &PathAndQuery::from_static("/v1?a=b"), &HeaderValue::from_static("engine:1"))
    }

    #[test]
    fn framing_follows_from_the_body_alone() {
        let mut post = request(Method::POST);
        for (name, value) in [
            (header::HOST, "other"),
            (header::CONTENT_LENGTH, "7"),
            (header::TRANSFER_ENCODING, "chunked"),
            (header::CONNECTION, "close"),
            (header::ACCEPT, "a"),
            (header::ACCEPT, "b"),
        ] {
            post.field(&name, &HeaderValue::from_static(value));
        }
        let head = "POST /v1?a=b HTTP/1.1\r\nhost: engine:1\r\naccept: a\r\naccept: b\r\n";
        assert_eq!(written(post.clone()), format!("{head}content-length: 0\r\n\r\n"));
        let body = Payload::from(bytes::Bytes::from_static(b"{}"));
        assert_eq!(written(post.body(body)), format!("{head}content-length: 2\r\n\r\n{{}}"));
        assert_eq!(written(request(Method::GET)), "GET /v1?a=b HTTP/1.1\r\nhost: engine:1\r\n\r\n");
    }
}
