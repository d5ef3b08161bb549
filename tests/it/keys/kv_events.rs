//! KV events and ranks: where they are listened to, what is sent again, and which rank is asked.
use serde_json::json;

use super::*;
use crate::kv_events::{body, matched, publish_until_heard, tokenizer, until_matched, until_state, whole};

checks! {
    endpoint: "pools[].replicas[].kv_events", "pools[].replicas[].kv_events.endpoint";
    replay: "pools[].replicas[].kv_events.replay";
    topic: "pools[].replicas[].kv_events.topic";
    ports: "pools[].kv_events", "pools[].kv_events.port";
    replay_port: "pools[].kv_events.replay_port";
    pool_topic: "pools[].kv_events.topic";
    ranks: "pools[].replicas[].ranks";
}

/// A pool of one replica `r0` with these keys of its own.
fn of(mock: &Mock, keys: &str) -> Pool {
    let pool = Pool::model("m").with("policy: cache_aware").with(&tokenizer());
    pool.replica(&format!("{{ id: r0, url: \"http://{}\"{keys} }}", mock.address()))
}

/// Of two routers, only the first learns of what is published.
async fn only_the_first_hears(publisher: &mut Publisher, with: &Proxy, without: &Proxy) {
    let (one, other) = (body(1, 2), body(2, 2));
    wait_until("an event is heard of", PATIENCE, || async { matched(with, "r0", &one).await == 32 }).await;
    publisher.publish(json!([whole(2, 2)])).await;
    until_matched(with, "r0", &other, 32).await;
    assert_eq!(matched(without, "r0", &other).await, 0);
}

pub async fn endpoint() {
    let (mock, mut publisher) = (Mock::fast(), Publisher::start(100).await);
    publisher.publish(json!([whole(1, 2)])).await;
    let keys = format!(", {}", publisher.keys(true));
    let (with, without) = pair(&Config::new(of(&mock, &keys)), &Config::new(of(&mock, ""))).await;
    only_the_first_hears(&mut publisher, &with, &without).await;
}

pub async fn replay() {
    let (mock, mut publisher) = (Mock::fast(), Publisher::start(100).await);
    publisher.publish(json!([whole(1, 2)])).await;
    let config = |replay| Config::new(of(&mock, &format!(", {}", publisher.keys(replay))));
    let (with, without) = pair(&config(true), &config(false)).await;
    until_state(&with, "r0", "live").await;
    assert_eq!(matched(&with, "r0", &body(1, 2)).await, 32);
    // What comes now, the other one hears as well; that it knows all, it can't.
    publish_until_heard(&mut publisher, &without, 2).await;
    until_state(&without, "r0", "degraded").await;
    assert_eq!(matched(&without, "r0", &body(1, 2)).await, 0);
}

pub async fn topic() {
    let (mock, mut publisher) = (Mock::fast(), Publisher::start(100).await);
    publisher.topic = "kv@a";
    let port = publisher.port;
    let config = |topic| {
        Config::new(of(&mock, &format!(", kv_events: {{ endpoint: \"tcp://127.0.0.1:{port}\", topic: \"{topic}\" }}")))
    };
    let (with, without) = pair(&config("kv@"), &config("other")).await;
    publish_until_heard(&mut publisher, &with, 1).await;
    only_the_first_hears(&mut publisher, &with, &without).await;
}

pub async fn ports() {
    let (mock, mut publisher) = (Mock::fast(), Publisher::start(100).await);
    publisher.publish(json!([whole(1, 2)])).await;
    let (port, replay) = (publisher.port, publisher.replay_port);
    let with = Config::new(of(&mock, "").with(&format!("kv_events: {{ port: {port}, replay_port: {replay} }}")));
    let (with, without) = pair(&with, &Config::new(of(&mock, ""))).await;
    only_the_first_hears(&mut publisher, &with, &without).await;
}

pub async fn replay_port() {
    let (mock, mut publisher) = (Mock::fast(), Publisher::start(100).await);
    publisher.publish(json!([whole(1, 2)])).await;
    let (port, replay) = (publisher.port, publisher.replay_port);
    let with = Config::new(of(&mock, "").with(&format!("kv_events: {{ port: {port}, replay_port: {replay} }}")));
    let without = Config::new(of(&mock, "").with(&format!("kv_events: {{ port: {port} }}")));
    let (with, without) = pair(&with, &without).await;
    until_state(&with, "r0", "live").await;
    publish_until_heard(&mut publisher, &without, 2).await;
    assert_eq!(matched(&with, "r0", &body(1, 2)).await, 32);
    assert_eq!(matched(&without, "r0", &body(1, 2)).await, 0);
}

pub async fn pool_topic() {
    let (mock, mut publisher) = (Mock::fast(), Publisher::start(100).await);
    publisher.topic = "kv@a";
    let port = publisher.port;
    let config = |topic| Config::new(of(&mock, "").with(&format!("kv_events: {{ port: {port}, topic: \"{topic}\" }}")));
    let (with, without) = pair(&config("kv@"), &config("other")).await;
    publish_until_heard(&mut publisher, &with, 1).await;
    only_the_first_hears(&mut publisher, &with, &without).await;
}

/// The header that names the rank, as engines saw it.
fn asked(engine: &Upstream) -> BTreeSet<String> {
    let seen = engine.seen("/v1/chat/completions");
    let rank = |seen: &Seen| seen.head.get("x-data-parallel-rank").unwrap_or("none").to_owned();
    seen.iter().map(rank).collect()
}

pub async fn ranks() {
    let engines = [engine("a").await, engine("b").await];
    let pool = |at: &Upstream, keys: &str| {
        let pool = Pool::model("m").with("policy: round_robin");
        Config::new(pool.replica(&format!("{{ id: r0, url: \"http://{}\"{keys} }}", at.address())))
    };
    let (with, without) = pair(&pool(&engines[0], ", ranks: 2"), &pool(&engines[1], "")).await;
    for _ in 0..4 {
        // A client can't choose one.
        for proxy in [&with, &without] {
            let answer = proxy.exchange(&chat(false, 1).header("x-data-parallel-rank", "7")).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
        }
    }
    assert_eq!(asked(&engines[0]), BTreeSet::from(["0".to_owned(), "1".to_owned()]));
    assert_eq!(asked(&engines[1]), BTreeSet::from(["7".to_owned()]), "where there are no ranks it is the engine's");
    let ids: Vec<_> = with.replicas().await.iter().map(|replica| replica["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids, ["r0@rank0", "r0@rank1"]);
}
