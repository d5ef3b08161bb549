//! The routing step of a growing conversation: body → prompt → rendered text → tokens → block hashes.
//!
//! Turn 12 has 85 KB. `oracle` is the `tokenizers` library 0.23.2 on the text of our own template, without a cache;
//! `uncached` is ours without the boundary cache, `cached` ours as it serves: every turn but the last was seen before,
//! and `repeated` the whole body. Each pass has another cache salt, so nothing else is known to the cache. The texts
//! are made up here; the tokenizer is Qwen3's, from `../shared`, and without it there is nothing to measure.
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use http::Method;
use serde_json::{Value, json};
use tokenizers_oracle::Tokenizer as Oracle;
use warmroute::api::{Endpoint, Route, find, prompt_of, read};
use warmroute::prefix::{Basis, Chain, root};
use warmroute::tokens::{Content, Encoded, Encoder, Prompt, Template};

const TURNS: [usize; 3] = [1, 4, 12];
const CONVERSATIONS: usize = 60;

fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/tokenizers/qwen3");
    if folder.exists() {
        return Some(folder);
    }
    eprintln!("skipped: {} is absent", folder.display());
    None
}

fn endpoint() -> &'static Endpoint {
    match find(&Method::POST, "/v1/chat/completions") {
        Route::Endpoint(endpoint) => endpoint,
        _ => unreachable!("it is one"),
    }
}

/// Text of about so many bytes: prose, code and JSON, of words that are made up.
fn text(random: &mut fastrand::Rng, bytes: usize) -> String {
    const SYLLABLES: [&str; 24] = [
        "ta", "re", "con", "pro", "ing", "er", "st", "al", "men", "ti", "on", "de", "ver", "com", "ple", "an", "is",
        "ment", "or", "ex", "able", "un", "li", "sub",
    ];
    let word = |random: &mut fastrand::Rng| -> String {
        (0..random.usize(1..4)).map(|_| SYLLABLES[random.usize(..SYLLABLES.len())]).collect()
    };
    let mut text = String::with_capacity(bytes + 200);
    while text.len() < bytes {
        let words: Vec<String> = (0..12).map(|_| word(random)).collect();
        match random.u32(..20) {
            0..10 => writeln!(text, "{}. The {}, which {} it.", words[..8].join(" "), words[8], words[9]),
            10..17 => writeln!(
                text,
                "    let {}_{} = self.{}({}, 0x{:x});",
                words[0],
                words[1],
                words[2],
                words[3],
                random.u16(..)
            ),
            _ => writeln!(
                text,
                "{{\"{}\": {}, \"{}\": [\"{}\", null, {}.5]}}",
                words[0],
                random.u16(..),
                words[1],
                words[2],
                random.u8(..)
            ),
        }
        .unwrap_or_default();
    }
    text
}

/// Messages of a conversation of twelve turns.
fn conversation(seed: u64) -> Vec<Value> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut messages = vec![json!({"role": "system", "content": text(&mut fastrand::Rng::with_seed(1), 4_000)})];
    for _ in 0..12 {
        messages.push(json!({"role": "user", "content": text(&mut random, 3_400)}));
        messages.push(json!({"role": "assistant", "content": text(&mut random, 3_400)}));
    }
    messages
}

/// The body of a turn, counted from 1.
fn body(messages: &[Value], turn: usize, salt: u64) -> Vec<u8> {
    let messages = &messages[..2 * turn];
    json!({"model": "m", "stream": true, "cache_salt": salt.to_string(), "messages": messages}).to_string().into_bytes()
}

fn step(encoder: &Encoder, body: &[u8]) -> Encoded {
    let hints = read(body).expect("it is JSON");
    encoder.encode(&prompt_of(endpoint(), &hints))
}

fn oracle_step(oracle: &Oracle, template: &Template, body: &[u8]) -> Vec<u64> {
    let hints = read(body).expect("it is JSON");
    let prompt = prompt_of(endpoint(), &hints);
    let Content::Chat(chat) = &prompt.content else { unreachable!("it is a chat") };
    let rendered = template.render(chat).expect("the template renders it");
    let encoding = oracle.encode_fast(&*rendered.text, false).expect("text can be encoded");
    let mut chain = Chain::new(root(Basis::Tokens, "m", None, prompt.salt.as_deref()));
    chain.push(encoding.get_ids());
    chain.finish()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Each way on the same bodies, in turn, so that a noisy moment hits all of them.
fn ratios(oracle: &Oracle, template: &Template, uncached: &Encoder, cached: &Encoder) {
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    for turn in TURNS {
        let mut times = [(); 4].map(|()| Vec::new());
        let mut size = 0;
        for round in 0..2 * CONVERSATIONS {
            let salt = (turn * 1_000_000 + round) as u64;
            // Nobody has seen it: both libraries remember words, and ours prompts.
            let messages = conversation(salt);
            if turn > 1 {
                step(cached, &body(&messages, turn - 1, salt));
            }
            let body = body(&messages, turn, salt);
            size = body.len();
            let mut expected = Vec::new();
            let mut blocks = [(); 3].map(|()| Vec::new());
            times[0].push(timed(&mut || expected = oracle_step(oracle, template, &body)));
            times[1].push(timed(&mut || blocks[0] = step(uncached, &body).blocks));
            times[2].push(timed(&mut || blocks[1] = step(cached, &body).blocks));
            times[3].push(timed(&mut || blocks[2] = step(cached, &body).blocks));
            assert!(blocks.iter().all(|blocks| *blocks == expected), "ids differ from the oracle's");
        }
        let [a, b, c, d] = times.map(median);
        println!(
            "turn {turn}, {} KB: oracle {a:.0?}, uncached {b:.0?} (1/{:.0}), cached {c:.0?} (1/{:.0}), repeated {d:.0?}",
            size / 1000,
            a.as_secs_f64() / b.as_secs_f64(),
            a.as_secs_f64() / c.as_secs_f64(),
        );
    }
}

fn routing_step(criterion: &mut Criterion) {
    let Some(folder) = folder() else { return };
    let hour = Duration::from_secs(3600);
    let oracle = Oracle::from_file(folder.join("tokenizer.json")).expect("a tokenizer");
    let template = Template::load(&folder).expect("readable").expect("a template");
    let uncached = Encoder::load("m", &folder, 0, hour).expect("a tokenizer");
    let cached = Encoder::load("m", &folder, 32 << 20, hour).expect("a tokenizer");
    let conversations: Vec<_> = (0..CONVERSATIONS as u64).map(|seed| conversation(seed + 2)).collect();
    ratios(&oracle, &template, &uncached, &cached);

    let mut group = criterion.benchmark_group("routing_step");
    group.sample_size(20).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    for turn in TURNS {
        let mut salt = 0;
        let mut next = || {
            salt += 1;
            (&conversations[salt as usize % CONVERSATIONS], salt)
        };
        group.bench_function(BenchmarkId::new("oracle", turn), |bencher| {
            bencher.iter_batched(
                || body(next().0, turn, 0),
                |body| oracle_step(&oracle, &template, &body),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("uncached", turn), |bencher| {
            bencher.iter_batched(|| body(next().0, turn, 0), |body| step(&uncached, &body), BatchSize::PerIteration);
        });
        group.bench_function(BenchmarkId::new("cached", turn), |bencher| {
            let seen = || {
                let (messages, salt) = next();
                if turn > 1 {
                    step(&cached, &body(messages, turn - 1, salt));
                }
                body(messages, turn, salt)
            };
            bencher.iter_batched(seen, |body| step(&cached, &body), BatchSize::PerIteration);
        });
        group.bench_function(BenchmarkId::new("repeated", turn), |bencher| {
            let body = body(next().0, turn, 0);
            step(&cached, &body);
            bencher.iter(|| step(&cached, &body));
        });
        let canonical = Encoder::text("m");
        group.bench_function(BenchmarkId::new("text", turn), |bencher| {
            bencher.iter_batched(|| body(next().0, turn, 0), |body| step(&canonical, &body), BatchSize::PerIteration);
        });
    }
    group.finish();
}

fn text_prompt(text: &str) -> Prompt<'_> {
    Prompt { content: Content::Text { prompts: vec![text.into()], add_special_tokens: false }, ..Prompt::default() }
}

/// The best of three.
fn best(mut work: impl FnMut() -> Encoded) -> Duration {
    let once = |work: &mut dyn FnMut() -> Encoded| {
        let start = Instant::now();
        black_box(work());
        start.elapsed()
    };
    (0..3).map(|_| once(&mut work)).min().unwrap_or_default()
}

/// What the time budget has to reckon with: texts that no cut parts, and many that no space does either, in nanoseconds
/// a byte. The sizes are the bytes of the prompt.
fn one_piece(_: &mut Criterion) {
    let mut random = fastrand::Rng::with_seed(3);
    let mut many = |bytes: usize, each: &mut dyn FnMut(&mut fastrand::Rng) -> Option<char>| {
        let mut text = String::with_capacity(bytes + 4);
        while text.len() < bytes {
            text.extend(each(&mut random));
        }
        text
    };
    let most = 4 << 20;
    let texts = [
        ("prose and code", text(&mut fastrand::Rng::with_seed(9), most)),
        ("one letter", "a".repeat(most)),
        ("random letters", many(most, &mut |random| Some(char::from(random.u8(b'a'..=b'z'))))),
        ("random LeTtErS", many(most, &mut |random| Some(random.alphabetic()))),
        ("spaces", " ".repeat(most)),
        ("newlines", "\n".repeat(most)),
        ("digits", "7".repeat(most)),
        ("signs", "=".repeat(most)),
        ("random signs", many(most, &mut |random| Some(char::from(random.u8(b'!'..=b'/'))))),
        ("base64", many(most, &mut |random| Some(random.alphanumeric()))),
        ("random ASCII", many(most, &mut |random| Some(char::from(random.u8(b' '..=b'~'))))),
        ("random words", many(most, &mut |random| Some(if random.u8(..8) == 0 { ' ' } else { random.alphabetic() }))),
        ("ideographs", many(most, &mut |random| char::from_u32(random.u32(0x4e00..0x9fa5)))),
        ("one ideograph", "\u{4e00}".repeat(most / 3)),
        ("hangul", many(most, &mut |random| char::from_u32(random.u32(0xac00..0xd7a3)))),
        ("any character", many(most, &mut |random| char::from_u32(random.u32(0x20..0x1_ffff)))),
        ("one emoji", "\u{1f600}".repeat(most / 4)),
        ("emoji", many(most, &mut |random| char::from_u32(random.u32(0x1f300..0x1f6ff)))),
        ("combining marks", "e\u{301}\u{308}".repeat(most / 5)),
        ("one mark", "\u{301}".repeat(most / 2)),
    ];
    for model in ["qwen3", "deepseek_v3", "gpt2"] {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/tokenizers").join(model);
        if !folder.exists() {
            eprintln!("skipped: {} is absent", folder.display());
            continue;
        }
        let encoder = Encoder::load("m", &folder, 0, Duration::from_secs(3600)).expect("a tokenizer");
        for (name, text) in &texts {
            // Once each, and never the same text: the library remembers words, and a repeat costs it nothing.
            let rates = [64 << 10, most].map(|bytes| {
                let text = &text[..text.floor_char_boundary(bytes)];
                let start = Instant::now();
                let encoded = encoder.encode(&text_prompt(text));
                let took = start.elapsed();
                assert!(encoded.basis == Basis::Tokens && encoded.fallback.is_none(), "{model} {name}: no tokens");
                took.as_nanos() as f64 / text.len() as f64
            });
            println!("one piece: {model} {name}: {:.1} ns/byte at 64 KiB, {:.1} at 4 MiB", rates[0], rates[1]);
        }
    }
}

/// What the defaults follow from: a prompt of 128k tokens that nothing is known of, and what a prompt that is known takes
/// on the spot.
fn defaults(_: &mut Criterion) {
    let Some(folder) = folder() else { return };
    let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
    let encoder = || Encoder::load("m", &folder, 32 << 20, Duration::from_secs(3600)).expect("a tokenizer");
    let messages: Vec<Value> = (0..128)
        .map(|at| json!({"role": role(at), "content": text(&mut fastrand::Rng::with_seed(at as u64), 3_500)}))
        .collect();
    let cold = body(&messages, messages.len() / 2, 0);
    let mut took: Vec<(Duration, usize)> = (0..3)
        .map(|_| {
            let encoder = encoder();
            let start = Instant::now();
            let tokens = step(&encoder, &cold).tokens;
            (start.elapsed(), tokens)
        })
        .collect();
    took.sort_unstable();
    println!("cold: {} tokens of {} KB in {:.1?}", took[0].1, cold.len() / 1000, took[0].0);

    let encoder = encoder();
    for (name, count, bytes) in
        [("85 KB", 25, 3_400), ("256 KB", 73, 3_400), ("256 KB of one message", 1, 250_000), ("1024 short", 1024, 8)]
    {
        let messages: Vec<Value> = (0..count)
            .map(|at| json!({"role": role(at), "content": text(&mut fastrand::Rng::with_seed(at as u64), bytes)}))
            .map(|mut message| {
                if bytes < 10 {
                    message["content"] = "hi there".into();
                }
                message
            })
            .collect();
        let of = |salt: u64, tail: &str| {
            let mut messages = messages.clone();
            messages.push(json!({"role": "user", "content": tail}));
            json!({"model": "m", "cache_salt": salt.to_string(), "messages": messages}).to_string().into_bytes()
        };
        step(&encoder, &of(1, "a"));
        let known = best(|| step(&encoder, &of(1, &fastrand::u64(..).to_string())));
        let made = best(|| {
            black_box(of(1, &fastrand::u64(..).to_string()));
            Encoded { blocks: Vec::new(), tokens: 0, basis: Basis::Tokens, fallback: None }
        });
        let unknown = best(|| {
            let body = of(fastrand::u64(..), "b");
            let hints = read(&body).expect("it is JSON");
            let left = encoder.encode_within(&prompt_of(endpoint(), &hints), 16);
            left.unwrap_or(Encoded { blocks: Vec::new(), tokens: 0, basis: Basis::Tokens, fallback: None })
        });
        println!(
            "on the spot: {name}: known but for the last message {:.0?}, found not to be known {:.0?}",
            known.saturating_sub(made),
            unknown.saturating_sub(made)
        );
    }
}

criterion_group!(benches, defaults, one_piece, routing_step);
criterion_main!(benches);
