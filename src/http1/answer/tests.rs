//! The reader of answers against hyper's, against damage, and against every way of cutting a stream.
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::ext::ReasonPhrase;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::http1::tests::cases;

/// What is made of an answer.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    status: u16,
    reason: Option<Bytes>,
    headers: Vec<(String, Vec<u8>)>,
    data: Vec<u8>,
    reusable: bool,
    /// Its body is over.
    over: bool,
    /// Bytes behind it.
    behind: usize,
}

/// Why an answer was not taken, or not to its end.
type Wrong = Option<String>;

/// Reads as a connection does: pieces until the head is whole, then the body.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, bodiless: bool) -> (Seen, Wrong) {
    let (mut head, mut seen, mut body) = (Head::default(), Seen::default(), None);
    for piece in pieces {
        let mut bytes = Bytes::copy_from_slice(piece);
        if body.is_none() {
            match head.feed(bytes, bodiless) {
                Ok(None) => continue,
                Ok(Some((answer, behind))) => {
                    assert!(!head.begun(), "nothing of it is held any more");
                    let headers = &answer.head.headers;
                    seen.status = answer.head.status.as_u16();
                    seen.reason = answer.head.extensions.get::<Reason>().map(|reason| reason.0.clone());
                    seen.headers = listed(headers);
                    seen.reusable = answer.reusable;
                    (bytes, body) = (behind, Some(answer.body));
                }
                Err(refused) => return (seen, Some(refused.to_string())),
            }
        }
        let Some(body) = &mut body else { continue };
        let fed = body.feed(&bytes, FIELDS, |data| seen.data.extend_from_slice(&bytes[data]));
        match fed {
            Ok(read) => seen.behind += bytes.len() - read,
            Err(violation) => return (seen, Some(violation.to_string())),
        }
    }
    seen.over = body.is_some_and(|body| body.is_over());
    (seen, None)
}

fn listed(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
}

fn whole(stream: &[u8]) -> (Seen, Wrong) {
    read([stream], false)
}

fn wrong(stream: &[u8]) -> String {
    whole(stream).1.unwrap_or_else(|| panic!("taken: {}", stream.escape_ascii()))
}

#[test]
fn what_follows_a_head_and_whether_there_may_be_another() {
    /// Answer, data, over, reusable, bytes behind.
    type Row = (&'static [u8], &'static [u8], bool, bool, usize);
    let rows: &[Row] = &[
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}", true, true, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", b"{}", false, true, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}", b"{", true, true, 1),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding:CHUNKED \r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"{}", true, true, 0),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", b"{}", false, false, 0),
        (b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\n{}", b"{}", true, false, 0),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}", b"{}", true, false, 0),
        (b"HTTP/1.0 200 OK\r\n\r\n{}", b"{}", false, false, 0),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", b"", true, true, 1),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", b"", true, true, 0),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n", b"", true, true, 0),
    ];
    for (stream, data, over, reusable, behind) in rows {
        let (seen, wrong) = whole(stream);
        let name = stream.escape_ascii();
        assert_eq!(wrong, None, "{name}");
        assert_eq!((seen.over, seen.reusable, seen.behind), (*over, *reusable, *behind), "{name}");
        assert_eq!(seen.data, *data, "{name}");
    }
    let (seen, _) = read([&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"[..]], true);
    assert!(seen.over && seen.reusable, "an answer to HEAD has no body");
}

#[test]
fn a_reason_of_its_own_is_kept() {
    let reason = |line: &str| whole(format!("{line}\r\nContent-Length: 0\r\n\r\n").as_bytes()).0.reason;
    assert_eq!(reason("HTTP/1.1 200 OK"), None);
    assert_eq!(reason("HTTP/1.1 200 Fine by me").unwrap(), "Fine by me");
    assert_eq!(reason("HTTP/1.1 299 Odd").unwrap(), "Odd");
    assert_eq!(reason("HTTP/1.1 200").unwrap(), "");
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    let rows = [
        ("Content-Length: 2\r\nTransfer-Encoding: chunked", "both"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 2", "both"),
        ("Content-Length: 2\r\nContent-Length: 2", "more than one Content-Length"),
        ("Content-Length: 2, 2", "plain number"),
        ("Content-Length: +2", "plain number"),
        ("Content-Length:", "plain number"),
        ("Content-Length: 9223372036854775808", "plain number"),
        ("Transfer-Encoding: gzip, chunked", "single `chunked`"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "single `chunked`"),
        ("Transfer-Encoding: identity", "single `chunked`"),
    ];
    for (fields, word) in rows {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
        let refused = Head::default().feed(Bytes::from(head), false).unwrap_err();
        assert!(matches!(refused, Refused::Unfit(reason) if reason.contains(word)), "{fields}: {refused}");
    }
    assert!(wrong(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").contains("HTTP/1.0"));
    assert!(wrong(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n").contains("switches protocols"));
}

#[test]
fn what_is_no_answer_is_refused() {
    for stream in [
        &b"\x15\x03\x01"[..],
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.2 200 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX A: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\n\r\n",
    ] {
        wrong(stream);
    }
}

#[test]
fn a_head_is_bounded_in_bytes_and_fields() {
    let fields = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: 1\r\n".repeat(count));
    assert_eq!(whole(fields(FIELDS).as_bytes()).0.headers.len(), FIELDS);
    assert!(wrong(fields(FIELDS + 1).as_bytes()).contains("100 fields"));
    let sized = |bytes: usize| format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(bytes - 24));
    assert_eq!(whole(sized(HEAD).as_bytes()).0.status, 200);
    assert!(wrong(sized(HEAD + 1).as_bytes()).contains("64 KiB"));
    // One that never ends is not held for longer, whether or not it has lines.
    for endless in [
        "HTTP/1.1 200 OK\r\nA: ".to_owned() + &"a".repeat(100_000),
        fields(90).replace("\r\n\r\n", "\r\n") + &"x".repeat(100_000),
    ] {
        let (mut head, mut fed) = (Head::default(), 0);
        for piece in endless.as_bytes().chunks(1_000) {
            if head.feed(Bytes::copy_from_slice(piece), false).is_err() {
                break;
            }
            fed += piece.len();
            assert!(fed <= HEAD && head.held.len() <= HEAD);
        }
    }
}

#[test]
fn an_answer_keeps_nothing_but_its_head() {
    let stream = [b"HTTP/1.1 200 OK\r\nX-A: value\r\n\r\n".as_slice(), &[b'x'; 60_000]].concat();
    let read = Bytes::from(stream);
    let (answer, behind) = Head::default().feed(read.clone(), false).unwrap().unwrap();
    drop(behind);
    assert_eq!(answer.head.headers["x-a"], "value");
    assert!(read.try_into_mut().is_ok(), "nobody else holds what was read");
}

fn line() -> impl Strategy<Value = &'static str> {
    let right = prop::sample::select(vec![
        "Content-Length: 5",
        "content-length:\t12 ",
        "Transfer-Encoding: chunked",
        "transfer-encoding:Chunked",
        "Connection: close",
        "Connection: keep-alive, x",
        "Content-Type: text/event-stream; charset=utf-8",
        "X-A: 1",
        "x-a:",
        "X-B: a\tb \u{80}",
    ]);
    let odd = prop::sample::select(vec![
        "Content-Length: 5, 5",
        "Content-Length: 0x5",
        "Transfer-Encoding: gzip, chunked",
        " folded",
        "X-Nul: a\0b",
        "X Y: 1",
        "no colon",
    ]);
    prop_oneof![12 => right, 1 => odd]
}

/// Answers, most of them right, with what follows them.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let first = prop::sample::select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 Fine",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 429",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK",
        "HTTP/1.1 101 Switching Protocols",
        "HTTP/1.2 200 OK",
    ]);
    let body = prop::sample::select(vec![
        "",
        "hello",
        "hello, world",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;x=y\r\nhello\r\nB\r\nhello\r\nworl\r\n0\r\nX: 1\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        "5\nhello\r\n",
        "10000000000000000\r\n",
    ]);
    (first, prop::collection::vec(line(), 0..5), body, any::<bool>()).prop_map(|(first, lines, body, bare)| {
        let end = if bare { "\n" } else { "\r\n" };
        let lines: String = lines.iter().flat_map(|line| [*line, end]).collect();
        format!("{first}\r\n{lines}\r\n{body}").into_bytes()
    })
}

fn pieces<'a>(stream: &'a [u8], cuts: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let (mut rest, mut cuts) = (stream, cuts.iter().cycle());
    std::iter::from_fn(move || {
        let here = cuts.next().map_or(1, |cut| 1 + cut % 40).min(rest.len());
        let (piece, behind) = rest.split_at(here);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// An answer that is right, and how it ends.
#[derive(Debug, Clone)]
struct Right {
    bytes: Vec<u8>,
    to_end: bool,
    bodiless: bool,
}

fn right() -> impl Strategy<Value = Right> {
    let first = prop::sample::select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.1 201",
        "HTTP/1.1 299 Very well",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 500 Internal Server Error",
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK",
    ]);
    let fields = prop::sample::subsequence(
        vec!["X-A: 1", "x-a:", "X-B: a\tb \u{80}", "Connection: close", "Content-Type:text/plain", "Set-Cookie: a"],
        0..=6,
    );
    let body = prop::collection::vec(any::<u8>(), 0..300);
    (first, fields, body, 0..3, 1..100_usize, any::<bool>()).prop_map(|(first, fields, body, kind, chunk, bodiless)| {
        let mut bytes = format!("{first}\r\n").into_bytes();
        for field in fields {
            bytes.extend(format!("{field}\r\n").into_bytes());
        }
        match kind {
            0 => bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes()),
            1 => bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n"),
            _ => bytes.extend(b"\r\n"),
        }
        if !bodiless && !first.contains("204") && !first.contains("304") {
            match kind {
                1 => {
                    for piece in body.chunks(chunk) {
                        bytes.extend(format!("{:x}\r\n", piece.len()).into_bytes());
                        bytes.extend([piece, b"\r\n"].concat());
                    }
                    bytes.extend(b"0\r\n\r\n");
                }
                _ => bytes.extend(body),
            }
        }
        Right { bytes, to_end: kind == 2, bodiless }
    })
}

/// What hyper makes of it.
async fn by_hyper(right: Right) -> Seen {
    let (mut far, near) = duplex(1 << 16);
    let (mut sender, connection) = http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let method = if right.bodiless { "HEAD" } else { "GET" };
    let request = Request::builder().method(method).uri("/").body(Empty::<Bytes>::new()).unwrap();
    let answers = async {
        let mut asked = [0; 1_000];
        assert!(far.read(&mut asked).await.unwrap() > 0);
        far.write_all(&right.bytes).await.unwrap();
        if right.to_end {
            far.shutdown().await.unwrap();
        }
    };
    let (response, ()) = tokio::join!(sender.send_request(request), answers);
    let (head, body) = response.unwrap().into_parts();
    let data = body.collect().await.unwrap().to_bytes();
    Seen {
        status: head.status.as_u16(),
        reason: head.extensions.get::<ReasonPhrase>().map(|reason| Bytes::copy_from_slice(reason.as_bytes())),
        headers: listed(&head.headers),
        data: data.to_vec(),
        // Where the end was told, it is not known whether there would have been another.
        reusable: right.to_end || sender.ready().await.is_ok(),
        over: true,
        behind: 0,
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn cuts_make_no_difference(stream in stream(), cuts in prop::collection::vec(0..60_usize, 1..20)) {
        prop_assert_eq!(read(pieces(&stream, &cuts), false), whole(&stream));
    }

    #[test]
    fn hyper_reads_what_is_right_alike(right in right(), cuts in prop::collection::vec(0..60_usize, 1..20)) {
        let (mut seen, wrong) = read(pieces(&right.bytes, &cuts), right.bodiless);
        prop_assert_eq!(wrong, None);
        prop_assert!(seen.over != (right.to_end && !seen.data.is_empty()) || seen.data.is_empty());
        seen.over = true;
        seen.reusable |= right.to_end;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        prop_assert_eq!(seen, runtime.block_on(by_hyper(right)));
    }

    #[test]
    fn damage_is_refused_or_bounded(
        stream in stream(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..4),
        cuts in prop::collection::vec(0..60_usize, 1..20),
    ) {
        let mut stream = stream;
        for (at, byte, how) in damage {
            let at = at.index(stream.len());
            match how {
                0 => stream[at] = byte,
                1 => stream.insert(at, byte),
                2 => drop(stream.remove(at)),
                _ => stream.truncate(at + 2),
            }
        }
        let (seen, wrong) = read(pieces(&stream, &cuts), false);
        prop_assert!(seen.data.len() + seen.behind <= stream.len());
        prop_assert_eq!((seen, wrong), whole(&stream));
    }
}
