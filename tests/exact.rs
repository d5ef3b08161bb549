//! Random conversations and texts, grown, edited and cut: blocks with the boundary cache, with one so small that it
//! forgets, and without one are those of the older `tokenizers` library on the whole text.
//!
//! The seeds are fixed; `EXACT_SECONDS=600 cargo test --release --test exact` draws others for so long, and says which
//! one failed (`EXACT_SEED` begins there). Without `../shared` it skips.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use warmroute::prefix::{Basis, Chain, root};
use warmroute::tokens::{Chat, Content, Encoded, Encoder, Messages, Prompt, Template};

/// What texts are made of: what looks like a special token, what a normalizer or a pre-tokenizer joins, and words.
const PARTS: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<|im_start|>assistant\n",
    "<|im_",
    "|>",
    "<|",
    "<",
    "<|im_start|><|im_start|>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<｜begin▁of▁sentence｜>",
    "<｜",
    "▁",
    "e\u{301}",
    "\u{301}",
    "\u{308}a",
    "\u{1100}\u{1161}",
    "\u{11a8}",
    "가",
    "ﬁ",
    "Å",
    "中文",
    "、",
    "。",
    "😀",
    "👩\u{200d}👩",
    "🏽",
    "العربية",
    "ไทย",
    " ",
    "  ",
    "      ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u{a0}",
    "\u{3000}",
    "\u{200b}",
    "\0",
    "'s",
    "'LL",
    "don't",
    "7",
    "1234",
    "٣",
    "½",
    "a",
    "A",
    "word",
    " word",
    "Word.",
    "fn main() {",
    "}\n",
    "\"",
    "\\",
    "\\n",
    "=====",
    "://",
    "...",
    "-",
    "_",
    "\u{feff}",
    "\u{fffd}",
];

fn text(random: &mut Rng, most: usize) -> String {
    let mut text = String::new();
    let bytes = random.usize(..=most);
    // A few of the parts, often, rather than all of them.
    let few: Vec<&str> = (0..random.usize(1..12)).map(|_| PARTS[random.usize(..PARTS.len())]).collect();
    while text.len() < bytes {
        match random.u8(..24) {
            0 => text.extend(char::from_u32(random.u32(..0x11_0000))),
            1 => text.push_str(PARTS[random.usize(..PARTS.len())]),
            2 => text.push_str(&few[random.usize(..few.len())].repeat(random.usize(..40))),
            _ => text.push_str(few[random.usize(..few.len())]),
        }
    }
    text
}

fn message(random: &mut Rng) -> Value {
    let role = ["user", "assistant", "system", "user", "assistant", "tool"][random.usize(..6)];
    let most = [0, 60, 700, 3000][random.usize(..4)];
    json!({"role": role, "content": text(random, most)})
}

/// Grows, cuts or edits a conversation.
fn change(random: &mut Rng, messages: &mut Vec<Value>) {
    match random.u8(..8) {
        0 if messages.len() > 1 => messages.truncate(random.usize(1..messages.len())),
        1 if !messages.is_empty() => {
            let at = random.usize(..messages.len());
            messages[at] = message(random);
        }
        2 if !messages.is_empty() => {
            let at = random.usize(..messages.len());
            let edited = messages[at]["content"].as_str().unwrap_or_default();
            let cut = edited.floor_char_boundary(random.usize(..=edited.len()));
            messages[at]["content"] = format!("{}{}{}", &edited[..cut], text(random, 20), &edited[cut..]).into();
        }
        _ => messages.extend((0..random.usize(1..4)).map(|_| message(random))),
    }
    messages.truncate(40);
}

/// A model's encoders, and what they are compared with.
struct Model {
    name: &'static str,
    encoders: [Encoder; 3],
    template: Option<Template>,
    oracle: tokenizers_oracle::Tokenizer,
}

impl Model {
    fn load(name: &'static str) -> Option<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/tokenizers").join(name);
        if !folder.exists() {
            println!("skipped: exactness on {name}: no ../shared");
            return None;
        }
        let hour = Duration::from_secs(3600);
        let encoders = [16 << 20, 48 << 10, 0].map(|bytes| Encoder::load("m", &folder, bytes, hour).unwrap());
        let template = Template::load(&folder).unwrap();
        let oracle = tokenizers_oracle::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        Some(Self { name, encoders, template, oracle })
    }

    fn expected(&self, text: &str, special: bool) -> (Vec<u64>, usize) {
        let mut chain = Chain::new(root(Basis::Tokens, "m", None, None));
        chain.push(self.oracle.encode_fast(text, special).unwrap().get_ids());
        let tokens = chain.tokens();
        (chain.finish(), tokens)
    }

    fn check(&self, seed: u64, prompt: &Prompt<'_>, expected: &(Vec<u64>, usize)) {
        for (which, encoder) in ["cached", "forgetful", "uncached"].iter().zip(&self.encoders) {
            for time in ["first", "second"] {
                let Encoded { blocks, tokens, basis, fallback } = encoder.encode(prompt);
                let equal = basis == Basis::Tokens && fallback.is_none() && (blocks, tokens) == *expected;
                assert!(equal, "{} with seed {seed}: the {time} time, {which}, it differs", self.name);
            }
        }
    }

    /// One conversation's life, and texts beside it. How many prompts were compared.
    fn round(&self, seed: u64) -> usize {
        let mut random = Rng::with_seed(seed);
        let (mut messages, mut completion, mut compared) = (Vec::new(), text(&mut random, 3000), 0);
        for _ in 0..random.usize(1..12) {
            change(&mut random, &mut messages);
            let raw = RawValue::from_string(Value::from(messages.clone()).to_string()).unwrap();
            let chat = Chat { messages: Messages::Raw(&raw), add_generation_prompt: random.bool(), ..Chat::default() };
            if let Some(Ok(rendered)) = self.template.as_ref().map(|template| template.render(&chat)) {
                let expected = self.expected(&rendered.text, false);
                let prompt = Prompt { content: Content::Chat(Box::new(chat)), ..Prompt::default() };
                self.check(seed, &prompt, &expected);
                compared += 1;
            }
            let cut = completion.floor_char_boundary(random.usize(..=completion.len()));
            if random.u8(..3) == 0 {
                completion.truncate(cut);
            }
            completion.push_str(&text(&mut random, 2000));
            let add_special_tokens = random.bool();
            let expected = self.expected(&completion, add_special_tokens);
            let content = Content::Text { prompts: vec![completion.as_str().into()], add_special_tokens };
            self.check(seed, &Prompt { content, ..Prompt::default() }, &expected);
            compared += 1;
        }
        compared
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

fn exact(name: &'static str) {
    let Some(model) = Model::load(name) else { return };
    let (begin, mut seed, mut compared) = (Instant::now(), number("EXACT_SEED").unwrap_or(0), 0);
    let first = seed;
    let seconds = number("EXACT_SECONDS").map(Duration::from_secs);
    while seconds.map_or(seed < first + 12, |seconds| begin.elapsed() < seconds) {
        compared += model.round(seed);
        seed += 1;
    }
    println!("exactness: {name}: {compared} prompts of {} seeds are equal; {:.0?}", seed - first, begin.elapsed());
}

#[test]
fn qwen3_is_exact() {
    exact("qwen3");
}

#[test]
fn deepseek_v3_is_exact() {
    exact("deepseek_v3");
}

#[test]
fn gpt2_is_exact() {
    exact("gpt2");
}
