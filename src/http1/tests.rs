//! The reader of requests against a naive model, against hyper, and against every way of cutting a stream.
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;

use super::naive::{Seen, model};
use super::*;

/// Small, so that limits are met.
pub(super) const BOUNDS: Bounds = Bounds { head: 400, fields: 8, target: 60 };

/// As many as usual, or as `PROPTEST_CASES` asks for: a long run is the fuzzing.
pub(super) fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(usual), failure_persistence: None, ..Default::default() }
}

/// Reads one connection's requests, as a server does that holds what has not been read yet.
struct Reader {
    bounds: Bounds,
    head: Head,
    /// Of the request whose head is whole.
    open: Option<(Seen, Body)>,
    held: Vec<u8>,
    heads: u64,
    requests: Vec<Seen>,
    violation: Option<Violation>,
}

impl Reader {
    fn new(bounds: Bounds) -> Self {
        let (head, held, requests) = (Head::default(), Vec::new(), Vec::new());
        Self { bounds, head, open: None, held, heads: 0, requests, violation: None }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        while self.violation.is_none() {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(violation) => self.violation = Some(violation),
            }
        }
        let held = if self.open.is_some() || self.violation.is_some() { 0 } else { self.bounds.head };
        assert!(self.violation.is_some() || self.held.len() <= held, "only the begin of a head is held");
    }

    fn step(&mut self) -> Result<bool, Violation> {
        let Some((seen, body)) = &mut self.open else {
            let Some(length) = self.head.feed(&self.held, &self.bounds)? else { return Ok(false) };
            let bytes = Bytes::from(self.held.clone());
            let Request { head, body, .. } = std::mem::take(&mut self.head).finish(&bytes)?;
            self.heads += 1;
            self.held.drain(..length);
            self.open = Some(((head.method.to_string(), head.uri.to_string(), Vec::new()), body));
            return Ok(true);
        };
        if !body.is_over() {
            let held = std::mem::take(&mut self.held);
            let read = body.feed(&held, self.bounds.fields, |data| seen.2.extend_from_slice(&held[data]))?;
            self.held = held[read..].to_vec();
        }
        if !body.is_over() {
            return Ok(false);
        }
        self.requests.extend(self.open.take().map(|(seen, _)| seen));
        Ok(true)
    }
}

/// What is made of a stream: heads, whole requests, violation.
type Verdict = (u64, Vec<Seen>, Option<Kind>);

fn cut(stream: &[u8], cuts: &[usize]) -> Verdict {
    let (mut reader, mut cuts) = (Reader::new(BOUNDS), cuts.iter().cycle());
    let mut rest = stream;
    while !rest.is_empty() && reader.violation.is_none() {
        let here = cuts.next().map_or(1, |cut| 1 + cut % 40).min(rest.len());
        reader.feed(&rest[..here]);
        rest = &rest[here..];
    }
    (reader.heads, reader.requests, reader.violation.map(|violation| violation.kind))
}

fn whole(stream: &[u8]) -> Verdict {
    let mut reader = Reader::new(BOUNDS);
    reader.feed(stream);
    (reader.heads, reader.requests, reader.violation.map(|violation| violation.kind))
}

/// What is wrong with a stream, within other bounds.
fn verdict(bounds: Bounds, stream: &[u8]) -> Option<Kind> {
    let mut reader = Reader::new(bounds);
    reader.feed(stream);
    reader.violation.map(|violation| violation.kind)
}

/// Header lines, right and wrong.
fn line() -> impl Strategy<Value = String> {
    let right = prop::sample::select(vec![
        "Content-Length: 5",
        "Content-Length: 5",
        "content-length: 0",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked",
        "transfer-encoding:\tChunked ",
        "Transfer-Encoding: gzip, chunked",
        "Transfer_Encoding: chunked",
        "Expect: 100-continue",
        "X-A: 1",
        "X-B: a\tb \u{80}",
        "X-Long: LONG",
    ]);
    let wrong = prop::sample::select(vec![
        "Host: u@a",
        "Host: a b",
        "Host:",
        "HOST: [::1]:8080",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: -1",
        "Content-Length:",
        "Content-Length: 18446744073709551621",
        "Content-Length: 9223372036854775808",
        "Content-Length : 5",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: ,chunked",
        "Transfer-Encoding: chun\u{b}ked",
        " folded",
        "X-Nul: a\0b",
        "X-Cr: a\rb",
        "X Y: 1",
        ": 1",
        "no colon",
    ]);
    prop_oneof![9 => right, 1 => wrong].prop_map(|line| line.replace("LONG", &"a".repeat(180)))
}

fn first_line() -> impl Strategy<Value = String> {
    let method = prop::sample::select(vec!["GET", "POST", "M-SEARCH", "CONNECT", "OPTIONS", "", "G T", "P\tT"]);
    let target = prop::sample::select(vec![
        "/",
        "/v1/chat/completions?a=b",
        "//a",
        "*",
        "a:80",
        "http://a/b",
        "HTTP://a:1",
        "http://u@a/",
        "ftp://a/",
        "/a b",
        "/#a",
        "",
        "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ]);
    let version = prop::sample::select(vec!["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.11", "http/1.1", ""]);
    let right = Just("POST /v1/chat/completions HTTP/1.1".to_owned());
    prop_oneof![9 => right, 1 => (method, target, version).prop_map(|(m, t, v)| format!("{m} {t} {v}"))]
}

fn body() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "hello",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;a=b\r\nhello\r\n00\r\nX-T: 1\r\n\r\n",
        "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\n",
        "5;a\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello",
        "ffffffffffffffff\r\nhello",
        "5\r\nhello!\r\n0\r\n\r\n",
        "0\r\nbad trailer\r\n\r\n",
        "0\r\nX: a\0\r\n\r\n",
    ])
}

/// One request: mostly right in one of the usual ways, else anything.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let latin = |text: String| -> Vec<u8> { text.chars().map(|c| c as u8).collect() };
    let right = prop::sample::select(vec![
        "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n5;x=\"y\"\r\nhello\r\n0\r\nA: b\r\n\r\n",
        "\r\nPOST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ]);
    let end = prop_oneof![30 => Just("\r\n"), 1 => Just("\n")];
    let any = (first_line(), prop::collection::vec((line(), end), 0..5), body()).prop_map(|(first, lines, body)| {
        let mut text = format!("{first}\r\n");
        if lines.len() < 4 {
            text += "Host: a\r\n";
        }
        for (line, end) in lines {
            text += &line;
            text += end;
        }
        text + "\r\n" + body
    });
    prop_oneof![right.prop_map(|text| text.as_bytes().to_vec()), any.prop_map(latin)]
}

/// A connection's bytes; sometimes with one byte put in, changed or taken out.
pub(super) fn stream() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop::sample::select(vec![b'\r', b'\n', b' ', b'\t', b'0', b':', b';', b',', 0, b'a', 0x7f, 0xff]);
    let change = (any::<prop::sample::Index>(), byte, 0..3_u8);
    (prop::collection::vec(request(), 1..5), prop::option::weighted(0.4, change)).prop_map(|(requests, change)| {
        let mut stream = requests.concat();
        if let Some((at, byte, how)) = change {
            let at = at.index(stream.len());
            match how {
                0 => stream.insert(at, byte),
                1 => stream[at] = byte,
                _ => drop(stream.remove(at)),
            }
        }
        stream
    })
}

/// The requests that hyper makes of a stream.
fn by_hyper(stream: &[u8]) -> Vec<Seen> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let served: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let service = service_fn(|request: http::Request<Incoming>| {
            let served = served.clone();
            async move {
                let (head, body) = request.into_parts();
                if let Ok(body) = body.collect().await {
                    let seen = (head.method.to_string(), head.uri.to_string(), body.to_bytes().to_vec());
                    served.lock().unwrap().push(seen);
                }
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        let connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_headers(BOUNDS.fields)
            .serve_connection(TokioIo::new(ours), service);
        theirs.write_all(stream).await.unwrap();
        tokio::select! {
            _ = connection => {}
            // Nothing here waits for anything but the other half, so a few turns bring both to rest.
            () = async { for _ in 0..200 { tokio::task::yield_now().await } } => {}
        }
        served.lock().unwrap().clone()
    })
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn every_way_of_cutting_gives_the_same_verdict(stream in stream(), cuts in prop::collection::vec(0..60_usize, 1..20)) {
        prop_assert_eq!(whole(&stream), cut(&stream, &cuts));
        prop_assert_eq!(whole(&stream), cut(&stream, &[0]));
    }

    #[test]
    fn it_agrees_with_a_naive_model(stream in stream()) {
        let model = model(&stream, &BOUNDS);
        prop_assert_eq!(whole(&stream), (model.heads, model.requests, model.violation));
    }

    #[test]
    fn any_bytes_are_survived(stream in prop::collection::vec(any::<u8>(), 0..600), cuts in prop::collection::vec(0..60_usize, 1..9)) {
        prop_assert_eq!(whole(&stream), cut(&stream, &cuts));
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn hyper_reads_what_is_right_alike(stream in stream()) {
        let model = model(&stream, &BOUNDS);
        if model.violation.is_some() {
            return Ok(());
        }
        let served = by_hyper(&stream);
        // It ends a connection of HTTP/1.0, and after CONNECT, by itself.
        if model.old || model.requests.iter().any(|seen| seen.0 == "CONNECT") {
            prop_assert_eq!(&served[..], &model.requests[..served.len()]);
        } else {
            prop_assert_eq!(&served, &model.requests);
        }
    }
}

#[test]
fn limits_hold_to_the_byte() {
    let bounds = Bounds { head: 65_536, fields: 100, target: 16_384 };
    let verdict = |stream: &[u8]| verdict(bounds, stream);
    let target = |length: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(length - 1)).into_bytes();
    assert_eq!(verdict(&target(16_384)), None);
    assert_eq!(verdict(&target(16_385)), Some(Kind::TargetTooLong));
    let fields = |n: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: 1\r\n".repeat(n - 1)).into_bytes();
    assert_eq!(verdict(&fields(100)), None);
    assert_eq!(verdict(&fields(101)), Some(Kind::HeadTooLarge));
    let frame = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n".len();
    let head = |n: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(n - frame)).into_bytes();
    assert_eq!(verdict(&head(65_536)), None);
    assert_eq!(verdict(&head(65_537)), Some(Kind::HeadTooLarge));
}

#[test]
fn what_is_held_stays_within_the_head() {
    // An endless line is refused as soon as it is too long, not when it ends.
    let mut head = Head::default();
    let stream = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(1_000));
    let refused = (1..stream.len()).find(|length| head.feed(&stream.as_bytes()[..*length], &BOUNDS).is_err());
    assert_eq!(refused, Some(BOUNDS.head + 1));
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let bounds = Bounds { head: 65_536, fields: 3, target: 100 };
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let verdict = |body: &str| verdict(bounds, format!("{head}{body}").as_bytes());
    // In one chunk, and a little in each of many.
    assert_eq!(verdict(&format!("1;{}", "a".repeat(4_096))), None);
    assert_eq!(verdict(&format!("1;{}", "a".repeat(4_097))), Some(Kind::Chunk));
    assert_eq!(verdict(&"1;aaaa\r\nx\r\n".repeat(1_024)), None);
    assert_eq!(verdict(&"1;aaaa\r\nx\r\n".repeat(1_025)), Some(Kind::Chunk));
    assert_eq!(verdict(&format!("0\r\n{}", "a: b\r\n".repeat(3))), None);
    assert_eq!(verdict(&format!("0\r\n{}", "a: b\r\n".repeat(4))), Some(Kind::HeadTooLarge));
    assert_eq!(verdict(&format!("0\r\na: {}", "a".repeat(9_000))), Some(Kind::HeadTooLarge));
}

#[test]
fn the_generated_streams_meet_every_verdict() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut met = std::collections::HashMap::<_, u32>::new();
    let mut several = 0;
    for _ in 0..6_000 {
        let (heads, _, kind) = whole(&stream().new_tree(&mut runner).unwrap().current());
        *met.entry(kind).or_default() += 1;
        several += u32::from(heads > 1);
    }
    assert_eq!(met.len(), 13, "twelve kinds, and none: {met:?}");
    assert!(several > 1_000 && met[&None] > 1_000, "{several} of several requests; {met:?}");
}

#[test]
fn sizes_and_lengths_are_written_as_they_are_read() {
    for size in [1_usize, 9, 10, 15, 16, 255, 256, 4_096, 65_535, 1 << 20, usize::MAX >> 1] {
        let mut text = Vec::new();
        write::chunk_size(&mut text, size);
        assert_eq!(text, format!("{size:x}\r\n").into_bytes());
        text.clear();
        write::length(&mut text, size as u64);
        assert_eq!(text, format!("content-length: {size}\r\n").into_bytes());
    }
    let mut text = Vec::new();
    write::length(&mut text, 0);
    assert_eq!(text, b"content-length: 0\r\n");
}
