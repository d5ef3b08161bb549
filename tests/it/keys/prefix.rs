//! Prefix awareness: `cache_aware`'s and `least_cost`'s settings, memory and time for prompts, adapters, and who is told.
//!
//! Prompts of a test grow from one to the next, as those of a conversation do: a head that many prompts share would
//! count for nobody.
use std::net::Ipv4Addr;

use serde_json::json;

use super::*;
use crate::discovery::Dns;
use crate::resilience::shadow::agreement;

checks! {
    min_match_tokens: "pools[].policy.min_match_tokens";
    affinity: "pools[].policy.affinity";
    load: "pools[].policy.load";
    min_queue_gap: "pools[].policy.min_queue_gap";
    shadow_min_match_tokens: "pools[].shadow.min_match_tokens";
    shadow_affinity: "pools[].shadow.affinity";
    shadow_load: "pools[].shadow.load";
    shadow_min_queue_gap: "pools[].shadow.min_queue_gap";
    least_cost: "pools[].policy.type";
    request_cost: "pools[].policy.request_cost";
    shadow_request_cost: "pools[].shadow.request_cost";
    prefill: "pools[].prefill", "pools[].prefill.overhead", "pools[].prefill.per_token", "pools[].prefill.per_pair";
    cache_tokens: "pools[].cache_tokens", "pools[].replicas[].cache_tokens";
    discover_cache_tokens: "pools[].discover.cache_tokens";
    index: "pools[].index", "pools[].index.size";
    budget: "pools[].tokens", "pools[].tokens.budget";
    cache: "pools[].tokens.cache";
    parity: "pools[].tokens.parity";
    adapters: "pools[].adapters";
    expose: "expose";
}

/// A prompt of so many tokens, about (4 bytes of text each); of one `topic`, a shorter one is the beginning of a longer.
fn prompt(topic: &str, tokens: usize) -> Request {
    let mut text = topic.to_string();
    for word in 0.. {
        if text.len() >= 4 * tokens {
            break;
        }
        text += &format!(" {topic}{word}");
    }
    Request::post("/v1/chat/completions", &json!({ "model": "m", "messages": [{ "role": "user", "content": text }] }))
}

/// So many prompts of one conversation, the shortest of 400 tokens.
fn conversation(count: usize) -> Vec<Request> {
    (0..count).map(|turn| prompt("turn", 400 + 100 * turn)).collect()
}

pub async fn min_match_tokens() {
    let engines = two().await;
    let policy = |more: &str| one_pool(&engines, &format!("policy: {{ type: cache_aware{more} }}"));
    let (with, without) = pair(&policy(", min_match_tokens: 64"), &policy("")).await;
    assert_eq!(shares(&with, conversation(5)).await.len(), 1, "it follows its prefix");
    assert_eq!(shares(&without, conversation(5)).await.len(), 2, "by default a prefix of under 1024 tokens is none");
}

/// Streams of these prompts that are held open, one after the other, and who answers each.
async fn open_streams(proxy: &Proxy, prompts: &[Request]) -> Vec<(Client, String)> {
    let mut open = Vec::new();
    for request in prompts {
        let mut body: Value = serde_json::from_slice(&request.body).unwrap();
        body["stream"] = true.into();
        let mut client = proxy.client().await;
        client.send(&Request::post("/v1/chat/completions", &body)).await;
        assert_eq!(client.head().await.status(), 200);
        let event = client.until(b"\n\n").await;
        open.push((client, String::from_utf8_lossy(&event).into_owned()));
    }
    open
}

pub async fn affinity() {
    let engines = two().await;
    for (key, expected) in [(", affinity: prefer", 1), ("", 2)] {
        let policy = format!("policy: {{ type: cache_aware, min_match_tokens: 64{key} }}");
        let proxy = Proxy::start(&one_pool(&engines, &policy)).await;
        let open = open_streams(&proxy, &conversation(10)).await;
        let names: BTreeSet<_> = open.iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), expected, "ten are open, and by default the gap is eight");
    }
}

pub async fn load() {
    let engines = two().await;
    let policy = |more: &str| {
        one_pool(&engines, &format!("policy: {{ type: cache_aware, min_match_tokens: 64, min_load_gap: 2{more} }}"))
    };
    let (with, without) = pair(&policy(", load: placements"), &policy("")).await;
    assert_eq!(shares(&with, conversation(5)).await.len(), 2, "all were placed on one of them");
    assert_eq!(shares(&without, conversation(5)).await.len(), 1, "none is in flight");
}

/// An engine that takes requests, and answers none of them.
async fn silent() -> Upstream {
    Upstream::start(|request, mut wire| async move {
        if request.method() == "POST" {
            wire.gone().await;
            return None;
        }
        wire.reply(200, &[], b"").await.ok()?;
        Some(wire)
    })
    .await
}

/// A router with these keys that has one of two engines; and what makes the other join it. Policy and shadow then begin
/// at the same one.
async fn one_of_two(engines: &[Upstream], keys: &[&str]) -> (Proxy, Config) {
    let pool = keys.iter().fold(Pool::model("m"), |pool, key| pool.with(key)).at(engines[0].address());
    (Proxy::start(&Config::new(pool.clone())).await, Config::new(pool.at(engines[1].address())))
}

/// A router with these keys whose engines have got two requests of one conversation, and answered none; and how many of
/// the engines have one.
async fn two_that_wait(keys: &[&str]) -> (Proxy, usize) {
    let engines = [silent().await, silent().await];
    let (proxy, both) = one_of_two(&engines, keys).await;
    let got = || engines.iter().map(|engine| engine.seen("/v1/chat/completions").len()).collect::<Vec<_>>();
    let mut open = Vec::new();
    for (sent, tokens) in [2_000, 2_100].into_iter().enumerate() {
        let mut client = proxy.client().await;
        client.send(&prompt("turn", tokens)).await;
        wait_until("the engine has it", PATIENCE, || async { got().iter().sum::<usize>() == sent + 1 }).await;
        open.push(client);
        if sent == 0 {
            proxy.reload(&both).await;
        }
    }
    (proxy, got().iter().filter(|got| **got > 0).count())
}

const BY_QUEUE: &str = "policy: { type: cache_aware, load: queued_seconds }";

pub async fn min_queue_gap() {
    let with = "policy: { type: cache_aware, load: queued_seconds, min_queue_gap: 100ms }";
    let wait = "prefill: { overhead: 1.9s, per_token: 0s }";
    assert_eq!(two_that_wait(&[with, wait]).await.1, 2, "almost two seconds wait");
    assert_eq!(two_that_wait(&[BY_QUEUE, wait]).await.1, 1, "the default gap is two");
}

pub async fn prefill() {
    // 2,000 tokens take far longer than two seconds by either term.
    for key in ["overhead: 60s, per_token: 0s", "per_token: 30ms", "per_token: 0s, per_pair: 15us"] {
        let key = format!("prefill: {{ {key} }}");
        assert_eq!(two_that_wait(&[BY_QUEUE, &key]).await.1, 2, "{key}");
    }
    assert_eq!(
        two_that_wait(&[BY_QUEUE, "prefill: { per_token: 0s }"]).await.1,
        1,
        "the other terms are none by default"
    );
    assert_eq!(two_that_wait(&[BY_QUEUE]).await.1, 1, "by default it is learned, and guessed until then");
}

pub async fn least_cost() {
    let engines = two().await;
    let (with, without) =
        pair(&one_pool(&engines, "policy: { type: least_cost }"), &one_pool(&engines, "policy: { type: least_load }"))
            .await;
    assert_eq!(shares(&with, conversation(5)).await.len(), 1, "a prefix of any length saves time");
    assert_eq!(shares(&without, conversation(5)).await.len(), 2, "of two idle ones, the less used is next");
}

pub async fn request_cost() {
    let engines = two().await;
    for (key, expected) in [(", request_cost: 1s", 2), ("", 1)] {
        let policy = format!("policy: {{ type: least_cost{key} }}");
        let proxy = Proxy::start(&one_pool(&engines, &policy)).await;
        let open = open_streams(&proxy, &conversation(10)).await;
        let names: BTreeSet<_> = open.iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), expected, "{key}: ten are open, which by default cost less than 400 tokens");
    }
}

/// How often a shadow disagrees over a conversation, of which the policy never leaves the first replica.
async fn leaves(shadow: &str, held: bool) -> usize {
    disagrees(&format!("cache_aware{shadow}"), held).await
}

async fn disagrees(shadow: &str, held: bool) -> usize {
    let engines = two().await;
    let policy = "policy: { type: cache_aware, min_match_tokens: 64, affinity: prefer }";
    let (proxy, both) = one_of_two(&engines, &[policy, &format!("shadow: {{ type: {shadow} }}")]).await;
    let prompts = conversation(10);
    let (first, rest) = prompts.split_at(1);
    let _first = open_streams(&proxy, first).await;
    proxy.reload(&both).await;
    if held {
        let open = open_streams(&proxy, rest).await;
        assert!(open.iter().all(|(_, name)| name.contains("e0")));
    } else {
        assert_eq!(shares(&proxy, rest.to_vec()).await.len(), 1);
    }
    agreement(&proxy).await.1
}

pub async fn shadow_affinity() {
    assert_eq!(leaves(", min_match_tokens: 64, affinity: prefer", true).await, 0);
    assert!(leaves(", min_match_tokens: 64", true).await > 0, "ten are open, and by default the gap is eight");
}

pub async fn shadow_min_match_tokens() {
    let gap = ", min_load_gap: 100";
    assert_eq!(leaves(&format!("{gap}, min_match_tokens: 64"), true).await, 0);
    assert!(leaves(gap, true).await > 0, "by default a prefix of under 1024 tokens is none: load decides");
}

pub async fn shadow_load() {
    let keys = ", min_match_tokens: 64, min_load_gap: 2";
    assert!(leaves(&format!("{keys}, load: placements"), false).await > 0, "all were placed on one of them");
    assert_eq!(leaves(keys, false).await, 0, "one is in flight");
}

pub async fn shadow_min_queue_gap() {
    let wait = "prefill: { overhead: 1.9s, per_token: 0s }";
    let policy = "policy: { type: cache_aware, affinity: prefer }";
    for (key, others) in [(", min_queue_gap: 100ms", 1), ("", 0)] {
        let shadow = format!("shadow: {{ type: cache_aware, load: queued_seconds{key} }}");
        let (proxy, busy) = two_that_wait(&[policy, wait, &shadow]).await;
        assert_eq!(
            (busy, agreement(&proxy).await.1),
            (1, others),
            "{key}: almost two seconds wait; the default gap is two"
        );
    }
}

pub async fn shadow_request_cost() {
    assert!(disagrees("least_cost, request_cost: 1s", true).await > 0, "ten are open at one of two");
    assert_eq!(disagrees("least_cost", true).await, 0, "by default they cost less than 400 tokens");
}

/// What was matched of a prompt.
async fn matched(proxy: &Proxy, request: &Request) -> u64 {
    let answer = proxy.exchange(request).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.header("x-warmroute-matched-tokens").expect("we are told").parse().unwrap()
}

/// Whether a prompt is still known after others of so many tokens together were sent.
async fn is_remembered(config: &Config, others: &[Request]) -> bool {
    let proxy = Proxy::start(&config.clone().with("expose: 127.0.0.1")).await;
    assert_eq!(matched(&proxy, &prompt("first", 500)).await, 0);
    assert!(matched(&proxy, &prompt("first", 500)).await > 400);
    for other in others {
        matched(&proxy, other).await;
    }
    matched(&proxy, &prompt("first", 500)).await > 0
}

pub async fn cache_tokens() {
    let engine = engine("e0").await;
    let config = |pool: &str, replica: &str| {
        let of = Pool::model("m").with("policy: cache_aware");
        let of = if pool.is_empty() { of } else { of.with(pool) };
        Config::new(of.replica(&format!("{{ url: \"{}\"{replica} }}", engine.url())))
    };
    let others = [prompt("second", 2_000)];
    for (pool, replica, remembered) in [
        ("cache_tokens: 1_000", "", false),
        ("", ", cache_tokens: 1_000", false),
        ("cache_tokens: 1_000", ", cache_tokens: 10_000", true),
        ("", "", true),
    ] {
        assert_eq!(is_remembered(&config(pool, replica), &others).await, remembered, "{pool} {replica}");
    }
}

pub async fn discover_cache_tokens() {
    let engine = engine("e0").await;
    let dns = Dns::start(&[Ipv4Addr::LOCALHOST]).await;
    for (key, remembered) in [(", cache_tokens: 1_000", false), ("", true)] {
        let port = engine.address().port();
        let found = format!("discover: {{ dns: engines.test, port: {port}, nameserver: \"{}\"{key} }}", dns.address);
        let config = Config::new(Pool::model("m").with("policy: cache_aware").with(&found));
        assert_eq!(is_remembered(&config, &[prompt("second", 2_000)]).await, remembered, "{key}");
    }
}

/// Two million tokens of prompts are more than fit into a mebibyte, at eight bytes a block.
pub async fn index() {
    let engine = engine("e0").await;
    let config = |key: &str| {
        let pool = Pool::model("m").with("policy: cache_aware").with("cache_tokens: 100_000_000").with(key);
        Config::new(pool.at(engine.address()))
    };
    let others: Vec<_> = (0..10).map(|n| prompt(&format!("other{n}"), 220_000)).collect();
    assert!(!is_remembered(&config("index: { size: 1MiB }"), &others).await);
    assert!(!is_remembered(&config("index: 1MiB"), &others).await);
    assert!(is_remembered(&config("engine: openai"), &others).await, "by default there is room for them");
}

/// A router with the tests' tokenizer, and further keys of `tokens`.
async fn tokenizing(engine: &Upstream, keys: &str) -> Proxy {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer");
    let pool = Pool::model("m").with("policy: cache_aware").with(&format!("tokenizer: {folder}"));
    Proxy::start(&Config::new(pool.with(&format!("tokens: {{ {keys} }}")).at(engine.address()))).await
}

pub async fn budget() {
    let engine = engine("e0").await;
    let (with, without) = tokio::join!(tokenizing(&engine, "budget: 1ms"), tokenizing(&engine, "budget: 1m"));
    for (mut proxy, said) in [(with, " basis=text fallback=time_budget "), (without, " basis=tokens ")] {
        who(&proxy, &prompt("turn", 100_000)).await;
        proxy.process.line("access-log line", |line| line.contains(said).then_some(()));
    }
}

/// The mock counts four bytes as a token, and so otherwise than the pool's tokenizer.
pub async fn parity() {
    let mock = Mock::fast();
    let config = |keys: &str| {
        let key = concat!("tokenizer: ", env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer");
        let pool = Pool::model("m").with("policy: cache_aware").with(key);
        Config::new(pool.with(&format!("tokens: {{ budget: 1m{keys} }}")).at(mock.address()))
    };
    let (with, without) = pair(&config(", parity: false"), &config("")).await;
    for request in conversation(20) {
        let answers = tokio::join!(with.exchange(&request), without.exchange(&request));
        assert_eq!((answers.0.status(), answers.1.status()), (200, 200));
    }
    let as_text = "warmroute_prompt_fallbacks_total{pool=\"m\",reason=\"parity\"}";
    let differ = "warmroute_token_parity_total{pool=\"m\",result=\"other\"}";
    assert_eq!(with.metric(as_text).await, 0.0);
    assert_eq!(with.metric(differ).await, 20.0);
    assert!(without.metric(as_text).await >= 8.0, "after nine that differ most are cut as text");
    assert!(without.metric(differ).await >= 10.0, "and some are still compared");
}

/// Eight chats of a thousand messages that no two share leave about two mebibytes behind, and a small cache keeps less.
pub async fn cache() {
    let engine = engine("e0").await;
    let (with, without) =
        tokio::join!(tokenizing(&engine, "budget: 1m, cache: 1MiB"), tokenizing(&engine, "budget: 1m"));
    for chat in 0..8 {
        // What is kept is kept by message, if that is not a short one.
        let message = |turn| json!({ "role": "user", "content": format!("{chat} {turn} {}", "a ".repeat(256)) });
        let messages: Vec<_> = (0..1000).map(message).collect();
        let request = Request::post("/v1/chat/completions", &json!({ "model": "m", "messages": messages }));
        let answers = tokio::join!(who(&with, &request), who(&without, &request));
        assert_eq!(answers, ("e0".into(), "e0".into()));
    }
    let (small, default) =
        tokio::join!(with.metric("warmroute_boundary_cache_bytes"), without.metric("warmroute_boundary_cache_bytes"));
    let mib = 1024.0 * 1024.0;
    assert!(small > 0.5 * mib && small <= mib, "{small} bytes of 1 MiB are in use");
    assert!(default > mib && default <= 32.0 * mib, "{default} bytes of 32 MiB are in use");
}

pub async fn adapters() {
    let engines = [engine("e0").await];
    let (with, without) = pair(&one_pool(&engines, "adapters: [sql]"), &one_pool(&engines, "")).await;
    let ask = Request::post("/v1/chat/completions", &chat_body("sql", false, 1));
    assert_eq!(who(&with, &ask).await, "e0");
    assert_eq!(engines[0].only("/v1/chat/completions").await.body, ask.body, "the engine gets the name as it was");
    assert_eq!(without.exchange(&ask).await.status(), 404);
}

pub async fn expose() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "policy: cache_aware");
    let names = ["x-warmroute-replica", "x-warmroute-reason", "x-warmroute-matched-tokens"];
    for (key, told) in [
        ("expose: 127.0.0.1", true),
        ("trusted_proxies: 127.0.0.1\nexpose: trusted", true),
        ("expose: 10.0.0.0/8", false),
        ("trusted_proxies: 127.0.0.1", false),
    ] {
        let config = key.lines().fold(without.clone(), |config, key| config.with(key));
        let proxy = Proxy::start(&config).await;
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert_eq!(names.map(|name| answer.header(name).is_some()), [told; 3], "{key}");
    }
}
