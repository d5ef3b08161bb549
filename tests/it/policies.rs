//! Each policy through the real process.
use std::collections::HashMap;

use crate::sessions::{named, pool, who};
use crate::support::*;

async fn counts(proxy: &Proxy, requests: usize) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for _ in 0..requests {
        *counts.entry(who(proxy, &chat(false, 1)).await).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn round_robin_takes_turns() {
    let engines = named(3).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, "{ type: round_robin }"))).await;
    assert_eq!(counts(&proxy, 30).await, HashMap::from([("e0".into(), 10), ("e1".into(), 10), ("e2".into(), 10)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn round_robin_is_weighted_and_counts_per_pool() {
    let engines = named(3).await;
    let weighted = |n: usize, weight: u32| format!("{{ id: r{n}, url: \"{}\", weight: {weight} }}", engines[n].url());
    // The first replica serves both pools; the turns of one pool must not disturb the other's.
    let a = Pool::model("m").with("policy: { type: round_robin }").replica(&weighted(0, 3)).replica(&weighted(1, 1));
    let b = Pool::model("n").with("policy: { type: round_robin }").replica(&weighted(0, 3)).replica(&weighted(2, 3));
    let proxy = Proxy::start(&Config::new(a).pool(b)).await;
    let mut seen: HashMap<(&str, String), usize> = HashMap::new();
    for _ in 0..20 {
        for model in ["m", "n"] {
            let request = Request::post("/v1/chat/completions", &chat_body(model, false, 1));
            *seen.entry((model, who(&proxy, &request).await)).or_default() += 1;
        }
    }
    assert_eq!(seen[&("m", "e0".to_string())], 15, "{seen:?}");
    assert_eq!(seen[&("m", "e1".to_string())], 5, "{seen:?}");
    assert_eq!(seen[&("n", "e0".to_string())], 10, "{seen:?}");
    assert_eq!(seen[&("n", "e2".to_string())], 10, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reaches_everyone() {
    let engines = named(3).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, "{ type: random }"))).await;
    let counts = counts(&proxy, 90).await;
    assert!(counts.len() == 3 && counts.values().all(|&count| count >= 10), "{counts:?}");
}

/// Opens streams one by one and returns how many each mock holds.
async fn held(policy: &str, streams: usize) -> Vec<u64> {
    let mocks = [Mock::slow(), Mock::slow()];
    let mut pool = Pool::model("m").with(&format!("policy: {policy}"));
    for mock in &mocks {
        pool = pool.at(mock.address());
    }
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut open = Vec::new();
    for _ in 0..streams {
        let mut client = proxy.client().await;
        client.send(&chat(true, 100_000)).await;
        assert_eq!(client.head().await.status(), 200);
        open.push(client);
    }
    let held = vec![mocks[0].stat("inflight").await, mocks[1].stat("inflight").await];
    assert_eq!(proxy.in_flight().await, streams as u64);
    drop(open);
    proxy.load_is_zero().await;
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn least_load_keeps_open_streams_even() {
    assert_eq!(held("{ type: least_load }", 10).await, [5, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn power_of_two_keeps_open_streams_even() {
    // With two replicas both are always drawn.
    assert_eq!(held("{ type: power_of_two }", 10).await, [5, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn least_load_spreads_requests_that_never_overlap() {
    // Equal loads must not mean "always the first".
    let engines = named(3).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, "{ type: least_load }"))).await;
    let counts = counts(&proxy, 30).await;
    assert!(counts.len() == 3 && counts.values().all(|&count| count == 10), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn header_hash_follows_its_header() {
    let engines = named(4).await;
    let config = Config::new(pool(&engines, "{ type: header_hash, header: x-tenant, fallback: round_robin }"));
    let (proxy, other) = (Proxy::start(&config).await, Proxy::start(&config).await);
    let mut homes = HashMap::new();
    for turn in 0..3 {
        for tenant in 0..24 {
            // A session id beside it is not this policy's business.
            let request = chat(false, 1)
                .header("X-Tenant", &format!("t{tenant}"))
                .header("x-session-id", &format!("session-{turn}-{tenant}"));
            let home = who(&proxy, &request).await;
            assert_eq!(*homes.entry(tenant).or_insert(home.clone()), home, "tenant {tenant}");
            assert_eq!(who(&other, &request).await, home, "two routers agree");
        }
    }
    let spread: std::collections::HashSet<_> = homes.values().collect();
    assert!(spread.len() >= 3, "{spread:?}");
    assert_eq!(counts(&proxy, 8).await.len(), 4, "without the header: the fallback");
}

#[tokio::test(flavor = "multi_thread")]
async fn load_only_endpoints_leave_no_binding() {
    let engines = named(2).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, "{ type: session_sticky }"))).await;
    for endpoint in
        ENDPOINTS.iter().filter(|e| ["/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize"].contains(&e.path))
    {
        who(&proxy, &endpoint.request(false).header("x-session-id", "a-session-of-its-own")).await;
    }
    assert_eq!(proxy.metric("warmroute_session_bindings").await, 0.0);
    who(&proxy, &chat(false, 1).header("x-session-id", "a-session-of-its-own")).await;
    assert_eq!(proxy.metric("warmroute_session_bindings").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_writes_no_binding() {
    let upstream = Upstream::start(|_, _wire| async { None }).await;
    let pool = Pool::model("m").at(upstream.address()).with("policy: { type: session_sticky }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    let answer = proxy.exchange(&chat(false, 1).header("x-session-id", "a-session-of-its-own")).await;
    assert_eq!(answer.status(), 502);
    assert_eq!(proxy.metric("warmroute_session_bindings").await, 0.0);
}
