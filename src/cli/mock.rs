//! `warmroute mock`.
use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use crate::sim::engine;
use crate::sim::mock::{self, Dialect, MockOptions};

/// Run a virtual engine behind a real OpenAI-style server.
///
/// It computes nothing: it keeps a block cache, a prefill queue and decode rates as an engine would, and answers
/// `token1 token2 …` at that pace, with true `cached_tokens`. It speaks chat, completions, responses, messages,
/// embeddings, rerank, score, tokenize, generate and transcriptions, and serves models, health and metrics.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Address to listen on; port 0 takes a free one. The address is printed to stderr when it listens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Model served; may be repeated, the first answers requests that name none.
    #[arg(long = "model", value_name = "NAME", default_value = "mock-model")]
    models: Vec<String>,
    /// Tokens in a cache block.
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    block_size: u32,
    /// Tokens of KV cache; also the longest prompt and answer together.
    #[arg(long, value_name = "TOKENS", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..))]
    cache_tokens: u64,
    /// Uncached prompt tokens computed a second; 0: at once.
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    prefill_tps: u32,
    /// Tokens generated a second, by all requests together; 0: at once.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    decode_tps: u32,
    /// Whose shapes, errors and metric names to use.
    #[arg(long, value_enum, default_value_t = Dialect::Vllm)]
    engine: Dialect,
}

const HELP: &str = r#"Faults: POST /__control with a JSON object. Each field sets one fault, the others stay; an unknown field is refused
with a list of those known.
  {"status": 503, "count": 3, "retry_after": 1}   this status for the next 3 requests (count: default 1)
  {"delay_ms": 100}                               before the head of each answer; 0 takes it back
  {"first_token_delay_ms": 100}                   after a stream's head; before a whole answer
  {"inter_token_ms": 10}                          between the tokens of a stream
  {"cut_after_bytes": 100, "count": 1}            break the connection after so many bytes of body
  {"hang": true}                                  take requests, answer none, until false
  {"close_idle_after_ms": 500}                    close connections idle for so long; 0 takes it back
  {"reset_on_reuse": true, "count": 1}            reset a used connection upon its next request, unanswered
  {"health_status": 503}                          of /health; 0 takes it back
  {"restart": true}                               the engine loses its cache and its requests, as a new process does
  {"sleep": true}                                 its metrics (vLLM's) say that it sleeps
  {"die": true}                                   end the process at once
  {"clear": true}                                 no faults; applied before the other fields
GET /__stats: requests, disconnects, inflight, connections, last_headers, last_path, last_body_hash (xxh3-64, hex),
last_body_len, responses_by_status, engine. POST /__stats/reset: counters to zero.
/health, /metrics and /__* are not counted, and no fault but health_status touches them."#;

/// Tokens a second that stand for "at once": a request's virtual nanoseconds are below what anyone can see.
const AT_ONCE: f64 = 1e9;

/// Runs it until SIGTERM or SIGINT.
pub fn run(args: Args) -> ExitCode {
    let speed = |tps: u32| if tps == 0 { AT_ONCE } else { f64::from(tps) };
    let options = MockOptions {
        listen: args.listen,
        models: args.models,
        dialect: args.engine,
        engine: engine::Options {
            block_size: args.block_size,
            cache_tokens: args.cache_tokens,
            prefill_tps: speed(args.prefill_tps),
            decode_tps: speed(args.decode_tps),
            ..engine::Options::default()
        },
        ..MockOptions::default()
    };
    // Best effort: thousands of open streams need descriptors, a few do not.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let served = tokio::runtime::Builder::new_multi_thread().enable_all().build().and_then(|runtime| {
        runtime.block_on(async {
            let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            let handle = mock::start(options).await.map_err(|error| {
                std::io::Error::new(error.kind(), format!("cannot listen on {}: {error}", args.listen))
            })?;
            eprintln!("listening on {}", handle.url());
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            Ok(())
        })
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
