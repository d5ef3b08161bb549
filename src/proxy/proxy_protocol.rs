//! The PROXY protocol (haproxy.org's specification, versions 1 and 2), received: who the client behind a load
//! balancer is.
//!
//! Strict: what is not exactly a header is an error. Optional fields of version 2 (TLVs) are skipped unread.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Longest line of version 1, its end included (section 2.1).
const MAX_LINE: usize = 107;
/// Most that a version 2 header may announce after its 16 fixed bytes; addresses take 36, the rest is optional.
const MAX_V2: usize = 4_096;

/// What a look at the first bytes gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// A header may still come of it.
    Incomplete,
    /// A header of so many bytes; `None` when it names no client (a health check of the balancer's own).
    Header(usize, Option<SocketAddr>),
    /// No header, and none can come of it.
    Invalid,
}

/// Looks for a header at the beginning of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(a, b)| a == b);
    if begins(SIGNATURE) {
        v2(bytes)
    } else if begins(b"PROXY ") {
        v1(bytes)
    } else {
        Parsed::Invalid
    }
}

fn v1(bytes: &[u8]) -> Parsed {
    let window = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = memchr::memmem::find(window, b"\r\n") else {
        return if bytes.len() < MAX_LINE { Parsed::Incomplete } else { Parsed::Invalid };
    };
    match std::str::from_utf8(&window[..end]).ok().and_then(line) {
        Some(client) => Parsed::Header(end + 2, client),
        None => Parsed::Invalid,
    }
}

/// The client a line names; the outer `None` when it is none.
fn line(text: &str) -> Option<Option<SocketAddr>> {
    let rest = text.strip_prefix("PROXY ")?;
    if rest == "UNKNOWN" || rest.starts_with("UNKNOWN ") {
        return Some(None);
    }
    let mut words = rest.split(' ');
    let family = words.next()?;
    let address = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| port.to_string() == text);
    let (source, _) = (address(words.next()?)?, address(words.next()?)?);
    let (source_port, _) = (port(words.next()?)?, port(words.next()?)?);
    words.next().is_none().then_some(Some(SocketAddr::new(source, source_port)))
}

fn v2(bytes: &[u8]) -> Parsed {
    let Some((head, rest)) = bytes.split_first_chunk::<16>() else { return Parsed::Incomplete };
    let [.., version_command, family, high, low] = *head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_V2 {
        return Parsed::Invalid;
    }
    // Version 2, command LOCAL (0) or PROXY (1).
    let local = match version_command {
        0x20 => true,
        0x21 => false,
        _ => return Parsed::Invalid,
    };
    let Some(body) = rest.get(..length) else { return Parsed::Incomplete };
    // Family in the high half (0 unspecified, 1 IPv4, 2 IPv6, 3 UNIX), transport in the low one (1 stream).
    let client = match family {
        _ if local => None,
        0x00 | 0x31 => None,
        0x11 => match body {
            [a, b, c, d, _, _, _, _, high, low, _, _, ..] => {
                let port = u16::from_be_bytes([*high, *low]);
                Some(SocketAddr::new(Ipv4Addr::new(*a, *b, *c, *d).into(), port))
            }
            _ => return Parsed::Invalid,
        },
        0x21 => match (body.first_chunk::<16>(), body.get(32..36)) {
            (Some(source), Some([high, low, _, _])) => {
                Some(SocketAddr::new(Ipv6Addr::from(*source).into(), u16::from_be_bytes([*high, *low])))
            }
            _ => return Parsed::Invalid,
        },
        _ => return Parsed::Invalid,
    };
    Parsed::Header(16 + length, client)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v2_header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn version_1() {
        let client = |text: &str| match parse(text.as_bytes()) {
            Parsed::Header(length, client) => (length, client.map(|client| client.to_string())),
            other => panic!("{text:?}: {other:?}"),
        };
        let line = "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n";
        assert_eq!(client(&format!("{line}GET / HTTP/1.1")), (line.len(), Some("192.0.2.1:56324".into())));
        assert_eq!(client("PROXY TCP6 2001:db8::1 ::1 1 2\r\n").1, Some("[2001:db8::1]:1".into()));
        assert_eq!(client("PROXY UNKNOWN\r\n").1, None);
        assert_eq!(client("PROXY UNKNOWN what ever\r\n").1, None);
        for bad in [
            "GET / HTTP/1.1\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 56324\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443 9\r\n",
            "PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1  198.51.100.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 01 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 65536 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 1 2\nX\r\n",
            "PROXY UDP4 192.0.2.1 198.51.100.2 1 2\r\n",
            "proxy TCP4 192.0.2.1 198.51.100.2 1 2\r\n",
        ] {
            assert_eq!(parse(bad.as_bytes()), Parsed::Invalid, "{bad:?}");
        }
        assert_eq!(parse(&[b"PROXY ".as_slice(), &[b'x'; 101]].concat()), Parsed::Invalid, "no end in 107 bytes");
    }

    #[test]
    fn version_2() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb];
        let header = v2_header(0x21, 0x11, &[v4.as_slice(), b"\x03\0\x01x"].concat());
        assert_eq!(parse(&header), Parsed::Header(header.len(), Some("192.0.2.1:56324".parse().unwrap())));
        let mut v6 = [0; 36];
        v6[..16].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        v6[33] = 9;
        let header = v2_header(0x21, 0x21, &v6);
        assert_eq!(parse(&header), Parsed::Header(52, Some("[2001:db8::1]:9".parse().unwrap())));
        for (command, family) in [(0x20, 0x00), (0x20, 0x11), (0x21, 0x00), (0x21, 0x31)] {
            assert_eq!(parse(&v2_header(command, family, &v4)), Parsed::Header(28, None));
        }
        for (command, family, body) in [
            (0x11, 0x11, v4.as_slice()),
            (0x22, 0x11, &v4),
            (0x21, 0x12, &v4),
            (0x21, 0x41, &v4),
            (0x21, 0x11, &v4[..11]),
            (0x21, 0x21, &v6[..35]),
            (0x21, 0x11, &[0; MAX_V2 + 1]),
        ] {
            assert_eq!(parse(&v2_header(command, family, body)), Parsed::Invalid);
        }
    }

    proptest! {
        #[test]
        fn a_header_is_found_whole_and_no_earlier(a in any::<SocketAddr>(), port in any::<u16>(), rest in any::<Vec<u8>>()) {
            let (family, other) = if a.is_ipv4() { ("TCP4", "127.0.0.1") } else { ("TCP6", "::1") };
            let line = format!("PROXY {family} {} {other} {} {port}\r\n", a.ip(), a.port()).into_bytes();
            let body: Vec<u8> = match a.ip() {
                IpAddr::V4(ip) => [ip.octets().as_slice(), &[0; 4]].concat(),
                IpAddr::V6(ip) => [ip.octets().as_slice(), &[0; 16]].concat(),
            };
            let body = [body, a.port().to_be_bytes().to_vec(), port.to_be_bytes().to_vec()].concat();
            let binary = v2_header(0x21, if a.is_ipv4() { 0x11 } else { 0x21 }, &body);
            for header in [line, binary] {
                for end in 0..header.len() {
                    prop_assert_eq!(parse(&header[..end]), Parsed::Incomplete);
                }
                let client = SocketAddr::new(a.ip(), a.port());
                prop_assert_eq!(parse(&[header.as_slice(), &rest].concat()), Parsed::Header(header.len(), Some(client)));
            }
        }

        #[test]
        fn bytes_never_panic_and_longer_input_only_decides(bytes in any::<Vec<u8>>(), v2 in any::<bool>()) {
            let bytes = [if v2 { SIGNATURE.as_slice() } else { b"PROXY " }, &bytes].concat();
            let whole = parse(&bytes);
            for end in 0..bytes.len() {
                let part = parse(&bytes[..end]);
                prop_assert!(part == Parsed::Incomplete || part == whole, "{:?} then {:?}", part, whole);
            }
        }
    }
}
