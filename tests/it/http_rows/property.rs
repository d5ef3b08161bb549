//! Whatever clients send, engines get exactly one request for each that is right.
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config as Settings, RngAlgorithm, TestRng, TestRunner};

use super::*;

const ROUNDS: usize = 150;

/// Bodies that look like requests, so that a framing fault would show.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let smuggled = good();
    prop_oneof![
        Just(Vec::new()),
        Just(smuggled.clone().into_bytes()),
        Just(format!("0\r\n\r\n{smuggled}").into_bytes()),
        Just(format!("\r\n\r\n{smuggled}").into_bytes()),
        prop::collection::vec(any::<u8>(), 1..300),
    ]
}

fn lines() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "Connection: Content-Length\r\n",
        "Connection: Transfer-Encoding, Host, keep-alive\r\n",
        "Connection: Upgrade\r\nUpgrade: h2c\r\n",
        "TE: trailers, chunked\r\n",
        "Expect: 100-continue\r\n",
        "Content_Length: 7\r\n",
        "Transfer_Encoding: chunked\r\n",
        "X-Content-Length: 7\r\n",
        "Proxy-Connection: keep-alive\r\n",
        "Trailer: Content-Length\r\n",
        "X-A: a\tb\r\nX-A: c\r\n",
    ]);
    prop::collection::vec(line, 0..4).prop_map(|lines| lines.concat())
}

/// One request's bytes, and its body.
fn request() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    (body(), lines(), any::<bool>(), 1..60_usize).prop_map(|(body, lines, chunks, size)| {
        if !chunks {
            let head = post(&format!("{lines}Content-Length: {}\r\n", body.len()), "");
            return ([head.as_bytes(), &body].concat(), body);
        }
        let mut bytes = post(&format!("{lines}Transfer-Encoding: chunked\r\n"), "").into_bytes();
        for (n, chunk) in body.chunks(size).enumerate() {
            let extension = ["", ";a", ";b=\"c\""][n % 3];
            bytes.extend_from_slice(format!("{:X}{extension}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(if size % 2 == 0 {
            b"0\r\n\r\n"
        } else {
            b"00\r\nContent-Length: 9\r\nHost: x\r\n\r\n"
        });
        (bytes, body)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_reaches_the_engine_exactly_once_as_one() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::any().at(upstream.address()))).await;
    // Fixed, so that a failure comes again; what failed is printed.
    let mut runner = TestRunner::new_with_rng(Settings::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let case = (prop::collection::vec(request(), 1..6), prop::collection::vec(1..400_usize, 1..8));
    for round in 0..ROUNDS {
        let (requests, cuts) = case.new_tree(&mut runner).unwrap().current();
        let before = upstream.all().len();
        let bytes: Vec<u8> = requests.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let shown = || format!("round {round}: {}", String::from_utf8_lossy(&bytes));
        let mut client = proxy.client().await;
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            let here = (*cut).min(rest.len());
            client.send_raw(&rest[..here]).await.unwrap();
            rest = &rest[here..];
            if rest.is_empty() {
                break;
            }
            tokio::task::yield_now().await;
        }
        for _ in &requests {
            assert_eq!(client.head().await.status(), 200, "{}", shown());
            assert_eq!(client.rest().await, b"{}", "{}", shown());
        }
        let seen = upstream.all().split_off(before);
        assert_eq!(seen.len(), requests.len(), "{}", shown());
        for (seen, (_, body)) in seen.iter().zip(&requests) {
            assert_eq!(seen.head.start, format!("POST {CHAT} HTTP/1.1"), "{}", shown());
            assert_eq!(&seen.body, body, "{}", shown());
            let framing = seen.head.all("content-length").len() + seen.head.all("transfer-encoding").len();
            assert_eq!((framing, seen.head.all("host").len()), (1, 1), "{:?} {}", seen.head, shown());
        }
    }
}
