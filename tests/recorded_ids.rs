//! Our ids of recorded requests against what the engines said of them: ids (`return_token_ids`, `/tokenize`) where they
//! gave them, else their count (`usage.prompt_tokens`). The recordings are of a model with Qwen3's tokenizer and
//! template. The whole way is taken: the body is read as the proxy reads it. Without `../shared` it skips.
use std::path::{Path, PathBuf};

use http::Method;
use serde_json::Value;
use warmroute::api::{Route, find, prompt};
use warmroute::tokens::{Content, Template, Tokenizer};

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
    // What engines tokenize on request has the form of what they generate from.
    let chat = serde_json::from_slice::<Value>(body).is_ok_and(|body| body.get("messages").is_some());
    let path = match path {
        "/tokenize" if chat => "/v1/chat/completions",
        "/tokenize" => "/v1/completions",
        path => path,
    };
    let Route::Endpoint(endpoint) = find(&Method::POST, path) else { return None };
    let encode = |text: &str, special| {
        let mut ids = Vec::new();
        tokenizer.encode(text, special, &mut ids).unwrap();
        ids
    };
    match prompt(endpoint, body).content {
        Content::None => None,
        Content::Chat(chat) => Some(vec![encode(&template.render(&chat).unwrap().text, chat.add_special_tokens)]),
        Content::Text { prompts, add_special_tokens } => {
            Some(prompts.iter().map(|text| encode(text, add_special_tokens)).collect())
        }
        Content::Ids(ids) => Some(ids),
    }
}

/// Requests of which an engine's figures can't be those of the request alone.
fn known(engine: &str, name: &str) -> Option<&'static str> {
    match (engine.split('-').next()?, name) {
        ("sglang", name) if name.starts_with("chat-tools") => {
            Some("SGLang prints tools in another form, which its count doesn't tell")
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
