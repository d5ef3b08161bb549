//! A request head, line by line: what RFC 9112 requires, without the leniency it allows.
use memchr::{memchr, memrchr};

use super::{Bounds, Kind, Violation};

/// Longest method; the longest registered one has 17 letters.
const METHOD: usize = 32;
/// What stands in a request line beside method and target.
const AROUND: usize = 2 + b"HTTP/1.1".len() + 1;
/// Digits of the greatest length that is believed, 2⁶³ − 1.
const DIGITS: usize = 19;

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// By its length; 0 when the head says nothing.
    Length(u64),
    /// By chunks.
    Chunked,
}

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
    request: Option<Version>,
    fields: usize,
    host: bool,
    length: Option<u64>,
    codings: Codings,
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
    /// Whether its first line has begun.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// Reads on in a head that begins at the start of `bytes`: its length and framing, once it is whole.
    pub fn feed(&mut self, bytes: &[u8], bounds: &Bounds) -> Result<Option<(usize, Framing)>, Violation> {
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
            let Some(line) = bytes[self.line..end].strip_suffix(b"\r") else {
                return Err(Violation::head(
                    Kind::Field,
                    "a line of the head ends with LF alone; it must end with CRLF",
                ));
            };
            self.line = end + 1;
            self.searched = end + 1;
            match self.request {
                None if line.is_empty() && !self.blank => self.blank = true,
                None => self.request = Some(request_line(line, bounds)?),
                Some(version) if line.is_empty() => return Ok(Some((end + 1, self.framing(version)?))),
                Some(_) => self.field(line, bounds)?,
            }
        }
    }

    fn field(&mut self, line: &[u8], bounds: &Bounds) -> Result<(), Violation> {
        self.fields += 1;
        if self.fields > bounds.fields {
            return Err(Violation::head(Kind::HeadTooLarge, "the request has more header fields than limits.headers"));
        }
        let (name, value) = field(line).map_err(|reason| Violation::head(Kind::Field, reason))?;
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                if self.host {
                    return Err(Violation::head(Kind::Host, "the request has more than one Host field"));
                }
                self.host = true;
                host(value)
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.is_some() {
                    return Err(Violation::head(Kind::ContentLength, "the request has more than one Content-Length"));
                }
                self.length = Some(length(value)?);
                Ok(())
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                self.codings.add(value);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn framing(&self, version: Version) -> Result<Framing, Violation> {
        if version == Version::Http11 && !self.host {
            return Err(Violation::head(Kind::Host, "the request has no Host field"));
        }
        let codings = &self.codings;
        if codings.count == 0 {
            return Ok(Framing::Length(self.length.unwrap_or(0)));
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
        Ok(Framing::Chunked)
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

fn request_line(line: &[u8], bounds: &Bounds) -> Result<Version, Violation> {
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
    if known { Ok(version) } else { Err(bad("the request target is neither a path nor an http URL without user-info")) }
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

/// Splits a field line into its name and its value without the white space around it.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    if matches!(line, [b' ' | b'\t', ..]) {
        return Err("a header line is folded; write it in one line");
    }
    let colon = memchr(b':', line).ok_or("a header line has no colon")?;
    let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err("a header's name is empty or has a character that no name may have");
    }
    // No early exit: this is the bulk of a head, and runs on whole vectors.
    if value.iter().fold(false, |bad, byte| bad | is_control(*byte)) {
        return Err("a header's value has a control character");
    }
    Ok((name, value))
}

fn length(value: &[u8]) -> Result<u64, Violation> {
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

fn trim(mut value: &[u8]) -> &[u8] {
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
