//! Connections to engines are reused, and what an engine does to an idle one is not the client's concern.
use serde_json::json;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_reused() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").at(upstream.address()).with("health: { interval: 1h }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    for _ in 0..20 {
        assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    }
    assert!(upstream.connections() <= 3, "{} connections for 20 requests in turn", upstream.connections());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_closes_idle_connections_is_not_noticed() {
    let upstream = Upstream::start(|_, mut wire| async move {
        wire.reply(200, &[], b"{}").await.ok()?;
        // Closed right behind each answer, without saying so.
        None
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for turn in 0..40 {
        let answer = proxy.exchange(&chat(turn % 2 == 0, 1)).await;
        assert_eq!(answer.status(), 200, "turn {turn}: {}", answer.text());
    }
    assert_eq!(upstream.seen("/v1/chat/completions").len(), 40, "each went to the engine once");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mock_that_closes_idle_connections_is_not_noticed() {
    let mock = Mock::fast();
    mock.control(json!({"close_idle_after_ms": 150})).await;
    // The router would keep them for long: only the engine ends them.
    let pool = Pool::model("m").at(mock.address()).with("health: { interval: 1h }");
    let proxy = Proxy::start(&Config::new(pool).with("timeouts: { upstream_idle: 1h }")).await;
    let mut client = proxy.client().await;
    for turn in 0..10 {
        let before = mock.stat("connections_total").await;
        let answer = client.exchange(&chat(false, 1)).await;
        assert_eq!(answer.status(), 200, "turn {turn}: {}", answer.text());
        // One connection is left then: the one that asks.
        let closed = || async { mock.stat("connections").await == 1 };
        wait_until("the mock has closed its idle connections", PATIENCE, closed).await;
        assert!(mock.stat("connections_total").await > before, "turn {turn}");
    }
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_an_engine_resets_after_reading_it_is_not_sent_again() {
    // It may have begun to generate: the client is told, and decides.
    let mock = Mock::fast();
    let pool = Pool::model("m").at(mock.address()).with("health: { interval: 1h }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    mock.control(json!({"reset_on_reuse": true, "count": 1})).await;
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert_eq!(answer.status(), 502, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "no_answer");
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_close_is_obeyed() {
    let upstream = Upstream::start(|_, mut wire| async move {
        wire.reply(200, &[("Connection", "close")], b"{}").await.ok()?;
        // It says close but does not: a request sent on it would hang.
        wire.gone().await;
        None
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for turn in 0..5 {
        assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200, "turn {turn}");
    }
    let seen = upstream.seen("/v1/chat/completions");
    let connections: std::collections::HashSet<_> = seen.iter().map(|request| request.connection).collect();
    assert_eq!(connections.len(), 5, "a connection of its own for each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_answer_was_not_read_is_not_reused() {
    let upstream = Upstream::start(|request, mut wire| async move {
        if String::from_utf8_lossy(&request.body).contains("\"stream\":true") {
            wire.send(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\ndata: {}\n\n",
            )
            .await
            .ok()?;
            wire.gone().await;
            return None;
        }
        wire.reply(200, &[], b"{\"clean\":true}").await.ok()?;
        Some(wire)
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for _ in 0..10 {
        let mut client = proxy.client().await;
        client.send(&chat(true, 1)).await;
        client.head().await;
        drop(client);
        assert_eq!(proxy.exchange(&chat(false, 1)).await.text(), "{\"clean\":true}");
    }
    proxy.load_is_zero().await;
}
