//! Random conversations and texts, grown, edited and cut: blocks with the boundary cache, with one so small that it
//! forgets, and without one are those of the whole text, and those of the older `tokenizers` library.
//!
//! The seeds are fixed; `EXACT_SECONDS=600 cargo test --release --test exact` draws others for so long, and says which
//! one failed (`EXACT_SEED` begins there). Without `../shared` it skips.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use warmroute::prefix::{Basis, Chain, root};
use warmroute::tokens::{Chat, Content, Encoded, Encoder, Messages, Prompt, Template, Tokenizer};

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
    tokenizer: Tokenizer,
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
        let tokenizer = Tokenizer::load(&folder).unwrap();
        Some(Self { name, encoders, template, tokenizer, oracle })
    }

    /// By the whole text. The older library agrees, but for characters that its tables of Unicode don't know or know
    /// otherwise (such as the ideographs of Unicode 17): it is asked about texts of our parts alone.
    fn expected(&self, text: &str, special: bool) -> (Vec<u64>, usize) {
        let mut ids = Vec::new();
        self.tokenizer.encode(text, special, &mut ids).unwrap();
        if text.chars().all(|c| c.is_ascii() || PARTS.iter().any(|part| part.contains(c))) {
            let theirs = self.oracle.encode_fast(text, special).unwrap();
            assert!(theirs.get_ids() == ids, "{}", self.parting(text));
        }
        let mut chain = Chain::new(root(Basis::Tokens, "m", None, None));
        chain.push(&ids);
        let tokens = chain.tokens();
        (chain.finish(), tokens)
    }

    fn check(&self, seed: u64, prompt: &Prompt<'_>, text: &str, special: bool) {
        let expected = self.expected(text, special);
        let mut differ = Vec::new();
        for (which, encoder) in ["cached", "forgetful", "uncached"].iter().zip(&self.encoders) {
            for time in ["first", "second"] {
                let Encoded { blocks, tokens, basis, fallback } = encoder.encode(prompt);
                if basis != Basis::Tokens || fallback.is_some() || (blocks, tokens) != expected {
                    differ.push(format!("{which}, {time} time ({fallback:?})"));
                }
            }
        }
        if !differ.is_empty() {
            panic!("{} with seed {seed}: {}", self.name, differ.join("; "));
        }
    }

    /// Where our ids of a text part from the older library's.
    fn parting(&self, text: &str) -> String {
        let mut ours = Vec::new();
        self.tokenizer.encode(text, false, &mut ours).unwrap();
        let theirs = self.oracle.encode_fast(text, false).unwrap();
        let at = ours.iter().zip(theirs.get_ids()).take_while(|(a, b)| a == b).count();
        let show = |ids: &[u32]| {
            let ids = &ids[at.saturating_sub(2).min(ids.len())..ids.len().min(at + 5)];
            format!("{ids:?} {:?}", self.oracle.decode(ids, false).unwrap_or_default())
        };
        format!("ours {}, theirs {}", show(&ours), show(theirs.get_ids()))
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
                let prompt = Prompt { content: Content::Chat(Box::new(chat)), ..Prompt::default() };
                self.check(seed, &prompt, &rendered.text, false);
                compared += 1;
            }
            let cut = completion.floor_char_boundary(random.usize(..=completion.len()));
            if random.u8(..3) == 0 {
                completion.truncate(cut);
            }
            completion.push_str(&text(&mut random, 2000));
            let add_special_tokens = random.bool();
            let content = Content::Text { prompts: vec![completion.as_str().into()], add_special_tokens };
            self.check(seed, &Prompt { content, ..Prompt::default() }, &completion, add_special_tokens);
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

/// Texts that nothing parts take another way through the library than words do.
#[test]
fn long_words_are_exact() {
    let mut random = Rng::with_seed(5);
    let letters: String = (0..16 << 10).map(|_| char::from(random.u8(b'a'..=b'z'))).collect();
    let mixed: String = (0..16 << 10).map(|_| random.alphabetic()).collect();
    let repeated = ["a", " ", "7", "=", "\u{4e00}", "\u{1f600}", "\u{301}"].map(|part| part.repeat(16 << 10));
    for model in ["qwen3", "deepseek_v3", "gpt2"].into_iter().filter_map(Model::load) {
        for text in [&letters, &mixed].into_iter().chain(&repeated) {
            let content = Content::Text { prompts: vec![text.as_str().into()], add_special_tokens: false };
            let prompt = Prompt { content, ..Prompt::default() };
            model.check(5, &prompt, text, false);
        }
    }
}
