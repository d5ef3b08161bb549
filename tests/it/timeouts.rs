//! Each timer of the data path ends what it should, and nothing else.
use std::time::{Duration, Instant};

use crate::support::*;

const SHORT: Duration = Duration::from_millis(400);
/// A timer may be late on a busy machine, never early.
const LATE: Duration = Duration::from_secs(10);

fn in_time(start: Instant, what: &str) {
    let took = start.elapsed();
    assert!(took >= SHORT - Duration::from_millis(20) && took < LATE, "{what} after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_sent_too_slowly_is_408() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { head: 400ms }");
    let proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    let start = Instant::now();
    client.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le").await.unwrap();
    let head = within("an answer", PATIENCE, client.try_head()).await;
    in_time(start, "408");
    assert_eq!(head.map(|head| head.status()), Some(408));
    client.rest().await;
    assert!(client.closed().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_new_connection_is_closed() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config =
        Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { head: 400ms, keep_alive: 30s }");
    let proxy = Proxy::start(&config).await;
    let start = Instant::now();
    let mut client = proxy.client().await;
    client.closed().await;
    in_time(start, "the close");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_kept_connection_is_closed_by_keep_alive_not_head() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config =
        Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { head: 50ms, keep_alive: 400ms }");
    let proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200);
    let start = Instant::now();
    assert!(client.closed().await, "closed without a word: there is no request to answer");
    in_time(start, "the close");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stalls_is_408_and_reaches_nobody() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { body: 400ms }");
    let proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    client.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
    let start = Instant::now();
    assert_eq!(client.head().await.status(), 408);
    in_time(start, "408");
    assert!(upstream.seen("/v1/chat/completions").is_empty());
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_first_byte_in_time_is_504() {
    let upstream = Upstream::start(|_, mut wire| async move {
        wire.gone().await;
        None
    })
    .await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { first_byte: 400ms }");
    let proxy = Proxy::start(&config).await;
    for stream in [false, true] {
        let start = Instant::now();
        let answer = proxy.exchange(&chat(stream, 1)).await;
        assert_eq!(answer.status(), 504, "{}", answer.text());
        in_time(start, "504");
        assert!(answer.json()["error"]["message"].is_string());
    }
    assert_eq!(upstream.seen("/v1/chat/completions").len(), 2, "a late engine is not asked twice");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_falls_silent_ends_with_an_error_event() {
    let upstream = Upstream::start(|_, mut wire| async move {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        wire.send(head).await.ok()?;
        wire.send("a\r\ndata: {}\n\n\r\n").await.ok()?;
        wire.gone().await;
        None
    })
    .await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { idle: 400ms }");
    let proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 1)).await;
    client.head().await;
    let first = client.until(b"\n\n").await;
    let start = Instant::now();
    let rest = client.rest().await;
    in_time(start, "the error event");
    assert_eq!(first, b"data: {}\n\n");
    let events = sse_events(&rest);
    assert_eq!(events.len(), 1, "{}", String::from_utf8_lossy(&rest));
    assert!(events[0].json()["error"]["message"].is_string());
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_stream_that_keeps_talking_is_never_ended() {
    // Ten times the idle limit in all: there is no total timeout.
    let upstream = Upstream::start(|_, mut wire| async move {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        wire.send(head).await.ok()?;
        let mut pace = tokio::time::interval(Duration::from_millis(200));
        for _ in 0..20 {
            pace.tick().await;
            wire.send("a\r\ndata: {}\n\n\r\n").await.ok()?;
        }
        wire.send("0\r\n\r\n").await.ok()?;
        Some(wire)
    })
    .await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with(
        "timeouts: { idle: 2s, head: 400ms, keep_alive: 400ms, body: 400ms, first_byte: 2s, upstream_idle: 400ms }",
    );
    let proxy = Proxy::start(&config).await;
    let answer = proxy.exchange(&chat(true, 1)).await;
    assert_eq!(sse_events(&answer.body).len(), 20);
    assert!(answer.complete);
    assert!(!answer.text().contains("error"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_takes_too_long_goes_to_another_replica() {
    let (full, _held) = full_listener();
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m")
        .at(full)
        .at(upstream.address())
        .with("policy: { type: round_robin }")
        .with("health: { interval: 1h, timeout: 1h, unhealthy_after: 1000 }");
    let proxy = Proxy::start(&Config::new(pool).with("timeouts: { connect: 400ms }")).await;
    let start = Instant::now();
    for _ in 0..2 {
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    in_time(start, "one of two waited for the connection");
    assert_eq!(proxy.metric("warmroute_connect_failures_total{replica=\"r0\"}").await, 1.0);
    assert_eq!(upstream.seen("/v1/chat/completions").len(), 2);
    proxy.load_is_zero().await;
}
