//! What a configuration alone tells of a request: its pool, its prompt's tokens and blocks, and who could be asked.
use std::sync::Arc;

use http::Method;

use super::report::{Candidate, Explanation};
use crate::api::{self, Route};
use crate::config::{self, Config, Models};
use crate::prefix::Basis;
use crate::tokens::Encoder;

/// Explains `request` without a router.
///
/// # Errors
/// It has no prompt, or no pool, or the pool's tokenizer can't be loaded; for people.
pub fn explain(config: &Config, request: &super::Request) -> Result<Explanation, String> {
    let Route::Endpoint(endpoint) = api::find(&Method::POST, &request.path) else {
        return Err(format!("{}: no request with a prompt goes to this path", request.path));
    };
    // What is wrong with it is said without its content, which serde would quote.
    let hints = api::read(&request.body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("the body is no JSON object that could be read (line {line}, column {column})")
    })?;
    let asked = hints.model.as_ref().map(|model| &*model.name);
    let (pool, adapter) = pool_of(config, asked)?;
    let model = match &pool.models {
        Models::Named { model, .. } => Some(model.clone()),
        Models::Any => asked.map(Arc::from),
    };
    let name = model.as_deref().unwrap_or_default();
    let encoder = match &pool.tokenizer {
        Some(folder) => Encoder::load(name, folder, pool.tokens_bytes, pool.tokens_budget)
            .map_err(|error| format!("pool {}: its tokenizer can't be used: {error}", pool.name))?,
        None => Encoder::text(name),
    };
    let mut prompt = api::prompt(endpoint, &request.body);
    if let Some(adapter) = &adapter {
        prompt.adapter = Some(adapter.to_string().into());
    }
    let encoded = encoder.encode(&prompt);
    Ok(Explanation {
        pool: pool.name.to_string(),
        // As the engine will know it: an adapter's name goes on as it is.
        model: adapter.as_ref().or(model.as_ref()).map(ToString::to_string),
        adapter: adapter.map(|adapter| adapter.to_string()),
        endpoint: endpoint.path.to_owned(),
        basis: Some(if encoded.basis == Basis::Tokens { "tokens" } else { "text" }.to_owned()),
        fallback: encoded.fallback.map(|fallback| fallback.as_str().to_owned()),
        tokens: encoded.tokens as u64,
        blocks: encoded.blocks.len() as u64,
        session: session(pool, &request.headers, &request.body, &hints),
        decision: None,
        candidates: pool.replicas.iter().map(candidate).collect(),
    })
}

/// The pool that serves a name, and the adapter that the name is, if it is one.
fn pool_of<'a>(config: &'a Config, asked: Option<&str>) -> Result<(&'a config::Pool, Option<Arc<str>>), String> {
    for pool in &config.pools {
        match (&pool.models, asked) {
            (Models::Any, _) => return Ok((pool, None)),
            (Models::Named { model, aliases }, Some(asked)) => {
                if std::iter::once(model).chain(aliases).any(|name| **name == *asked) {
                    return Ok((pool, None));
                }
                if let Some(adapter) = pool.adapters.iter().find(|name| ***name == *asked) {
                    return Ok((pool, Some(adapter.clone())));
                }
            }
            (Models::Named { .. }, None) => {}
        }
    }
    let names = config.pools.iter().map(|pool| &*pool.name).collect::<Vec<_>>().join(", ");
    Err(match asked {
        Some(_) => format!("no pool serves the model that the body asks for; there are: {names}"),
        None => format!("the body names no model; there are: {names}"),
    })
}

/// Where a session's key would come from, where the pool has a use for one.
fn session(pool: &config::Pool, headers: &http::HeaderMap, body: &[u8], hints: &api::Hints<'_>) -> Option<String> {
    if !pool.uses_sessions() {
        return None;
    }
    let key = api::key_from_body(&pool.session, api::scope(&pool.session, headers), headers, body, hints);
    Some(key.map_or(api::Source::None, |(_, source)| source).as_str().to_owned())
}

/// A replica of which nothing is known but that it is written.
fn candidate(replica: &config::Replica) -> Candidate {
    Candidate { replica: replica.id.to_string(), weight: Some(replica.weight), ..Candidate::default() }
}
