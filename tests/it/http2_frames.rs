//! HTTP/2 frames that no honest client sends: each ends its own connection or stream, costs little, and harms no other.
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PROTOCOL_ERROR: u32 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;
const MIB: u64 = 1 << 20;

/// Frames as received.
#[derive(Default, Debug)]
struct Got {
    /// Kind, stream, payload.
    frames: Vec<(u8, u32, Vec<u8>)>,
}

impl Got {
    fn parse(mut bytes: &[u8]) -> Self {
        let mut got = Self::default();
        while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = rest.get(..length) else { break };
            got.frames.push((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload.to_vec()));
            bytes = &rest[length..];
        }
        got
    }

    fn first(&self, kind: u8) -> Option<&(u8, u32, Vec<u8>)> {
        self.frames.iter().find(|frame| frame.0 == kind)
    }

    /// The error code of GOAWAY.
    fn goaway(&self) -> Option<u32> {
        self.first(GOAWAY).map(|(_, _, payload)| u32::from_be_bytes(payload[4..8].try_into().unwrap()))
    }

    /// The stream and error code of the first RST_STREAM.
    fn reset(&self) -> Option<(u32, u32)> {
        self.first(RST_STREAM)
            .map(|(_, stream, payload)| (*stream, u32::from_be_bytes(payload[..].try_into().unwrap())))
    }
}

async fn start() -> (Upstream, Proxy) {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    (upstream, proxy)
}

/// Sends `frames` after the preface for as long as they are taken; what came back, and whether the connection ended.
async fn play(proxy: &Proxy, frames: impl Iterator<Item = Vec<u8>>) -> Got {
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let reader = tokio::spawn(async move {
        let mut all = Vec::new();
        // A reset after what was said is an end too.
        let _ = read.read_to_end(&mut all).await;
        all
    });
    let mut taken = write.write_all(&[preface(), frame(SETTINGS, 1, 0, &[])].concat()).await;
    for frame in frames {
        if taken.is_err() {
            break;
        }
        taken = write.write_all(&frame).await;
    }
    let all = within("the connection ends", ENDS, reader).await.unwrap();
    drop(write);
    Got::parse(&all)
}

/// Frames of one bad request, then a good one on the same connection: what came back once the good one was answered.
async fn then_good(proxy: &Proxy, bad: Vec<u8>) -> Got {
    then_good_and(proxy, bad, |_| true).await
}

/// The same, and something more that must come: streams are answered in any order.
async fn then_good_and(proxy: &Proxy, bad: Vec<u8>, more: impl Fn(&Got) -> bool) -> Got {
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let good = frame(HEADERS, END_HEADERS | END_STREAM, 3, &request_block("GET", "/v1/models", &[]));
    stream.write_all(&[preface(), frame(SETTINGS, 1, 0, &[]), bad, good].concat()).await.unwrap();
    let mut all = Vec::new();
    within("an answer to the good request", PATIENCE, async {
        loop {
            let got = Got::parse(&all);
            let good = got.frames.iter().any(|(kind, stream, _)| *kind == DATA && *stream == 3);
            if good && more(&got) || got.goaway().is_some() {
                return got;
            }
            assert!(stream.read_buf(&mut all).await.unwrap() > 0, "ended: {got:?}");
        }
    })
    .await
}

/// How a header block with this status begins: `:status` from the static table, digits in Huffman's code (RFC 7541).
fn status(code: u32) -> Vec<u8> {
    let mut bits = String::new();
    for digit in code.to_string().bytes().map(|digit| digit - b'0') {
        bits += &if digit < 3 { format!("{digit:05b}") } else { format!("{:06b}", 0b011001 + digit - 3) };
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    let bytes =
        bits.as_bytes().chunks(8).map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap());
    [0x48, 0x80 | u8::try_from(bits.len() / 8).unwrap()].into_iter().chain(bytes).collect()
}

/// The router still serves others, and holds no more than a little memory for what happened.
async fn unharmed(proxy: &Proxy, before: u64) {
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    let mut http2 = Http2::connect(proxy.address()).await;
    assert_eq!(http2.exchange(&chat(false, 1)).await.0.status, 200);
    let after = proxy.process.resident();
    assert!(after < before + 32 * MIB, "{} MiB before, {} after", before / MIB, after / MIB);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rapid_reset_cve_2023_44487() {
    let (_upstream, proxy) = start().await;
    let before = proxy.process.resident();
    let ticks = proxy.process.cpu();
    let block = request_block("POST", "/v1/chat/completions", &[]);
    let got = play(
        &proxy,
        (0..20_000).map(|i| {
            let stream = 2 * i + 1;
            [frame(HEADERS, END_HEADERS, stream, &block), frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
        }),
    )
    .await;
    assert_eq!(got.goaway().unwrap_or(ENHANCE_YOUR_CALM), ENHANCE_YOUR_CALM, "{got:?}");
    let spent = proxy.process.cpu() - ticks;
    assert!(spent < Duration::from_secs(2), "{spent:?} of CPU");
    unharmed(&proxy, before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn made_you_reset_cve_2025_8671() {
    let (_upstream, proxy) = start().await;
    let before = proxy.process.resident();
    let block = request_block("POST", "/v1/chat/completions", &[]);
    // A window that would overflow makes the server reset the stream (RFC 9113, section 6.9.1).
    let got = play(
        &proxy,
        (0..20_000).map(|i| {
            let stream = 2 * i + 1;
            [
                frame(HEADERS, END_HEADERS, stream, &block),
                frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffffu32.to_be_bytes()),
            ]
            .concat()
        }),
    )
    .await;
    assert_eq!(got.goaway().unwrap_or(ENHANCE_YOUR_CALM), ENHANCE_YOUR_CALM);
    let resets = got.frames.iter().filter(|frame| frame.0 == RST_STREAM).count();
    assert!(resets < 2_000, "{resets} streams were reset for the client's errors before it was ended");
    unharmed(&proxy, before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn continuation_flood_cve_2024_27316() {
    let (_upstream, proxy) = start().await;
    let before = proxy.process.resident();
    let first = frame(HEADERS, 0, 1, &request_block("GET", "/v1/models", &[]));
    let filler = request_block("GET", "/", &[("x-fill", &"a".repeat(8_000))]);
    let flood = (0..20_000).map(|_| frame(CONTINUATION, 0, 1, &filler));
    let got = play(&proxy, std::iter::once(first).chain(flood)).await;
    assert!(got.goaway().is_none_or(|code| code == ENHANCE_YOUR_CALM || code == PROTOCOL_ERROR), "{:?}", got.goaway());
    unharmed(&proxy, before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_header_list_is_431_and_the_connection_stays() {
    let (upstream, proxy) = start().await;
    let value = "a".repeat(7_000);
    let fields: Vec<(String, &str)> = (0..10).map(|i| (format!("x-big-{i}"), value.as_str())).collect();
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let block = request_block("GET", "/v1/models", &fields);
    assert!(block.len() > 64 << 10);
    let mut pieces = block.chunks(16_384).peekable();
    let mut bad = frame(HEADERS, END_STREAM, 1, pieces.next().unwrap());
    while let Some(piece) = pieces.next() {
        bad.extend(frame(CONTINUATION, if pieces.peek().is_none() { END_HEADERS } else { 0 }, 1, piece));
    }
    let got = then_good(&proxy, bad).await;
    assert_eq!(got.goaway(), None);
    let (_, _, block) = got.frames.iter().find(|frame| frame.0 == HEADERS && frame.1 == 1).expect("an answer");
    assert!(block.starts_with(&status(431)), "{block:02x?}");
    assert!(upstream.seen("/v1/models").len() <= 1, "the bad request was not asked on");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_reset_their_stream_only() {
    let (upstream, proxy) = start().await;
    for fields in [
        [("connection", "close")],
        [("transfer-encoding", "chunked")],
        [("keep-alive", "1")],
        [("upgrade", "h2c")],
        [("te", "gzip")],
        [("X-Upper", "1")],
        [("x-line", "a\r\nx-injected: 1")],
        [("x-nul", "a\0b")],
        [(":path", "/v1/other")],
        [("x-space ", "1")],
    ] {
        let block = request_block("GET", "/v1/models", &fields);
        let got = then_good(&proxy, frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)).await;
        // A block that can't be decoded at all may end the connection: the tables would differ.
        assert!(
            got.reset() == Some((1, PROTOCOL_ERROR)) || got.goaway() == Some(PROTOCOL_ERROR),
            "{fields:?}: {got:?}"
        );
    }
    assert!(upstream.seen("/v1/models").iter().all(|seen| seen.head.get("x-injected").is_none()));
}

// What HTTP/1.1's guard refuses in a target and a host, an engine must not see because a client spoke HTTP/2.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_beyond_ascii_and_an_authority_that_is_no_host_are_400() {
    let (upstream, proxy) = start().await;
    let block = |path: &str, (name, host): (&str, &str)| {
        let mut block = Vec::new();
        for (name, value) in [(":method", "GET"), (":scheme", "http"), (":path", path), (name, host)] {
            block.extend([0, u8::try_from(name.len()).unwrap()]);
            block.extend(name.as_bytes());
            block.push(u8::try_from(value.len()).unwrap());
            block.extend(value.as_bytes());
        }
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)
    };
    for (path, host) in [
        ("/v1/models?\u{ff}", (":authority", "x")),
        ("/v1/models", (":authority", "x,y")),
        ("/v1/models", (":authority", "user@x")),
        ("/v1/models", ("host", "x y/..?")),
    ] {
        let is_answer = |frame: &(u8, u32, Vec<u8>)| frame.0 == HEADERS && frame.1 == 1;
        let got = then_good_and(&proxy, block(path, host), |got| got.frames.iter().any(is_answer)).await;
        let answer = got.frames.iter().find(|frame| is_answer(frame)).expect("an answer");
        // 400 stands in the static table.
        assert_eq!(answer.2[0], 0x80 | 12, "{path} {host:?}: {answer:02x?}");
    }
    assert!(upstream.seen("/v1/models?\u{ff}").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_as_long_as_it_says_reaches_nobody() {
    let (upstream, proxy) = start().await;
    let body = chat(false, 1).body;
    for says in ["3", "9000"] {
        let fields = [("content-type", "application/json"), ("content-length", says)];
        let block = request_block("POST", "/v1/chat/completions", &fields);
        let bad = [frame(HEADERS, END_HEADERS, 1, &block), frame(DATA, END_STREAM, 1, &body)].concat();
        let got = then_good(&proxy, bad).await;
        assert_eq!(got.reset(), Some((1, PROTOCOL_ERROR)), "{got:?}");
    }
    proxy.load_is_zero().await;
    assert!(upstream.seen("/v1/chat/completions").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preface_and_then_nothing_or_half_a_header_block_ends_by_the_head_timer() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { head: 400ms }");
    let proxy = Proxy::start(&config).await;
    let half = frame(HEADERS, 0, 1, &request_block("GET", "/v1/models", &[]));
    for begun in [preface()[..24].to_vec(), preface(), [preface(), half].concat()] {
        let start = std::time::Instant::now();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(&begun).await.unwrap();
        let mut all = Vec::new();
        let _ = within("the connection ends", ENDS, stream.read_to_end(&mut all)).await;
        assert!(start.elapsed() >= Duration::from_millis(380), "after {:?}", start.elapsed());
    }
    assert_eq!(proxy.metric("warmroute_client_timeouts_total{timer=\"head\"}").await, 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_and_a_half_preface() {
    let (_upstream, proxy) = start().await;
    let mut block = Vec::new();
    for (name, value) in [(":method", "CONNECT"), (":authority", "example.com:443")] {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    let answer = |got: &Got| got.frames.iter().find(|frame| frame.0 == HEADERS && frame.1 == 1).cloned();
    let got = then_good_and(&proxy, frame(HEADERS, END_HEADERS, 1, &block), |got| answer(got).is_some()).await;
    let answer = answer(&got).expect("an answer");
    assert!(answer.2.starts_with(&status(405)), "{answer:02x?}");

    // What begins like the preface and is something else is HTTP/1.1, and no request of it.
    let mut client = proxy.client().await;
    client.send_raw(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n").await.unwrap();
    let head = within("an answer or an end", PATIENCE, client.try_head()).await;
    assert!(head.is_none_or(|head| head.status() >= 400));
}
