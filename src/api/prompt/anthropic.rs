//! Anthropic's Messages API → a chat, as vLLM's adapter makes it (`AnthropicServingMessages`).
use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{kwargs, too_long, tools};
use crate::api::body::{Part, Parts, string};
use crate::tokens::json::{field, fields, items, value};
use crate::tokens::{Chat, Content, Messages};

/// Claude Code's attribution: another one in every request, so vLLM leaves it out of the prompt.
const ATTRIBUTION: &str = "x-anthropic-billing-header";

pub(super) fn content<'a>(parts: &Parts<'a>) -> Content<'a> {
    let Some(raw) = parts.get(Part::Messages) else { return Content::None };
    if too_long(raw) {
        return Content::Chat(Box::new(Chat { messages: Messages::Raw(raw), ..Chat::default() }));
    }
    let Some(items) = items(raw) else { return Content::None };
    let given: Option<Vec<_>> = items.into_iter().map(fields).collect();
    let Some(given) = given else { return Content::None };
    let role = |message: &Block<'a>| field(message, "role").and_then(string).unwrap_or_default();
    // Every system text, wherever it stands, is one message at the head.
    let mut system = String::new();
    let inline =
        given.iter().filter(|message| role(message) == "system").filter_map(|message| field(message, "content"));
    parts.get(Part::System).into_iter().chain(inline).for_each(|raw| add_system(&mut system, raw));
    let mut messages = Vec::with_capacity(given.len() + 1);
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system}));
    }
    for message in &given {
        match role(message) {
            role if role == "system" => {}
            role => add(&mut messages, &role, field(message, "content")),
        }
    }
    let effort = parts.get(Part::OutputConfig).and_then(fields).and_then(|fields| field(&fields, "effort").map(value));
    Content::Chat(Box::new(Chat {
        messages: Messages::Built(messages),
        tools: parts.get(Part::Tools).and_then(|raw| tools::flat(raw, ["name", "description", "input_schema"], &[])),
        documents: None,
        kwargs: kwargs(parts, effort),
        add_generation_prompt: true,
        continue_final_message: false,
        add_special_tokens: false,
        own_template: false,
    }))
}

type Block<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

fn add_system(system: &mut String, raw: &RawValue) {
    if let Some(text) = string(raw) {
        system.push_str(&text);
        return;
    }
    for block in items(raw).unwrap_or_default().into_iter().filter_map(fields) {
        let text = text_of(&block, "text").unwrap_or_default();
        if is(&block, "text") && !text.starts_with(ATTRIBUTION) {
            system.push_str(&text);
        }
    }
}

fn is(block: &Block<'_>, kind: &str) -> bool {
    field(block, "type").and_then(string).is_some_and(|given| given == kind)
}

fn text_of<'a>(block: &Block<'a>, name: &str) -> Option<Cow<'a, str>> {
    field(block, name).and_then(string)
}

/// One message's blocks. Results of tools become messages of their own, before what the user says beside them.
fn add(messages: &mut Vec<Value>, role: &str, content: Option<&RawValue>) {
    let mut message = Map::from_iter([("role".to_owned(), Value::from(role))]);
    if let Some(text) = content.and_then(string) {
        message.insert("content".into(), Value::from(text));
        messages.push(message.into());
        return;
    }
    let (mut parts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), None::<String>);
    for block in content.and_then(items).unwrap_or_default().into_iter().filter_map(fields) {
        match &*text_of(&block, "type").unwrap_or_default() {
            "text" => {
                let text = text_of(&block, "text").filter(|text| !text.is_empty());
                parts.extend(text.map(|text| json!({"type": "text", "text": text})));
            }
            "image" => parts.extend(field(&block, "source").map(image)),
            "thinking" => {
                let thinking = text_of(&block, "thinking");
                reasoning = thinking.map(|text| reasoning.take().unwrap_or_default() + &*text).or(reasoning);
            }
            "tool_use" => calls.push(json!({
                "id": text_of(&block, "id").unwrap_or_default(),
                "type": "function",
                "function": {
                    "name": text_of(&block, "name").unwrap_or_default(),
                    "arguments": field(&block, "input").map_or("{}", RawValue::get),
                },
            })),
            "tool_result" if role == "user" => add_result(messages, &block),
            "tool_result" => {
                let result = field(&block, "content").map(|raw| string(raw).unwrap_or(Cow::Borrowed(raw.get())));
                parts.push(json!({"type": "text", "text": format!("Tool result: {}", result.unwrap_or_default())}));
            }
            _ => {}
        }
    }
    if let Some(reasoning) = reasoning {
        message.insert("reasoning".into(), Value::from(reasoning));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), Value::Array(calls));
    }
    // A single text is that text.
    let content = match parts.as_mut_slice() {
        [] => None,
        [part] if part["type"] == "text" => Some(part["text"].take()),
        _ => Some(Value::Array(parts)),
    };
    let silent = role == "user" && content.is_none();
    message.extend(content.map(|content| ("content".to_owned(), content)));
    if !silent {
        messages.push(message.into());
    }
}

fn add_result(messages: &mut Vec<Value>, block: &Block<'_>) {
    let id = text_of(block, "tool_use_id").unwrap_or_default();
    let content = field(block, "content");
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    match content.and_then(string) {
        Some(text) => texts.push(text),
        None => {
            for part in content.and_then(items).unwrap_or_default().into_iter().filter_map(fields) {
                if is(&part, "text") {
                    texts.push(text_of(&part, "text").unwrap_or_default());
                } else if is(&part, "image") {
                    images.extend(field(&part, "source").map(image));
                }
            }
        }
    }
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": texts.join("\n")}));
    if !images.is_empty() {
        messages.push(json!({"role": "user", "content": images}));
    }
}

/// An image in the chat API's form.
fn image(source: &RawValue) -> Value {
    let source = fields(source).unwrap_or_default();
    let url = if is(&source, "url") {
        text_of(&source, "url").unwrap_or_default().into_owned()
    } else {
        let media_type = text_of(&source, "media_type").unwrap_or(Cow::Borrowed("image/jpeg"));
        format!("data:{media_type};base64,{}", text_of(&source, "data").unwrap_or_default())
    };
    json!({"type": "image_url", "image_url": {"url": url}})
}
