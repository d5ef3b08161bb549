//! Where a router sends chats: how much of their prompts is cached there, and how even the replicas' shares are.
//!
//! Texts and sizes are fixed here. Closed loop: `concurrency` clients, each takes the next session that nobody has and
//! asks its turns one after the other; a turn waits for the answer before it and has it in its prompt. Sessions share
//! a system prompt; a question has 1,000 characters, an answer 12 to 36 words (182 characters on average). 24 words take
//! 10 ms × clients (at most 320 ms; the clock is virtual, but for peers): what is open waits in the replicas, as it does behind engines, and not in this
//! program, and as answers differ in length, clients do not march in step. Nothing but the prompt tells sessions apart,
//! unless `--session-header` is given.
//!
//! Hit: prompts are cut into blocks of 16 tokens of 4 bytes; a replica is taken to keep all it was ever sent; the
//! share of prompt tokens in leading blocks that the chosen one had, requests taken in the order of their sending.
//! A partial block is never a hit. The engines' own count (virtual ones, boundless, in tokens of their own) is beside it.
//!
//! Each round has fresh replicas, and a fresh proxy of ours. A peer is measured by `--router` and `--replicas`: this
//! program answers as the replicas, at the addresses that the peer is configured for; rounds differ in their texts, so
//! that what it still knows of earlier ones is of no use. Exit code 1 where a target is missed.
mod clients;
mod report;
mod text;

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use warmroute::config;
use warmroute::fleet::Encoders;
use warmroute::proxy::{self, Inherited, Proxy};
use warmroute::sim::engine;
use warmroute::sim::mock::{self, MockHandle, MockOptions};

use clients::Target;
pub use report::{Outcome, Row};

/// What is asked for.
const MODEL: &str = "placement-model";
/// Tokens of an answer, which are words.
const ANSWER_TOKENS: std::ops::RangeInclusive<u32> = 12..=36;
/// How fast a sequence's tokens come to one client alone: an answer takes 10 ms on average.
const SEQUENCE_TPS: f64 = 2_400.0;
/// So many clients and more wait so many times as long.
const SLOWEST: usize = 32;
/// Tokens a second that stand for "at once".
const AT_ONCE: f64 = 1e9;
/// The burst's prefill takes a second, so that all of it is in flight together.
const BURST_PREFILL_TPS: f64 = 8_000.0;
const BURST_CHARACTERS: usize = 32_000;
const BURST: usize = 64;
/// `cache_aware`'s `max_load_ratio`, its default.
const RATIO: f64 = 2.0;

/// Sessions of a closed loop; lengths in characters.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub sessions: usize,
    pub turns: usize,
    pub system: usize,
    pub turn: usize,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// 48 sessions of 6 turns, a 4,000-character system prompt, 4 replicas; at 1, 8 and 32 concurrent
    A,
    /// 160 sessions of 4 turns, a 200-character system prompt, 4 replicas, 128 concurrent, min_match_tokens 64
    B,
    /// 64 times the same cold prompt of 8k tokens at once, 8 replicas; min_load_gap 8 and 16
    C,
}

const A: Shape = Shape { sessions: 48, turns: 6, system: 4_000, turn: 1_000 };
const B: Shape = Shape { sessions: 160, turns: 4, system: 200, turn: 1_000 };

impl Scenario {
    fn replicas(self) -> usize {
        if self == Self::C { 8 } else { 4 }
    }
}

/// Where a router sends chats.
#[derive(Debug, Parser)]
struct Args {
    /// Only these [default: all; with --router those for as many replicas]
    #[arg(long, value_enum, value_delimiter = ',')]
    scenario: Vec<Scenario>,
    /// Our policy by name, or as YAML; `cache_aware` gets each scenario's settings
    #[arg(long, default_value = "cache_aware")]
    policy: String,
    /// A router that runs elsewhere, http://127.0.0.1:PORT, and sends to --replicas
    #[arg(long, requires = "replicas")]
    router: Option<String>,
    /// Where this program answers as the replicas, 127.0.0.1:PORT,…
    #[arg(long, value_delimiter = ',', requires = "router")]
    replicas: Vec<SocketAddr>,
    /// Send each session's name in this header
    #[arg(long, value_name = "NAME")]
    session_header: Option<String>,
    /// Draws other lengths of answers: is a result more than luck?
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Runs it.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let ran = runtime(args.router.is_none()).and_then(|runtime| runtime.block_on(run(&args)));
    match ran {
        Ok(rows) => {
            print!("{}", if args.format == Format::Json { report::json(&rows) } else { report::table(&rows) });
            ExitCode::from(u8::from(rows.iter().any(|row| !row.met)))
        }
        Err(error) => {
            eprintln!("it could not run: {error}");
            ExitCode::from(2)
        }
    }
}

/// One thread. Where all is in this process its clock jumps to the next timer once all is done that can be: answers
/// take as long as they should for everyone, however busy the machine is.
pub fn runtime(paused: bool) -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(paused).build()
}

async fn run(args: &Args) -> io::Result<Vec<Row>> {
    let wanted = |scenario: &Scenario| {
        (args.scenario.is_empty() || args.scenario.contains(scenario))
            && (args.router.is_none() || args.replicas.len() == scenario.replicas())
    };
    let mut rows = Vec::new();
    for scenario in [Scenario::A, Scenario::B, Scenario::C].into_iter().filter(wanted) {
        rows.extend(measure(scenario, &Setup::of(args)?).await?);
    }
    match rows.is_empty() {
        true => Err(io::Error::other("no scenario left: A and B take 4 replicas, C takes 8")),
        false => Ok(rows),
    }
}

/// Who is measured.
#[derive(Debug, Default)]
pub struct Setup {
    /// Our policy; `None` is `cache_aware` with the scenario's settings.
    pub policy: Option<String>,
    /// A router that runs elsewhere, and where its replicas are to listen.
    pub peer: Option<(SocketAddr, Vec<SocketAddr>)>,
    /// The header that carries a session's name.
    pub session_header: Option<String>,
    /// Draws other lengths of answers.
    pub seed: u64,
}

impl Setup {
    fn of(args: &Args) -> io::Result<Self> {
        let peer = match &args.router {
            None => None,
            Some(url) => {
                let address = url.trim_start_matches("http://").trim_end_matches('/').parse();
                Some((address.map_err(|error| io::Error::other(format!("{url}: {error}")))?, args.replicas.clone()))
            }
        };
        let policy = (args.policy != "cache_aware").then(|| args.policy.clone());
        Ok(Self { policy, peer, session_header: args.session_header.clone(), seed: args.seed })
    }
}

/// Runs a scenario's rounds.
pub async fn measure(scenario: Scenario, setup: &Setup) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let engine = engine::Options {
        cache_tokens: u64::from(u32::MAX),
        prefill_tps: AT_ONCE,
        decode_tps: AT_ONCE,
        sequence_tps: SEQUENCE_TPS,
        ..engine::Options::default()
    };
    let replicas = scenario.replicas();
    let (shape, concurrencies, settings, targets): (_, &[usize], _, _) = match scenario {
        Scenario::A => (A, &[1, 8, 32], "", (0.84, 1.15)),
        Scenario::B => (B, &[128], ", min_match_tokens: 64", (0.60, 1.15)),
        Scenario::C => {
            let engine = engine::Options { prefill_tps: BURST_PREFILL_TPS, ..engine };
            for (round, gap) in [(30, 8), (31, 16)] {
                let name = format!("C: a burst of {BURST}, gap {gap}");
                eprintln!("{name}");
                let round_of = Round::start(setup, engine.clone(), replicas, &format!(", min_load_gap: {gap}")).await?;
                let sampler = sample(&round_of.replicas, BURST as u64);
                let sending = clients::burst(round_of.target.clone(), BURST, BURST_CHARACTERS, round);
                let (samples, sent) = tokio::join!(sampler, sending);
                rows.push(report::burst(name, &sent?, &samples, replicas, RATIO, gap));
            }
            return Ok(rows);
        }
    };
    for &concurrency in concurrencies {
        let name = format!("{scenario:?}: {} x {} turns, {concurrency} concurrent", shape.sessions, shape.turns);
        eprintln!("{name}");
        let sequence_tps = SEQUENCE_TPS / concurrency.min(SLOWEST) as f64;
        let engine = engine::Options { sequence_tps, ..engine.clone() };
        let round = Round::start(setup, engine, replicas, settings).await?;
        let number = concurrency as u64 + if scenario == Scenario::B { 1_000 } else { 0 };
        let sent = clients::sessions(round.target.clone(), shape, concurrency, number, setup.seed).await?;
        rows.push(report::sessions(name, sent, replicas, ceiling(shape, replicas, setup.seed), targets));
    }
    Ok(rows)
}

/// The hit of a placement that keeps every session on one replica: what is new in each turn is computed, and the system
/// prompt once a replica.
fn ceiling(shape: Shape, replicas: usize, seed: u64) -> f64 {
    let (mut tokens, mut hits) = (0, 0);
    for session in 0..shape.sessions {
        let mut conversation = text::Conversation::new("x".repeat(shape.system));
        let mut known = if session < replicas { 0 } else { conversation.blocks().len() };
        for turn in 0..shape.turns {
            conversation.say("user", "x".repeat(shape.turn));
            tokens += conversation.tokens();
            hits += known;
            known = conversation.blocks().len();
            let words =
                (1..=text::answer_tokens(seed, session as u64 + 1, turn as u64)).map(|word| format!("token{word}"));
            conversation.say("assistant", words.collect::<Vec<_>>().join(" "));
        }
    }
    (hits * warmroute::prefix::BLOCK_TOKENS) as f64 / tokens as f64
}

/// In-flight requests of each replica, sampled while they come in; ends when all have.
async fn sample(replicas: &[MockHandle], all: u64) -> Vec<Vec<u64>> {
    let mut samples = Vec::new();
    let bound = tokio::time::Instant::now() + Duration::from_secs(60);
    while tokio::time::Instant::now() < bound {
        let sample: Vec<u64> = replicas.iter().map(MockHandle::inflight).collect();
        let sum: u64 = sample.iter().sum();
        let before: u64 = samples.last().map_or(0, |sample: &Vec<u64>| sample.iter().sum());
        // Fewer than before: the first have been answered.
        if sum < before {
            break;
        }
        samples.push(sample);
        if sum >= all {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    samples
}

/// Replicas, and a router before them, for as long as it lives.
struct Round {
    replicas: Vec<MockHandle>,
    target: Arc<Target>,
    _proxy: Option<proxy::Running>,
}

impl Round {
    async fn start(setup: &Setup, engine: engine::Options, replicas: usize, settings: &str) -> io::Result<Self> {
        let mut handles = Vec::new();
        for at in 0..replicas {
            let default = MockOptions::default();
            handles.push(
                mock::start(MockOptions {
                    listen: setup.peer.as_ref().map_or(default.listen, |(_, listen)| listen[at]),
                    models: vec![MODEL.to_owned()],
                    engine: engine.clone(),
                    fingerprint: format!("replica-{at}"),
                    ..default
                })
                .await?,
            );
        }
        let (router, running) = match &setup.peer {
            Some((router, _)) => (*router, None),
            None => {
                let policy = setup.policy.clone().unwrap_or_else(|| format!("{{ type: cache_aware{settings} }}"));
                let running = start_proxy(&policy, &handles)?;
                let router = running.addresses.first().copied();
                (router.ok_or_else(|| io::Error::other("the proxy listens nowhere"))?, Some(running))
            }
        };
        let names = (0..replicas).map(|at| (format!("replica-{at}"), at)).collect();
        let target = Target { router, replicas: names, session_header: setup.session_header.clone() };
        let target = Arc::new(target);
        if running.is_none() {
            clients::wait_for(target.clone()).await?;
        }
        Ok(Self { replicas: handles, target, _proxy: running })
    }
}

/// The proxy as `warmroute serve` would run it, on a free port and without an admin listener.
fn start_proxy(policy: &str, replicas: &[MockHandle]) -> io::Result<proxy::Running> {
    let mut list = String::new();
    for (at, replica) in replicas.iter().enumerate() {
        let _ = writeln!(list, "      - {{ id: replica-{at}, url: {} }}", replica.url());
    }
    let yaml = format!(
        "listen: 127.0.0.1:0\nadmin: off\nexpose: 127.0.0.1\npools:\n  - model: {MODEL}\n    policy: {policy}\n    engine_metrics: off\n    replicas:\n{list}"
    );
    let config = config::parse(&yaml, "the round's configuration", Path::new(""), &|_| None)
        .map_err(|errors| io::Error::other(errors.to_string()))?;
    let encoders = Encoders::load(&config).map_err(|errors| io::Error::other(errors.to_string()))?;
    proxy::start(Proxy::new(config, encoders, None)?, &mut Inherited::default())
}
