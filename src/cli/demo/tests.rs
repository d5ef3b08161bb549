//! The demo in small, and its client against servers that do not behave.
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::{Args as _, FromArgMatches as _};
use indicatif::ProgressBar;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::load::{Failure, Reader, drive};
use super::report::{quantile, skew};
use super::workload::{Session, Shape, Turn};
use super::*;

fn args(words: &[&str]) -> Args {
    let command = Args::augment_args(clap::Command::new("demo"));
    Args::from_arg_matches(&command.get_matches_from([&["demo"], words].concat())).unwrap()
}

const SMALL: Shape = Shape { sessions: 6, turns: 3, seed: 1 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_answers_and_those_that_know_a_chat_compute_less_than_round_robin() {
    let report = compare(&args(&["--sessions", "6", "--turns", "3"])).await.unwrap();
    assert_eq!(report.errors(), 0, "{:?}", report.first_errors().collect::<Vec<_>>());
    assert_eq!(report.policies.len(), POLICIES.len());
    let recompute = |name: &str| report.policies.iter().find(|row| row.policy == name).unwrap().recompute_ratio;
    assert!(recompute("session_sticky") < recompute("round_robin"), "{}", report.table());
    assert!(recompute("header_hash") < recompute("round_robin"), "{}", report.table());
    // Told of no chat, they find what those find that are: a turn's whole history.
    for by_prompt in ["cache_aware", "least_cost"] {
        assert!(recompute(by_prompt) <= recompute("session_sticky") + 0.05, "{}", report.table());
        assert!(report.table().contains(&format!("{by_prompt} was not told of it")), "{}", report.table());
    }
    for row in &report.policies {
        assert_eq!(row.requests, SMALL.requests());
        assert!(row.skew >= 1.0 && row.skew <= 4.0, "{row:?}");
        assert!(row.recompute_ratio >= report.floor.recompute_ratio && row.recompute_ratio <= 1.0, "{row:?}");
        assert!(row.ttft_p50_ms > 0.0 && row.ttft_p50_ms <= row.ttft_p99_ms, "{row:?}");
    }
    let prompts: Vec<u64> = report.policies.iter().map(|row| row.prompt_tokens).collect();
    assert!(prompts.iter().all(|tokens| *tokens == report.floor.prompt_tokens), "not the same was asked: {prompts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_is_told_and_ends_in_exit_code_1() {
    let engine = engine::Options { cache_tokens: 1_000, ..engine::Options::default() };
    let round = Round { name: "too small", policy: Policy::plain("random"), replicas: 2, engine, pauses: false };
    let row = round.run(SMALL, &Progress::new(1, SMALL.requests())).await.unwrap();
    assert_eq!((row.requests, row.errors, row.recompute_ratio), (6, 6, 0.0));
    let mut report = compare(&args(&["--sessions", "1", "--turns", "1", "--policy", "random"])).await.unwrap();
    let code = |report: &Report| format!("{:?}", verdict(report, ExitCode::SUCCESS));
    assert_eq!(code(&report), format!("{:?}", ExitCode::SUCCESS));
    report.policies.push(row);
    assert_eq!(code(&report), format!("{:?}", ExitCode::FAILURE));
    let told: Vec<_> = report.first_errors().collect();
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("too small: 6 of 6 requests failed; the first: status 400 Bad Request: "), "{told:?}");
}

/// What clients are told is what engines did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_adds_up_to_the_engines_own_counters() {
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let options = MockOptions { models: vec![MODEL.to_owned()], ..MockOptions::default() };
        replicas.push(mock::start(options).await.unwrap());
    }
    let (_running, address) = start_proxy(Policy::plain("round_robin"), 1_000, &replicas).unwrap();
    let tally = drive(address, SMALL, false, &ProgressBar::hidden()).await;
    assert_eq!((tally.errors, tally.first_error), (0, None));
    let stats: Vec<_> = replicas.iter().map(MockHandle::engine_stats).collect();
    assert_eq!(tally.prompt_tokens, stats.iter().map(|stats| stats.prompt_tokens).sum::<u64>());
    assert_eq!(tally.cached_tokens, stats.iter().map(|stats| stats.cached_tokens).sum::<u64>());
    assert!(tally.cached_tokens > 0);
    assert_eq!(stats.iter().map(|stats| stats.submitted).collect::<Vec<_>>(), [9, 9]);
}

/// Serves one fixed answer to each connection's first request, then closes it.
async fn fixed(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut seen = Vec::new();
                // The body's last bytes; the whole of it must be read, or the close becomes a reset.
                while !seen.ends_with(b"\"include_usage\":true}}") {
                    if stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn answers_that_are_none_are_counted_with_their_cause_and_end_the_conversation() {
    let cases = [
        ("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy", "status 503 Service Unavailable: busy"),
        ("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: {\"choices\":[]}\n\n", "the stream ended before `[DONE]`"),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\ndata: [DONE]\n\n",
            "the answer lacks a first token, or its usage",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\ndata: {\"error\":\"oh\"}\n",
            "the stream holds an event that is none of a chat: {\"error\":\"oh\"}",
        ),
    ];
    for (answer, cause) in cases {
        let tally = drive(fixed(answer).await, SMALL, false, &ProgressBar::hidden()).await;
        assert_eq!((tally.requests, tally.errors), (6, 6), "{answer}");
        assert_eq!(tally.first_error.as_deref(), Some(cause));
        assert!(tally.first_tokens.is_empty());
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_an_error_and_no_hang() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let tally = drive(address, SMALL, false, &ProgressBar::hidden()).await;
    assert_eq!(tally.errors, 6);
    assert!(tally.first_error.unwrap().starts_with("no connection to the proxy: "));
}

const STREAM: &str = ": hello\r\n\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
    data:{\"choices\":[{\"delta\":{\"content\":\"na\u{ef}ve \"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

#[test]
fn a_stream_reads_the_same_wherever_it_is_cut() {
    let asked = Instant::now();
    for cut in 0..=STREAM.len() {
        let mut reader = Reader::default();
        let (left, right) = STREAM.as_bytes().split_at(cut);
        reader.feed(left, asked).unwrap();
        reader.feed(right, asked).unwrap();
        let answer = reader.finish().unwrap();
        assert_eq!((answer.text.as_str(), answer.usage.prompt_tokens, answer.usage.cached()), ("na\u{ef}ve é", 9, 4));
    }
    let mut reader = Reader::default();
    reader.feed(STREAM.strip_suffix("data: [DONE]\n\n").unwrap().as_bytes(), asked).unwrap();
    assert!(matches!(reader.finish(), Err(Failure::Cut)));
}

#[test]
fn usage_without_details_means_nothing_was_cached() {
    for details in ["", r#","prompt_tokens_details":null"#, r#","prompt_tokens_details":{"cached_tokens":null}"#] {
        let usage: super::load::Usage = serde_json::from_str(&format!(r#"{{"prompt_tokens":9{details}}}"#)).unwrap();
        assert_eq!(usage.cached(), 0);
    }
}

#[test]
fn a_seed_asks_the_same_again_and_another_one_does_not() {
    let turns = |seed, number| Session::new(Shape { seed, ..SMALL }, number).collect::<Vec<Turn>>();
    assert_eq!(turns(1, 0), turns(1, 0));
    assert_eq!(turns(1, 0).len(), 3);
    assert_ne!(turns(1, 0), turns(2, 0));
    assert_ne!(turns(1, 0), turns(1, 1));
}

#[test]
fn a_replica_holds_its_share_of_the_conversations_and_not_all() {
    let shape = Shape { sessions: 48, turns: 6, seed: 1 };
    let all = shape.share_of_cache(1);
    assert!(shape.share_of_cache(4) < all / 2 && shape.share_of_cache(4) >= all / 4);
    assert!(Shape { sessions: 1, ..shape }.share_of_cache(64) > 4 * 3_000, "too small for one conversation");
}

#[test]
fn the_numbers_of_the_table() {
    assert_eq!(skew(&[3, 1, 1, 1]), 2.0);
    assert_eq!((skew(&[5]), skew(&[0, 0]), skew(&[])), (1.0, 1.0, 1.0));
    let millis: Vec<_> = (1..=100).map(Duration::from_millis).collect();
    assert_eq!(quantile(&millis, 0.5), Duration::from_millis(50));
    assert_eq!(quantile(&millis, 0.99), Duration::from_millis(99));
    assert_eq!(quantile(&millis[..1], 0.99), Duration::from_millis(1));
    assert_eq!(quantile(&[], 0.5), Duration::ZERO);
}

/// A policy that `serve` has and the demo has not would be left out in silence.
#[test]
fn every_policy_of_the_configuration_is_compared() {
    let schema = config::schema();
    let names = schema["properties"]["pools"]["items"]["properties"]["policy"]["anyOf"]
        .as_array()
        .and_then(|forms| forms.iter().find_map(|form| form["enum"].as_array()))
        .unwrap();
    let compared: Vec<_> = POLICIES.iter().map(|policy| policy.name).collect();
    assert_eq!(names.iter().map(|name| name.as_str().unwrap()).collect::<Vec<_>>(), compared);
}
