//! Sessions stay on their replica, whatever names them, end to end: from the socket to the engine.
//!
//! Field report B0 (session affinity that never worked, because a header was dropped before the policy saw it) is why
//! each source of a key is tried here through the real process, not in a unit.
use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::support::*;

/// Engines that answer with their own name.
pub async fn named(count: usize) -> Vec<Upstream> {
    let mut all = Vec::new();
    for n in 0..count {
        all.push(Upstream::fixed(200, &[("Content-Type", "application/json")], format!("e{n}")).await);
    }
    all
}

pub fn pool(engines: &[Upstream], policy: &str) -> Pool {
    let pool = Pool::model("m").with(&format!("policy: {policy}"));
    engines.iter().fold(pool, |pool, engine| pool.at(engine.address()))
}

/// Which engine answers.
pub async fn who(proxy: &Proxy, request: &Request) -> String {
    let answer = proxy.exchange(request).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.text()
}

fn with_body(path: &str, extra: &Value) -> Request {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    Request::post(path, &body)
}

/// Sends 24 sessions of 4 turns each; every session must stay, and the sessions must spread.
async fn sessions_stay(proxy: &Proxy, source: &str, make: impl Fn(&str) -> Request) {
    let keyed = format!("warmroute_session_keys_total{{source=\"{source}\"}}");
    let before = proxy.metric(&keyed).await;
    let mut homes = HashMap::new();
    for turn in 0..4 {
        for session in 0..24 {
            let request = make(&format!("0123-4567-89ab-{session:04}"));
            let home = who(proxy, &request).await;
            let first = homes.entry(session).or_insert_with(|| home.clone());
            assert_eq!(*first, home, "{source}: session {session} moved in turn {turn}");
        }
    }
    let spread: HashSet<_> = homes.values().collect();
    assert!(spread.len() >= 3, "{source}: 24 sessions on {spread:?} of 4 engines");
    assert_eq!(proxy.metric(&keyed).await - before, 96.0, "{source} is counted as the source");
}

#[tokio::test(flavor = "multi_thread")]
async fn b0_every_source_of_a_key_works_end_to_end() {
    let engines = named(4).await;
    let config = Config::new(pool(&engines, "{ type: session_sticky }"));
    let proxy = Proxy::start(&config).await;
    let chat = |extra: Value| with_body("/v1/chat/completions", &extra);
    sessions_stay(&proxy, "session_header", |id| chat(json!({})).header("X-Session-Id", id)).await;
    sessions_stay(&proxy, "session_header", |id| chat(json!({})).header("x-acme-session-id", id)).await;
    let codex = |id: &str, name: &str| chat(json!({})).header("User-Agent", "codex_cli_rs/0.9").header(name, id);
    sessions_stay(&proxy, "codex", |id| codex(id, "session-id")).await;
    sessions_stay(&proxy, "codex", |id| codex(id, "session_id")).await;
    sessions_stay(&proxy, "codex", |id| codex(id, "thread-id")).await;
    sessions_stay(&proxy, "prompt_cache_key", |id| chat(json!({"prompt_cache_key": id}))).await;
    let claude = |id: &str| json!({"metadata": {"user_id": format!("user_1f_account_2e_session_{id}")}});
    sessions_stay(&proxy, "user_id", |id| with_body("/v1/messages", &claude(id))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_keys_come_first() {
    let engines = named(4).await;
    let keys = "session: { keys: [\"header:x-chat\", \"body:/metadata/chat\"] }";
    let config = Config::new(pool(&engines, "{ type: session_sticky }").with(keys));
    let proxy = Proxy::start(&config).await;
    let chat = |extra: Value| with_body("/v1/chat/completions", &extra);
    let mut turn = 0;
    let mut noise = move || {
        turn += 1;
        format!("ever-changing-{turn}")
    };
    // A changing x-session-id beside it must not matter.
    let noisy = std::sync::Mutex::new(&mut noise);
    let make = |request: Request| request.header("x-session-id", &(noisy.lock().unwrap())());
    sessions_stay(&proxy, "configured", |id| make(chat(json!({})).header("X-Chat", id))).await;
    sessions_stay(&proxy, "configured", |id| make(chat(json!({"metadata": {"chat": id}})))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_key_is_a_key_only_when_asked_for() {
    let engines = named(4).await;
    let by_key =
        Proxy::start(&Config::new(pool(&engines, "{ type: session_sticky }").with("session: { api_key: true }"))).await;
    let chat = with_body("/v1/chat/completions", &json!({}));
    sessions_stay(&by_key, "api_key", |id| chat.clone().header("Authorization", &format!("Bearer {id}"))).await;

    let without = Proxy::start(&Config::new(pool(&engines, "{ type: session_sticky, fallback: round_robin }"))).await;
    let mut seen = HashSet::new();
    for _ in 0..8 {
        seen.insert(who(&without, &chat.clone().header("Authorization", "Bearer one-and-the-same")).await);
    }
    assert_eq!(seen.len(), 4, "no key: a load policy, never a constant");
    assert_eq!(without.metric("warmroute_session_keys_total{source=\"none\"}").await, 8.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_credentials_with_one_session_id_do_not_steer_each_other() {
    let engines = named(4).await;
    let scoped = Proxy::start(&Config::new(pool(&engines, "{ type: session_sticky }"))).await;
    let open =
        Proxy::start(&Config::new(pool(&engines, "{ type: session_sticky }").with("session: { scope: none }"))).await;
    let mut apart = HashSet::new();
    let mut together = HashSet::new();
    for tenant in 0..16 {
        let request = chat(false, 1)
            .header("x-session-id", "the-same-string")
            .header("Authorization", &format!("Bearer tenant-{tenant}"));
        apart.insert(who(&scoped, &request).await);
        together.insert(who(&open, &request).await);
    }
    assert!(apart.len() >= 3, "16 tenants with the same session id are on {apart:?}");
    assert_eq!(together.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_routers_with_the_same_file_place_new_sessions_alike() {
    let engines = named(5).await;
    let config = Config::new(pool(&engines, "{ type: session_sticky }"));
    let (one, two) = (Proxy::start(&config).await, Proxy::start(&config).await);
    for session in 0..100 {
        let request = chat(false, 1).header("x-session-id", &format!("session-{session:05}"));
        assert_eq!(who(&one, &request).await, who(&two, &request).await, "session {session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_leaves_and_returns_moves_only_its_own_sessions() {
    const SESSIONS: usize = 800;
    let mut engines = named(4).await;
    let proxy = Proxy::start(&Config::new(pool(&engines, "{ type: session_sticky }"))).await;
    let before = homes(&proxy, SESSIONS).await;

    let lost = engines.remove(2);
    let address = lost.address();
    drop(lost);
    let state = || async { proxy.replicas().await[2]["state"].as_str().unwrap_or_default().to_string() };
    wait_until("the lost replica is down", PATIENCE, || async { state().await == "down" }).await;
    let without = homes(&proxy, SESSIONS).await;
    for (session, (was, is)) in before.iter().zip(&without).enumerate() {
        assert_ne!(is, "e2");
        assert!(was == "e2" || was == is, "session {session} had nothing to do with the loss, went from {was} to {is}");
    }
    let heirs: HashSet<_> = before.iter().zip(&without).filter(|(was, _)| *was == "e2").map(|(_, is)| is).collect();
    assert_eq!(heirs.len(), 3, "the lost replica's sessions are spread over the others");

    let _again = Upstream::start_at(address, |_, mut wire| async move {
        wire.reply(200, &[], b"e2").await.ok()?;
        Some(wire)
    })
    .await;
    wait_until("it is back", PATIENCE, || async { state().await != "down" }).await;
    let after = homes(&proxy, SESSIONS).await;
    assert_eq!(after, without, "nobody is moved back");
    let moved = before.iter().zip(&after).filter(|(was, is)| was != is).count();
    assert!(moved as f64 / SESSIONS as f64 <= 0.25 + 0.02, "{moved} of {SESSIONS} moved");
    assert!(moved > 0, "somebody lived there");
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_are_bounded() {
    let engines = named(2).await;
    let config = Config::new(pool(&engines, "{ type: session_sticky }").with("session: { max_bindings: 10 }"));
    let proxy = Proxy::start(&config).await;
    homes(&proxy, 50).await;
    assert_eq!(proxy.metric("warmroute_session_bindings").await, 10.0);
}

/// Which engine answers each of so many sessions.
async fn homes(proxy: &Proxy, sessions: usize) -> Vec<String> {
    let mut client = proxy.client().await;
    let mut homes = Vec::with_capacity(sessions);
    for session in 0..sessions {
        let request = chat(false, 1).header("x-session-id", &format!("session-{session:05}"));
        let answer = client.exchange(&request).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        homes.push(answer.text());
    }
    homes
}

/// What nobody understands is counted, so a body that isn't JSON tells whether anyone has looked at it.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_not_parsed_where_the_head_says_enough() {
    let engines = named(2).await;
    let any = |policy: &str| {
        let pool = Pool::any().with(&format!("policy: {policy}"));
        Config::new(engines.iter().fold(pool, |pool, engine| pool.at(engine.address())))
    };
    let opaque = || Request::new("POST", "/v1/chat/completions").body("{ no JSON");
    let cases = [
        ("round_robin", opaque(), 0.0),
        ("{ type: header_hash, header: x-user }", opaque().header("x-user", "u"), 0.0),
        ("session_sticky", opaque().header("x-session-id", "0123-4567-89ab"), 0.0),
        // Here the key might be in the body.
        ("session_sticky", opaque(), 1.0),
    ];
    for (policy, request, parsed) in cases {
        let proxy = Proxy::start(&any(policy)).await;
        who(&proxy, &request).await;
        assert_eq!(proxy.metric("warmroute_unparsed_bodies_total").await, parsed, "{policy}");
    }
}
