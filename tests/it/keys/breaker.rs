//! `pools[].health`, beyond the probe: how many are left out, and the breaker.
use serde_json::json;

use super::*;
use crate::resilience::{Engine, breaker, count, drive, in_turn};

checks! {
    down_interval: "pools[].health.down_interval";
    model_match: "pools[].health.model_match";
    max_ejected: "pools[].health.max_ejected";
    failures: "pools[].health.breaker", "pools[].health.breaker.failures";
    share: "pools[].health.breaker.share";
    window: "pools[].health.breaker.window";
    min_requests: "pools[].health.breaker.min_requests";
    open_for: "pools[].health.breaker.open_for";
    max_open: "pools[].health.breaker.max_open";
}

const STAYS: &str = "open_for: 1h, max_open: 1h";

async fn start(engines: &[Engine], health: &str) -> Proxy {
    Proxy::start(&Config::new(in_turn(engines, &[&format!("health: {{ {health} }}")]))).await
}

pub async fn down_interval() {
    const PROBE: &str = "/probe";
    let engines = [Upstream::fixed(500, &[], "").await, Upstream::fixed(500, &[], "").await];
    let config = |engine: &Upstream, key: &str| {
        let health = format!("health: {{ path: {PROBE}, interval: 1h{key} }}");
        Config::new(Pool::model("m").at(engine.address()).with(&health))
    };
    let _with = Proxy::start_unready(&config(&engines[0], ", down_interval: 20ms"));
    let _without = Proxy::start_unready(&config(&engines[1], ""));
    let ten = async |engine: &Upstream| {
        wait_until("ten probes", PATIENCE, || async { engine.seen(PROBE).len() >= 10 }).await;
    };
    sooner("ten probes", ten(&engines[0]), ten(&engines[1])).await;
}

pub async fn model_match() {
    let engine = Upstream::fixed(200, &[], "{\"data\":[{\"id\":\"another\"}]}").await;
    let with = Proxy::start_unready(&one_pool(std::slice::from_ref(&engine), "health: { model_match: true }"));
    wait_until("it is down", PATIENCE, || async { with.replicas().await[0]["state"] == "down" }).await;
    let without = Proxy::start(&one_pool(std::slice::from_ref(&engine), "")).await;
    assert_eq!(without.replicas().await[0]["state"], "ready");
}

pub async fn max_ejected() {
    let good = async |key: &str| {
        let engines = [500, 500, 200, 200].map(Engine::answering);
        let engines = futures_util::future::join_all(engines).await;
        let proxy = start(&engines, &format!("breaker: {{ {STAYS} }}{key}")).await;
        drive(&proxy, 60).await;
        drive(&proxy, 20).await
    };
    assert_eq!(good("").await, 20, "by default two of four may be left out");
    assert!(good(", max_ejected: 25%").await < 20, "one may");
}

pub async fn failures() {
    let seen = async |key: &str| {
        let engines = [Engine::answering(500).await, Engine::answering(200).await];
        let proxy = start(&engines, &format!("breaker: {{ {STAYS}{key} }}")).await;
        drive(&proxy, 40).await;
        engines[0].seen()
    };
    assert_eq!((seen(", failures: 2").await, seen("").await), (2, 5));
}

/// Whether every other failure opens a breaker: never two in a row, half of sixty, 20 ms apart.
async fn opens(key: &str) -> bool {
    let mock = Mock::fast();
    mock.control(json!({"delay_ms": 20})).await;
    let health = format!("health: {{ breaker: {{ {STAYS}{key} }} }}");
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()).with(&health))).await;
    for _ in 0..30 {
        mock.control(json!({"status": 500})).await;
        assert_eq!((drive(&proxy, 1).await, drive(&proxy, 1).await), (0, 1));
    }
    breaker(&proxy, 0).await == "open"
}

pub async fn share() {
    assert!(opens("").await && !opens(", share: 80%").await);
}

pub async fn window() {
    assert!(opens("").await && !opens(", window: 100ms").await, "five requests fall into 100 ms");
}

pub async fn min_requests() {
    assert!(opens("").await && !opens(", min_requests: 1000").await);
}

pub async fn open_for() {
    // One that is back for good.
    let closes = async |key: &str| {
        let engines = [Engine::answering(500).await];
        let proxy = start(&engines, &format!("interval: 100ms, breaker: {{ {key} }}")).await;
        drive(&proxy, 5).await;
        assert_eq!(breaker(&proxy, 0).await, "open");
        engines[0].answers(200);
        wait_until("it closes", PATIENCE, || async {
            drive(&proxy, 1).await;
            breaker(&proxy, 0).await == "closed"
        })
        .await;
    };
    sooner("a breaker that closes", closes(""), closes("open_for: 1h")).await;
}

pub async fn max_open() {
    // One that is never back: each time it would be twice as long.
    let opens_often = async |key: &str| {
        let engines = [Engine::answering(500).await];
        let proxy = start(&engines, &format!("interval: 100ms, breaker: {{ open_for: 20ms{key} }}")).await;
        wait_until("it opens twelve times", PATIENCE, || async {
            drive(&proxy, 1).await;
            count(&proxy, "warmroute_breaker_opened_total").await >= 12
        })
        .await;
    };
    sooner("twelve openings", opens_often(", max_open: 20ms"), opens_often("")).await;
}
