//! Prefix awareness: `cache_aware`'s settings, memory and time for prompts, adapters, and who is told.
use super::*;

checks! {
    policy: "pools[].policy.affinity", "pools[].policy.min_match_tokens", "pools[].policy.load",
        "pools[].policy.min_queue_gap";
    shadow: "pools[].shadow.affinity", "pools[].shadow.min_match_tokens", "pools[].shadow.load",
        "pools[].shadow.min_queue_gap";
    budgets: "pools[].tokens", "pools[].tokens.cache", "pools[].tokens.budget", "pools[].index", "pools[].index.size";
    capacity: "pools[].cache_tokens", "pools[].replicas[].cache_tokens", "pools[].discover.cache_tokens";
    prefill: "pools[].prefill", "pools[].prefill.overhead", "pools[].prefill.per_token", "pools[].prefill.per_pair";
    adapters: "pools[].adapters";
    expose: "expose";
}

/// What each of `keys` is in force as, in the pool of a router with `with` and of one without.
async fn differ(with: &str, keys: &[(&str, Value, Value)]) {
    let engines = [engine("e0").await];
    let (with, without) = pair(&one_pool(&engines, with), &one_pool(&engines, "")).await;
    for (key, value, default) in keys {
        let pointer = format!("/pools/0/{key}");
        assert_eq!(in_force(&with, &pointer).await, *value, "{key}");
        assert_eq!(in_force(&without, &pointer).await, *default, "{key}");
    }
}

async fn cache_aware(key: &str) {
    let settings = "affinity: balanced, min_match_tokens: 64, load: queued_seconds, min_queue_gap: 300ms";
    let at = |name: &str| format!("{key}/{name}");
    let none = Value::Null;
    differ(
        &format!("{key}: {{ type: cache_aware, {settings} }}"),
        &[
            (&at("affinity"), "balanced".into(), none.clone()),
            (&at("min_match_tokens"), 64.into(), none.clone()),
            (&at("load"), "queued_seconds".into(), none.clone()),
            (&at("min_queue_gap"), "300ms".into(), none),
        ],
    )
    .await;
}

pub async fn policy() {
    cache_aware("policy").await;
}

pub async fn shadow() {
    cache_aware("shadow").await;
}

pub async fn budgets() {
    differ(
        "tokens: { cache: 2MiB, budget: 7ms }",
        &[("tokens/cache", "2MiB".into(), "32MiB".into()), ("tokens/budget", "7ms".into(), "1s".into())],
    )
    .await;
    differ("index: { size: 3MiB }", &[("index/size", "3MiB".into(), "64MiB".into())]).await;
}

pub async fn capacity() {
    differ("cache_tokens: 1_000", &[("cache_tokens", 1_000.into(), 500_000.into())]).await;
    let engine = engine("e0").await;
    let one = |key: &str| Config::new(Pool::model("m").replica(&format!("{{ url: \"{}\"{key} }}", engine.url())));
    let (with, without) = pair(&one(", cache_tokens: 1_000"), &one("")).await;
    let own = "/pools/0/replicas/0/cache_tokens";
    assert_eq!((in_force(&with, own).await, in_force(&without, own).await), (1_000.into(), Value::Null));
    let found = "discover: { dns: engines.test, port: 1, nameserver: \"127.0.0.1:1\", cache_tokens: 1_000 }";
    differ(found, &[("discover/cache_tokens", 1_000.into(), Value::Null)]).await;
}

pub async fn prefill() {
    let learned: Value = "learned".into();
    differ(
        "prefill: { overhead: 5ms, per_token: 33.1us, per_pair: 0.596ns }",
        &[
            ("prefill/overhead", "5ms".into(), Value::Null),
            ("prefill/per_token", "33.1us".into(), Value::Null),
            ("prefill/per_pair", "0.596ns".into(), Value::Null),
        ],
    )
    .await;
    differ("prefill: learned", &[("prefill", learned.clone(), learned)]).await;
}

pub async fn adapters() {
    differ("adapters: [sql]", &[("adapters", serde_json::json!(["sql"]), serde_json::json!([]))]).await;
}

pub async fn expose() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with("expose: 127.0.0.1"), &without).await;
    assert_eq!(in_force(&with, "/expose").await, serde_json::json!(["127.0.0.1/32"]));
    assert_eq!(in_force(&without, "/expose").await, "off");
}
