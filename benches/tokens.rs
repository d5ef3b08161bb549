//! What the routing step spends on a running conversation: 12 turns, 85 KB, half prose, 40 % code, the rest JSON of
//! tools. With Qwen3's tokenizer and template where `../shared` is there, else with the small ones of the unit tests.
use std::hint::black_box;
use std::path::PathBuf;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use serde_json::value::RawValue;
use warmroute::tokens::{Chat, Messages, Template, Tokenizer};

const WORDS: [&str; 24] = [
    "the",
    "replica",
    "answers",
    "because",
    "its",
    "cache",
    "holds",
    "a",
    "prefix",
    "of",
    "this",
    "conversation",
    "and",
    "every",
    "later",
    "turn",
    "reads",
    "more",
    "blocks",
    "than",
    "it",
    "computes",
    "again",
    "quickly",
];

/// Text of about so many bytes.
fn text(rng: &mut fastrand::Rng, bytes: usize) -> String {
    let mut out = String::new();
    while out.len() < bytes {
        match rng.u32(..10) {
            0..5 => {
                for _ in 0..rng.usize(8..20) {
                    out.push_str(WORDS[rng.usize(..WORDS.len())]);
                    out.push(' ');
                }
                out.push_str(".\n");
            }
            5..9 => out.push_str(&format!(
                "fn {}_{}(x: &[u{}]) -> Option<usize> {{\n    x.iter().position(|y| *y == {:#x})\n}}\n",
                WORDS[rng.usize(..WORDS.len())],
                rng.u16(..),
                8 << rng.u32(..4),
                rng.u32(..)
            )),
            _ => out.push_str(
                &json!({"name": WORDS[rng.usize(..24)], "value": rng.u32(..), "list": [1, 2.5, null]}).to_string(),
            ),
        }
    }
    out
}

fn conversation(turns: usize, bytes: usize) -> String {
    let mut rng = fastrand::Rng::with_seed(7);
    let each = bytes / (2 * turns + 1);
    let mut messages = vec![json!({"role": "system", "content": text(&mut rng, each)})];
    for _ in 0..turns {
        messages.push(json!({"role": "user", "content": text(&mut rng, each)}));
        messages.push(json!({"role": "assistant", "content": text(&mut rng, each)}));
    }
    messages.push(json!({"role": "user", "content": "Go on."}));
    json!(messages).to_string()
}

fn folder() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let real = root.join("../shared/tokenizers/qwen3");
    if real.exists() { real } else { root.join("tests/fixtures/tokenizer") }
}

fn steps(criterion: &mut Criterion) {
    let template = Template::load(&folder()).expect("a template").expect("a template");
    let tokenizer = Tokenizer::load(&folder()).expect("a tokenizer");
    let messages = conversation(12, 85_000);
    let raw: &RawValue = serde_json::from_str(&messages).expect("JSON");
    let render = |messages| {
        let chat = Chat { messages: Messages::Raw(messages), add_generation_prompt: true, ..Chat::default() };
        template.render(&chat).expect("rendered")
    };
    let text = render(raw).text;
    let mut group = criterion.benchmark_group("turn_12");
    group.bench_function("find_messages", |bencher| {
        bencher.iter(|| serde_json::from_str::<&RawValue>(black_box(&messages)).expect("JSON"));
    });
    group.bench_function("parse_and_render", |bencher| bencher.iter(|| render(black_box(raw))));
    group.bench_function("cut_points", |bencher| {
        bencher.iter(|| tokenizer.cut_points().find(black_box(&text)).count());
    });
    let mut ids = Vec::new();
    group.bench_function("encode", |bencher| {
        bencher.iter(|| {
            ids.clear();
            tokenizer.encode(black_box(&text), false, &mut ids).expect("encoded");
        });
    });
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
