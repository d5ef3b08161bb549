//! OpenAI's Responses API → a chat, as vLLM's `construct_input_messages` makes it: items that belong to one turn of the
//! assistant (reasoning, text, calls) become one message.
use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{flag, kwargs, too_long, tools};
use crate::api::body::{Part, Parts, string};
use crate::tokens::json::{field, fields, items, value};
use crate::tokens::{Chat, Content, Messages};

pub(super) fn content<'a>(parts: &Parts<'a>) -> Content<'a> {
    // What an earlier response holds stands in the engine only, and first in the prompt.
    if parts.get(Part::PreviousResponseId).is_some() {
        return Content::None;
    }
    let Some(input) = parts.get(Part::Input) else { return Content::None };
    if too_long(input) {
        return Content::Chat(Box::new(Chat { messages: Messages::Raw(input), ..Chat::default() }));
    }
    let mut messages = Vec::new();
    if let Some(text) = parts.get(Part::Instructions).and_then(string).filter(|text| !text.is_empty()) {
        messages.push(message("system", Value::from(text)));
    }
    let mut continued = false;
    if let Some(text) = string(input) {
        messages.push(message("user", Value::from(text)));
    } else {
        let Some(items) = items(input) else { return Content::None };
        for item in &items {
            let Some(item) = fields(item) else { return Content::None };
            continued = is_partial(&item);
            add(&mut messages, &item);
        }
    }
    let effort = parts.get(Part::Reasoning).and_then(fields).and_then(|fields| field(&fields, "effort").map(value));
    Content::Chat(Box::new(Chat {
        messages: Messages::Built(messages),
        tools: parts
            .get(Part::Tools)
            .and_then(|raw| tools::flat(raw, ["name", "description", "parameters"], &["strict"])),
        documents: None,
        kwargs: kwargs(parts, effort),
        add_generation_prompt: !continued,
        continue_final_message: continued,
        add_special_tokens: flag(parts, Part::AddSpecialTokens, false),
        own_template: parts.get(Part::ChatTemplate).is_some(),
    }))
}

type Item<'a> = [(Cow<'a, str>, &'a RawValue)];

fn kind<'a>(item: &Item<'a>) -> Cow<'a, str> {
    field(item, "type").and_then(string).unwrap_or(Cow::Borrowed("message"))
}

/// Whether an item, if it is the last, is left open to be gone on with.
fn is_partial(item: &Item<'_>) -> bool {
    matches!(&*kind(item), "message" | "reasoning")
        && field(item, "status")
            .and_then(string)
            .is_some_and(|status| status == "in_progress" || status == "incomplete")
}

fn add(messages: &mut Vec<Value>, item: &Item<'_>) {
    let text = |name| field(item, name).and_then(string).map_or(Value::Null, Value::from);
    match &*kind(item) {
        "function_call" => {
            let call = json!({
                "id": text("call_id"),
                "function": {"name": text("name"), "arguments": text("arguments")},
                "type": "function",
            });
            let turn = assistant(messages, |turn| turn.get("tool_calls").is_none_or(Value::is_array));
            match turn.get_mut("tool_calls") {
                Some(Value::Array(calls)) => calls.push(call),
                _ => drop(turn.insert("tool_calls".into(), Value::Array(vec![call]))),
            }
        }
        "function_call_output" => {
            let output = field(item, "output").map(content_of).unwrap_or_default();
            messages.push(json!({"role": "tool", "content": output, "tool_call_id": text("call_id")}));
        }
        "reasoning" => {
            let text = ["content", "summary"].into_iter().find_map(|name| first_text(field(item, name)?));
            let turn = assistant(messages, |turn| !turn.contains_key("reasoning"));
            turn.insert("reasoning".into(), Value::from(text.unwrap_or_default()));
        }
        "message" if field(item, "role").map(RawValue::get) == Some("\"assistant\"") => {
            let text = field(item, "content").and_then(|raw| string(raw).or_else(|| first_text(raw)));
            let turn = assistant(messages, |turn| !turn.contains_key("content"));
            turn.insert("content".into(), Value::from(text.unwrap_or_default()));
        }
        "message" => {
            let content = field(item, "content").map(content_of).unwrap_or_default();
            let mut turn = message("", content);
            turn["role"] = text("role");
            messages.push(turn);
        }
        // What else there is (an engine's own tools, references) keeps its place, under a name that is no role.
        other => {
            let fields = item.iter().map(|(key, raw)| (key.clone().into_owned(), value(raw))).collect();
            messages.push(message(other, Value::from(Value::Object(fields).to_string())));
        }
    }
}

fn message(role: &str, content: Value) -> Value {
    json!({"role": role, "content": content})
}

/// The assistant's turn that an item belongs to: the last message, if it is one with room for it.
fn assistant(messages: &mut Vec<Value>, room: impl Fn(&Map<String, Value>) -> bool) -> &mut Map<String, Value> {
    let last = messages.last().and_then(Value::as_object);
    if !last.is_some_and(|last| last.get("role").is_some_and(|role| role == "assistant") && room(last)) {
        messages.push(json!({"role": "assistant"}));
    }
    let at = messages.len() - 1;
    if let Value::Object(turn) = &mut messages[at] { turn } else { unreachable!("assistant messages are objects") }
}

/// The text of a list's first part.
fn first_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let first = *items(raw)?.first()?;
    string(first).or_else(|| field(&fields(first)?, "text").and_then(string))
}

/// Content with its parts named as the chat API names them.
fn content_of(raw: &RawValue) -> Value {
    let Some(parts) = items(raw) else { return value(raw) };
    Value::Array(parts.into_iter().map(part).collect())
}

fn part(raw: &RawValue) -> Value {
    let part = fields(raw).unwrap_or_default();
    match field(&part, "type").map(RawValue::get) {
        Some("\"input_text\"" | "\"output_text\"" | "\"text\"") => {
            json!({"type": "text", "text": field(&part, "text").and_then(string).unwrap_or_default()})
        }
        Some("\"input_image\"") => {
            let url = ["image_url", "file_id"].into_iter().find_map(|name| field(&part, name)).and_then(string);
            json!({"type": "image_url", "image_url": {"url": url.unwrap_or_default()}})
        }
        _ => value(raw),
    }
}
