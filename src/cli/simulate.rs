//! `warmroute simulate`.
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::config;
use crate::sim::choose::Rule;
use crate::sim::grid::{CacheModel, Setup, Workload};
use crate::sim::prefill::{PrefillModel, QWEN3_8B_H100};
use crate::sim::replay::Arrivals;
use crate::sim::report::{self, Format, Line};
use crate::sim::study::{self, Reading};
use crate::sim::trace::Trace;
use crate::sim::workload::Generated;

/// Compare policies on virtual replicas in virtual time: what does each save, with how many replicas?
///
/// It plays a workload through the very routing code that `serve` runs, on virtual engines that keep a block cache and a
/// prefill queue, and prints what each policy computes again, how even it is, how long first tokens take, and what a
/// million requests cost. Nothing is sent anywhere; the same seed gives the same figures on any machine.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// chat, documents, drifting, agents, or a recorded trace: a file (see below)
    #[arg(long, value_name = "NAME|FILE", value_parser = workload, required_unless_present = "study")]
    workload: Option<Workload>,
    /// Policies to compare, by commas [default: the product's]
    #[arg(long = "policy", value_name = "NAME,…", value_delimiter = ',', value_parser = rule)]
    policies: Vec<Rule>,
    /// Replicas; several numbers by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "8", value_parser = replicas)]
    replicas: Vec<usize>,
    /// Tokens of KV cache that a replica keeps
    #[arg(long, value_name = "N", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(16..))]
    cache_tokens: u64,
    /// What policies take that for, as a multiple of it: 0.7 is 30 % too little, 1.5 half too much
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_hyphen_values = true, value_parser = multiple)]
    believed_cache: f64,
    /// What a cache is
    #[arg(long, value_enum, default_value_t = Model::Blocks)]
    cache_model: Model,
    /// How fast a replica reads: qwen3-8b-h100, uncached tokens a second, or a JSON file
    #[arg(long, value_name = "NAME|TPS|FILE", default_value = QWEN3_8B_H100, value_parser = PrefillModel::parse)]
    prefill_model: PrefillModel,
    /// Tokens a second that a replica writes, for all its requests together; 0: at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    decode_tps: u32,
    /// Prefill times scatter about the model's: this is the standard deviation of their logarithm
    #[arg(long, value_name = "SIGMA", default_value_t = 0.0, allow_hyphen_values = true, value_parser = noise)]
    noise: f64,
    /// Replicas report how much of a prompt they found in their caches, and serve's policies learn from that
    #[arg(long)]
    reports: bool,
    /// Dollars for an hour of a replica
    #[arg(long, value_name = "USD", default_value_t = study::PRICE_PER_HOUR, value_parser = price)]
    price_per_hour: f64,
    /// When requests come: closed[:N], poisson:RATE or trace [default: trace for a file, else closed]
    #[arg(long, value_name = "KIND", value_parser = Arrivals::parse)]
    arrivals: Option<Arrivals>,
    /// Play a trace so many times as fast as it was recorded
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Draws the workload, arrivals, and what policies draw
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Print the mean of so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    /// Requests of a run [default: 40,000 of conversations, 60,000 about documents, all of a trace]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    requests: Option<u64>,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Print every figure of the published study beside ours, and the product's policies on the same calls
    #[arg(long, conflicts_with_all = ["workload", "policies", "replicas", "cache_tokens", "believed_cache", "cache_model",
        "prefill_model", "decode_tps", "noise", "reports", "price_per_hour", "arrivals", "speed", "seed", "seeds", "requests"])]
    study: bool,
}

/// What a replica's cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Model {
    /// The published study's: whole conversations or documents, one request at a time
    Study,
    /// 16-token blocks, shared by all prompts that begin with them
    Blocks,
}

const HELP: &str = "\
Workloads:
  chat       200 live conversations of 12 turns; a system prompt of 2,000 tokens
             that all share; 200 tokens a message, 400 an answer
  documents  questions about 300 documents of 16,000 tokens, by Zipf's law
  drifting   the same, and what is popular changes: two documents change ranks
             every 133 requests, each document once in 20,000 on average
  agents     200 live sessions of 30 turns; each of 8 kinds of agents shares
             6,000 tokens of tools; 300 tokens a tool's result, 100 a call
  FILE       Mooncake's JSONL (timestamp, input_length, output_length, hash_ids),
             or agents' sessions as JSON, also in a .tar.gz; a session's request
             waits for the answer before it and then thinks, at most 60 s

Policies: round_robin, random, least_load, power_of_two, session_sticky,
  header_hash, cache_aware and least_cost as serve has them, with their
  defaults. For comparison: study_hash and study_cache_aware are the published
  study's, and these are other people's, with theirs:
    dynamo_sum    NVIDIA Dynamo: prefill blocks to compute + blocks in use
    sgl_balanced  SGLang's router: the best holder, unless its load is more than
                  twice and 1,024 tokens above that of another, drawn at random
    bounded_hash  consistent hashing, at most 1.25 times the mean in flight
    preble        exploit what is mostly cached, else explore by the load of the
                  last three minutes
    lmetric       prefill tokens to compute × requests in flight

Arrivals:
  closed        one request at a time: no queue forms, as in the study
  closed:N      N open at any time (of a trace of sessions: N sessions)
  poisson:RATE  so many a second, at random (of a trace of sessions: so many
                sessions begin a second)
  trace         as recorded; sessions, whose file has no common clock, begin one
                in 60 s on average

The columns:
  recompute %   prompt tokens computed, of all prompt tokens
  skew          the busiest replica ÷ the mean, in requests and prefill seconds
  TTFT          from a request's coming to its first token
  $ per 1M      mean prefill seconds × the price
  floors        the least that any policy could compute

Less than ideal conditions, in each of which a policy should still be good:
  --noise 0.5           a prefill takes exp(0.5·z − 0.125) times what the model
                        says, z normal, so 1 on average; the same for a request
                        whatever the policy. Skew and cost are of the time taken
  --believed-cache 0.7  policies take caches to be smaller than they are
  --decode-tps 2500     answers take time, and slow down while a prompt is read
  --workload drifting

Examples:
  warmroute simulate --workload chat --policy round_robin,session_sticky --replicas 1,2,4,8
  warmroute simulate --workload documents --arrivals poisson:50 --seeds 3
  warmroute simulate --workload conversation.jsonl --speed 5 --cache-tokens 3000000 --format json
  warmroute simulate --study";

fn workload(word: &str) -> Result<Workload, String> {
    if let Some(workload) = Generated::named(word) {
        return Ok(Workload::Generated(workload));
    }
    let path = Path::new(word);
    if !path.exists() {
        let known = Generated::NAMES;
        let hint = config::did_you_mean(word, known.iter().copied());
        return Err(format!(
            "no workload and no file of this name{hint} (known: {}, and files of traces)",
            known.join(", ")
        ));
    }
    Trace::read(path).map(|trace| Workload::Recorded(Arc::new(trace)))
}

fn rule(word: &str) -> Result<Rule, String> {
    Rule::named(word).ok_or_else(|| {
        let hint = config::did_you_mean(word, Rule::NAMES.iter().copied());
        format!("no such policy{hint} (known: {})", Rule::NAMES.join(", "))
    })
}

fn replicas(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(count @ 1..=4_096) => Ok(count),
        _ => Err("give numbers from 1 to 4,096, such as 8 or 1,2,4,8".to_owned()),
    }
}

fn price(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(price) if price.is_finite() && price >= 0.0 => Ok(price),
        _ => Err("give dollars an hour, such as 4.29".to_owned()),
    }
}

fn multiple(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(multiple) if multiple > 0.0 && multiple <= 1_000.0 => Ok(multiple),
        _ => Err("give a multiple above 0 of --cache-tokens, such as 0.7 (30 % too little) or 1.5".to_owned()),
    }
}

fn noise(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(sigma) if (0.0..=3.0).contains(&sigma) => Ok(sigma),
        _ => Err("give a standard deviation from 0 (no noise) to 3, such as 0.5".to_owned()),
    }
}

fn speed(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
        _ => Err("give a number above 0; 2 is twice as fast as recorded".to_owned()),
    }
}

/// Runs it.
pub fn run(args: Args) -> ExitCode {
    let started = Instant::now();
    let format = args.format;
    let result = if args.study {
        let progress = Progress::new(study::calls_in_all(Reading::Whole));
        let figures = study::figures(Reading::Whole, &|calls| progress.more(calls));
        progress.end();
        figures.map(|figures| study::print(&figures, format))
    } else {
        compare(args)
    };
    match result {
        Ok(text) => {
            let memory = most_memory().map_or_else(String::new, |mb| format!(", {mb} MB of memory"));
            eprintln!("simulated in {:.1} s{memory}", started.elapsed().as_secs_f64());
            super::print(&text)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The most memory that this process had at once, in MB, where the system tells it (Linux).
fn most_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = peak.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1_024 / 1_000_000)
}

fn compare(args: Args) -> Result<String, String> {
    let Args { format, price_per_hour, .. } = args;
    let setup = setup(args)?;
    setup.check()?;
    if let Workload::Recorded(trace) = &setup.workload
        && !trace.left_out.is_empty()
    {
        eprint!("{}: {}", trace.name, trace.left_out);
    }
    let progress = Progress::new(setup.calls_in_all());
    let rows = setup.run(&|calls| progress.more(calls));
    progress.end();
    let lines: Vec<_> = rows?.iter().map(|row| Line::new(&setup, row, price_per_hour)).collect();
    let mut text = report::print(&lines, format);
    if format == Format::Table && setup.arrivals == Arrivals::Closed(1) {
        text += "One request at a time, so nobody waits: see --arrivals for times under load.\n";
    }
    Ok(text)
}

fn setup(args: Args) -> Result<Setup, String> {
    let workload = args.workload.ok_or("--workload is missing")?;
    let (arrivals, requests) = match &workload {
        Workload::Generated(workload) => (Arrivals::Closed(1), workload.requests()),
        Workload::Recorded(trace) => (Arrivals::Trace, trace.requests()),
    };
    let product = Rule::NAMES.iter().filter_map(|name| Rule::named(name)).filter(Rule::is_product);
    Ok(Setup {
        workload,
        rules: if args.policies.is_empty() { product.collect() } else { args.policies },
        replicas: args.replicas,
        cache_tokens: args.cache_tokens,
        believed_cache: args.believed_cache,
        cache: match args.cache_model {
            Model::Study => CacheModel::Study,
            Model::Blocks => CacheModel::Blocks,
        },
        prefill: args.prefill_model,
        decode_tps: if args.decode_tps == 0 { f64::INFINITY } else { args.decode_tps.into() },
        noise: args.noise,
        reports: args.reports,
        arrivals: args.arrivals.unwrap_or(arrivals),
        speed: args.speed,
        seed: args.seed,
        seeds: args.seeds,
        requests: args.requests.map_or(requests, |requests| usize::try_from(requests).unwrap_or(usize::MAX)),
        floors: true,
    })
}

/// A bar on standard error, on a terminal.
struct Progress(ProgressBar);

impl Progress {
    fn new(calls: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(calls);
        Self(match ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} requests, {eta} left") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    fn more(&self, calls: u64) {
        self.0.inc(calls);
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}
