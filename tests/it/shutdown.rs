//! The end of the process: open requests may end, and those that can't are told why.
use std::time::{Duration, Instant};

use crate::support::*;

/// An engine that never ends: a stream after an event, an answer of another kind after a byte, a chat without one at
/// all when its `max_tokens` is 2.
async fn endless() -> Upstream {
    Upstream::start(|request, mut wire| async move {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if body["stream"] == true {
            wire.send(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\ndata: 1\n\ndata",
            )
            .await
            .ok()?;
        } else if body["max_tokens"] != 2 {
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{").await.ok()?;
        }
        wire.gone().await;
        None
    })
    .await
}

/// Four clients: a chat's stream, a message's stream, a plain answer half-way, and one that has no answer yet.
async fn open(proxy: &Proxy) -> Vec<Client> {
    let message = ENDPOINTS.iter().find(|endpoint| endpoint.path == "/v1/messages").unwrap();
    let requests = [chat(true, 1), message.request(true), chat(false, 1), chat(false, 2)];
    let mut clients = Vec::new();
    for (n, request) in requests.iter().enumerate() {
        let mut client = proxy.client().await;
        client.send(request).await;
        if n < 3 {
            assert_eq!(client.head().await.status(), 200);
            assert!(client.next().await.is_some());
        }
        clients.push(client);
    }
    proxy.wait_in_flight(4, PATIENCE).await;
    clients
}

/// What they are told, and what the log tells of them.
async fn ends(mut proxy: Proxy, mut clients: Vec<Client>) {
    let rest = clients[0].rest().await;
    assert!(!clients[0].was_cut() && rest.starts_with(b"\n\n"), "the open event is ended first");
    let events = sse_events(&rest);
    assert_eq!((events.len(), &events[0].json()["error"]["code"]), (1, &"shutting_down".into()));
    let events = sse_events(&clients[1].rest().await);
    assert_eq!((events.len(), events[0].name.as_deref()), (1, Some("error")));
    assert_eq!(events[0].json()["error"]["code"], "shutting_down");
    // Nothing can be said inside a JSON answer.
    clients[2].rest().await;
    assert!(clients[2].was_cut());
    let head = clients[3].head().await;
    assert_eq!((head.status(), head.get("retry-after")), (503, Some("1")));
    let body: serde_json::Value = serde_json::from_slice(&clients[3].rest().await).unwrap();
    assert_eq!((&body["error"]["code"], &body["error"]["phase"]), (&"shutting_down".into(), &"first_byte".into()));
    assert!(proxy.process.wait(PATIENCE).success());
    proxy.process.line("a line for the answer that never came", |line| {
        (line.contains(" outcome=rejected ") && line.contains(" status=503 ")).then_some(())
    });
    let cut = proxy.process.output().iter().filter(|line| line.contains(" outcome=cut_at_shutdown ")).count();
    assert_eq!(cut, 3, "{:?}", proxy.process.output());
}

fn config(engine: &Upstream) -> Config {
    Config::new(Pool::model("m").at(engine.address()))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_drain_did_not_wait_for_is_told_so() {
    let engine = endless().await;
    let proxy = Proxy::start(&config(&engine).with("timeouts: { drain: 200ms }")).await;
    let clients = open(&proxy).await;
    proxy.process.terminate();
    ends(proxy, clients).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_cuts_at_once_and_says_so_too() {
    let engine = endless().await;
    let mut proxy = Proxy::start(&config(&engine).with("timeouts: { drain: 1h }")).await;
    let clients = open(&proxy).await;
    proxy.process.terminate();
    proxy.process.line("the drain", |line| line.contains("draining").then_some(()));
    proxy.process.terminate();
    ends(proxy, clients).await;
}

/// A client that takes nothing of its answer can't be told, and keeps nobody waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_does_not_hold_up_the_end() {
    let engine = Upstream::start(|_, mut wire| async move {
        wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n").await.ok()?;
        while wire.send([b'x'; 65536]).await.is_ok() {}
        None
    })
    .await;
    let mut proxy = Proxy::start(&config(&engine).with("timeouts: { drain: 200ms }")).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 1)).await;
    client.head().await;
    proxy.process.terminate();
    let begin = Instant::now();
    assert!(proxy.process.wait(PATIENCE).success());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    proxy.process.line("its line", |line| line.contains(" outcome=cut_at_shutdown ").then_some(()));
}
