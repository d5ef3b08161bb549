//! A request head, line by line: what RFC 9112 requires, without the leniency it allows.
use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request};
use memchr::{memchr, memrchr};

use super::{Body, Bounds, Kind, Violation};

/// Longest method; the longest registered one has 17 letters.
const METHOD: usize = 32;
/// What stands in a request line beside method and target.
const AROUND: usize = 2 + b"HTTP/1.1".len() + 1;
/// Fields of most heads.
const USUAL: usize = 16;
/// Fields that are added on the way to an engine.
const ROOM: usize = 4;
/// Digits of the greatest length that is believed, 2⁶³ − 1.
const DIGITS: usize = 19;

/// A head of which some lines have been read.
#[derive(Debug, Default)]
pub struct Head {
    /// Where the line that is not yet whole begins.
    line: usize,
    /// Up to where no line end was found.
    searched: usize,
    /// An empty line came first.
    blank: bool,
    begun: bool,
    request: Option<RequestLine>,
    fields: Vec<Field>,
    host: bool,
    length: Option<u64>,
    codings: Codings,
}

/// A request whose head is whole.
#[derive(Debug)]
pub struct Request {
    /// It.
    pub head: request::Parts,
    /// What follows.
    pub body: Body,
    /// Whether the client may send another one on its connection, and waits for its end to be told.
    pub keep_alive: bool,
}

/// Where the parts of the first line stand.
#[derive(Debug)]
struct RequestLine {
    method: Range<usize>,
    target: Range<usize>,
    version: Version,
}

/// A field, and where its value stands.
#[derive(Debug)]
struct Field {
    name: HeaderName,
    value: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

#[derive(Debug, Default)]
struct Codings {
    count: usize,
    ends_chunked: bool,
    bad: bool,
}

impl Head {
    /// Whether its first line has begun; an empty line before it is not its begin.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// Reads on in a head that begins at the start of `bytes`, which holds all that has come of it: its length once it is
    /// whole, and `None` before.
    ///
    /// # Errors
    /// The first thing that is wrong with it. It is found as early as it can be, so that what has to be held of a head
    /// stays within `bounds` and what one read brought.
    pub fn feed(&mut self, bytes: &[u8], bounds: &Bounds) -> Result<Option<usize>, Violation> {
        // A first line that is too long is always found to be that before the head is found to be too large.
        let longest = (bounds.target + METHOD + AROUND).min(bounds.head.saturating_sub(2));
        loop {
            let end = memchr(b'\n', &bytes[self.searched..]).map(|at| self.searched + at);
            // The line end is not counted, so that a line is judged alike before and after it has come.
            let known = end.unwrap_or(bytes.len());
            if self.request.is_none() && known - self.line > longest {
                return Err(Violation::head(Kind::TargetTooLong, "the request target is longer than limits.uri"));
            }
            if end.map_or(bytes.len(), |end| end + 1) > bounds.head {
                return Err(Violation::head(Kind::HeadTooLarge, "the request head is larger than limits.head"));
            }
            let Some(end) = end else {
                self.searched = bytes.len();
                self.begun = self.request.is_some() || bytes[self.line..].iter().any(|byte| *byte != b'\r');
                return Ok(None);
            };
            let begin = self.line;
            let Some(line) = bytes[begin..end].strip_suffix(b"\r") else {
                return Err(Violation::head(
                    Kind::Field,
                    "a line of the head ends with LF alone; it must end with CRLF",
                ));
            };
            self.line = end + 1;
            self.searched = end + 1;
            match &self.request {
                None if line.is_empty() && !self.blank => self.blank = true,
                None => self.request = Some(request_line(line, begin, bounds)?),
                Some(_) if line.is_empty() => return Ok(Some(end + 1)),
                Some(_) => self.field(line, begin, bounds)?,
            }
        }
    }

    /// The request, of which [`Head::feed`] said that it is whole; `bytes` are the same, at least as many as its length.
    ///
    /// # Errors
    /// When its fields, taken together, can be read in more than one way.
    pub fn finish(self, bytes: &Bytes) -> Result<Request, Violation> {
        let unread = Violation::head(Kind::RequestLine, "the request line cannot be understood");
        let Some(line) = &self.request else { return Err(unread) };
        let body = self.framing(line.version)?;
        let mut headers = HeaderMap::with_capacity(self.fields.len() + ROOM);
        for Field { name, value } in self.fields {
            let value = HeaderValue::from_maybe_shared(bytes.slice(value));
            headers.append(name, value.map_err(|_| Violation::head(Kind::Field, "a header's value is not one"))?);
        }
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.method = Method::from_bytes(&bytes[line.method.clone()]).map_err(|_| unread)?;
        head.uri = Uri::from_maybe_shared(bytes.slice(line.target.clone())).map_err(|_| unread)?;
        let asks = |what: &[u8]| {
            let values = headers.get_all(header::CONNECTION).iter();
            let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
            words.any(|word| trim(word).eq_ignore_ascii_case(what))
        };
        let keep_alive = match line.version {
            Version::Http11 => !asks(b"close"),
            Version::Http10 => !asks(b"close") && asks(b"keep-alive"),
        };
        head.version = match line.version {
            Version::Http11 => http::Version::HTTP_11,
            Version::Http10 => http::Version::HTTP_10,
        };
        head.headers = headers;
        Ok(Request { head, body, keep_alive })
    }

    /// `line` begins at `at`.
    fn field(&mut self, line: &[u8], at: usize, bounds: &Bounds) -> Result<(), Violation> {
        if self.fields.len() == bounds.fields {
            return Err(Violation::head(Kind::HeadTooLarge, "the request has more header fields than limits.headers"));
        }
        let (name, value) = field(line).map_err(|reason| Violation::head(Kind::Field, reason))?;
        if self.fields.capacity() == 0 {
            self.fields.reserve(USUAL);
        }
        self.fields.push(Field { name: name.clone(), value: at + value.start..at + value.end });
        let value = &line[value];
        match name {
            header::HOST => {
                if self.host {
                    return Err(Violation::head(Kind::Host, "the request has more than one Host field"));
                }
                self.host = true;
                host(value)
            }
            header::CONTENT_LENGTH => {
                if self.length.is_some() {
                    return Err(Violation::head(Kind::ContentLength, "the request has more than one Content-Length"));
                }
                self.length = Some(length(value)?);
                Ok(())
            }
            header::TRANSFER_ENCODING => {
                self.codings.add(value);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn framing(&self, version: Version) -> Result<Body, Violation> {
        if version == Version::Http11 && !self.host {
            return Err(Violation::head(Kind::Host, "the request has no Host field"));
        }
        let codings = &self.codings;
        if codings.count == 0 {
            return Ok(Body::Length(self.length.unwrap_or(0)));
        }
        let bad = |kind, reason| Err(Violation::head(kind, reason));
        if self.length.is_some() {
            return bad(Kind::BothFramings, "the request has both Content-Length and Transfer-Encoding");
        }
        if version == Version::Http10 {
            return bad(Kind::TransferEncoding, "HTTP/1.0 has no Transfer-Encoding");
        }
        if codings.bad || !codings.ends_chunked {
            return bad(Kind::TransferEncoding, "the Transfer-Encoding of a request must be `chunked`");
        }
        if codings.count > 1 {
            return bad(Kind::Codings, "no transfer coding but a single `chunked` is supported");
        }
        Ok(Body::chunked())
    }
}

impl Codings {
    fn add(&mut self, value: &[u8]) {
        for coding in value.split(|byte| *byte == b',') {
            let coding = trim(coding);
            self.count += 1;
            self.bad |= coding.is_empty() || !coding.iter().all(|byte| is_token(*byte));
            self.ends_chunked = coding.eq_ignore_ascii_case(b"chunked");
        }
    }
}

/// `line` begins at `at`.
fn request_line(line: &[u8], at: usize, bounds: &Bounds) -> Result<RequestLine, Violation> {
    let bad = |reason| Violation::head(Kind::RequestLine, reason);
    let shape = || bad("the request line must be a method, a target and a version, with one space between");
    let first = memchr(b' ', line).ok_or_else(shape)?;
    let last = memrchr(b' ', line).filter(|last| *last > first).ok_or_else(shape)?;
    let (method, target, version) = (&line[..first], &line[first + 1..last], &line[last + 1..]);
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            return Err(Violation::head(Kind::Version, "only HTTP/1.1 and HTTP/1.0 are spoken here"));
        }
        _ => return Err(shape()),
    };
    if method.is_empty() || method.len() > METHOD || !method.iter().all(|byte| is_token(*byte)) {
        return Err(bad("the method is not a token of 1 to 32 characters"));
    }
    if target.len() > bounds.target {
        return Err(Violation::head(Kind::TargetTooLong, "the request target is longer than limits.uri"));
    }
    if target.is_empty() || !target.iter().all(|byte| is_target(*byte)) {
        return Err(bad("the request target is empty or has a character that must be percent-encoded"));
    }
    let known = match target {
        [b'/', ..] => true,
        b"*" => method == b"OPTIONS",
        _ => has_authority(method, target),
    };
    if !known {
        return Err(bad("the request target is neither a path nor an http URL without user-info"));
    }
    Ok(RequestLine { method: at..at + first, target: at + first + 1..at + last, version })
}

/// Targets that name a host: a whole URL, or CONNECT's `host:port`.
fn has_authority(method: &[u8], target: &[u8]) -> bool {
    let Ok(uri) = http::Uri::try_from(target) else { return false };
    let Some(authority) = uri.authority() else { return false };
    let scheme = match (method, uri.scheme_str()) {
        (b"CONNECT", scheme) => scheme.is_none(),
        (_, scheme) => matches!(scheme, Some("http" | "https")),
    };
    scheme && is_host(authority.as_str().as_bytes())
}

/// A field line's name, and where its value stands without the white space around it.
fn field(line: &[u8]) -> Result<(HeaderName, Range<usize>), &'static str> {
    if matches!(line, [b' ' | b'\t', ..]) {
        return Err("a header line is folded; write it in one line");
    }
    let colon = memchr(b':', line).ok_or("a header line has no colon")?;
    let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
    let Ok(name) = HeaderName::from_bytes(name) else {
        return Err("a header's name is empty or has a character that no name may have");
    };
    // No early exit: this is the bulk of a head, and runs on whole vectors.
    if value.iter().fold(false, |bad, byte| bad | is_control(*byte)) {
        return Err("a header's value has a control character");
    }
    let begin = colon + 1 + line[colon + 1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let begin = begin.min(line.len());
    Ok((name, begin..begin + value.len()))
}

pub(super) fn length(value: &[u8]) -> Result<u64, Violation> {
    let bad = Violation::head(Kind::ContentLength, "Content-Length must be one plain decimal number below 2^63");
    if value.is_empty() || value.len() > DIGITS || !value.iter().all(u8::is_ascii_digit) {
        return Err(bad);
    }
    // 19 digits always fit in 64 bits.
    let length = value.iter().fold(0_u64, |length, digit| length * 10 + u64::from(digit - b'0'));
    if length > i64::MAX as u64 { Err(bad) } else { Ok(length) }
}

fn host(value: &[u8]) -> Result<(), Violation> {
    if is_host(value) {
        return Ok(());
    }
    Err(Violation::head(Kind::Host, "Host must be a name or an address, with at most a port and no user-info"))
}

/// `host[:port]`, of the characters that names and addresses are made of.
pub fn is_host(text: &[u8]) -> bool {
    let (host, port) = match text {
        [b'[', rest @ ..] => {
            let Some(end) = memchr(b']', rest) else { return false };
            let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'.' | b'%');
            if !rest[..end].iter().all(inside) {
                return false;
            }
            (&rest[..end], &rest[end + 1..])
        }
        _ => {
            let end = memchr(b':', text).unwrap_or(text.len());
            let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
            if !text[..end].iter().all(inside) {
                return false;
            }
            text.split_at(end)
        }
    };
    let port_is_right = match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    !host.is_empty() && port_is_right
}

pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Control characters, but for the tab.
pub(super) fn is_control(byte: u8) -> bool {
    ((byte < 0x20) & (byte != b'\t')) | (byte == 0x7f)
}

/// RFC 9110, section 5.6.2: `tchar`.
pub(super) fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// What may stand in a target: visible ASCII, without what a URI must encode, and without a fragment.
pub fn is_target(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e) && !matches!(byte, b'"' | b'#' | b'<' | b'>' | b'`')
}

static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(
            byte as u8,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        ) || (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    table
};
