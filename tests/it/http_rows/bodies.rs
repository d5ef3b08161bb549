//! Bodies that wait for a word, stall, or are not wanted.
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// Reads until `needle` has come; `None` when the connection ends first.
async fn until(stream: &mut TcpStream, needle: &str) -> Option<String> {
    let mut seen = Vec::new();
    within(needle, PATIENCE, async {
        while !String::from_utf8_lossy(&seen).contains(needle) {
            if stream.read_buf(&mut seen).await.ok()? == 0 {
                return None;
            }
        }
        Some(String::from_utf8_lossy(&seen).into_owned())
    })
    .await
}

/// All that comes until the connection ends.
async fn all(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    let _ = within("the end", PATIENCE, stream.read_to_end(&mut seen)).await;
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn expect_continue_is_answered_and_not_forwarded() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    for (lines, body) in [("Content-Length: 2\r\n", "{}"), ("Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n")] {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let before = upstream.all().len();
        stream.write_all(post(&format!("{lines}Expect: 100-Continue\r\n"), "").as_bytes()).await.unwrap();
        let told = until(&mut stream, "\r\n\r\n").await.unwrap();
        assert_eq!(told, "HTTP/1.1 100 Continue\r\n\r\n", "once, and nothing else yet");
        assert_eq!(upstream.all().len(), before, "the engine waits for the whole body");
        stream.write_all(body.as_bytes()).await.unwrap();
        let answer = until(&mut stream, "\r\n\r\n").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let seen = upstream.all().pop().unwrap();
        assert_eq!((seen.body.as_slice(), seen.head.get("expect")), (&b"{}"[..], None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_refused_is_not_asked_for() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream).with("limits: { body: 1MiB }")).await;
    let expect = "Expect: 100-continue\r\n";
    for (bytes, status) in [
        (post(&format!("{expect}Content-Length: 1048577\r\n"), ""), 413),
        (format!("POST /nowhere HTTP/1.1\r\nHost: a\r\n{expect}Content-Length: 2\r\n\r\n"), 404),
        (format!("GET {CHAT} HTTP/1.1\r\nHost: a\r\n{expect}Content-Length: 2\r\n\r\n"), 405),
        (post("Expect: 200-ok\r\nContent-Length: 2\r\n", ""), 417),
        (post(&format!("{expect}Expect: more\r\nContent-Length: 2\r\n"), ""), 417),
        (post("Expect: 100-continue, more\r\nContent-Length: 2\r\n", ""), 417),
    ] {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let answer = all(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "no 100 before it, then closed: {answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
    assert!(upstream.all().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_nobody_read_is_never_a_request() {
    // Pingora's CVE-2025-4366: the unread body of an early answer became the connection's next request.
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream).with("limits: { body: 1MiB }")).await;
    let hidden = good();
    for head in [
        format!("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", hidden.len()),
        format!("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", hidden.len() + 100_000),
        format!("GET {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", hidden.len()),
        format!("GET /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", hidden.len()),
        post("Content-Length: 2000000\r\n", ""),
    ] {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        // The body comes apart from its head, when the answer may be out already.
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = until(&mut stream, "\r\n\r\n").await.unwrap();
        let _ = stream.write_all(hidden.as_bytes()).await;
        answer += &all(&mut stream).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "one answer, then the end: {answer}");
    }
    assert!(upstream.seen(CHAT).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_body_is_408_and_the_end_of_its_connection() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream).with("timeouts: { body: 300ms }")).await;
    for bytes in [post("Content-Length: 100\r\n", "{"), chunked("2\r\n{"), chunked("2\r\n{}\r\n0\r\n")] {
        let mut client = proxy.client().await;
        client.send_raw(bytes.as_bytes()).await.unwrap();
        let head = client.head().await;
        assert_eq!((head.status(), head.get("connection")), (408, Some("close")), "{bytes}");
        client.rest().await;
        assert!(client.closed().await);
    }
    assert!(upstream.all().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_drips_is_408_and_one_that_is_only_slow_is_taken() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream).with("timeouts: { body: 500ms }")).await;
    // What a client sends each 50 ms, of a body of 64 KiB: 20 bytes a second, and 40 KiB a second.
    for (piece, status) in [(1, 408), (2048, 200)] {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let begin = Instant::now();
        stream.write_all(post(&format!("Content-Length: {}\r\n", 64 << 10), "").as_bytes()).await.unwrap();
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        let mut answer = Vec::new();
        let mut left: usize = 64 << 10;
        within("an answer", PATIENCE, async {
            while answer.is_empty() {
                tokio::select! {
                    _ = pace.tick(), if left > 0 => {
                        let size = piece.min(left);
                        left -= size;
                        let _ = stream.write_all(&vec![b' '; size]).await;
                    }
                    _ = stream.read_buf(&mut answer) => {}
                }
            }
        })
        .await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{piece}: {answer}");
        assert!(begin.elapsed() >= Duration::from_secs(1), "{piece}: not before twice timeouts.body");
        assert_eq!(left == 0, status == 200);
    }
    assert_eq!(upstream.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_stalls_behind_another_request_is_408_by_the_head_timer() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream).with("timeouts: { head: 400ms, keep_alive: 60s }")).await;
    let mut client = proxy.client().await;
    let begin = Instant::now();
    client.send_raw(format!("{}POST /v1", good()).as_bytes()).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.rest().await, b"{}");
    let head = client.head().await;
    assert_eq!((head.status(), head.get("connection")), (408, Some("close")));
    let body: serde_json::Value = serde_json::from_slice(&client.rest().await).unwrap();
    assert_eq!(body["error"]["code"], "head_timeout");
    assert!(client.closed().await);
    assert!(begin.elapsed() < PATIENCE);
    assert_eq!(upstream.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_lines_between_requests_are_no_head() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream).with("timeouts: { head: 300ms, keep_alive: 1s }")).await;
    let mut client = proxy.client().await;
    client.send_raw(format!("{}\r\n", good()).as_bytes()).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.rest().await, b"{}");
    assert!(client.closed().await, "closed by keep_alive, without a 408");
}
