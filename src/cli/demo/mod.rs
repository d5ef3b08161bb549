//! `warmroute demo`: every policy under the same chat load, through the real proxy, on replicas of its own.
//!
//! Each policy gets fresh virtual replicas (cold caches), a fresh proxy, and the same conversations with the same
//! pauses. Everything listens on 127.0.0.1, on ports that the system picks, and ends with the command. Rooms:
//! `workload` says what is asked, `load` asks it over HTTP, `report` counts and explains.
mod load;
mod report;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::config;
use crate::fleet::Encoders;
use crate::proxy::{self, Inherited, Proxy};
use crate::sim::engine;
use crate::sim::mock::{self, MockHandle, MockOptions};

use load::Tally;
use report::{Report, Row, Settings};
use workload::Shape;

/// What is compared.
#[derive(Debug, Clone, Copy)]
struct Policy {
    name: &'static str,
    /// How a configuration says it (YAML).
    yaml: &'static str,
    /// Its pool's further keys (YAML), a line each.
    pool: &'static [&'static str],
}

impl Policy {
    const fn plain(name: &'static str) -> Self {
        Self { name, yaml: name, pool: &[] }
    }
}

/// Every request names its chat here. The name is no usual one, so that only those learn of it who are told below.
const CHAT_HEADER: &str = "x-chat";

/// Every policy of the configuration, in its order. One joins by a line here.
const POLICIES: &[Policy] = &[
    Policy::plain("round_robin"),
    Policy::plain("random"),
    Policy::plain("least_load"),
    Policy::plain("power_of_two"),
    Policy { pool: &["session: { keys: header:x-chat }"], ..Policy::plain("session_sticky") },
    Policy { yaml: "{ type: header_hash, header: x-chat }", ..Policy::plain("header_hash") },
    // Told of no chat: they know the prompts, and that is the point of their rows.
    Policy::plain("cache_aware"),
    Policy::plain("least_cost"),
];

/// The floor is measured under this one; with a single replica it makes no difference.
const FLOOR_POLICY: Policy = Policy::plain("round_robin");

/// What replicas and conversations are asked for by.
const MODEL: &str = "demo-model";

/// Uncached prompt tokens a replica computes a second: a large model on one accelerator, sped up a few times.
const PREFILL_TPS: f64 = 30_000.0;
/// Tokens a replica generates a second, over all of its requests, and for one of them.
const DECODE_TPS: f64 = 10_000.0;
const SEQUENCE_TPS: f64 = 500.0;
/// Tokens a second that stand for "at once".
const AT_ONCE: f64 = 1e9;

/// Compare the policies on virtual replicas, through the real proxy, in under a minute.
///
/// Needs no file, no GPU and no network beyond 127.0.0.1. For each policy it starts virtual replicas with cold caches
/// and a proxy before them, and sends the same multi-turn chats through it over HTTP, as streams: a system prompt that
/// all share, a document in the first question, and a history that grows with each answer. A header names the chat;
/// `session_sticky` and `header_hash` are told of it, the others are not.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Virtual replicas
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    replicas: u32,
    /// Conversations; at most 64 are held at once, the others begin as these end
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: u32,
    /// Questions in each conversation
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// Draws texts, lengths and pauses: the same of every policy, and again at the next run
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Only this policy; repeat for more [default: all]
    #[arg(long = "policy", value_name = "NAME", value_parser = policy_names())]
    policies: Vec<String>,
    /// What is printed at the end
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table and what it shows.
    Table,
    /// One JSON object.
    Json,
}

const HELP: &str = "\
The columns:
  recompute %  prompt tokens that were computed, of all prompt tokens: what a
               replica still has in its cache it need not compute again
               (usage.prompt_tokens_details.cached_tokens in its answers)
  skew         requests of the busiest replica, divided by the mean; 1.00 is even
  TTFT         from sending a question to the first token of its answer; half
               (p50) or all but one in a hundred (p99) were as fast or faster
  ideal floor  the same chats on one replica that forgets nothing: no router can
               compute less
A replica's cache holds its share of the chats and a quarter more, not all.

Exit code 1 if any request failed.

Examples:
  warmroute demo
  warmroute demo --replicas 8 --policy round_robin --policy session_sticky
  warmroute demo --format json > demo.json";

fn policy_names() -> PossibleValuesParser {
    PossibleValuesParser::new(POLICIES.iter().map(|policy| policy.name))
}

/// Runs it.
pub fn run(args: Args) -> ExitCode {
    // Best effort: a thousand sockets need descriptors, the default settings do not.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let ran = tokio::runtime::Builder::new_multi_thread().enable_all().build().and_then(|runtime| {
        let report = runtime.block_on(compare(&args));
        runtime.shutdown_timeout(Duration::from_millis(100));
        report
    });
    let report = match ran {
        Ok(report) => report,
        Err(error) => {
            eprintln!("the demo could not run: {error}");
            return ExitCode::FAILURE;
        }
    };
    for error in report.first_errors() {
        eprintln!("{error}");
    }
    let printed = super::print(&match args.format {
        Format::Table => report.table(),
        Format::Json => report.json(),
    });
    verdict(&report, printed)
}

/// A demo in which a request failed is a failure, however well it was printed.
fn verdict(report: &Report, printed: ExitCode) -> ExitCode {
    if report.errors() > 0 { ExitCode::FAILURE } else { printed }
}

/// Every round, one after the other.
async fn compare(args: &Args) -> io::Result<Report> {
    let shape = Shape { sessions: args.sessions, turns: args.turns, seed: args.seed };
    let settings = Settings {
        replicas: args.replicas,
        sessions: shape.sessions,
        turns: shape.turns,
        seed: shape.seed,
        cache_tokens: shape.share_of_cache(args.replicas),
        prefill_tokens_per_second: PREFILL_TPS,
    };
    let chosen: Vec<_> = POLICIES.iter().filter(|policy| wanted(&args.policies, policy.name)).collect();
    let progress = Progress::new(chosen.len() + 1, shape.requests());

    let boundless = engine::Options {
        cache_tokens: u64::from(u32::MAX),
        prefill_tps: AT_ONCE,
        decode_tps: AT_ONCE,
        ..engine::Options::default()
    };
    let replica = engine::Options {
        cache_tokens: settings.cache_tokens,
        prefill_tps: PREFILL_TPS,
        decode_tps: DECODE_TPS,
        sequence_tps: SEQUENCE_TPS,
        ..engine::Options::default()
    };
    progress.begin("ideal floor");
    let floor = Round { name: "ideal floor", policy: FLOOR_POLICY, replicas: 1, engine: boundless, pauses: false };
    let floor = floor.run(shape, &progress).await?;
    let mut policies = Vec::with_capacity(chosen.len());
    for policy in chosen {
        let round = Round {
            name: policy.name,
            policy: *policy,
            replicas: args.replicas,
            engine: replica.clone(),
            pauses: true,
        };
        progress.begin(policy.name);
        policies.push(round.run(shape, &progress).await?);
    }
    progress.bar.finish_and_clear();
    Ok(Report { settings, floor, policies })
}

fn wanted(policies: &[String], name: &str) -> bool {
    policies.is_empty() || policies.iter().any(|policy| policy == name)
}

/// One policy's turn: replicas, a proxy before them, and the load.
struct Round {
    name: &'static str,
    policy: Policy,
    replicas: u32,
    engine: engine::Options,
    /// Whether people think between two questions.
    pauses: bool,
}

impl Round {
    async fn run(self, shape: Shape, progress: &Progress) -> io::Result<Row> {
        let mut replicas = Vec::new();
        for _ in 0..self.replicas {
            let options =
                MockOptions { models: vec![MODEL.to_owned()], engine: self.engine.clone(), ..MockOptions::default() };
            replicas.push(mock::start(options).await?);
        }
        let (running, address) = start_proxy(self.policy, self.engine.cache_tokens, &replicas)?;
        let started = Instant::now();
        let tally = load::drive(address, shape, self.pauses, &progress.bar).await;
        let took = started.elapsed();
        drop(running);
        progress.end(self.name, &tally, took);
        let by_replica: Vec<u64> = replicas.iter().map(|replica| replica.engine_stats().submitted).collect();
        Ok(Row::new(self.name, tally, &by_replica, took))
    }
}

/// The proxy as `warmroute serve` would run it with this file, on a free port and without an admin listener. It is told
/// the size of the replicas' caches, as every operator can.
fn start_proxy(policy: Policy, cache_tokens: u64, replicas: &[MockHandle]) -> io::Result<(proxy::Running, SocketAddr)> {
    let Policy { yaml: policy, pool, .. } = policy;
    let mut yaml = format!(
        "listen: 127.0.0.1:0\nadmin: off\npools:\n  - model: {MODEL}\n    policy: {policy}\n    cache_tokens: {cache_tokens}\n    engine_metrics: off\n"
    );
    for key in pool {
        let _ = writeln!(yaml, "    {key}");
    }
    yaml.push_str("    replicas:\n");
    // Ids of their own: derived ones would hold ports, and place sessions differently at each run.
    for (index, replica) in replicas.iter().enumerate() {
        let _ = writeln!(yaml, "      - {{ id: replica-{}, url: {} }}", index + 1, replica.url());
    }
    let config = config::parse(&yaml, "the demo's configuration", Path::new(""), &|_| None)
        .map_err(|errors| io::Error::other(errors.to_string()))?;
    let encoders = Encoders::load(&config).map_err(|errors| io::Error::other(errors.to_string()))?;
    let running = proxy::start(Proxy::new(config, encoders, None)?, &mut Inherited::default())?;
    let address = running.addresses.first().copied().ok_or_else(|| io::Error::other("the proxy listens nowhere"))?;
    Ok((running, address))
}

/// What is said while it runs, on standard error: a bar on a terminal, a line a round elsewhere.
struct Progress {
    bar: ProgressBar,
    requests: u64,
}

impl Progress {
    fn new(rounds: usize, requests: u64) -> Self {
        let bar = if io::stderr().is_terminal() {
            let bar = ProgressBar::new(rounds as u64 * requests);
            match ProgressStyle::with_template("{msg:15} {bar:40} {pos}/{len} requests, {elapsed}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        } else {
            ProgressBar::hidden()
        };
        Self { bar, requests }
    }

    fn begin(&self, name: &'static str) {
        self.bar.set_message(name);
    }

    fn end(&self, name: &str, tally: &Tally, took: Duration) {
        // Questions that a failed one left unasked are not to come.
        self.bar.inc(self.requests.saturating_sub(tally.requests));
        if self.bar.is_hidden() {
            eprintln!("{name}: {} requests in {:.1} s, {} errors", tally.requests, took.as_secs_f64(), tally.errors);
        }
    }
}
