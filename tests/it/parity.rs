//! What `simulate` says is what happens: one trace in virtual time and through real HTTP, on the same virtual engines.
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use warmroute::config::{CacheAware, Policy};
use warmroute::sim::call::Call;
use warmroute::sim::choose::{Rule, session_name};
use warmroute::sim::grid::{CacheModel, Setup, Workload};
use warmroute::sim::prefill::PrefillModel;
use warmroute::sim::replay::Arrivals;
use warmroute::sim::trace::{Calls, Trace};

use crate::support::*;

const REPLICAS: usize = 4;
const SESSIONS: u64 = 250;
const TURNS: u64 = 8;
/// Sessions open at once, where several are.
const OPEN: usize = 16;
/// Tokens of a replica's cache: the open sessions fit into all caches together, but not many more.
const CACHE_TOKENS: u32 = 7_000;
const PREFILL_TPS: u32 = 200_000;

/// Sessions whose prompts grow, in the form of the agents' traces.
fn trace(open: usize) -> Trace {
    let mut random = fastrand::Rng::with_seed(4);
    let mut text = String::new();
    for session in 0..SESSIONS {
        let mut requests = String::new();
        let (mut tokens, mut out) = (256 + random.u32(100..300), 0);
        for turn in 0..TURNS {
            tokens += out + random.u32(25..125);
            out = random.u32(4..20);
            let ids: Vec<_> = (1..=tokens.div_ceil(64)).collect();
            let comma = if turn == 0 { "" } else { "," };
            // Pauses longer than what HTTP takes, so that it is they who say whose turn is next.
            let think = if open > 1 { f64::from(random.u32(40..200)) / 1e3 } else { 0.0 };
            let _ = write!(
                requests,
                r#"{comma}{{"in": {tokens}, "out": {out}, "hash_ids": {ids:?}, "think_time": {think}}}"#
            );
        }
        let head = format!(r#""id": "{session}", "block_size": 64, "tool_tokens": 256, "system_tokens": 256"#);
        let _ = writeln!(text, r#"{{{head}, "requests": [{requests}]}}"#);
    }
    let trace = Trace::parse("made-up", text.into_bytes()).expect("a trace");
    assert_eq!((trace.requests() as u64, trace.left_out.as_str()), (SESSIONS * TURNS, ""));
    trace
}

/// Prompt tokens computed ÷ prompt tokens, in virtual time.
fn simulated(trace: &Arc<Trace>, open: usize, policy: Policy) -> f64 {
    let setup = Setup {
        workload: Workload::Recorded(trace.clone()),
        rules: vec![Rule::Product(policy)],
        replicas: vec![REPLICAS],
        cache_tokens: CACHE_TOKENS.into(),
        cache: CacheModel::Blocks,
        prefill: PrefillModel::linear(PREFILL_TPS.into()),
        decode_tps: f64::INFINITY,
        arrivals: Arrivals::Closed(open),
        speed: 1.0,
        seed: 1,
        seeds: 3,
        requests: usize::MAX,
        floors: false,
    };
    setup.run(&|_| {}).expect("replicas are there")[0].outcome.recompute
}

/// The same through `serve`, before engines that `mock` runs; as their answers report it.
async fn served(trace: &Trace, open: usize, policy: &str) -> f64 {
    let (cache, tps) = (CACHE_TOKENS.to_string(), PREFILL_TPS.to_string());
    let start =
        |_| Mock::start(&["--model", "m", "--cache-tokens", &cache, "--prefill-tps", &tps, "--decode-tps", "0"]);
    let mocks: Vec<_> = (0..REPLICAS).map(start).collect();
    let mut pool = Pool::model("m").with(&format!("policy: {policy}"));
    for (at, mock) in mocks.iter().enumerate() {
        let (id, url) = (format!("replica-{}", at + 1), mock.address());
        pool = pool.replica(&format!("{{ id: {id}, url: \"http://{url}\", cache_tokens: {cache} }}"));
    }
    let proxy = Proxy::start(&Config::new(pool).with("logging: { access: false }")).await;

    let Calls::Sessions(sessions) = &trace.calls else { panic!("sessions") };
    let (next, address) = (Arc::new(AtomicU64::new(0)), proxy.address());
    let bodies: Arc<Vec<Vec<(Duration, String)>>> = Arc::new(
        sessions
            .iter()
            .map(|session| {
                let body = |ids: Vec<u32>, out| json!({"model": "m", "prompt": ids, "max_tokens": out}).to_string();
                let turn = |(pause, call): &(_, Call)| (*pause, body(call.prompt_ids(100_000), call.output_tokens));
                session.iter().map(turn).collect()
            })
            .collect(),
    );
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..open {
        let (next, bodies) = (next.clone(), bodies.clone());
        workers.spawn(async move {
            let (mut prompt, mut cached) = (0, 0);
            let mut client = Client::connect(address).await;
            loop {
                let session = next.fetch_add(1, Ordering::Relaxed) as usize;
                let Some(turns) = bodies.get(session) else { return (prompt, cached) };
                for (pause, body) in turns {
                    // Not to wait for anything: the client of the trace thinks.
                    tokio::time::sleep(*pause).await;
                    let request = Request::new("POST", "/v1/completions")
                        .header("content-type", "application/json")
                        .header("x-session-id", &session_name(session as u64))
                        .body(body.clone());
                    let answer = client.exchange(&request).await;
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                    let usage = answer.json()["usage"].take();
                    prompt += usage["prompt_tokens"].as_u64().expect("a count");
                    cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count");
                }
            }
        });
    }
    let (mut prompt, mut cached) = (0, 0);
    while let Some(worker) = workers.join_next().await {
        let (p, c) = worker.expect("a worker's end");
        (prompt, cached) = (prompt + p, cached + c);
    }
    proxy.load_is_zero().await;
    1.0 - cached as f64 / prompt as f64
}

static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn agree(open: usize, policy: Policy, yaml: &str) {
    let trace = Arc::new(trace(open));
    // One after the other, so that it is the engines and pauses that take time, not this machine.
    let _turn = TURN.lock().await;
    let (simulated, served) = (100.0 * simulated(&trace, open, policy), 100.0 * served(&trace, open, yaml).await);
    println!("{yaml}: {simulated:.2} % simulated, {served:.2} % served");
    assert!((simulated - served).abs() <= 1.0, "{yaml}: {simulated:.2} % simulated, {served:.2} % served");
}

#[tokio::test(flavor = "multi_thread")]
async fn round_robin_computes_in_simulation_what_it_computes_when_served() {
    // Whether a turn finds the one before is a throw of dice for each, and 2,000 of them are not within a point of 2,000
    // others. One session after the other leaves nothing to chance.
    agree(1, Policy::RoundRobin, "round_robin").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_sticky_computes_in_simulation_what_it_computes_when_served() {
    agree(OPEN, Rule::named("session_sticky").and_then(product).expect("a policy"), "session_sticky").await;
}

fn product(rule: Rule) -> Option<Policy> {
    match rule {
        Rule::Product(policy) => Some(policy),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_aware_computes_in_simulation_what_it_computes_when_served() {
    // One session after the other, as above: with many open, loads decide where sessions begin, and they hang on time.
    let policy = Policy::CacheAware(CacheAware { min_match_tokens: 64, ..CacheAware::default() });
    agree(1, policy, "{ type: cache_aware, min_match_tokens: 64 }").await;
}
