//! Our ids of recorded requests against what the engines said of them: ids (`return_token_ids`, `/tokenize`) where they
//! gave them, else their count (`usage.prompt_tokens`). The recordings are of a model with Qwen3's tokenizer and
//! template. Without `../shared` it skips.
use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_json::value::RawValue;
use warmroute::tokens::{Chat, Messages, Template, Tokenizer};

/// What an engine said of a prompt.
#[derive(Default, Debug)]
struct Said {
    ids: Vec<Vec<u32>>,
    count: Option<usize>,
}

/// Collects what is said in a JSON tree.
fn listen(json: &Value, said: &mut Said) {
    match json {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("prompt_token_ids" | "tokens", Value::Array(list)) => {
                        let ids: Option<Vec<u32>> = list.iter().map(|id| id.as_u64().map(|id| id as u32)).collect();
                        said.ids.extend(ids.filter(|ids| !ids.is_empty()));
                    }
                    ("prompt_tokens" | "count", Value::Number(n)) => said.count = n.as_u64().map(|n| n as usize),
                    _ => listen(value, said),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| listen(value, said)),
        _ => {}
    }
}

fn said(body: &[u8]) -> Said {
    let mut said = Said::default();
    let text = String::from_utf8_lossy(body);
    match serde_json::from_str(&text) {
        Ok(json) => listen(&json, &mut said),
        Err(_) => text
            .lines()
            .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
            .for_each(|event: Value| listen(&event, &mut said)),
    }
    said
}

/// The ids of a request's prompts; `None` where it isn't one that is rendered or encoded.
fn ours(path: &str, body: &[u8], tokenizer: &Tokenizer, template: &Template) -> Option<Vec<Vec<u32>>> {
    #[derive(serde::Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        messages: Option<&'a RawValue>,
        tools: Option<Box<RawValue>>,
        prompt: Option<Value>,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    let encode = |text: &str, special| {
        let mut ids = Vec::new();
        tokenizer.encode(text, special, &mut ids).unwrap();
        ids
    };
    match (path, body.messages, body.prompt.unwrap_or_default()) {
        _ if !path.ends_with("completions") && path != "/tokenize" => None,
        (_, Some(messages), _) => {
            let tools = body.tools.map(Cow::Owned);
            let chat =
                Chat { messages: Messages::Raw(messages), tools, add_generation_prompt: true, ..Chat::default() };
            Some(vec![encode(&template.render(&chat).unwrap().text, false)])
        }
        (_, None, Value::String(text)) => Some(vec![encode(&text, true)]),
        (_, None, Value::Array(list)) if list.iter().all(Value::is_u64) => {
            Some(vec![list.iter().filter_map(Value::as_u64).map(|id| id as u32).collect()])
        }
        (_, None, Value::Array(list)) => list.iter().map(|text| text.as_str().map(|text| encode(text, true))).collect(),
        _ => None,
    }
}

/// Requests of which an engine's figures can't be those of the request alone.
fn known(engine: &str, name: &str) -> Option<&'static str> {
    match (engine.split('-').next()?, name) {
        ("sglang", name) if name.starts_with("chat-tools") => {
            Some("SGLang prints each tool with a key more, which one isn't recorded")
        }
        ("llamacpp", "completions-batch-2") => Some("llama.cpp counts the first prompt only"),
        ("llamacpp", "err-empty-messages") => Some("no message"),
        _ => None,
    }
}

#[test]
fn ids_equal_the_engines() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let (recordings, folder) = (root.join("fixtures/http"), root.join("tokenizers/qwen3"));
    if !recordings.exists() || !folder.exists() {
        println!("skipped: ids of recorded requests: no ../shared");
        return;
    }
    let tokenizer = Tokenizer::load(&folder).unwrap();
    let template = Template::load(&folder).unwrap().unwrap();
    let (mut by_ids, mut by_count, mut passed_over) = (Vec::new(), 0, 0);
    let mut engines: Vec<PathBuf> =
        std::fs::read_dir(&recordings).unwrap().map(|entry| entry.unwrap().path()).collect();
    engines.retain(|engine| engine.join("tiny-qwen3").is_dir());
    engines.sort();
    for engine in &engines {
        let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let engine_name = engine.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut requests: Vec<PathBuf> =
            std::fs::read_dir(engine.join("tiny-qwen3")).unwrap().map(|entry| entry.unwrap().path()).collect();
        requests.retain(|path| path.extension().is_some_and(|extension| extension == "req"));
        requests.sort();
        for request in requests {
            let bytes = std::fs::read(&request).unwrap();
            let answer = std::fs::read(request.with_extension("resp")).unwrap_or_default();
            let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            if !answer.starts_with(b"HTTP/1.1 200") {
                continue;
            }
            let title = name(&request);
            if known(&engine_name, &title).is_some() {
                passed_over += 1;
                continue;
            }
            let head = String::from_utf8_lossy(&bytes[..end]);
            let path = head.split(' ').nth(1).unwrap_or_default();
            let Some(ours) = ours(path, &bytes[end + 4..], &tokenizer, &template) else { continue };
            let said = said(&std::fs::read(request.with_extension("body")).unwrap());
            if !said.ids.is_empty() {
                assert_eq!(said.ids, ours, "{engine_name} {title}");
                by_ids.push(format!("{engine_name} {title}"));
            } else if let Some(count) = said.count {
                assert_eq!(count, ours.iter().map(Vec::len).sum::<usize>(), "{engine_name} {title}");
                by_count += 1;
            }
        }
    }
    println!(
        "recorded ids: {} requests equal the engine's ids, {by_count} more its count, {passed_over} passed over\n  {}",
        by_ids.len(),
        by_ids.join("\n  ")
    );
    assert!(by_ids.len() >= 5 && by_count >= 40, "{} by ids, {by_count} by count", by_ids.len());
}
