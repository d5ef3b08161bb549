//! A slow, plain reading of the same rules, over a whole stream at once: what the reader is held against.
use super::{Bounds, Kind};

/// Method, target, body.
pub type Seen = (String, String, Vec<u8>);

#[derive(Debug, Default)]
pub struct Model {
    pub heads: u64,
    pub passed: usize,
    pub violation: Option<Kind>,
    /// Requests that are whole.
    pub requests: Vec<Seen>,
    /// One of them was of HTTP/1.0.
    pub old: bool,
}

/// What ends the reading: a violation, or the stream's end.
type Stop = Option<Kind>;

pub fn model(stream: &[u8], bounds: &Bounds) -> Model {
    let mut model = Model::default();
    model.violation = loop {
        if let Err(stop) = one(stream, bounds, &mut model) {
            break stop;
        }
    };
    model
}

fn one(stream: &[u8], bounds: &Bounds, model: &mut Model) -> Result<(), Stop> {
    let rest = &stream[model.passed..];
    let (lines, length) = lines(rest, bounds)?;
    let mut first = lines[0].split(' ');
    let (method, target, version) = (first.next().unwrap(), first.next().unwrap(), first.next().unwrap());
    let values = |name: &str| -> Vec<&str> {
        let fields = lines[1..].iter().filter_map(|line| line.split_once(':'));
        fields.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| trim(value)).collect()
    };
    let old = version == "HTTP/1.0";
    if !old && values("host").is_empty() {
        return Err(Some(Kind::Host));
    }
    let codings: Vec<String> = values("transfer-encoding")
        .iter()
        .flat_map(|value| value.split(','))
        .map(|coding| trim(coding).to_ascii_lowercase())
        .collect();
    let length_of_body = values("content-length").first().map(|value| value.parse::<usize>().unwrap());
    if !codings.is_empty() {
        if length_of_body.is_some() {
            return Err(Some(Kind::BothFramings));
        }
        if old || codings.last().unwrap() != "chunked" || codings.iter().any(|coding| !token(coding)) {
            return Err(Some(Kind::TransferEncoding));
        }
        if codings.len() > 1 {
            return Err(Some(Kind::Codings));
        }
    }
    model.heads += 1;
    model.passed += length;
    model.old |= old;
    let rest = &stream[model.passed..];
    let body = if codings.is_empty() {
        let length = length_of_body.unwrap_or(0);
        let here = length.min(rest.len());
        model.passed += here;
        if here < length {
            return Err(None);
        }
        rest[..here].to_vec()
    } else {
        let mut read = 0;
        let result = chunks(rest, &mut read);
        model.passed += read;
        result?
    };
    // An empty path of a URL is `/`.
    let target = target.parse::<http::Uri>().unwrap().to_string();
    model.requests.push((method.to_owned(), target, body));
    Ok(())
}

/// The lines of a head, each checked by itself, and its length in bytes.
fn lines(rest: &[u8], bounds: &Bounds) -> Result<(Vec<String>, usize), Stop> {
    let (mut lines, mut at, mut blank) = (Vec::<String>::new(), 0, false);
    loop {
        let end = rest[at..].iter().position(|byte| *byte == b'\n').map(|end| at + end);
        let line = &rest[at..end.unwrap_or(rest.len())];
        if lines.is_empty() && line.len() > bounds.target + 43 {
            return Err(Some(Kind::TargetTooLong));
        }
        if at + line.len() + usize::from(end.is_some()) > bounds.head {
            return Err(Some(Kind::HeadTooLarge));
        }
        let Some(end) = end else { return Err(None) };
        at = end + 1;
        let line: String = line.iter().map(|byte| char::from(*byte)).collect();
        let Some(line) = line.strip_suffix('\r') else { return Err(Some(Kind::Field)) };
        if lines.is_empty() {
            if line.is_empty() && !blank {
                blank = true;
                continue;
            }
            request_line(line, bounds)?;
        } else if line.is_empty() {
            return Ok((lines, at));
        } else {
            field(line, &lines, bounds)?;
        }
        lines.push(line.to_owned());
    }
}

fn request_line(line: &str, bounds: &Bounds) -> Result<(), Stop> {
    let bad = Err(Some(Kind::RequestLine));
    let Some((method, rest)) = line.split_once(' ') else { return bad };
    let Some((target, version)) = rest.rsplit_once(' ') else { return bad };
    let bytes = version.as_bytes();
    if version != "HTTP/1.1" && version != "HTTP/1.0" {
        let other = bytes.len() == 8 && version.starts_with("HTTP/") && bytes[6] == b'.';
        let digits = other && bytes[5].is_ascii_digit() && bytes[7].is_ascii_digit();
        return if digits { Err(Some(Kind::Version)) } else { bad };
    }
    if !token(method) || method.len() > 32 {
        return bad;
    }
    if target.chars().count() > bounds.target {
        return Err(Some(Kind::TargetTooLong));
    }
    if target.is_empty() || target.chars().any(|c| !c.is_ascii_graphic() || "\"#<>`".contains(c)) {
        return bad;
    }
    if target.starts_with('/') || target == "*" && method == "OPTIONS" {
        return Ok(());
    }
    let authority = if method == "CONNECT" {
        Some(target)
    } else {
        let lower = target.to_ascii_lowercase();
        let scheme = ["http://", "https://"].into_iter().find(|scheme| lower.starts_with(scheme));
        scheme.map(|scheme| target[scheme.len()..].split(['/', '?']).next().unwrap())
    };
    match authority {
        Some(authority) if host(authority) && target.parse::<http::Uri>().is_ok() => Ok(()),
        _ => bad,
    }
}

fn field(line: &str, before: &[String], bounds: &Bounds) -> Result<(), Stop> {
    let bad = |kind| Err(Some(kind));
    // `before` holds the request line too.
    if before.len() > bounds.fields {
        return bad(Kind::HeadTooLarge);
    }
    let Some((name, value)) = line.split_once(':') else { return bad(Kind::Field) };
    let value = trim(value);
    if !token(name) || value.chars().any(|c| c != '\t' && (c as u32) < 0x20 || c == '\u{7f}') {
        return bad(Kind::Field);
    }
    let again = before[1..].iter().any(|line| line.split(':').next().unwrap().eq_ignore_ascii_case(name));
    if name.eq_ignore_ascii_case("host") && (again || !host(value)) {
        return bad(Kind::Host);
    }
    let number = !value.is_empty() && value.len() < 20 && value.chars().all(|c| c.is_ascii_digit());
    let number = number && value.parse::<i64>().is_ok();
    if name.eq_ignore_ascii_case("content-length") && (again || !number) {
        return bad(Kind::ContentLength);
    }
    Ok(())
}

fn chunks(rest: &[u8], read: &mut usize) -> Result<Vec<u8>, Stop> {
    let mut body = Vec::new();
    loop {
        let mut size = String::new();
        while let Some(digit) = rest.get(*read).filter(|byte| byte.is_ascii_hexdigit()) {
            if size.len() == 16 || i64::from_str_radix(&format!("{size}{}", char::from(*digit)), 16).is_err() {
                return Err(Some(Kind::Chunk));
            }
            size.push(char::from(*digit));
            *read += 1;
        }
        match rest.get(*read) {
            None => return Err(None),
            Some(b';') if !size.is_empty() => {
                while rest.get(*read).is_some_and(|byte| *byte >= b' ' && *byte != 0x7f || *byte == b'\t') {
                    *read += 1;
                }
            }
            Some(b'\r') if !size.is_empty() => {}
            Some(_) => return Err(Some(Kind::Chunk)),
        }
        exactly(rest, read, b"\r\n", Kind::Chunk)?;
        let size = usize::from_str_radix(&size, 16).unwrap();
        if size == 0 {
            break;
        }
        let here = size.min(rest.len() - *read);
        body.extend_from_slice(&rest[*read..*read + here]);
        *read += here;
        exactly(rest, read, b"\r\n", Kind::Chunk)?;
    }
    loop {
        // Trailers: `name:value` lines until an empty one.
        if rest.get(*read) == Some(&b'\r') {
            exactly(rest, read, b"\r\n", Kind::Trailer)?;
            return Ok(body);
        }
        let begin = *read;
        while rest.get(*read).is_some_and(|byte| token(&char::from(*byte).to_string())) {
            *read += 1;
        }
        if rest.get(*read).is_some() && *read == begin {
            return Err(Some(Kind::Trailer));
        }
        exactly(rest, read, b":", Kind::Trailer)?;
        while rest.get(*read).is_some_and(|byte| *byte >= b' ' && *byte != 0x7f || *byte == b'\t') {
            *read += 1;
        }
        exactly(rest, read, b"\r\n", Kind::Trailer)?;
    }
}

fn exactly(rest: &[u8], read: &mut usize, expected: &[u8], kind: Kind) -> Result<(), Stop> {
    for byte in expected {
        match rest.get(*read) {
            None => return Err(None),
            Some(found) if found == byte => *read += 1,
            Some(_) => return Err(Some(kind)),
        }
    }
    Ok(())
}

fn host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.to_owned()),
        None => match text.split_once(':') {
            Some((host, port)) => (host, format!(":{port}")),
            None => (text, String::new()),
        },
    };
    let inside = if text.starts_with('[') { ":.%" } else { "-._~" };
    let port =
        port.is_empty() || port.starts_with(':') && port.len() <= 6 && port[1..].chars().all(|c| c.is_ascii_digit());
    !host.is_empty() && port && host.chars().all(|c| c.is_ascii_alphanumeric() || inside.contains(c))
}

fn token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}
