//! Whether an engine makes the same tokens of a conversation as a pool's tokenizer and template.
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{MOST, found};
use crate::api;
use crate::engine::info;
use crate::fleet::{Pool, Replica};
use crate::prefix::Basis;
use crate::tokens::{Content, Prompt};

/// A few blocks, and no system message: some templates take none.
fn conversation() -> Value {
    json!([
        { "role": "user", "content": "How many litres does a bathtub of 160 × 70 cm hold, if the water stands 40 cm high? Say it in one sentence." },
        { "role": "assistant", "content": "About 448 litres: 1.6 m × 0.7 m × 0.4 m = 0.448 m³." },
        { "role": "user", "content": "And how long does it take to fill it at 12 litres a minute?\nAnswer in minutes & seconds." },
    ])
}

/// Asks for `model`; `None` where the pool has no tokenizer, or the engine does not show its tokens.
pub(super) async fn same(replica: &Replica, pool: &Pool, model: Option<&str>, within: Duration) -> Option<bool> {
    let messages = conversation();
    let mut body = json!({ "messages": messages });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let body = body.to_string();
    let api::Route::Endpoint(endpoint) = api::find(&Method::POST, "/v1/chat/completions") else { return None };
    let ours = pool.encoder().encode(&api::prompt(endpoint, body.as_bytes()));
    if ours.basis != Basis::Tokens || ours.fallback.is_some() {
        return None;
    }
    let ask = async |path: &str, body: String| {
        found(replica.fetch(Method::POST, path, Some(Bytes::from(body)), MOST, within).await)
    };
    let ids = ask("/tokenize", body).await.and_then(|answer| info::tokenized(&answer)).filter(|ids| !ids.is_empty());
    let ids = match ids {
        Some(ids) => ids,
        // llama.cpp renders a chat in one place and tokenizes text in another.
        None => {
            #[derive(Deserialize)]
            struct Rendered {
                prompt: String,
            }
            let rendered = ask("/apply-template", json!({ "messages": messages }).to_string()).await?;
            let Rendered { prompt } = serde_json::from_slice(&rendered).ok()?;
            let text = json!({ "content": prompt, "add_special": true, "parse_special": true }).to_string();
            ask("/tokenize", text).await.and_then(|answer| info::tokenized(&answer))?
        }
    };
    let theirs = pool.encoder().encode(&Prompt { content: Content::Ids(vec![ids]), ..Prompt::default() });
    Some((theirs.tokens, theirs.blocks) == (ours.tokens, ours.blocks))
}
