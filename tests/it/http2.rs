//! HTTP/2 downstream: each guarantee holds for a stream as it does for an HTTP/1.1 connection.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use h2::Reason;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_becomes_an_http1_request_and_its_answer_comes_back() {
    let upstream = Upstream::fixed(200, &[("content-type", "application/json"), ("x-engine", "1")], "{\"a\":1}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut http2 = Http2::connect(proxy.address()).await;
    let request = chat(false, 1).header("cookie", "a=1").header("cookie", "b=2").header("te", "trailers");
    let (head, body) = http2.exchange(&request).await;
    assert_eq!((head.status.as_u16(), head.version), (200, http::Version::HTTP_2));
    assert_eq!(head.headers["x-engine"], "1");
    assert!(head.headers.contains_key("x-request-id"));
    assert_eq!(body, b"{\"a\":1}");
    let seen = upstream.only("/v1/chat/completions").await;
    assert_eq!(seen.head.start, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(seen.body, request.body);
    assert_eq!(seen.head.all("host"), [upstream.address().to_string()]);
    assert_eq!(seen.head.all("x-forwarded-host"), ["router.example"]);
    assert_eq!(seen.head.all("x-forwarded-proto"), ["http"]);
    assert_eq!(seen.head.all("cookie"), ["a=1; b=2"]);
    assert_eq!(seen.head.all("content-length"), [request.body.len().to_string()]);
    assert_eq!((seen.head.get("te"), seen.head.get("transfer-encoding")), (None, None));
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_pass_as_they_come_and_many_streams_share_a_connection() {
    let mock = Mock::fast();
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address())).with("limits: { streams: 32 }")).await;
    let mut http2 = Http2::connect(proxy.address()).await;
    // The limit is known to the client once it has read the router's settings.
    assert_eq!(http2.exchange(&chat(false, 1)).await.0.status, 200);
    let mut open = Vec::new();
    for _ in 0..100 {
        // `send` waits where the router's limit of streams holds it; answers must come meanwhile.
        let sent = http2.send(&chat(true, 20), false).await;
        open.push(tokio::spawn(async move {
            let (head, mut body) = sent.answer().await;
            (head.status.as_u16(), rest(&mut body).await.expect("a whole stream"))
        }));
    }
    for answer in open {
        let (status, body) = answer.await.unwrap();
        assert_eq!(status, 200);
        assert_eq!(sse_events(&body).last().unwrap().data, "[DONE]");
    }
    assert_eq!(proxy.metric("warmroute_client_connections_accepted_total").await, 1.0);
    proxy.load_is_zero().await;
}

/// An engine that sends a first event (or nothing) and then waits for the other side to leave.
async fn waiting_engine(answers: bool, gone: Arc<AtomicUsize>) -> Upstream {
    Upstream::start(move |_, mut wire| {
        let gone = gone.clone();
        async move {
            if answers {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                wire.send(head).await.ok()?;
                wire.send("a\r\ndata: {}\n\n\r\n").await.ok()?;
            }
            wire.gone().await;
            gone.fetch_add(1, Ordering::SeqCst);
            None
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_reset_frees_the_engine_and_no_other() {
    for answers in [false, true] {
        let gone = Arc::new(AtomicUsize::new(0));
        let upstream = waiting_engine(answers, gone.clone()).await;
        let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
        let mut http2 = Http2::connect(proxy.address()).await;
        let staying = http2.send(&chat(true, 1), false).await;
        proxy.wait_in_flight(1, PATIENCE).await;
        for turn in 1..=3 {
            let leaving = http2.send(&chat(true, 1), false).await;
            proxy.wait_in_flight(2, PATIENCE).await;
            let body = if answers {
                let mut sent = leaving;
                let response = within("an answer", PATIENCE, &mut sent.response).await.unwrap();
                let mut body = response.into_body();
                assert_eq!(piece(&mut body).await.unwrap().unwrap(), "data: {}\n\n");
                sent.reset();
                Some(body)
            } else {
                leaving.reset();
                None
            };
            wait_until("the engine is told", RELEASE, || async { gone.load(Ordering::SeqCst) == turn }).await;
            proxy.wait_in_flight(1, RELEASE).await;
            drop(body);
        }
        drop((staying, http2));
        proxy.wait_in_flight(0, RELEASE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_still_being_sent_reaches_nobody_after_a_reset() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut http2 = Http2::connect(proxy.address()).await;
    let half = http2.send(&Request::new("POST", "/v1/chat/completions").body("{\"model\":"), true).await;
    half.reset();
    assert_eq!(http2.exchange(&chat(false, 1)).await.0.status, 200);
    assert_eq!(upstream.seen("/v1/chat/completions").len(), 1);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_their_shape() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("limits: { body: 1KiB, headers: 20 }");
    let proxy = Proxy::start(&config).await;
    let mut http2 = Http2::connect(proxy.address()).await;
    let mut many = chat(false, 1);
    for i in 0..30 {
        many = many.header(&format!("x-many-{i}"), "1");
    }
    let unknown = Request::post("/v1/chat/completions", &chat_body("who", false, 1));
    for (request, status, code) in [
        (unknown.clone(), 404, "model_not_found"),
        (Request::get("/nowhere"), 404, "path_not_found"),
        (Request::get("/v1/chat/completions"), 405, "method_not_allowed"),
        (sized_chat(4096, false), 413, "body_too_large"),
        (many, 431, "head_too_large"),
        (chat(false, 1).header("host", "other.example"), 400, "bad_head"),
    ] {
        let what = format!("{} {}", request.method, request.target);
        let sent = http2.send(&request, false).await;
        let (head, mut body) = sent.answer().await;
        let body = rest(&mut body).await.expect("a whole body");
        assert_eq!(head.status.as_u16(), status, "{what}: {}", String::from_utf8_lossy(&body));
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], code, "{what}: {body}");
    }
    assert!(upstream.seen("/v1/chat/completions").is_empty());
    assert_eq!(http2.exchange(&chat(false, 1)).await.0.status, 200, "the connection is as good as before");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_breaks_off_ends_the_stream_and_no_other() {
    // It breaks off when the client has the head: a reset takes along what has not been written yet.
    let go = Arc::new(Semaphore::new(0));
    let engine_go = go.clone();
    let upstream = Upstream::start(move |_, mut wire| {
        let go = engine_go.clone();
        async move {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
            wire.send(head).await.ok()?;
            go.acquire().await.ok()?.forget();
            None
        }
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut http2 = Http2::connect(proxy.address()).await;
    for _ in 0..2 {
        let (head, mut body) = http2.send(&chat(false, 1), false).await.answer().await;
        assert_eq!(head.status, 200);
        go.add_permits(1);
        let error = rest(&mut body).await.expect_err("cut, not ended");
        assert!(error.is_reset() && error.reason() == Some(Reason::INTERNAL_ERROR), "{error}");
    }
    assert!(!http2.ended.is_finished());
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_its_client_does_not_take_frees_the_engine_and_no_other_stream() {
    let mock = Mock::slow();
    let config = Config::new(Pool::model("m").at(mock.address())).with("timeouts: { idle: 1s }");
    let proxy = Proxy::start(&config).await;
    let stream = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1_000).initial_connection_window_size(1 << 20);
    let mut http2 = Http2::over(stream, builder).await;
    let (_, mut stalled) = http2.send(&chat(true, 5_000), false).await.answer().await;
    let first = within("a piece", PATIENCE, stalled.data()).await.expect("a piece").unwrap();
    assert!(!first.is_empty());
    // Its window is never opened again. Another stream of the connection goes on and on.
    let mut rounds = 0;
    let freed = || async { mock.stat("disconnects").await >= 1 && proxy.in_flight().await == 0 };
    let start = std::time::Instant::now();
    while !freed().await {
        let (head, _) = http2.exchange(&chat(false, 1)).await;
        assert_eq!(head.status, 200);
        rounds += 1;
        assert!(start.elapsed() < PATIENCE, "the engine still waits after {rounds} rounds");
    }
    assert!(start.elapsed() >= Duration::from_millis(500), "after {:?} already", start.elapsed());
    assert_eq!(proxy.metric("warmroute_client_timeouts_total{timer=\"stalled\"}").await, 1.0);
    assert_eq!(http2.exchange(&chat(false, 1)).await.0.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_requests_is_told_to_go() {
    let mock = Mock::slow();
    let config = Config::new(Pool::model("m").at(mock.address())).with("timeouts: { keep_alive: 400ms }");
    let proxy = Proxy::start(&config).await;
    let mut http2 = Http2::connect(proxy.address()).await;
    // A stream longer than the timer holds the connection open.
    let start = std::time::Instant::now();
    let (_, body) = http2.exchange(&chat(true, 20)).await;
    assert!(start.elapsed() > Duration::from_millis(600));
    assert_eq!(sse_events(&body).last().unwrap().data, "[DONE]");
    http2.end().await.expect("ended by GOAWAY without an error");
    assert_eq!(proxy.metric("warmroute_client_timeouts_total{timer=\"keep_alive\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_open_streams_end_and_takes_no_more() {
    let mock = Mock::slow();
    let mut proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()))).await;
    let mut http2 = Http2::connect(proxy.address()).await;
    let (head, mut body) = http2.send(&chat(true, 20), false).await.answer().await;
    assert_eq!(head.status, 200);
    piece(&mut body).await.unwrap().unwrap();
    proxy.process.terminate();
    let all = rest(&mut body).await.expect("the stream ends as it should");
    assert_eq!(sse_events(&all).last().unwrap().data, "[DONE]");
    http2.end().await.expect("ended by GOAWAY without an error");
    assert!(proxy.process.wait(PATIENCE).success());
}
