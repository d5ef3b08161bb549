//! Guarantee 3: a client that leaves frees the engine within 100 ms, in every phase, on every endpoint.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::support::*;

/// When the client goes.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The engine has the request and has sent nothing.
    BeforeFirstByte,
    /// Part of the answer has reached the client.
    MidAnswer,
}

#[derive(Default)]
struct Watch {
    arrived: AtomicUsize,
    gone: AtomicUsize,
}

/// An engine that answers as far as `phase` lets it and then waits for the other side to leave.
async fn engine(phase: Phase, watch: Arc<Watch>) -> Upstream {
    Upstream::start(move |request, mut wire| {
        let watch = watch.clone();
        async move {
            watch.arrived.fetch_add(1, Ordering::SeqCst);
            let stream = String::from_utf8_lossy(&request.body).contains("\"stream\":true");
            if let Phase::MidAnswer = phase {
                let part = if stream {
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nb\r\ndata: {}\n\n\n\r\n"
                } else {
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"id\":"
                };
                wire.send(part).await.ok()?;
            }
            wire.gone().await;
            watch.gone.fetch_add(1, Ordering::SeqCst);
            None
        }
    })
    .await
}

async fn leave_everywhere(phase: Phase) {
    let watch = Arc::new(Watch::default());
    let upstream = engine(phase, watch.clone()).await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut turn = 0;
    for endpoint in ENDPOINTS {
        for &stream in endpoint.ways() {
            turn += 1;
            let what = format!("{} stream={stream} {phase:?}", endpoint.path);
            let mut client = proxy.client().await;
            client.send(&endpoint.request(stream)).await;
            let arrived = || async { watch.arrived.load(Ordering::SeqCst) == turn };
            wait_until(&format!("{what}: the engine has it"), PATIENCE, arrived).await;
            if let Phase::MidAnswer = phase {
                assert_eq!(client.head().await.status(), 200, "{what}");
                assert!(client.next().await.is_some(), "{what}");
            }
            assert_eq!(proxy.in_flight().await, 1, "{what}: booked while it is open");
            drop(client);
            let gone = || async { watch.gone.load(Ordering::SeqCst) == turn };
            wait_until(&format!("{what}: the engine is told"), RELEASE, gone).await;
            proxy.wait_in_flight(0, RELEASE).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_byte() {
    leave_everywhere(Phase::BeforeFirstByte).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_mid_answer() {
    leave_everywhere(Phase::MidAnswer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_engines_work_ends() {
    let mock = Mock::slow();
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()))).await;
    for (turn, stream) in [true, false, true, false].into_iter().enumerate() {
        let mut client = proxy.client().await;
        client.send(&chat(stream, 2_000)).await;
        wait_until("the engine works", PATIENCE, || async { mock.stat("inflight").await == 1 }).await;
        if stream {
            client.head().await;
            client.until(b"data:").await;
        }
        drop(client);
        let told = || async { mock.stat("inflight").await == 0 && mock.stat("disconnects").await == turn as u64 + 1 };
        wait_until(&format!("turn {turn}: the engine is free"), RELEASE, told).await;
        proxy.wait_in_flight(0, RELEASE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_body_is_still_being_sent() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut client = proxy.client().await;
    client
        .send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"model\":")
        .await
        .unwrap();
    drop(client);
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    proxy.load_is_zero().await;
    assert_eq!(upstream.seen("/v1/chat/completions").len(), 1, "half a body went to the engine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_client_counts_as_gone() {
    for phase in [Phase::BeforeFirstByte, Phase::MidAnswer] {
        let watch = Arc::new(Watch::default());
        let upstream = engine(phase, watch.clone()).await;
        let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
        let mut client = proxy.client().await;
        client.send(&chat(true, 1)).await;
        if let Phase::MidAnswer = phase {
            client.head().await;
        }
        wait_until("the engine has it", PATIENCE, || async { watch.arrived.load(Ordering::SeqCst) == 1 }).await;
        client.half_close().await;
        wait_until("the engine is told", RELEASE, || async { watch.gone.load(Ordering::SeqCst) == 1 }).await;
        proxy.wait_in_flight(0, RELEASE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_connection_attempt_ends_with_the_client() {
    // A listener whose queue is full: connecting hangs until the connect timeout.
    let (full, _held) = full_listener();
    let proxy = Proxy::start_unready(
        &Config::new(Pool::model("m").at(full).with("health: { interval: 1h, timeout: 1s }"))
            .with("timeouts: { connect: 30s }"),
    );
    let mut client = proxy.client().await;
    client.send(&chat(false, 1)).await;
    proxy.wait_in_flight(1, PATIENCE).await;
    drop(client);
    proxy.wait_in_flight(0, RELEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_streams_go_on_when_one_client_leaves() {
    let mock = Mock::slow();
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()))).await;
    let mut staying = proxy.client().await;
    staying.send(&chat(true, 20)).await;
    staying.head().await;
    let mut leaving = proxy.client().await;
    leaving
        .send(&Request::post(
            "/v1/chat/completions",
            &json!({"model": "m", "stream": true, "max_tokens": 2_000, "messages": []}),
        ))
        .await;
    leaving.head().await;
    drop(leaving);
    let body = staying.rest().await;
    assert_eq!(sse_events(&body).last().unwrap().data, "[DONE]");
    proxy.load_is_zero().await;
}
