//! Replicas that fail requests or probes are left out, not too many of them, and let in again.
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

/// Opens upon five failures and stays open.
const OPENS: &str = "health: { interval: 100ms, timeout: 5s, breaker: { open_for: 1h, max_open: 1h } }";

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_fails_requests_is_left_out() {
    for fault in [500, 502, 503, 504, CLOSES] {
        let engines = [Engine::answering(fault).await, Engine::answering(200).await];
        let proxy = Proxy::start(&Config::new(in_turn(&engines, &[OPENS]))).await;
        assert_eq!(drive(&proxy, 40).await, 35, "{fault}: five clients saw it");
        assert_eq!((engines[0].seen(), engines[1].seen()), (5, 35), "{fault}");
        assert_eq!((breaker(&proxy, 0).await.as_str(), breaker(&proxy, 1).await.as_str()), ("open", "closed"));
        assert_eq!(proxy.replicas().await[0]["state"], "down");
        assert_eq!(count(&proxy, "warmroute_breaker_opened_total{replica=\"r0\"}").await, 1);
        assert_eq!(count(&proxy, "warmroute_breaker_state{replica=\"r0\",state=\"open\"}").await, 1);
        proxy.load_is_zero().await;
    }
}

// The sgl-model-gateway's #25811 and SMG's #2163: 400 and 429 opened breakers, then the fleet was "unavailable".
#[tokio::test(flavor = "multi_thread")]
async fn what_clients_did_wrong_and_push_back_leave_nobody_out() {
    let engines = [Engine::answering(200).await, Engine::answering(200).await];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &[OPENS]))).await;
    for (turn, status) in [400, 401, 404, 408, 413, 422, 429, PUSHES_BACK, 501].into_iter().enumerate() {
        engines[0].answers(status);
        drive(&proxy, 40).await;
        assert_eq!(engines[0].seen(), 20 * (turn + 1), "{status}");
        assert_eq!(breaker(&proxy, 0).await, "closed", "{status}");
    }
    assert_eq!(proxy.metric("warmroute_breaker_opened_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_closes_after_a_good_probe_and_the_first_request_decides() {
    let engines = [Engine::answering(500).await, Engine::answering(200).await];
    let health = "health: { interval: 100ms, timeout: 5s, breaker: { open_for: 50ms } }";
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &[health]))).await;
    let opened = || async { count(&proxy, "warmroute_breaker_opened_total").await };
    // Five failures open it; from then on one does, because its probes are well and its requests are not.
    wait_until("it has opened three times", PATIENCE, || async {
        drive(&proxy, 10).await;
        opened().await >= 3
    })
    .await;
    let (times, seen) = (opened().await, engines[0].seen());
    assert!(seen >= 5 + times - 1 && seen <= 5 + times, "opened {times} times, saw {seen}");

    engines[0].answers(200);
    wait_until("it is used and closed", PATIENCE, || async {
        drive(&proxy, 10).await;
        engines[0].seen() > seen && breaker(&proxy, 0).await == "closed"
    })
    .await;
    assert_eq!(drive(&proxy, 40).await, 40);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn not_more_than_a_share_is_left_out() {
    let engines = [500, 500, 500, 200].map(Engine::answering);
    let engines = futures_util::future::join_all(engines).await;
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &[OPENS]))).await;
    drive(&proxy, 60).await;
    for replica in 0..3 {
        assert_eq!(breaker(&proxy, replica).await, "open", "{replica}");
    }
    let before: Vec<usize> = engines.iter().map(Engine::seen).collect();
    drive(&proxy, 20).await;
    let grew: Vec<usize> = engines.iter().zip(before).map(|(engine, before)| engine.seen() - before).collect();
    assert_eq!(grew.iter().filter(|grew| **grew == 0).count(), 2, "two of four: {grew:?}");
    assert_eq!(grew[3], 10, "{grew:?}");
    assert_eq!(proxy.metric("warmroute_panic_decisions_total").await, 0.0);

    // The last one of a pool is never left out.
    let alone = [Engine::answering(500).await];
    let proxy = Proxy::start(&Config::new(in_turn(&alone, &[OPENS]))).await;
    drive(&proxy, 20).await;
    assert_eq!((breaker(&proxy, 0).await.as_str(), alone[0].seen()), ("open", 20));
}

/// Waits until so many replicas are down.
async fn wait_down(proxy: &Proxy, wanted: usize) {
    wait_until(&format!("{wanted} are down"), PATIENCE, || async {
        proxy.replicas().await.iter().filter(|row| row["state"] == "down").count() == wanted
    })
    .await;
}

fn in_turn_mocks(mocks: &[Mock]) -> Pool {
    mocks.iter().fold(Pool::model("m").with("policy: round_robin"), |pool, mock| pool.at(mock.address()))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_too_few_well_all_that_can_be_reached_are_used() {
    let mocks = [Mock::fast(), Mock::fast(), Mock::fast()];
    let proxy = Proxy::start(&Config::new(in_turn_mocks(&mocks))).await;
    let panics = || async { count(&proxy, "warmroute_panic_decisions_total{pool=\"m\"}").await };
    for mock in &mocks[..2] {
        mock.control(json!({"health_status": 503})).await;
    }
    wait_down(&proxy, 2).await;
    assert_eq!(drive(&proxy, 30).await, 30, "probes can be wrong");
    for mock in &mocks {
        assert!(mock.stat("requests").await >= 9, "all three are used");
    }
    assert_eq!(panics().await, 30);

    mocks[0].control(json!({"health_status": 200})).await;
    wait_down(&proxy, 1).await;
    let before = mocks[1].stat("requests").await;
    assert_eq!(drive(&proxy, 30).await, 30);
    assert_eq!(mocks[1].stat("requests").await, before, "one of three may be left out");
    assert_eq!(panics().await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_reached_is_not_let_in() {
    let mut mocks = [Mock::fast(), Mock::fast(), Mock::fast()];
    let proxy = Proxy::start(&Config::new(in_turn_mocks(&mocks))).await;
    mocks[..2].iter_mut().for_each(|mock| mock.process.kill());
    wait_down(&proxy, 2).await;
    let failures = proxy.metric("warmroute_connect_failures_total").await;
    assert_eq!(drive(&proxy, 20).await, 20);
    assert_eq!(proxy.metric("warmroute_connect_failures_total").await, failures, "nobody tried the dead");
    assert_eq!(proxy.metric("warmroute_panic_decisions_total").await, 0.0);
    mocks[2].process.kill();
    wait_down(&proxy, 3).await;
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_answers_again_is_used_within_three_seconds() {
    let mut mocks = [Mock::fast(), Mock::fast()];
    // The defaults, but for the time that the breaker takes to find out.
    let pool = in_turn_mocks(&mocks).with("health: { interval: 2s }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    for turn in 0..3 {
        mocks[0].process.kill();
        let (all, good) = (30, drive(&proxy, 30).await);
        assert!(good >= all - 1, "{good} of {all}: one may have met the end of an open connection");
        wait_down(&proxy, 1).await;
        let address = mocks[0].address().to_string();
        let mut again = Process::start(&["mock", "--listen", &address, "--model", "m"], &[]);
        again.line("address", |line| line.contains("listening").then_some(()));
        mocks[0].process = again;
        let answers = Instant::now();
        wait_until("it is used", Duration::from_secs(3), || async {
            drive(&proxy, 12).await;
            mocks[0].stat("requests").await > 0
        })
        .await;
        println!("turn {turn}: used after {:?}", answers.elapsed());
    }
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_the_model_is_down_where_that_matters() {
    let mocks = [Mock::start(&["--model", "another"]), Mock::fast()];
    let health = "health: { interval: 100ms, model_match: true }";
    let proxy = Proxy::start(&Config::new(in_turn_mocks(&mocks).with(health))).await;
    wait_down(&proxy, 1).await;
    let row = proxy.replicas().await.remove(0);
    assert_eq!(
        (&row["state"], &row["probe"]["up"], &row["probe"]["reachable"]),
        (&json!("down"), &json!(false), &json!(true))
    );
    assert!(row["probe"]["fault"].as_str().is_some_and(|fault| fault.contains("`m`")), "{row}");
    assert_eq!(drive(&proxy, 10).await, 10);
}

/// Engines whose health is well and whose every stream ends in the word that the engine failed.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_answers_say_that_it_failed_is_left_out() {
    let dies = Upstream::start(|_, mut wire| async move {
        let body = "data: {\"choices\":[]}\n\ndata: {\"error\":{\"code\":500,\"message\":\"x\"}}\n\ndata: [DONE]\n\n";
        wire.reply(200, &[("Content-Type", "text/event-stream")], body.as_bytes()).await.ok()?;
        Some(wire)
    })
    .await;
    let well = Engine::answering(200).await;
    let pool = Pool::model("m").with("policy: round_robin").with(OPENS).at(dies.address()).at(well.upstream.address());
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut client = proxy.client().await;
    for _ in 0..60 {
        assert_eq!(client.exchange(&chat(true, 1)).await.status(), 200, "its bytes pass as they are");
    }
    let seen = dies.seen("/v1/chat/completions").len();
    assert!((10..=12).contains(&seen), "{seen}: half of what it was sent, once that is enough to judge");
    assert_eq!(breaker(&proxy, 0).await, "open");
    assert_eq!(count(&proxy, "warmroute_requests_total{outcome=\"engine_failed\"}").await, seen);
}

/// llama.cpp listens at once, and answers 503 to everything until its model is loaded.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_loads_its_model_is_not_ready_and_no_fault() {
    let loading = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let shown = loading.clone();
    let engine = Upstream::start(move |_, mut wire| {
        let loads = shown.load(Ordering::SeqCst);
        async move {
            let body = "{\"error\":{\"message\":\"Loading model\",\"type\":\"unavailable_error\",\"code\":503}}";
            let (status, body) = if loads { (503, body) } else { (200, "{}") };
            wire.reply(status, &[("Content-Type", "application/json")], body.as_bytes()).await.ok()?;
            Some(wire)
        }
    })
    .await;
    let well = Engine::answering(200).await;
    let health = "health: { path: /probe, interval: 100ms, timeout: 5s }";
    let pool = Pool::model("m").with("policy: round_robin").with(health);
    let proxy = Proxy::start(&Config::new(pool.at(engine.address()).at(well.upstream.address()))).await;
    let state = async |wanted: &str| {
        wait_until(wanted, PATIENCE, || async { proxy.replicas().await[0]["state"] == wanted }).await;
    };
    state("down").await;
    assert_eq!(drive(&proxy, 20).await, 20, "nobody meets it");
    loading.store(false, Ordering::SeqCst);
    wait_until("it is up", PATIENCE, || async { proxy.replicas().await[0]["probe"]["up"] == true }).await;
    assert_eq!(drive(&proxy, 20).await, 20);
    // It is told to load another one, between two probes: the first requests that meet that find it out.
    loading.store(true, Ordering::SeqCst);
    drive(&proxy, 40).await;
    state("down").await;
    let met = engine.seen("/v1/chat/completions").len();
    assert_eq!(drive(&proxy, 20).await, 20);
    assert_eq!(engine.seen("/v1/chat/completions").len(), met);
    loading.store(false, Ordering::SeqCst);
    wait_until("it is up again", PATIENCE, || async { proxy.replicas().await[0]["probe"]["up"] == true }).await;
    assert_eq!(breaker(&proxy, 0).await, "closed", "a new model need not answer for the loading of it");
}
