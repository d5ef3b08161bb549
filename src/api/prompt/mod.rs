//! A body → what an engine makes its prompt of ([`Prompt`]), for each API that has one.
//!
//! Where engines differ, vLLM's reading counts. Nothing fails: a field of an odd type is as good as absent, and a body
//! without a prompt that can be read is [`Content::None`]. Values are taken out of the body where they stand; only what
//! another API's form has to become is built. Depth costs no stack (serde_json refuses values deeper than 128).
mod anthropic;
mod chat;
mod completions;
mod responses;
mod tools;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::body::{Part, Parts, read, string};
use super::{Endpoint, Hints};
use crate::tokens::{Content, LONGEST, Prompt};

/// Reads the prompt of a request for `endpoint`; [`Content::None`] where the body has none, or none that can be read.
pub fn prompt<'a>(endpoint: &Endpoint, body: &'a [u8]) -> Prompt<'a> {
    read(body).map(|hints| prompt_of(endpoint, &hints)).unwrap_or_default()
}

/// The same of a body that has been read already.
pub fn prompt_of<'a>(endpoint: &Endpoint, hints: &Hints<'a>) -> Prompt<'a> {
    let parts = &hints.parts;
    let content = match endpoint.path {
        "/v1/chat/completions" => chat::content(parts),
        "/v1/completions" => completions::content(parts),
        "/v1/responses" => responses::content(parts),
        "/v1/messages" => anthropic::content(parts),
        "/generate" => completions::generate(parts),
        _ => Content::None,
    };
    // SGLang takes either name, vLLM the first.
    let salt = parts.get(Part::CacheSalt).or(parts.get(Part::ExtraKey)).and_then(string);
    // -1 is vLLM's "as much as the model takes".
    let truncated = parts.get(Part::TruncatePromptTokens).is_some_and(|raw| raw.get() != "-1");
    Prompt { adapter: None, salt, truncated, content }
}

/// Bytes of `chat_template_kwargs` that are looked at. Templates take a few flags; as a tree, JSON may take fifty times
/// its bytes.
const MOST_KWARGS: usize = 256 << 10;

/// A value that is too long to be built anew: it stays as it stands. Nobody will render it, either.
fn too_long(raw: &RawValue) -> bool {
    raw.get().len() > LONGEST
}

/// A boolean field, or what engines take for it when it is absent or odd.
fn flag(parts: &Parts<'_>, part: Part, default: bool) -> bool {
    match parts.get(part).map(RawValue::get) {
        Some("true") => true,
        Some("false") => false,
        _ => default,
    }
}

/// The template's further variables: the request's own, and the effort of reasoning, which engines put among them.
fn kwargs(parts: &Parts<'_>, effort: Option<Value>) -> Map<String, Value> {
    let given = parts.get(Part::ChatTemplateKwargs).filter(|raw| raw.get().len() <= MOST_KWARGS);
    let mut kwargs: Map<String, Value> = given.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    if let Some(effort) = effort.filter(Value::is_string) {
        kwargs.insert("reasoning_effort".into(), effort);
    }
    kwargs
}

#[cfg(test)]
mod tests;
