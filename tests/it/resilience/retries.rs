//! What is sent again, what never is, and how often at most.
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;

/// Nobody is left out here: what is shown is the budget.
const NO_EJECTION: &str = "health: { interval: 100ms, timeout: 5s, max_ejected: 0% }";

// Kthena #1031, #984, #947: retries sent empty or changed bodies.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_sends_the_same_bytes_and_says_so() {
    for fault in [CLOSES, 502, 503] {
        let engines = [Engine::answering(fault).await, Engine::answering(200).await];
        let proxy =
            Proxy::start(&Config::new(in_turn(&engines, &["retry: { replay: true, floor: 100 }", NO_EJECTION]))).await;
        let request = sized_chat(70_000, false);
        let mut replayed = 0;
        for turn in 0..8 {
            let answer = proxy.exchange(&request).await;
            assert_eq!(answer.status(), 200, "{fault} turn {turn}: {}", answer.text());
            match answer.header("x-warmroute-attempts") {
                Some("2") => replayed += 1,
                other => assert_eq!(other, None, "only what took more than one says so"),
            }
        }
        assert!(replayed >= 3, "{fault}: {replayed} of 8 replayed");
        let [failed, served] = [0, 1].map(|n| engines[n].upstream.seen("/v1/chat/completions"));
        assert_eq!((failed.len(), served.len()), (replayed, 8), "{fault}");
        for seen in failed.iter().chain(&served) {
            assert_eq!(hash(&seen.body), hash(&request.body), "{fault}");
        }
        let marks: Vec<_> = served.iter().filter_map(|seen| seen.head.get("x-warmroute-attempt")).collect();
        assert_eq!(marks, vec!["2"; replayed], "{fault}");
        assert!(
            failed.iter().all(|seen| seen.head.get("x-warmroute-attempt").is_none()),
            "first attempts bear no mark"
        );
        let cause = if fault == CLOSES { "replay_reset" } else { "replay_status" };
        assert_eq!(count(&proxy, &format!("warmroute_retries_total{{cause=\"{cause}\"}}")).await, replayed);
        proxy.load_is_zero().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn push_back_passes_through_with_its_retry_after() {
    for (answers, status) in [(429, 429), (PUSHES_BACK, 503)] {
        let engines = [Engine::answering(answers).await, Engine::answering(answers).await];
        let keys = ["retry: { replay: true, on: [reset, 500, 502, 503, 504], max: 5, floor: 100 }"];
        let proxy = Proxy::start(&Config::new(in_turn(&engines, &keys))).await;
        for _ in 0..6 {
            let answer = proxy.exchange(&chat(false, 1)).await;
            assert_eq!((answer.status(), answer.header("retry-after")), (status, Some("7")));
            assert_eq!(answer.text(), "{\"later\":true}");
            assert_eq!(answer.header("x-warmroute-attempts"), None);
        }
        assert_eq!(engines[0].seen() + engines[1].seen(), 6);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_listed_is_replayed_and_nothing_by_default() {
    for (keys, replayed) in
        [("retry: { replay: true, on: [502], floor: 100 }", false), ("retry: { replay: false }", false)]
    {
        let engines = [Engine::answering(503).await, Engine::answering(CLOSES).await];
        let proxy = Proxy::start(&Config::new(in_turn(&engines, &[keys, NO_EJECTION]))).await;
        drive(&proxy, 8).await;
        assert_eq!(engines[0].seen() + engines[1].seen() > 8, replayed, "{keys}");
    }
    // All have failed: the client gets the last engine's own answer.
    let engines = [Engine::answering(502).await, Engine::answering(502).await];
    let keys = ["retry: { replay: true, max: 5, floor: 100 }", NO_EJECTION];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &keys))).await;
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert_eq!((answer.status(), answer.text().as_str()), (502, "{\"status\":502}"));
    assert_eq!(answer.header("x-warmroute-attempts"), Some("2"));
    proxy.load_is_zero().await;
}

// LiteLLM #2620: retries multiplied across layers.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_hop_before_has_replayed_is_not_replayed_again() {
    let engines = [Engine::answering(502).await, Engine::answering(502).await];
    let keys = ["retry: { replay: true, floor: 100 }", NO_EJECTION];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &keys))).await;
    let answer = proxy.exchange(&chat(false, 1).header("x-warmroute-attempt", "2")).await;
    assert_eq!((answer.status(), answer.header("x-warmroute-attempts")), (502, None));
    assert_eq!(engines[0].seen() + engines[1].seen(), 1);
    let seen = engines.iter().flat_map(|engine| engine.upstream.seen("/v1/chat/completions")).next().unwrap();
    assert_eq!(seen.head.get("x-warmroute-attempt"), Some("2"), "the next hop knows as well");
    // Nonsense is no mark.
    proxy.exchange(&chat(false, 1).header("x-warmroute-attempt", "many")).await;
    assert_eq!(engines[0].seen() + engines[1].seen(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn under_total_failure_engines_get_a_fifth_more_and_the_floor() {
    const REQUESTS: usize = 300;
    let engines = futures_util::future::join_all([502, CLOSES, 503, 502].map(Engine::answering)).await;
    let keys = ["retry: { replay: true, max: 3 }", NO_EJECTION];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &keys))).await;
    assert_eq!(drive(&proxy, REQUESTS).await, 0);
    let seen: usize = engines.iter().map(Engine::seen).sum();
    // 300 requests in turn take less than two windows of ten seconds.
    let most = REQUESTS + REQUESTS / 5 + 2 * 3;
    assert!(seen <= most, "{seen} attempts for {REQUESTS} requests");
    assert!(
        seen >= REQUESTS + REQUESTS / 10,
        "{seen} attempts for {REQUESTS} requests: the budget is there to be used"
    );
    assert!(proxy.metric("warmroute_retry_budget_exhausted_total{pool=\"m\"}").await > 0.0);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_replayed_after_a_byte_went_down() {
    let event = "data: {\"choices\":[]}\n\n";
    let broken = Upstream::start(move |_, mut wire| async move {
        wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await
            .ok()?;
        wire.send(format!("{:x}\r\n{event}\r\n", event.len())).await.ok()?;
        None
    })
    .await;
    let other = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").at(broken.address()).at(other.address()).with("policy: round_robin");
    let pool = pool.with("retry: { replay: true, on: [reset, 500, 502, 503, 504], max: 5, floor: 100 }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    for _ in 0..6 {
        proxy.exchange(&chat(true, 5)).await;
    }
    let path = "/v1/chat/completions";
    assert_eq!((broken.seen(path).len(), other.seen(path).len()), (3, 3));
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_withdraws_what_it_expected() {
    let engines = [Engine::answering(502).await, Engine::answering(502).await];
    let keys = ["retry: { replay: true, floor: 100 }", NO_EJECTION, "policy: session_sticky"];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &keys))).await;
    let request = chat(false, 1).header("x-session-id", "session-one");
    // Nobody serves it, so nobody is bound.
    assert_eq!(proxy.exchange(&request).await.status(), 502);
    assert_eq!(proxy.metric("warmroute_session_bindings").await, 0.0);
    let first =
        usize::from(engines[0].upstream.seen("/v1/chat/completions")[0].head.get("x-warmroute-attempt").is_some());

    // The replay is served by the other: it is bound there, and the failed one holds nothing while that goes on.
    engines[1 - first].answers(HANGS);
    let mut client = proxy.client().await;
    client.send(&request).await;
    wait_until("the replay is there", PATIENCE, || async { engines[1 - first].seen() == 2 }).await;
    let open: Vec<_> = proxy.replicas().await.iter().map(|row| row["in_flight"].clone()).collect();
    assert_eq!((&open[first], &open[1 - first]), (&json!(0), &json!(1)));
    drop(client);
    proxy.load_is_zero().await;
    engines[1 - first].answers(200);
    let answer = proxy.exchange(&request).await;
    assert_eq!((answer.status(), answer.header("x-warmroute-attempts")), (200, Some("2")));
    let answer = proxy.exchange(&request).await;
    assert_eq!((answer.status(), answer.header("x-warmroute-attempts")), (200, None), "bound to who served it");
}

// llm-d #1564, vLLM #18472 and others: sporadic 502 after idle times. The engine's limit and ours, ten times faster.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_against_an_engine_that_closes_idle_connections() {
    const REQUESTS: usize = 10_000;
    const BURSTS: usize = 10;
    const CLIENTS: usize = 20;
    let mock = Mock::fast();
    mock.control(json!({"close_idle_after_ms": 500})).await;
    let pool = Pool::model("m").at(mock.address()).with("health: { interval: 1h }");
    let config = Config::new(pool).with("timeouts: { upstream_idle: 400ms }").with("logging: { access: false }");
    let proxy = Proxy::start(&config).await;
    let address = proxy.address();
    let (failed, body) = (Arc::new(AtomicUsize::new(0)), chat(false, 1));
    for burst in 0..BURSTS {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..CLIENTS {
            let (failed, body) = (failed.clone(), body.clone());
            clients.spawn(async move {
                let mut client = Client::connect(address).await;
                for _ in 0..REQUESTS / BURSTS / CLIENTS {
                    let answer = client.exchange(&body).await;
                    if answer.status() != 200 {
                        eprintln!("burst {burst}: {} {}", answer.status(), answer.text());
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        while let Some(end) = clients.join_next().await {
            end.expect("a client's end");
        }
        // Some bursts meet connections that the engine is about to close, others those it has closed.
        let left = [CLIENTS as u64, 4, 1][burst % 3];
        wait_until("the engine closes idle ones", PATIENCE, || async { mock.stat("connections").await <= left }).await;
    }
    assert_eq!(failed.load(Ordering::SeqCst), 0, "of {REQUESTS}");
    assert!(mock.stat("requests").await as usize >= REQUESTS);
    proxy.load_is_zero().await;
}
