//! The canonical text of a chat: what a prompt is cut from where no tokenizer tells.
//!
//! Tools stand first, as in templates, then documents, then the messages, each after its role. What an engine does not
//! see makes no difference: whitespace between JSON's values, escapes, the order of a message's fields, whether a text
//! is a string or a list of one part. A medium stands as a hash of its content. A conversation's next turn begins with
//! the text of this one. Whatever a field is, it has a text; depth costs no stack.
use std::borrow::Cow;

use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

use super::json::{field, fields, items, string, tidy};
use super::prompt::{Chat, Messages};
use crate::prefix::Chain;

// Control characters, so that what is said can hardly be taken for how it is said.
const TOOLS: &str = "\x01tools\x02";
const DOCUMENTS: &str = "\x01documents\x02";
const ROLE: &str = "\x01";
const CONTENT: &str = "\x02";
const NAME: &str = "\x03";
const ANSWERED: &str = "\x04";
const REASONING: &str = "\x05";
const CALL: &str = "\x06";
const MEDIUM: &str = "\x07";

/// Adds a whole chat.
pub(super) fn push(chain: &mut Chain, chat: &Chat<'_>) {
    for (mark, part) in [(TOOLS, &chat.tools), (DOCUMENTS, &chat.documents)] {
        if let Some(json) = part {
            chain.push_text(mark.as_bytes());
            tidy(json.get(), &mut |text| chain.push_text(text.as_bytes()));
        }
    }
    each_message(chat, |message| message.push(chain));
}

/// Adds the messages from the first one with a medium on; all of them, if none has one.
pub(super) fn push_from_medium(chain: &mut Chain, chat: &Chat<'_>) {
    let mut reached = false;
    each_message(chat, |message| {
        reached |= message.medium;
        if reached {
            message.push(chain);
        }
    });
    if !reached {
        each_message(chat, |message| message.push(chain));
    }
}

fn each_message(chat: &Chat<'_>, mut with: impl FnMut(&Message<'_>)) {
    match &chat.messages {
        // What is no list is one message, which stands as it is.
        Messages::Raw(raw) => items(raw).unwrap_or(vec![raw]).into_iter().for_each(|raw| with(&Message::read(raw))),
        Messages::Built(messages) => {
            for raw in messages.iter().filter_map(|message| serde_json::value::to_raw_value(message).ok()) {
                with(&Message::read(&raw));
            }
        }
    }
}

/// A message's texts, each after its mark, in a fixed order.
struct Message<'a> {
    texts: Vec<(&'static str, Cow<'a, str>)>,
    medium: bool,
}

impl<'a> Message<'a> {
    fn read(raw: &'a RawValue) -> Self {
        let Some(fields) = fields(raw) else {
            return Self { texts: vec![(ROLE, "".into()), (CONTENT, tidied(raw))], medium: false };
        };
        let mut medium = false;
        let mut texts = Vec::with_capacity(4);
        let role = field(&fields, "role").and_then(string).unwrap_or_default();
        texts.push((ROLE, role));
        let named = [
            (NAME, "name"),
            (ANSWERED, "tool_call_id"),
            (REASONING, "reasoning"),
            (REASONING, "reasoning_content"),
            (REASONING, "thinking"),
            (CONTENT, "content"),
        ];
        for (mark, name) in named {
            if let Some(raw) = field(&fields, name) {
                texts.push((mark, flat(raw, &mut medium)));
            }
        }
        let calls = field(&fields, "tool_calls").map(|raw| items(raw).unwrap_or(vec![raw])).unwrap_or_default();
        for call in calls.into_iter().chain(field(&fields, "function_call")) {
            push_call(&mut texts, call);
        }
        Self { texts, medium }
    }

    fn push(&self, chain: &mut Chain) {
        for (mark, text) in &self.texts {
            chain.push_text(mark.as_bytes());
            chain.push_text(text.as_bytes());
        }
    }
}

/// A call of a tool, in the chat API's form, or in the older one, which is its function alone.
fn push_call<'a>(texts: &mut Vec<(&'static str, Cow<'a, str>)>, raw: &'a RawValue) {
    let Some(call) = fields(raw) else { return texts.push((CALL, tidied(raw))) };
    let function = field(&call, "function").and_then(fields);
    let function = function.as_ref().unwrap_or(&call);
    texts.push((CALL, field(&call, "id").map(tidied).unwrap_or_default()));
    texts.push((NAME, field(function, "name").and_then(string).unwrap_or_default()));
    // Arguments are JSON in a string, which engines parse.
    let arguments = field(function, "arguments").map(|raw| {
        let text = string(raw).unwrap_or(Cow::Borrowed(raw.get()));
        let mut tidied = String::with_capacity(text.len());
        tidy(&text, &mut |text| tidied.push_str(text));
        Cow::Owned(tidied)
    });
    texts.push((CONTENT, arguments.unwrap_or_default()));
}

/// A content's text: a string, or parts, joined as vLLM joins them.
fn flat<'a>(raw: &'a RawValue, medium: &mut bool) -> Cow<'a, str> {
    if let Some(text) = string(raw) {
        return text;
    }
    let Some(parts) = items(raw) else { return tidied(raw) };
    let mut flat = None::<Cow<'a, str>>;
    for text in parts.into_iter().map(|raw| part(raw, medium)) {
        flat = Some(match flat {
            None => text,
            Some(before) => before + "\n" + text,
        });
    }
    flat.unwrap_or_default()
}

fn part<'a>(raw: &'a RawValue, medium: &mut bool) -> Cow<'a, str> {
    if let Some(text) = string(raw) {
        return text;
    }
    let Some(fields) = fields(raw) else { return tidied(raw) };
    let kind = field(&fields, "type").and_then(string);
    let text = ["text", "refusal", "thinking"].into_iter().find_map(|name| field(&fields, name));
    match (kind.as_deref(), text) {
        (None | Some("text" | "input_text" | "output_text" | "refusal" | "thinking"), Some(text)) => {
            string(text).unwrap_or_else(|| tidied(text))
        }
        _ => {
            *medium = true;
            let mut hash = Xxh3::new();
            // The client's own name for a medium, and marks for caches, don't make it another one.
            for (key, value) in fields.iter().filter(|(key, _)| key != "uuid" && key != "cache_control") {
                hash.update(key.as_bytes());
                tidy(value.get(), &mut |text| hash.update(text.as_bytes()));
            }
            format!("{MEDIUM}{:032x}", hash.digest128()).into()
        }
    }
}

fn tidied(raw: &RawValue) -> Cow<'_, str> {
    if let Some(text) = string(raw) {
        return text;
    }
    let mut tidied = String::with_capacity(raw.get().len());
    tidy(raw.get(), &mut |text| tidied.push_str(text));
    tidied.into()
}

#[cfg(test)]
#[path = "tests/canonical.rs"]
mod tests;
