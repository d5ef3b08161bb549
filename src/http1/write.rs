//! Heads and chunks, written. Framing is the caller's to say: [`length`] or [`chunked`], once, after the other fields.
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

/// What ends a body in chunks.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// What ends a head.
pub const END: &[u8] = b"\r\n";
/// What a client is told that waits with its body until it may send it.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// An answer's reason phrase, where it is not the usual one; an extension of the answer.
#[derive(Debug, Clone)]
pub struct Reason(pub Bytes);

/// The first line of a request.
pub fn request_line(out: &mut Vec<u8>, method: &Method, target: &str) {
    for part in [method.as_str().as_bytes(), b" ", target.as_bytes(), b" HTTP/1.1\r\n"] {
        out.extend_from_slice(part);
    }
}

/// The first line of an answer.
pub fn status_line(out: &mut Vec<u8>, status: StatusCode, reason: Option<&Reason>) {
    let usual = || status.canonical_reason().unwrap_or("").as_bytes();
    let reason = reason.map_or_else(usual, |reason| &reason.0[..]);
    for part in [b"HTTP/1.1 ", status.as_str().as_bytes(), b" ", reason, END] {
        out.extend_from_slice(part);
    }
}

/// One header field.
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, END] {
        out.extend_from_slice(part);
    }
}

/// Header fields.
pub fn fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        field(out, name.as_str(), value.as_bytes());
    }
}

/// A body of so many bytes follows.
pub fn length(out: &mut Vec<u8>, length: u64) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), length);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    field(out, "content-length", &digits[at..]);
}

/// A body in chunks follows.
pub fn chunked(out: &mut Vec<u8>) {
    out.extend_from_slice(b"transfer-encoding: chunked\r\n");
}

/// What stands before a chunk's data; [`END`] stands behind it. There is no chunk of 0 bytes.
pub fn chunk_size(out: &mut Vec<u8>, size: usize) {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[size >> (4 * digit) & 15]);
    }
    out.extend_from_slice(END);
}
