//! Texts and ids equal to Python `transformers`' on the corpus that `tests/parity/corpus.py` makes, and ids equal to the
//! 0.23 line of the `tokenizers` library. `tests/parity/run` makes the corpus and runs this; without one it skips.
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;
use serde_json::value::RawValue;
use warmroute::tokens::{Chat, Messages, Template, Tokenizer};

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    chat: Option<Box<RawValue>>,
    text: Option<String>,
    ids: Option<Vec<u32>>,
    refused: Option<String>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
    tools: Option<Box<RawValue>>,
    chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
    add_generation_prompt: bool,
    continue_final_message: bool,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The corpus of a model, and the folder of its tokenizer; `None`, said, where one is missing.
fn corpus(model: &str) -> Option<(PathBuf, PathBuf)> {
    let folder = std::env::var_os("PARITY_CORPUS").map_or_else(|| root().join("scratch/parity"), PathBuf::from);
    let (file, tokenizer) = (folder.join(format!("{model}.jsonl")), root().join("../shared/tokenizers").join(model));
    if !file.exists() || !tokenizer.exists() {
        println!(
            "skipped: parity with transformers on {model}: no corpus (tests/parity/run makes it), or no tokenizer"
        );
        return None;
    }
    Some((file, tokenizer))
}

fn lines(file: &Path) -> impl Iterator<Item = Line> {
    BufReader::new(File::open(file).unwrap()).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

/// Where two texts part, with what stands around.
fn parting(ours: &str, theirs: &str) -> String {
    let at = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
    let near = |text: &str| {
        let bytes = &text.as_bytes()[at.saturating_sub(40)..text.len().min(at + 40)];
        String::from_utf8_lossy(bytes).into_owned()
    };
    format!("at byte {at}: ours {:?}, theirs {:?}", near(ours), near(theirs))
}

/// Counts of one model's lines.
#[derive(Default)]
struct Counts {
    lines: usize,
    texts: usize,
    ids: usize,
    refused: usize,
    tokens: usize,
    wrong: Vec<String>,
}

fn compare(model: &str, what: &str) {
    let Some((file, folder)) = corpus(model) else { return };
    let tokenizer = Tokenizer::load(&folder).unwrap();
    let template = Template::load(&folder).unwrap();
    let oracle = tokenizers_oracle::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    let mut counts = Counts::default();
    let begin = Instant::now();
    for (number, line) in lines(&file).enumerate() {
        counts.lines += 1;
        let text = match &line.chat {
            None => line.text.clone().unwrap(),
            Some(raw) => {
                let request: Request = serde_json::from_str(raw.get()).unwrap();
                let chat = Chat {
                    messages: Messages::Raw(request.messages),
                    tools: request.tools.map(std::borrow::Cow::Owned),
                    kwargs: request.chat_template_kwargs,
                    add_generation_prompt: request.add_generation_prompt,
                    continue_final_message: request.continue_final_message,
                    ..Chat::default()
                };
                match (template.as_ref().unwrap().render(&chat), &line.refused) {
                    (Ok(rendered), None) => rendered.text,
                    (Err(_), Some(_)) => {
                        counts.refused += 1;
                        continue;
                    }
                    (ours, theirs) => {
                        let ours = ours.map(|rendered| rendered.text.len());
                        counts.wrong.push(format!("line {}: ours {ours:?}, theirs {theirs:?}", number + 1));
                        continue;
                    }
                }
            }
        };
        let theirs = line.text.unwrap();
        if text == theirs {
            counts.texts += 1;
        } else {
            counts.wrong.push(format!("line {}: {}", number + 1, parting(&text, &theirs)));
        }
        let mut ids = Vec::new();
        tokenizer.encode(&theirs, false, &mut ids).unwrap();
        // Cut wherever that is allowed, it is the same.
        let (mut pieces, mut from) = (Vec::new(), 0);
        for cut in tokenizer.cut_points().find(&theirs).chain([theirs.len()]) {
            tokenizer.encode(&theirs[from..cut], false, &mut pieces).unwrap();
            from = cut;
        }
        let older = oracle.encode_fast(&*theirs, false).unwrap();
        let wanted = line.ids.unwrap();
        counts.tokens += wanted.len();
        if ids == wanted && pieces == wanted && older.get_ids() == wanted {
            counts.ids += 1;
        } else {
            let equal = (ids == wanted, pieces == wanted, older.get_ids() == wanted);
            counts.wrong.push(format!("line {}: ids equal in (whole, pieces, 0.23.2): {equal:?}", number + 1));
        }
    }
    let Counts { lines, texts, ids, refused, tokens, wrong } = counts;
    println!(
        "parity: {model} {lines} {what}, {texts} texts and {ids} ids equal ({tokens} tokens; whole, in pieces, and by \
         0.23.2), {refused} refused by both, {} different; {:.0?}",
        wrong.len(),
        begin.elapsed()
    );
    assert!(wrong.is_empty(), "{} different:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(texts >= 500, "only {texts} {what} were compared");
}

#[test]
fn qwen3_conversations_equal_transformers() {
    compare("qwen3", "conversations");
}

#[test]
fn deepseek_v3_conversations_equal_transformers() {
    compare("deepseek_v3", "conversations");
}

#[test]
fn gpt2_texts_equal_transformers() {
    compare("gpt2", "texts");
}
