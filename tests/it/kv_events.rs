//! What engines say of their caches: sockets, order, loss, restarts; seen through `/explain` and metrics.
mod kinds;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::*;

/// So many blocks of 16 tokens, of a prompt that no other number begins.
fn tokens(prompt: u32, blocks: u32) -> Vec<u32> {
    (0..16 * blocks).map(|at| 1000 * prompt + at).collect()
}

/// The engine's names for them.
fn hashes(prompt: u64, blocks: u64) -> Vec<u64> {
    // Some beyond what a signed number holds.
    (0..blocks).map(|at| u64::MAX - 100 * prompt - at).collect()
}

pub fn whole(prompt: u32, blocks: u32) -> Value {
    stored(&hashes(prompt.into(), blocks.into()), None, &tokens(prompt, blocks))
}

/// A completion of these token ids, and one more.
pub fn body(prompt: u32, blocks: u32) -> Value {
    let mut ids = tokens(prompt, blocks);
    ids.push(7);
    json!({ "model": "m", "prompt": ids, "max_tokens": 1 })
}

pub fn tokenizer() -> String {
    format!("tokenizer: \"{}/tests/fixtures/tokenizer\"", env!("CARGO_MANIFEST_DIR"))
}

/// A pool of replicas `r0`, `r1`, … with these keys beside their addresses.
fn pool(mocks: &[Mock], keys: &[String]) -> Pool {
    let pool = Pool::model("m").with("policy: { type: cache_aware, min_match_tokens: 16 }").with(&tokenizer());
    mocks.iter().zip(keys).enumerate().fold(pool, |pool, (at, (mock, keys))| {
        pool.replica(&format!("{{ id: r{at}, url: \"http://{}\", {keys} }}", mock.address()))
    })
}

/// What `/explain` says that a replica holds of a prompt.
pub async fn matched(proxy: &Proxy, replica: &str, body: &Value) -> u64 {
    let answer = exchange(proxy.admin(), &Request::post("/explain?path=/v1/completions", body)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let said = answer.json();
    let row = said["candidates"].as_array().expect("a list").iter().find(|row| row["replica"] == replica).cloned();
    row.and_then(|row| row["matched_tokens"].as_u64()).unwrap_or_else(|| panic!("no match of {replica} in {said}"))
}

pub async fn until_matched(proxy: &Proxy, replica: &str, body: &Value, tokens: u64) {
    let what = format!("{replica} holds {tokens} tokens");
    wait_until(&what, PATIENCE, || async { matched(proxy, replica, body).await == tokens }).await;
}

pub async fn until_state(proxy: &Proxy, replica: &str, state: &str) {
    let selector = format!("warmroute_kv_events_state{{replica=\"{replica}\",state=\"{state}\"}}");
    wait_until(&format!("{replica} is {state}"), PATIENCE, || async { proxy.metric(&selector).await == 1.0 }).await;
}

async fn losses(proxy: &Proxy, kind: &str) -> f64 {
    proxy.metric(&format!("warmroute_kv_event_losses_total{{kind=\"{kind}\",replica=\"r0\"}}")).await
}

async fn until_messages(proxy: &Proxy, kind: &str, count: f64) {
    let selector = format!("warmroute_kv_event_messages_total{{kind=\"{kind}\",replica=\"r0\"}}");
    wait_until(&format!("{count} {kind}"), PATIENCE, || async { proxy.metric(&selector).await == count }).await;
}

async fn skipped(proxy: &Proxy, replica: &str, reason: &str) -> f64 {
    let selector = format!("warmroute_kv_events_skipped_total{{reason=\"{reason}\",replica=\"{replica}\"}}");
    proxy.metric(&selector).await
}

/// Says of two blocks that they are there until a router knows: what comes before it has subscribed is lost.
pub async fn publish_until_heard(publisher: &mut Publisher, proxy: &Proxy, prompt: u32) {
    publish_until_heard_of("r0", publisher, proxy, prompt).await;
}

async fn publish_until_heard_of(replica: &str, publisher: &mut Publisher, proxy: &Proxy, prompt: u32) {
    let heard = async {
        while matched(proxy, replica, &body(prompt, 2)).await != 32 {
            publisher.publish(json!([whole(prompt, 2)])).await;
        }
    };
    within("a live event is heard of", PATIENCE, heard).await;
}

/// A router with one replica whose events are followed exactly, and another that publishes none.
async fn followed(publisher: &Publisher) -> (Proxy, [Mock; 2]) {
    let mocks = [Mock::fast(), Mock::fast()];
    let keys = [publisher.keys(true), "weight: 1".into()];
    let proxy = Proxy::start(&Config::new(pool(&mocks, &keys))).await;
    (proxy, mocks)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_says_is_known_and_what_it_gives_back_is_not() {
    let mut publisher = Publisher::start(100).await;
    let (proxy, _mocks) = followed(&publisher).await;
    until_state(&proxy, "r0", "live").await;
    assert_eq!(matched(&proxy, "r0", &body(1, 4)).await, 0);

    publisher.publish(json!([whole(1, 4)])).await;
    until_matched(&proxy, "r0", &body(1, 4), 64).await;
    assert_eq!(matched(&proxy, "r1", &body(1, 4)).await, 0, "the other said nothing");
    let answer = proxy.exchange(&Request::post("/v1/completions", &body(1, 4))).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let sent = |replica: &str| format!("warmroute_matched_tokens_total{{pool=\"m\",replica=\"{replica}\"}}");
    assert_eq!(proxy.metric(&sent("r0")).await, 64.0, "it went where its prefix is");

    publisher.publish(json!([removed(&hashes(1, 4)[2..])])).await;
    // What the request expected there counts for a second more.
    until_matched(&proxy, "r0", &body(1, 4), 32).await;
    publisher.publish(json!([removed(&hashes(1, 1))])).await;
    until_matched(&proxy, "r0", &body(1, 4), 0).await;
    publisher.publish(json!([stored(&hashes(1, 1), None, &tokens(1, 1))])).await;
    until_matched(&proxy, "r0", &body(1, 4), 32).await;
    publisher.publish(json!([cleared()])).await;
    until_matched(&proxy, "r0", &body(1, 4), 0).await;
    for (event, count) in [("stored", 2.0), ("removed", 2.0), ("cleared", 1.0)] {
        let selector = format!("warmroute_kv_events_total{{event=\"{event}\",replica=\"r0\"}}");
        assert_eq!(proxy.metric(&selector).await, count, "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_before_is_sent_again() {
    let mut publisher = Publisher::start(100).await;
    publisher.publish(json!([whole(1, 4)])).await;
    publisher.publish(json!([whole(2, 2), removed(&hashes(1, 4)[3..])])).await;
    let (proxy, _mocks) = followed(&publisher).await;
    until_state(&proxy, "r0", "live").await;
    assert_eq!(matched(&proxy, "r0", &body(1, 4)).await, 48);
    assert_eq!(matched(&proxy, "r0", &body(2, 2)).await, 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_event_is_noticed_and_asked_for_again() {
    let mut publisher = Publisher::start(100).await;
    let (proxy, _mocks) = followed(&publisher).await;
    until_state(&proxy, "r0", "live").await;
    publisher.publish(json!([whole(1, 2)])).await;
    until_matched(&proxy, "r0", &body(1, 2), 32).await;
    publisher.lose(json!([whole(2, 2)]));
    publisher.publish(json!([whole(3, 2)])).await;
    until_matched(&proxy, "r0", &body(2, 2), 32).await;
    until_matched(&proxy, "r0", &body(3, 2), 32).await;
    until_state(&proxy, "r0", "live").await;
    for (kind, count) in [("applied", 3.0), ("gap", 1.0), ("lost", 0.0)] {
        until_messages(&proxy, kind, count).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_sent_again_what_is_known_stays_and_predictions_count_beside_it() {
    let mut publisher = Publisher::start(0).await;
    let mocks = [Mock::fast()];
    let proxy = Proxy::start(&Config::new(pool(&mocks, &[publisher.keys(false)]))).await;
    publish_until_heard(&mut publisher, &proxy, 1).await;
    publisher.lose(json!([whole(2, 2)]));
    publisher.publish(json!([whole(3, 2)])).await;
    until_matched(&proxy, "r0", &body(3, 2), 32).await;
    until_state(&proxy, "r0", "degraded").await;
    assert_eq!(losses(&proxy, "missed").await, 1.0);
    assert_eq!(matched(&proxy, "r0", &body(1, 2)).await, 32, "what is known stays");
    assert_eq!(matched(&proxy, "r0", &body(2, 2)).await, 0, "nobody heard of it");

    // It is expected there from now on, and stays so: longer than what an open request is about to put there counts.
    let answer = proxy.exchange(&Request::post("/v1/completions", &body(2, 2))).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let ended = Instant::now();
    wait_until("a second is over", PATIENCE, || async { ended.elapsed() > Duration::from_millis(1200) }).await;
    assert_eq!(matched(&proxy, "r0", &body(2, 2)).await, 32, "predicted");
    // A cache that is empty is known whole.
    publisher.publish(json!([cleared()])).await;
    until_state(&proxy, "r0", "live").await;
}

/// It must neither take for the whole cache what it hears from then on, nor credit what it can't place.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_is_restarted_where_nothing_is_sent_again_knows_less_and_nothing_wrong() {
    let mut publisher = Publisher::start(0).await;
    let mocks = [Mock::fast()];
    let config = Config::new(pool(&mocks, &[publisher.keys(false)]));
    let proxy = Proxy::start(&config).await;
    publish_until_heard(&mut publisher, &proxy, 1).await;
    publisher.publish(json!([whole(2, 2)])).await;
    until_matched(&proxy, "r0", &body(2, 2), 32).await;
    drop(proxy);

    publisher.publish(json!([removed(&hashes(1, 2)), whole(3, 2)])).await;
    let proxy = Proxy::start(&config).await;
    publish_until_heard(&mut publisher, &proxy, 4).await;
    until_state(&proxy, "r0", "degraded").await;
    assert_eq!(losses(&proxy, "late").await, 1.0);
    for prompt in 1..=3 {
        assert_eq!(matched(&proxy, "r0", &body(prompt, 2)).await, 0, "{prompt}");
    }
    // What continues a prompt of before has no place; the removal of one is nothing.
    let next = stored(&[7], Some(hashes(2, 2)[1]), &tokens(2, 3)[32..]);
    publisher.publish(json!([next, removed(&hashes(3, 2)), whole(5, 2)])).await;
    until_matched(&proxy, "r0", &body(5, 2), 32).await;
    assert_eq!(matched(&proxy, "r0", &body(2, 3)).await, 0);
    assert_eq!(skipped(&proxy, "r0", "orphan").await, 1.0);

    // Predictions count meanwhile, and what is stored anew.
    let answer = proxy.exchange(&Request::post("/v1/completions", &body(2, 2))).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let ended = Instant::now();
    wait_until("a second is over", PATIENCE, || async { ended.elapsed() > Duration::from_millis(1200) }).await;
    assert_eq!(matched(&proxy, "r0", &body(2, 2)).await, 32, "predicted");
    publisher.publish(json!([whole(1, 2)])).await;
    until_matched(&proxy, "r0", &body(1, 2), 32).await;
    publisher.publish(json!([cleared(), whole(3, 2)])).await;
    until_state(&proxy, "r0", "live").await;
    until_matched(&proxy, "r0", &body(3, 2), 32).await;
    for prompt in [1, 2, 4, 5] {
        assert_eq!(matched(&proxy, "r0", &body(prompt, 2)).await, 0, "{prompt}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_restarted_holds_nothing_of_before() {
    let mut publisher = Publisher::start(100).await;
    let (proxy, _mocks) = followed(&publisher).await;
    until_state(&proxy, "r0", "live").await;
    for prompt in 1..=3 {
        publisher.publish(json!([whole(prompt, 2)])).await;
    }
    until_matched(&proxy, "r0", &body(3, 2), 32).await;

    let mut publisher = publisher.again().await;
    publisher.publish(json!([whole(4, 2)])).await;
    until_matched(&proxy, "r0", &body(4, 2), 32).await;
    until_state(&proxy, "r0", "live").await;
    for prompt in 1..=3 {
        assert_eq!(matched(&proxy, "r0", &body(prompt, 2)).await, 0, "{prompt}");
    }
    assert!(losses(&proxy, "disconnected").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_puts_there_counts_at_once_and_not_for_long_unless_the_engine_says_so() {
    let mut publisher = Publisher::start(100).await;
    let mocks = [Mock::fast()];
    let proxy = Proxy::start(&Config::new(pool(&mocks, &[publisher.keys(true)]))).await;
    until_state(&proxy, "r0", "live").await;
    for prompt in [1, 2] {
        let answer = proxy.exchange(&Request::post("/v1/completions", &body(prompt, 4))).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(matched(&proxy, "r0", &body(prompt, 4)).await, 64, "at once");
    }
    publisher.publish(json!([whole(2, 4)])).await;
    until_matched(&proxy, "r0", &body(1, 4), 0).await;
    assert_eq!(matched(&proxy, "r0", &body(2, 4)).await, 64, "the engine said so");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_event_costs_itself_alone() {
    let mut publisher = Publisher::start(100).await;
    let (proxy, _mocks) = followed(&publisher).await;
    until_state(&proxy, "r0", "live").await;
    let orphan = stored(&[1], Some(2), &tokens(9, 1));
    let unknown = json!({ "type": "BlockMoved", "from": 1 });
    publisher.publish(json!([unknown, 7, orphan, whole(1, 2), { "type": "BlockStored" }])).await;
    until_matched(&proxy, "r0", &body(1, 2), 32).await;
    assert_eq!(skipped(&proxy, "r0", "orphan").await, 1.0);
    assert_eq!(skipped(&proxy, "r0", "unknown_event").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_begins_and_ends_it() {
    let mut publisher = Publisher::start(100).await;
    publisher.publish(json!([whole(1, 2)])).await;
    let mocks = [Mock::fast(), Mock::fast()];
    let without = Config::new(pool(&mocks, &["weight: 1".into(), "weight: 1".into()]));
    let with = Config::new(pool(&mocks, &[publisher.keys(true), "weight: 1".into()]));
    let proxy = Proxy::start(&without).await;
    assert_eq!(matched(&proxy, "r0", &body(1, 2)).await, 0);
    proxy.reload(&with).await;
    until_matched(&proxy, "r0", &body(1, 2), 32).await;
    proxy.reload(&without).await;
    until_matched(&proxy, "r0", &body(1, 2), 0).await;
    until_state(&proxy, "r0", "off").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_asked_where_its_events_are() {
    let mut publisher = Publisher::start(100).await;
    publisher.publish(json!([whole(1, 2)])).await;
    let sources = json!({ "0": { "enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv",
        "endpoint": format!("tcp://*:{}", publisher.port),
        "replay_endpoint": format!("tcp://*:{}", publisher.replay_port) } });
    let engine = Upstream::start(move |request, mut wire| {
        let sources = sources.to_string();
        async move {
            let known = request.target() == "/kv_event_sources";
            let (status, body) = if known { (200, sources.as_bytes()) } else { (404, &b"{}"[..]) };
            wire.reply(status, &[("content-type", "application/json")], body).await.ok()?;
            Some(wire)
        }
    })
    .await;
    let pool = Pool::model("m").with("policy: cache_aware").with(&tokenizer()).with("kv_events: auto");
    let proxy = Proxy::start(&Config::new(pool.at(engine.address()))).await;
    until_state(&proxy, "r0", "live").await;
    assert_eq!(matched(&proxy, "r0", &body(1, 2)).await, 32);
}

/// Its publisher has died, say: the engine works, and says nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_computes_and_publishes_nothing_is_suspect_until_it_does() {
    let mut publisher = Publisher::start(0).await;
    let mocks = [Mock::fast()];
    // A replay that answers would show that there is nothing to say.
    let proxy = Proxy::start(&Config::new(pool(&mocks, &[publisher.keys(false)]))).await;
    publish_until_heard(&mut publisher, &proxy, 9).await;
    publisher.publish(json!([cleared()])).await;
    until_state(&proxy, "r0", "live").await;
    for prompt in 1..=3 {
        let answer = proxy.exchange(&Request::post("/v1/completions", &body(prompt, 60))).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    until_state(&proxy, "r0", "suspect").await;
    assert_eq!(losses(&proxy, "silent").await, 1.0);
    publisher.publish(json!([whole(4, 2)])).await;
    until_state(&proxy, "r0", "live").await;
    assert_eq!(matched(&proxy, "r0", &body(4, 2)).await, 32);
}
