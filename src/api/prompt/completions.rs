//! Prompts that no template renders: texts and token ids.
use std::borrow::Cow;

use serde_json::value::RawValue;

use super::flag;
use crate::api::body::{Part, Parts, string};
use crate::tokens::json::items;
use crate::tokens::{Content, LONGEST};

/// OpenAI's completions API: a text, token ids, or a list of either. `suffix` makes no prompt (vLLM refuses it).
pub(super) fn content<'a>(parts: &Parts<'a>) -> Content<'a> {
    texts_or_ids(parts.get(Part::Prompt), parts)
}

/// The engines' own API: SGLang says `text` or `input_ids`, vLLM `prompt`.
pub(super) fn generate<'a>(parts: &Parts<'a>) -> Content<'a> {
    let prompt = [Part::Text, Part::InputIds, Part::Prompt].into_iter().find_map(|part| parts.get(part));
    texts_or_ids(prompt, parts)
}

fn texts_or_ids<'a>(prompt: Option<&'a RawValue>, parts: &Parts<'a>) -> Content<'a> {
    prompt.and_then(|prompt| read(prompt, flag(parts, Part::AddSpecialTokens, true))).unwrap_or_default()
}

fn read(raw: &RawValue, add_special_tokens: bool) -> Option<Content<'_>> {
    let text = |prompts| Content::Text { prompts, add_special_tokens };
    if raw.get().starts_with('"') {
        return Some(text(vec![string(raw)?]));
    }
    // An element tells the list's kind; a list of several kinds is the engine's to refuse.
    match raw.get().strip_prefix('[')?.trim_start().as_bytes().first()? {
        b'"' => Some(text(items(raw)?.into_iter().map(string).collect::<Option<Vec<Cow<'_, str>>>>()?)),
        b'[' => Some(Content::Ids(items(raw)?.into_iter().map(ids).collect::<Option<Vec<_>>>()?)),
        _ => Some(Content::Ids(vec![ids(raw).filter(|ids| !ids.is_empty())?])),
    }
}

fn ids(raw: &RawValue) -> Option<Vec<u32>> {
    // Of single digits, a list takes twice its text.
    (raw.get().len() <= 2 * LONGEST).then(|| serde_json::from_str(raw.get()).ok()).flatten()
}
