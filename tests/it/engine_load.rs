//! What engines say of themselves beside requests, and what the router makes of it.
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::*;

/// Asked often, so that nobody waits; and old only after a second and a half, as the machine may be busy.
const OFTEN: &str = "engine_metrics: { interval: 500ms, max_waiting: 4 }";

/// A fake engine: its metrics page can be changed, and to all else it answers with its name.
struct Engine {
    upstream: Upstream,
    page: Arc<Mutex<Option<String>>>,
}

impl Engine {
    async fn start(name: &'static str, page: Option<&str>) -> Self {
        let page = Arc::new(Mutex::new(page.map(str::to_owned)));
        let shown = page.clone();
        let upstream = Upstream::start(move |request, mut wire| {
            let page = shown.lock().unwrap().clone();
            async move {
                match (request.target(), page) {
                    ("/metrics", Some(page)) => wire.reply(200, &[], page.as_bytes()).await.ok()?,
                    ("/metrics" | "/v1/loads", _) => wire.reply(404, &[], b"{\"detail\":\"Not Found\"}").await.ok()?,
                    _ => wire.reply(200, &[("Content-Type", "application/json")], name.as_bytes()).await.ok()?,
                }
                Some(wire)
            }
        })
        .await;
        Self { upstream, page }
    }

    fn says(&self, page: &str) {
        *self.page.lock().unwrap() = Some(page.into());
    }

    fn says_nothing(&self) {
        *self.page.lock().unwrap() = None;
    }
}

/// vLLM's page: so many requests wait, and so much of the cache is in use.
fn page(waiting: u32, cache_use: f64) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 7.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} {cache_use:?}\n"
    )
}

async fn two(pages: [&str; 2]) -> [Engine; 2] {
    [Engine::start("e0", Some(pages[0])).await, Engine::start("e1", Some(pages[1])).await]
}

fn pool(engines: &[Engine], keys: &[&str]) -> Pool {
    let pool = keys.iter().fold(Pool::model("m"), |pool, key| pool.with(key));
    engines.iter().fold(pool, |pool, engine| pool.at(engine.upstream.address()))
}

async fn engine(proxy: &Proxy, replica: usize) -> Value {
    proxy.replicas().await[replica]["engine"].clone()
}

async fn wait_saturated(proxy: &Proxy, replica: usize, wanted: bool) {
    wait_until(&format!("saturated: {wanted}"), PATIENCE, || async {
        engine(proxy, replica).await["saturated"] == wanted
    })
    .await;
}

/// How many of so many requests each engine gets.
async fn shares(proxy: &Proxy, requests: usize) -> [usize; 2] {
    let mut shares = [0; 2];
    for _ in 0..requests {
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        shares[usize::from(answer.text() == "e1")] += 1;
    }
    shares
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_says_is_shown_with_its_age() {
    let engines = two([&page(3, 0.25), "vllm:num_requests_running 2\n"]).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, &["engine_metrics: 100ms"]))).await;
    wait_until("both were heard", PATIENCE, || async {
        !engine(&proxy, 0).await.is_null() && !engine(&proxy, 1).await.is_null()
    })
    .await;
    let said = engine(&proxy, 0).await;
    assert_eq!((&said["name"], &said["running"], &said["waiting"]), (&json!("vllm"), &json!(7), &json!(3)));
    assert_eq!((&said["cache_use"], &said["saturated"], &said["asleep"]), (&json!(0.25), &json!(false), &json!(false)));
    assert!(said["age_ms"].as_u64().is_some_and(|age| age < 60_000), "{said}");
    let other = engine(&proxy, 1).await;
    assert_eq!((&other["waiting"], &other["cache_use"], &other["running"]), (&json!(null), &json!(null), &json!(2)));
    for (family, value) in [("running_requests", 7.0), ("waiting_requests", 3.0), ("cache_usage_ratio", 0.25)] {
        assert_eq!(proxy.metric(&format!("warmroute_engine_{family}{{replica=\"r0\"}}")).await, value, "{family}");
    }
    let metrics = proxy.metrics().await;
    assert!(metrics.contains("warmroute_engine_report_age_seconds{replica=\"r0\"}"));
    assert!(!metrics.contains("warmroute_engine_waiting_requests{replica=\"r1\"}"), "unknown is not zero");
    assert!(proxy.metric("warmroute_engine_scrapes_total{replica=\"r0\",result=\"ok\"}").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saturated_engine_is_left_out_while_another_is_not() {
    let engines = two([&page(4, 0.5), &page(0, 0.5)]).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, &["policy: round_robin", OFTEN]))).await;
    wait_saturated(&proxy, 0, true).await;
    assert_eq!(shares(&proxy, 10).await, [0, 10]);
    let explained = exchange(proxy.admin(), &Request::post("/explain", &chat_body("m", false, 1))).await.json();
    assert_eq!(explained["candidates"][0]["note"], "saturated", "{explained}");

    engines[1].says(&page(9, 0.5));
    wait_saturated(&proxy, 1, true).await;
    assert_eq!(shares(&proxy, 10).await, [5, 5], "all are: nobody is left out");

    engines[0].says(&page(1, 0.5));
    wait_saturated(&proxy, 0, false).await;
    assert_eq!(shares(&proxy, 10).await, [10, 0]);
    engines[0].says(&page(1, 0.97));
    engines[1].says(&page(3, 0.5));
    wait_saturated(&proxy, 0, true).await;
    wait_saturated(&proxy, 1, false).await;
    assert_eq!(shares(&proxy, 10).await, [0, 10], "one waits, and there is no room for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_old_counts_for_nothing() {
    let engines = two([&page(40, 1.0), &page(0, 0.5)]).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, &["policy: round_robin", OFTEN]))).await;
    wait_saturated(&proxy, 0, true).await;
    engines[0].says_nothing();
    wait_until("it is not saturated any more", PATIENCE, || async {
        let said = engine(&proxy, 0).await;
        said.is_null() || said["saturated"] == false
    })
    .await;
    assert_eq!(shares(&proxy, 10).await, [5, 5]);
}

/// Most engines are asked for what they do not have: that must not be told every second, or harm.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_nothing_to_say_is_served_as_before() {
    let engines = [Engine::start("e0", None).await, Engine::start("e1", Some("<html>hello</html>")).await];
    let proxy = Proxy::start(&Config::new(pool(&engines, &["policy: round_robin", OFTEN]))).await;
    let absent = "warmroute_engine_scrapes_total{result=\"absent\"}";
    wait_until("both were asked", PATIENCE, || async { proxy.metric(absent).await >= 2.0 }).await;
    assert_eq!(shares(&proxy, 10).await, [5, 5]);
    assert!(engines[0].upstream.seen("/v1/loads").len() == 1 && engines[1].upstream.seen("/v1/loads").is_empty());
    assert!(engine(&proxy, 0).await.is_null());
    assert!(proxy.replicas().await.iter().all(|row| row["state"] == "ready" && row["cache_tokens"] == 500_000));
    let lines = proxy.process.output();
    assert_eq!(lines.iter().filter(|line| line.contains("no metrics that are known")).count(), 2, "once each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_keeps_as_much_as_its_engine_says_unless_the_operator_knows_better() {
    let mock = |engine| Mock::start(&["--model", "m", "--cache-tokens", "32000", "--engine", engine]);
    let mocks = [mock("vllm"), mock("sglang"), mock("vllm")];
    let known = format!("{{ id: known, url: \"http://{}\", cache_tokens: 48000 }}", mocks[2].address());
    let pool = Pool::model("m").at(mocks[0].address()).at(mocks[1].address()).replica(&known);
    let proxy = Proxy::start(&Config::new(pool.with("policy: cache_aware").with(OFTEN))).await;
    wait_until("both have said so", PATIENCE, || async {
        let rows = proxy.replicas().await;
        rows[0]["cache_tokens"] == 32_000 && rows[1]["cache_tokens"] == 32_000 && !rows[2]["engine"].is_null()
    })
    .await;
    // The core hears of it with its next decision.
    proxy.exchange(&chat(false, 1)).await;
    for (replica, blocks) in [("r0", 2_000.0), ("r1", 2_000.0), ("known", 3_000.0)] {
        let capacity = format!("warmroute_index_capacity_blocks{{pool=\"m\",replica=\"{replica}\"}}");
        let assumed = proxy.metric(&capacity).await;
        // The block with which a request ends is of no use to the next one.
        assert!(assumed <= blocks && assumed > 0.95 * blocks, "{replica}: {assumed} of {blocks}");
    }
}

/// llm-d-router#2853: a pod keeps credit for blocks that it lost in a restart.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_began_anew_is_known_to_hold_nothing() {
    let mock = Mock::fast();
    let policy = "policy: { type: cache_aware, min_match_tokens: 64 }";
    let pool = Pool::model("m").at(mock.address()).with(policy).with(OFTEN);
    let proxy = Proxy::start(&Config::new(pool).with("expose: 127.0.0.1")).await;
    wait_until("it was heard", PATIENCE, || async { !engine(&proxy, 0).await.is_null() }).await;
    let prompt = json!({"model": "m", "prompt": letters(4_000, 1), "max_tokens": 1});
    let matched = async || {
        let answer = proxy.exchange(&Request::post("/v1/completions", &prompt)).await;
        answer.header("x-warmroute-matched-tokens").unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(matched().await, 0);
    assert!(matched().await > 900);
    // No connection is refused, no probe fails.
    mock.control(json!({"restart": true})).await;
    wait_until("it is noticed", PATIENCE, || async { proxy.replicas().await[0]["restarts"] == 1 }).await;
    assert_eq!(matched().await, 0, "nothing is credited to the new one");
    assert!(matched().await > 900);
    assert_eq!(proxy.replicas().await[0]["restarts"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_sleeps_gets_nothing_and_is_used_again() {
    let mocks = [Mock::fast(), Mock::fast()];
    let pool = mocks.iter().fold(Pool::model("m").with("policy: session_sticky"), |pool, mock| pool.at(mock.address()));
    let proxy = Proxy::start(&Config::new(pool.with(OFTEN))).await;
    let session = chat(false, 1).header("x-session-id", "a-session-of-mine");
    assert_eq!(proxy.exchange(&session).await.status(), 200);
    let home = usize::from(mocks[1].stat("requests").await == 1);
    mocks[home].control(json!({"sleep": true})).await;
    let state = async |wanted: &str| {
        wait_until(wanted, PATIENCE, || async { proxy.replicas().await[home]["state"] == wanted }).await;
    };
    state("down").await;
    let before = mocks[home].stat("requests").await;
    for _ in 0..10 {
        assert_eq!(proxy.exchange(&session).await.status(), 200, "its session goes elsewhere");
    }
    assert_eq!(mocks[home].stat("requests").await, before);
    // Both asleep: nobody wakes them by asking.
    mocks[1 - home].control(json!({"sleep": true})).await;
    wait_until("both sleep", PATIENCE, || async {
        proxy.replicas().await.iter().all(|row| row["engine"]["asleep"] == true)
    })
    .await;
    assert_eq!(proxy.exchange(&session).await.status(), 503);
    mocks[home].control(json!({"sleep": false})).await;
    state("warming").await;
    assert_eq!(proxy.exchange(&session).await.status(), 200);
    assert_eq!(mocks[home].stat("requests").await, before + 1);
}

/// AIBrix#2063: slow pods freeze metric refresh.
#[tokio::test(flavor = "multi_thread")]
async fn d8_an_engine_that_does_not_answer_delays_nobody_s_report() {
    let hangs = Upstream::start(|request, mut wire| async move {
        if request.target() == "/metrics" {
            wire.gone().await;
            return None;
        }
        wire.reply(200, &[], b"e0").await.ok()?;
        Some(wire)
    })
    .await;
    let other = Engine::start("e1", Some(&page(0, 0.0))).await;
    let health = "health: { interval: 100ms, timeout: 200ms }";
    let pool = Pool::model("m").at(hangs.address()).at(other.upstream.address());
    let proxy = Proxy::start(&Config::new(pool.with(OFTEN).with(health))).await;
    let scrapes = |result: &str| format!("warmroute_engine_scrapes_total{{result=\"{result}\"}}");
    wait_until("ten reports of the one, and two of the other given up", PATIENCE, || async {
        proxy.metric(&scrapes("ok")).await >= 10.0 && proxy.metric(&scrapes("failed")).await >= 2.0
    })
    .await;
    let asked = hangs.seen("/metrics");
    let connections: std::collections::BTreeSet<_> = asked.iter().map(|seen| seen.connection).collect();
    assert_eq!(connections.len(), asked.len(), "one at a time, and each given up before the next");
    assert_eq!(proxy.replicas().await[0]["state"], "ready", "what an engine says is not its health");
}

/// vLLM says it in the head of an answer whose client asked for it: no look is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_answer_says_of_the_engine_s_queue_counts_too() {
    let orca = |value: &'static str| [("endpoint-load-metrics", value)];
    let busy = orca("TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=20");
    let idle = orca("JSON {\"named_metrics\": {\"kv_cache_usage_perc\": 0.5, \"num_requests_waiting\": 0}}");
    let engines = [Upstream::fixed(200, &busy, "e0").await, Upstream::fixed(200, &idle, "e1").await];
    let pool = engines.iter().fold(Pool::model("m"), |pool, engine| pool.at(engine.address()));
    let proxy = Proxy::start(&Config::new(pool.with("policy: round_robin").with("engine_metrics: 1h"))).await;
    let [first, _] = shares(&proxy, 10).await;
    assert_eq!(first, 1, "it told with its first answer");
    assert_eq!(engine(&proxy, 0).await["waiting"], 20);
}
