//! A request as handlers get it, and what they all read from it.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::control::Plan;
use super::errors::Reply;
use super::sse::{Sequence, Usage, finish_all};
use super::state::Mock;
use super::tokens;

/// A request, read.
pub(super) struct Call<'a> {
    pub mock: &'a Arc<Mock>,
    pub plan: &'a Plan,
    pub body: Bytes,
    pub content_type: Option<http::HeaderValue>,
    pub request_id: Option<String>,
}

/// Sequences of one request at most, as a guard.
pub(super) const MAX_SEQUENCES: u64 = 128;

/// Reads a JSON body and checks the model it names.
pub(super) fn parse(call: &Call<'_>) -> Result<(Value, String), Reply> {
    let body: Value =
        serde_json::from_slice(&call.body).map_err(|error| Reply::bad_json(call.mock, &call.body, &error))?;
    let model = match body.get("model").and_then(Value::as_str) {
        None | Some("") => call.mock.default_model().to_owned(),
        Some(model) => {
            // SGLang serves whatever name it is asked for.
            if !call.mock.is_sglang() && !call.mock.options.models.iter().any(|known| known == model) {
                return Err(Reply::unknown_model(call.mock, model));
            }
            model.to_owned()
        }
    };
    Ok((body, model))
}

/// Separates the caches of models and salts.
pub(super) fn cache_root(model: &str, body: &Value) -> u64 {
    let salt = body.get("cache_salt").and_then(Value::as_str).unwrap_or("");
    xxh3_64(model.as_bytes()) ^ xxh3_64(salt.as_bytes()).rotate_left(1)
}

/// A whole number field; one of another type is refused as the engines refuse it.
pub(super) fn count(mock: &Mock, body: &Value, field: &str) -> Result<Option<u64>, Reply> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| {
            let message = format!(
                "1 validation error:\n  {{'type': 'int_parsing', 'loc': 'body.{field}', 'msg': 'Input should be a valid \
                 integer', 'input': {value}}}"
            );
            Reply::error(mock, 400, "Bad Request", &message, Some(&format!("body.{field}")))
        }),
    }
}

/// A string as JSON.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Waits as `first_token_delay_ms` says, then for the engine.
pub(super) async fn whole(call: &Call<'_>, sequences: &[Sequence]) -> Result<Usage, Reply> {
    if !call.plan.pace.first.is_zero() {
        tokio::time::sleep(call.plan.pace.first).await;
    }
    finish_all(sequences)
        .await
        .ok_or_else(|| Reply::error(call.mock, 500, "InternalServerError", "EngineCore encountered an issue.", None))
}

/// The prompts in a field: a text, token ids, or a batch of either.
pub(super) fn prompts(mock: &Mock, body: &Value, field: &str) -> Result<Vec<Vec<u32>>, Reply> {
    let text = |text: &str| {
        let mut ids = Vec::new();
        tokens::encode(text, &mut ids);
        ids
    };
    let ids = |items: &[Value]| items.iter().map(|id| id.as_u64().map(|id| id as u32)).collect::<Option<Vec<u32>>>();
    let wrong = || {
        let message = format!("{field} must be a string, token ids, or a list of them");
        Reply::error(mock, 400, "BadRequestError", &message, Some(field))
    };
    match body.get(field) {
        None | Some(Value::Null) => Err(Reply::missing(mock, field)),
        Some(Value::String(prompt)) => Ok(vec![text(prompt)]),
        Some(Value::Array(items)) if !items.is_empty() && items[0].is_number() => {
            Ok(vec![ids(items).ok_or_else(wrong)?])
        }
        Some(Value::Array(items)) if !items.is_empty() => items
            .iter()
            .map(|item| match item {
                Value::String(prompt) => Ok(text(prompt)),
                Value::Array(items) => ids(items).ok_or_else(wrong),
                _ => Err(wrong()),
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}
