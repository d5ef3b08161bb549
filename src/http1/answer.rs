//! An engine's answer head: what can be read in two ways is refused, what is merely unusual is not.
use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response};
use httparse::{Error, ParserConfig, Status};
use memchr::{memchr, memrchr};

use super::Body;
use super::head::{length, trim};
use super::write::Reason;

/// Bytes of a head.
pub const HEAD: usize = 64 * 1024;
/// Fields of a head, and of a trailer section.
pub const FIELDS: usize = 100;
/// How every answer begins.
const BEGIN: &[u8] = b"HTTP/1.";
/// Fields that are added on the way to a client.
const ROOM: usize = 4;

/// An answer whose head is whole.
#[derive(Debug)]
pub struct Answer {
    /// It. A reason phrase that is not the usual one is an extension, [`Reason`].
    pub head: response::Parts,
    /// What follows.
    pub body: Body,
    /// Whether the engine takes another request on the connection when the body is over.
    pub reusable: bool,
}

/// Why an answer is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It can't be read.
    #[error("{0}")]
    Unreadable(&'static str),
    /// It can, but others might read it otherwise, or it is of something that nobody asked for.
    #[error("{0}")]
    Unfit(&'static str),
}

/// A head of which some bytes have come.
#[derive(Debug, Default)]
pub struct Head {
    /// They, where it was not whole in one read.
    held: Vec<u8>,
}

impl Head {
    /// Reads on: the answer once its head is whole, with what came behind it. Interim answers are passed over. `bodiless`
    /// says that it answers HEAD.
    ///
    /// # Errors
    /// What is wrong with it. No more is held of a head than [`HEAD`] and what one read brought.
    pub fn feed(&mut self, bytes: Bytes, bodiless: bool) -> Result<Option<(Answer, Bytes)>, Refused> {
        if self.held.is_empty() {
            let (read, answer) = scan(&bytes, bodiless)?;
            if answer.is_none() {
                self.held.extend_from_slice(&bytes[read..]);
            }
            return Ok(answer.map(|answer| (answer, bytes.slice(read..))));
        }
        let same_lines = self.held.len() >= BEGIN.len() && memchr(b'\n', &bytes).is_none();
        self.held.extend_from_slice(&bytes);
        // A head that comes byte by byte is not read anew with each.
        if same_lines && self.held.len() < HEAD {
            return Ok(None);
        }
        let (read, answer) = scan(&self.held, bodiless)?;
        self.held.drain(..read);
        Ok(answer.map(|answer| (answer, Bytes::from(std::mem::take(&mut self.held)))))
    }

    /// Whether some of one has come.
    pub fn begun(&self) -> bool {
        !self.held.is_empty()
    }
}

/// How much of `bytes` is read, and the answer if its head is among that.
fn scan(bytes: &[u8], bodiless: bool) -> Result<(usize, Option<Answer>), Refused> {
    let mut read = 0;
    while let Some((length, answer)) = one(&bytes[read..], bodiless)? {
        read += length;
        if answer.is_some() {
            return Ok((read, answer));
        }
    }
    Ok((read, None))
}

/// One head, if it is whole: its length, and the answer unless it is an interim one.
fn one(bytes: &[u8], bodiless: bool) -> Result<Option<(usize, Option<Answer>)>, Refused> {
    let bytes = &bytes[..bytes.len().min(HEAD)];
    let begin = bytes.len().min(BEGIN.len());
    if bytes[..begin] != BEGIN[..begin] {
        return Err(Refused::Unreadable("it does not begin as an answer of HTTP/1.1 does"));
    }
    // Only whole lines are looked at, so that what is made of them does not depend on how they come.
    let lines = memrchr(b'\n', bytes).map_or(0, |end| end + 1);
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut parsed, &bytes[..lines], &mut fields) {
        Ok(Status::Complete(length)) => {
            answer(&bytes[..length], &parsed, bodiless).map(|answer| Some((length, answer)))
        }
        Ok(Status::Partial) if bytes.len() == HEAD => Err(Refused::Unreadable("its head is larger than 64 KiB")),
        Ok(Status::Partial) => Ok(None),
        Err(Error::Version | Error::Status) => Err(Refused::Unreadable("its first line is none of HTTP/1.1")),
        Err(Error::TooManyHeaders) => Err(Refused::Unreadable("its head has more than 100 fields")),
        Err(_) => Err(NO_FIELD),
    }
}

const NO_FIELD: Refused = Refused::Unreadable("a line of its head is not one that HTTP allows");

/// What the head `bytes`, read as `parsed`, means; `None` of an interim answer.
fn answer(bytes: &[u8], parsed: &httparse::Response<'_, '_>, bodiless: bool) -> Result<Option<Answer>, Refused> {
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(Refused::Unreadable("its status is none of HTTP"))?;
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refused::Unfit("it switches protocols, which nobody asked for"));
    }
    if status.is_informational() {
        return Ok(None);
    }
    // Values are parts of one copy of the head, and keep nothing else of what was read.
    let (whole, start) = (Bytes::copy_from_slice(bytes), bytes.as_ptr().addr());
    let slice = |part: &[u8]| {
        let at = part.as_ptr().addr() - start;
        whole.slice(at..at + part.len())
    };
    let mut headers = HeaderMap::with_capacity(parsed.headers.len() + ROOM);
    let mut framing = Framing::default();
    for field in &*parsed.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| NO_FIELD)?;
        let value = HeaderValue::from_maybe_shared(slice(field.value)).map_err(|_| NO_FIELD)?;
        framing.note(&name, field.value);
        headers.append(name, value);
    }
    let old = parsed.version == Some(0);
    let body = framing.body(old, bodiless || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED))?;
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = status;
    head.headers = headers;
    if let Some(reason) = parsed.reason.filter(|reason| Some(*reason) != status.canonical_reason()) {
        // One that is not ASCII is read as none.
        let reason = if reason.is_empty() { Bytes::new() } else { slice(reason.as_bytes()) };
        head.extensions.insert(Reason(reason));
    }
    let reusable = !old && !framing.closes && !matches!(body, Body::ToEnd);
    Ok(Some(Answer { head, body, reusable }))
}

/// What the fields say of the body, and of the connection.
#[derive(Debug, Default)]
struct Framing {
    lengths: usize,
    /// The first, if it is one.
    length: Option<u64>,
    codings: usize,
    chunked: bool,
    closes: bool,
}

impl Framing {
    fn note(&mut self, name: &HeaderName, value: &[u8]) {
        if name == header::CONTENT_LENGTH {
            self.lengths += 1;
            self.length = length(value).ok();
        } else if name == header::TRANSFER_ENCODING {
            self.codings += 1;
            self.chunked = value.eq_ignore_ascii_case(b"chunked");
        } else if name == header::CONNECTION {
            let mut words = value.split(|byte| *byte == b',');
            self.closes |= words.any(|word| trim(word).eq_ignore_ascii_case(b"close"));
        }
    }

    fn body(&self, old: bool, none: bool) -> Result<Body, Refused> {
        let body = match (self.lengths, self.codings) {
            (0, 0) => Body::ToEnd,
            (1, 0) => self.length.map(Body::Length).ok_or("its Content-Length is not one plain number below 2^63")?,
            (_, 0) => return Err("it has more than one Content-Length".into()),
            (1.., _) => return Err("it has both Content-Length and Transfer-Encoding".into()),
            (0, _) if old => return Err("it is of HTTP/1.0, which has no Transfer-Encoding".into()),
            (0, 1) if self.chunked => Body::chunked(),
            (0, _) => return Err("its Transfer-Encoding is not a single `chunked`".into()),
        };
        Ok(if none { Body::NONE } else { body })
    }
}

impl From<&'static str> for Refused {
    fn from(reason: &'static str) -> Self {
        Self::Unfit(reason)
    }
}

#[cfg(test)]
mod tests;
