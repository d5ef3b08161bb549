//! Guarantee 1: body bytes are relayed, not rewritten, event by event, as they arrive.
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::support::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Sizes at which buffers, chunk framing and limits could show.
const LADDER: &[usize] = &[KIB, 16 * KIB - 1, 64 * KIB + 1, MIB, 8 * MIB + 3, 64 * MIB];

fn config(upstream: &Upstream) -> Config {
    Config::new(Pool::model("m").at(upstream.address()))
}

#[tokio::test(flavor = "multi_thread")]
async fn request_bodies_reach_the_engine_unchanged_up_to_the_limit() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    for (turn, &size) in LADDER.iter().enumerate() {
        let request = sized_chat(size, false);
        let answer = proxy.exchange(&request).await;
        assert_eq!(answer.status(), 200, "{size} bytes: {}", answer.text());
        let seen = upstream.seen("/v1/chat/completions");
        assert_eq!(seen.len(), turn + 1);
        assert_eq!(seen[turn].body.len(), size);
        assert!(seen[turn].body == request.body, "{size} bytes");
    }
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mock_confirms_the_hash_of_what_it_got() {
    let mock = Mock::fast();
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()))).await;
    for size in [KIB, 64 * KIB, MIB] {
        let request = sized_chat(size, true);
        let answer = proxy.exchange(&request).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(mock.stats().await["last_body_hash"], hash(&request.body), "{size} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused_and_reaches_nobody() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let sized = sized_chat(64 * MIB + 1, false);
    let answer = proxy.exchange(&sized).await;
    assert_eq!(answer.status(), 413);
    assert!(answer.json()["error"]["message"].is_string(), "{}", answer.text());

    // The same in chunks: no length announces it.
    let small = Proxy::start(&config(&upstream).with("limits: { body: 64KiB }")).await;
    let mut client = small.client().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send_raw(head.as_bytes()).await.unwrap();
    let chunk = format!("4000\r\n{}\r\n", letters(0x4000, 1));
    for _ in 0..5 {
        // It may refuse and close before all of it is written.
        let _ = client.send_raw(chunk.as_bytes()).await;
    }
    assert_eq!(client.head().await.status(), 413);
    assert!(upstream.seen("/v1/chat/completions").is_empty(), "the engine got part of a refused body");
    small.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunked_requests_arrive_whole() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let body = sized_chat(100_000, false).body;
    let mut wire = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in body.chunks(777) {
        wire.extend(format!("{:x}\r\n", piece.len()).into_bytes());
        wire.extend(piece);
        wire.extend(b"\r\n");
    }
    wire.extend(b"0\r\n\r\n");
    let mut client = proxy.client().await;
    client.send_raw(&wire).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    let seen = upstream.only("/v1/chat/completions").await;
    assert!(seen.body == body);
    assert!(seen.head.all("content-length").len() + seen.head.all("transfer-encoding").len() == 1, "{:?}", seen.head);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_come_back_byte_for_byte() {
    // Bytes that are neither JSON, text nor SSE: relaying must not depend on understanding.
    for &size in LADDER {
        let body = noise(size, size as u64);
        let upstream = Upstream::fixed(200, &[("Content-Type", "application/json")], body.clone()).await;
        let proxy = Proxy::start(&config(&upstream)).await;
        let answer = proxy.exchange(&chat(false, 4)).await;
        assert!(answer.complete);
        assert_eq!(answer.body.len(), size);
        assert!(answer.body == body, "{size} bytes");
        proxy.load_is_zero().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_any_bytes_come_back_byte_for_byte() {
    for (seed, chunk) in [(1, 1), (2, 17), (3, 4_096), (4, 100_000)] {
        let body = noise(chunk * 300 + 1, seed);
        let sent = body.clone();
        let upstream = Upstream::start(move |_, mut wire| {
            let body = sent.clone();
            async move {
                wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                    .await
                    .ok()?;
                for piece in body.chunks(chunk) {
                    let mut framed = format!("{:x}\r\n", piece.len()).into_bytes();
                    framed.extend(piece);
                    framed.extend(b"\r\n");
                    wire.send(framed).await.ok()?;
                }
                wire.send("0\r\n\r\n").await.ok()?;
                Some(wire)
            }
        })
        .await;
        let proxy = Proxy::start(&config(&upstream)).await;
        let answer = proxy.exchange(&chat(true, 4)).await;
        assert!(answer.complete);
        assert!(answer.body == body, "chunks of {chunk}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_arrives_before_the_next_is_made() {
    let go = Arc::new(Semaphore::new(0));
    let gate = go.clone();
    let upstream = Upstream::start(move |_, mut wire| {
        let gate = gate.clone();
        async move {
            wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await
                .ok()?;
            for turn in 0..20 {
                gate.acquire().await.ok()?.forget();
                let event = format!("data: {{\"turn\":{turn}}}\n\n");
                wire.send(format!("{:x}\r\n{event}\r\n", event.len())).await.ok()?;
            }
            wire.send("0\r\n\r\n").await.ok()?;
            Some(wire)
        }
    })
    .await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 4)).await;
    // The head comes before any event, too: clients start their own timers by it.
    assert_eq!(client.head().await.status(), 200);
    for turn in 0..20 {
        go.add_permits(1);
        assert_eq!(client.next().await, Some(format!("data: {{\"turn\":{turn}}}\n\n").into_bytes()));
    }
    assert_eq!(client.next().await, None);
    assert!(!client.was_cut());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mocks_stream_is_the_same_through_the_proxy_and_ends_with_done() {
    let mock = Mock::fast();
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()))).await;
    let answer = proxy.exchange(&chat(true, 50)).await;
    assert_eq!(answer.status(), 200);
    let events = sse_events(&answer.body);
    assert!(events.len() > 50, "{} events", events.len());
    assert_eq!(events.last().unwrap().data, "[DONE]");
    proxy.load_is_zero().await;
    assert_eq!(mock.stat("inflight").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_serves_many_requests_in_turn() {
    let mock = Mock::fast();
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()))).await;
    let mut client = proxy.client().await;
    for turn in 0..30 {
        let answer = client.exchange(&chat(turn % 2 == 0, 5)).await;
        assert_eq!(answer.status(), 200, "turn {turn}: {}", answer.text());
        assert!(answer.complete);
    }
    assert_eq!(client.exchange(&Request::get("/v1/models")).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_and_bodies_of_engines_pass() {
    for status in [200, 201, 400, 401, 404, 422, 429, 500, 503] {
        let body = format!("{{\"object\":\"error\",\"code\":{status}}}");
        let upstream =
            Upstream::fixed(status, &[("Content-Type", "application/json"), ("Retry-After", "7")], body.clone()).await;
        let proxy = Proxy::start(&config(&upstream)).await;
        for stream in [false, true] {
            let answer = proxy.exchange(&chat(stream, 4)).await;
            assert_eq!((answer.status(), answer.text()), (status, body.clone()));
            assert_eq!(answer.header("retry-after"), Some("7"));
        }
    }
}
