//! The mock's tokenizer and chat template: made up, deterministic, engine-neutral.
//!
//! Text is cut into pieces of four bytes, each hashed into a vocabulary of 128,000; a generated word (`token17`) is one
//! piece, so that an answer sent back in the next turn has the very tokens that were generated, and hits their blocks.
//! Role markers are single ids above the vocabulary and cut the text, as real special tokens do.

use std::fmt::Write;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// Ids below this stand for text.
pub(super) const VOCABULARY: u32 = 128_000;
/// What an image, a sound or a document takes in a prompt.
const MEDIUM_TOKENS: u64 = 64;

/// Bytes of the piece at the start of `text`.
fn piece_length(text: &[u8]) -> usize {
    let blank = usize::from(text.first() == Some(&b' '));
    if text[blank..].starts_with(b"token") {
        let digits = text[blank + 5..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 {
            return blank + 5 + digits;
        }
    }
    text.len().min(4)
}

/// Appends the ids of `text`.
pub(super) fn encode(text: &str, into: &mut Vec<u32>) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(piece_length(rest));
        into.push((xxh3_64(piece) % u64::from(VOCABULARY)) as u32);
        rest = tail;
    }
}

/// The id of a marker such as `<|user|>`.
pub(super) fn marker(name: &str, into: &mut Vec<u32>) {
    into.push(VOCABULARY + (xxh3_64(name.as_bytes()) % 256) as u32);
}

/// The `index`th generated word, from 0, as it follows the ones before.
pub(super) fn word(index: u32, into: &mut String) {
    if index > 0 {
        into.push(' ');
    }
    // Writing to a string cannot fail.
    let _ = write!(into, "token{}", index + 1);
}

/// Appends a value that has no text of its own: its JSON.
fn encode_json(value: &Value, into: &mut Vec<u32>) {
    encode(&value.to_string(), into);
}

/// Appends one message's content: a string, or parts of text and media.
pub(super) fn encode_content(content: &Value, into: &mut Vec<u32>) {
    match content {
        Value::Null => {}
        Value::String(text) => encode(text, into),
        Value::Array(parts) => parts.iter().for_each(|part| encode_part(part, into)),
        other => encode_json(other, into),
    }
}

fn encode_part(part: &Value, into: &mut Vec<u32>) {
    if let Some(text) = part.as_str().or_else(|| part.get("text").and_then(Value::as_str)) {
        return encode(text, into);
    }
    match part.get("type").and_then(Value::as_str) {
        Some("tool_result") => encode_content(&part["content"], into),
        Some(kind) if ["image", "audio", "video", "file", "document"].iter().any(|medium| kind.contains(medium)) => {
            let content = xxh3_64(part.to_string().as_bytes());
            let ids =
                (0..MEDIUM_TOKENS).map(|at| (xxh3_64(&(content ^ at).to_le_bytes()) % u64::from(VOCABULARY)) as u32);
            into.extend(ids);
        }
        _ => encode_json(part, into),
    }
}

/// Renders a conversation: tools, then each message between its role's marker and an end marker, then the marker of
/// the answer to come.
pub(super) fn render(system: Option<&Value>, messages: &[Value], tools: Option<&Value>) -> Vec<u32> {
    let mut ids = Vec::new();
    if let Some(tools) = tools.filter(|tools| tools.as_array().is_some_and(|tools| !tools.is_empty())) {
        marker("<|tools|>", &mut ids);
        encode_json(tools, &mut ids);
        marker("<|end|>", &mut ids);
    }
    if let Some(system) = system.filter(|system| !system.is_null()) {
        marker("<|system|>", &mut ids);
        encode_content(system, &mut ids);
        marker("<|end|>", &mut ids);
    }
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        marker(&format!("<|{role}|>"), &mut ids);
        if let Some(content) = message.get("content") {
            encode_content(content, &mut ids);
        }
        for key in ["tool_calls", "arguments", "output"] {
            match message.get(key) {
                None | Some(Value::Null) => {}
                Some(value) => encode_json(value, &mut ids),
            }
        }
        marker("<|end|>", &mut ids);
    }
    marker("<|assistant|>", &mut ids);
    ids
}

/// Whether the conversation ends with a user's message whose text contains `word`.
pub(super) fn last_user_message_contains(messages: &[Value], word: &str) -> bool {
    let Some(last) =
        messages.last().filter(|last| last.get("role").and_then(Value::as_str).unwrap_or("user") == "user")
    else {
        return false;
    };
    match &last["content"] {
        Value::String(text) => text.contains(word),
        Value::Array(parts) => {
            parts.iter().any(|part| part.get("text").and_then(Value::as_str).is_some_and(|text| text.contains(word)))
        }
        _ => false,
    }
}
