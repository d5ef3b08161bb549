//! What `simulate` says is what happens: one trace in virtual time and through real HTTP, on the same virtual engines.
//!
//! Proxy, engines and clients run on one thread whose clock jumps to the next timer once all is done that can be, so
//! prefills and pauses take as long as they should for everyone, and no time of this machine.
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use warmroute::config::{self, CacheAware, Policy};
use warmroute::fleet::Encoders;
use warmroute::proxy::{self, Inherited};
use warmroute::sim::call::Call;
use warmroute::sim::choose::{Rule, session_name};
use warmroute::sim::engine;
use warmroute::sim::grid::{CacheModel, Setup, Workload};
use warmroute::sim::mock::{self, MockOptions};
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
const CACHE_TOKENS: u64 = 7_000;
/// Tokens a second: a cold prompt takes about 50 ms. Tokio's timers have a grain of one.
const PREFILL_TPS: f64 = 20_000.0;

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
            let think = if open > 1 { f64::from(random.u32(400..2_000)) / 1e3 } else { 0.0 };
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
        cache_tokens: CACHE_TOKENS,
        believed_cache: 1.0,
        cache: CacheModel::Blocks,
        prefill: PrefillModel::linear(PREFILL_TPS),
        decode_tps: f64::INFINITY,
        noise: 0.0,
        reports: true,
        arrivals: Arrivals::Closed(open),
        speed: 1.0,
        seed: 1,
        seeds: 3,
        requests: usize::MAX,
        floors: false,
    };
    setup.run(&|_| {}).expect("replicas are there")[0].outcome.recompute
}

/// The same through the proxy, before engines behind HTTP; as their answers report it.
async fn served(trace: &Trace, open: usize, policy: &str) -> f64 {
    let engine = engine::Options {
        cache_tokens: CACHE_TOKENS,
        prefill_tps: PREFILL_TPS,
        decode_tps: 1e12,
        decode_share: 1.0,
        ..engine::Options::default()
    };
    let mut mocks = Vec::new();
    let mut pool = Pool::model("m").with(&format!("policy: {policy}")).with("health: { interval: 10s, timeout: 5s }");
    for at in 1..=REPLICAS {
        let options = MockOptions { models: vec!["m".into()], engine: engine.clone(), ..MockOptions::default() };
        let mock = mock::start(options).await.expect("a mock");
        pool = pool.replica(&format!("{{ id: replica-{at}, url: \"{}\", cache_tokens: {CACHE_TOKENS} }}", mock.url()));
        mocks.push(mock);
    }
    let yaml = Config::new(pool).with("logging: { access: false }").with("admin: off").yaml();
    let config = config::parse(&yaml, "parity", Path::new(""), &|_| None).expect("a configuration");
    let encoders = Encoders::load(&config).expect("no tokenizer");
    let proxy = proxy::Proxy::new(config, encoders, None).expect("a proxy");
    let proxy = proxy::start(proxy, &mut Inherited::default()).expect("it listens");
    let address = proxy.addresses[0];

    let Calls::Sessions(sessions) = &trace.calls else { panic!("sessions") };
    let body = |call: &Call| {
        let prompt = call.prompt_ids(100_000);
        json!({"model": "m", "prompt": prompt, "max_tokens": call.output_tokens}).to_string()
    };
    let turns = |session: &Vec<(Duration, Call)>| session.iter().map(|(pause, call)| (*pause, body(call))).collect();
    let sessions: Vec<Vec<_>> = sessions.iter().map(turns).collect();
    let sessions = Rc::new(std::cell::RefCell::new(sessions.into_iter().enumerate()));
    let clients = (0..open).map(|_| {
        let sessions = sessions.clone();
        async move {
            let (mut prompt, mut cached) = (0, 0);
            let mut client = Client::connect(address).await;
            loop {
                let next = sessions.borrow_mut().next();
                let Some((session, turns)) = next else { return (prompt, cached) };
                for (pause, body) in turns {
                    // The client of the trace thinks.
                    tokio::time::sleep(pause).await;
                    let request = Request::new("POST", "/v1/completions")
                        .header("content-type", "application/json")
                        .header("x-session-id", &session_name(session as u64))
                        .body(body);
                    let answer = client.exchange(&request).await;
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                    let usage = answer.json()["usage"].take();
                    prompt += usage["prompt_tokens"].as_u64().expect("a count");
                    cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count");
                }
            }
        }
    });
    let counts = futures_util::future::join_all(clients).await;
    let (prompt, cached) = counts.into_iter().fold((0, 0), |sum, of: (u64, u64)| (sum.0 + of.0, sum.1 + of.1));
    1.0 - cached as f64 / prompt as f64
}

/// Within so many points.
async fn agree(open: usize, policy: Policy, yaml: &str, points: f64) {
    let trace = Arc::new(trace(open));
    let simulated = 100.0 * simulated(&trace, open, policy);
    // With several open, sockets are read in another order each time, the more so on a busy machine: the middle of three.
    let mut served_in = Vec::new();
    for _ in 0..if open > 1 { 3 } else { 1 } {
        served_in.push(100.0 * served(&trace, open, yaml).await);
    }
    served_in.sort_by(f64::total_cmp);
    let served = served_in[served_in.len() / 2];
    println!("{yaml}, {open} open: {simulated:.2} % simulated, {served:.2} % served");
    assert!((simulated - served).abs() <= points, "{yaml}: {simulated:.2} % simulated, {served:.2} % served");
}

#[tokio::test(start_paused = true)]
async fn round_robin_computes_in_simulation_what_it_computes_when_served() {
    // Whether a turn finds the one before is a throw of dice for each, and 2,000 of them are not within a point of 2,000
    // others. One session after the other leaves nothing to chance.
    agree(1, Policy::RoundRobin, "round_robin", 0.3).await;
}

#[tokio::test(start_paused = true)]
async fn session_sticky_computes_in_simulation_what_it_computes_when_served() {
    agree(OPEN, Rule::named("session_sticky").and_then(product).expect("a policy"), "session_sticky", 0.3).await;
}

fn product(rule: Rule) -> Option<Policy> {
    match rule {
        Rule::Product(policy) => Some(policy),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn cache_aware_computes_in_simulation_what_it_computes_when_served() {
    let policy = Policy::CacheAware(CacheAware { min_match_tokens: 64, ..CacheAware::default() });
    agree(OPEN, policy, "{ type: cache_aware, min_match_tokens: 64 }", 0.3).await;
}

#[tokio::test(start_paused = true)]
async fn least_cost_computes_in_simulation_what_it_computes_when_served() {
    // These answers come whole, so what is served learns nothing of how long prefills take, and the simulated one does.
    agree(OPEN, Rule::named("least_cost").and_then(product).expect("a policy"), "least_cost", 1.0).await;
}
