//! What prefix awareness costs the router as a process: CPU a request, memory, latency.
//!
//! `warmroute serve` runs as a process of its own before four replicas that answer the same at once; clients in a
//! closed loop, on one thread with the replicas, send chats made of this repository's code and prose. CPU is the
//! router's user and system time ÷ requests. The pool reads real tokens; its other settings are the defaults.
//!
//! - repeated: 64 chats of 2 KB, again and again, under cache_aware and under round robin, in turns; median of ratios.
//! - running: conversations of 28 KB at their fourth turn, the first three (about 7 KB each) having been asked before.
//! - distinct: 16 KB prompts, none like another, for 20 s at full speed, the replicas' caches larger than the index:
//!   resident memory at the end, and latencies second by second (is there a dip when the index begins to forget?).
//!
//! Exit code 1 where a target is missed. `--only running --profile FILE` writes what `perf record` sees of the fourth
//! turns, and of nothing else; `perf report --no-inline --children` shows who calls what.
mod process;
mod profile;
mod text;
mod traffic;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use fastrand::Rng;

use process::Router;
use profile::Profile;
use text::{Corpus, message, request};

/// What is asked for.
const MODEL: &str = "cost-model";
const REPLICAS: usize = 4;
const CONNECTIONS: usize = 16;
/// Conversations of one batch, and batches.
const CONVERSATIONS: usize = 60;

/// What prefix awareness costs the router as a process.
#[derive(Debug, Parser)]
struct Args {
    /// A folder with tokenizer.json and chat template
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/tokenizers/qwen3"))]
    tokenizer: PathBuf,
    /// The router
    #[arg(long, default_value = env!("CARGO_BIN_EXE_warmroute"))]
    binary: PathBuf,
    /// Run only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Load>,
    /// The policy of the running conversations; one that needs no prompts shows what all the rest costs
    #[arg(long, default_value = "cache_aware")]
    policy: String,
    /// Batches of running conversations; the first warms up
    #[arg(long, default_value_t = 25)]
    batches: usize,
    /// Where perf writes what it sees of the running conversations' fourth turns
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Seconds of each slice of repeated chats
    #[arg(long, default_value_t = 2)]
    slice: u64,
    /// Seconds of distinct prompts
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// What the router is given to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    Repeated,
    Running,
    Distinct,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !args.tokenizer.join("tokenizer.json").exists() {
        eprintln!("no tokenizer.json in {}: see --tokenizer", args.tokenizer.display());
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(run(&args))) {
        Ok(met) => ExitCode::from(u8::from(!met)),
        Err(error) => {
            eprintln!("it could not run: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: &Args) -> io::Result<bool> {
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(traffic::replica().await?);
    }
    let corpus = Arc::new(Corpus::read()?);
    let wanted = |load| args.only.is_empty() || args.only.contains(&load);
    let repeated = !wanted(Load::Repeated) || repeated(args, &replicas, &corpus).await?;
    let running = !wanted(Load::Running) || running(args, &replicas, &corpus).await?;
    let distinct = !wanted(Load::Distinct) || distinct(args, &replicas, &corpus).await?;
    Ok(repeated && running && distinct)
}

fn judged(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// The pool's lines for a policy, with tokens.
fn pool(args: &Args, policy: &str) -> String {
    // Its replicas report the same usage whatever they are asked.
    format!("    tokenizer: \"{}\"\n    tokens: {{ parity: false }}\n    policy: {policy}\n", args.tokenizer.display())
}

async fn repeated(args: &Args, replicas: &[SocketAddr], corpus: &Corpus) -> io::Result<bool> {
    let mut rng = Rng::with_seed(2);
    let chats: Vec<_> = (0..64)
        .map(|_| {
            Arc::new(request(&[
                message("system", corpus.text(&mut rng, 600)),
                message("user", corpus.text(&mut rng, 1_300)),
            ]))
        })
        .collect();
    let chats = Arc::new(chats);
    let aware = Router::start(&args.binary, &pool(args, "cache_aware"), replicas, &chats[0]).await?;
    let plain = Router::start(&args.binary, "    policy: round_robin\n", replicas, &chats[0]).await?;
    let slice = async |router: &Router| -> io::Result<f64> {
        let (next, end) = (Arc::new(AtomicUsize::new(0)), Instant::now() + Duration::from_secs(args.slice));
        let chats = chats.clone();
        let before = router.cpu()?;
        let took = traffic::load(router.address, CONNECTIONS, move || {
            (Instant::now() < end).then(|| chats[next.fetch_add(1, Relaxed) % chats.len()].clone())
        });
        let requests = took.await?.len();
        Ok((router.cpu()? - before).as_secs_f64() * 1e6 / requests as f64)
    };
    let (mut of_aware, mut of_plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..6 {
        let (plain, aware) = (slice(&plain).await?, slice(&aware).await?);
        // The first warms up.
        if round > 0 {
            of_plain.push(plain);
            of_aware.push(aware);
            ratios.push(aware / plain);
        }
    }
    let [of_aware, of_plain, ratio] = [of_aware, of_plain, ratios].map(median);
    let met = ratio <= 1.6;
    println!(
        "repeated 2 KB chats: {of_aware:.1} µs CPU a request, round robin {of_plain:.1} µs: x {ratio:.2} (asked for: <= 1.6) {}",
        judged(met)
    );
    Ok(met)
}

async fn running(args: &Args, replicas: &[SocketAddr], corpus: &Corpus) -> io::Result<bool> {
    let mut rng = Rng::with_seed(28);
    let system = corpus.text(&mut rng, 1_000);
    let probe = request(&[message("user", "Are you there?".to_owned())]);
    let router = Router::start(&args.binary, &pool(args, &args.policy), replicas, &probe).await?;
    let mut profile = args.profile.as_ref().map(|file| Profile::start(router.id(), file)).transpose()?;
    let mut figures = Vec::new();
    for batch in 0..args.batches {
        // Of each conversation, the requests of its four turns.
        let mut turns = vec![Vec::new(); 4];
        for _ in 0..CONVERSATIONS {
            let mut messages = vec![message("system", system.clone())];
            for turn in &mut turns {
                messages.push(message("user", corpus.text(&mut rng, 5_800)));
                turn.push(Arc::new(request(&messages)));
                messages.push(message("assistant", corpus.text(&mut rng, 1_000)));
            }
        }
        for (at, requests) in turns.into_iter().enumerate() {
            let (next, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(requests));
            let measured = at == 3 && batch > 0;
            let mut profile = profile.as_mut().filter(|_| measured);
            profile.as_mut().map_or(Ok(()), |profile| profile.say("enable"))?;
            let before = router.cpu()?;
            let took =
                traffic::load(router.address, CONNECTIONS, move || requests.get(next.fetch_add(1, Relaxed)).cloned());
            let sent = took.await?.len();
            let cpu = router.cpu()? - before;
            profile.map_or(Ok(()), |profile| profile.say("disable"))?;
            if measured {
                figures.push(cpu.as_secs_f64() * 1e6 / sent as f64);
            }
        }
    }
    let lowest = figures.iter().copied().fold(f64::NAN, f64::min);
    let figure = median(figures);
    let met = figure <= 100.0;
    println!(
        "running 28 KB conversation, {}: {figure:.1} µs CPU a request, {lowest:.1} in the best batch (asked for: <= 100) {}",
        args.policy,
        judged(met)
    );
    Ok(met)
}

async fn distinct(args: &Args, replicas: &[SocketAddr], corpus: &Arc<Corpus>) -> io::Result<bool> {
    let probe = request(&[message("user", "Are you there?".to_owned())]);
    // Larger than the index's default budget can tell: what is forgotten is forgotten for the bytes' sake.
    let pool = pool(args, "cache_aware") + "    cache_tokens: 1_000_000_000\n";
    let router = Router::start(&args.binary, &pool, replicas, &probe).await?;
    let begin = router.resident()?;
    let (number, end) = (Arc::new(AtomicUsize::new(0)), Instant::now() + Duration::from_secs(args.seconds));
    // Pieces are made before: the client must be faster than the router.
    let mut rng = Rng::with_seed(16);
    let pieces: Arc<Vec<String>> = Arc::new((0..512).map(|_| corpus.text(&mut rng, 4_000)).collect());
    let before = router.cpu()?;
    let took = traffic::load(router.address, CONNECTIONS, move || {
        let number = number.fetch_add(1, Relaxed);
        (Instant::now() < end).then(|| {
            let mut rng = Rng::with_seed(number as u64);
            let mut content = format!("Number {number}.\n");
            (0..4).for_each(|_| content.push_str(&pieces[rng.usize(..pieces.len())]));
            Arc::new(request(&[message("user", content)]))
        })
    })
    .await?;
    let cpu = (router.cpu()? - before).as_secs_f64() * 1e6 / took.len() as f64;
    let resident = router.resident()?;
    println!("distinct 16 KB prompts, {} in {} s, {cpu:.0} µs CPU each; ms by second:", took.len(), args.seconds);
    println!("{:>8}{:>10}{:>8}{:>8}{:>8}", "second", "requests", "p50", "p99", "max");
    for second in 0..args.seconds {
        let within = took.iter().filter(|(sent, _)| sent.as_secs() == second);
        let mut times: Vec<f64> = within.map(|(_, took)| took.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)));
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| at(share).copied().unwrap_or(f64::NAN));
        println!("{second:8}{:10}{p50:8.2}{p99:8.2}{max:8.2}", times.len());
    }
    let met = resident < 150_000_000;
    println!(
        "resident memory {:.0} MB, {:.0} MB before (asked for: < 150) {}",
        resident as f64 / 1e6,
        begin as f64 / 1e6,
        judged(met)
    );
    Ok(met)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
