//! What an engine is set up for, as it tells when it is asked, and what is missing for cache-aware routing.
//!
//! All questions are GETs, but for one that has a short conversation tokenized; nothing is generated unless that is asked
//! for. What an engine has no answer to is unknown, and an unknown thing is no finding.
mod findings;
mod rounds;
mod template;

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::info::{self, ServerInfo};
use super::{EngineReport, Observer};
use crate::config::Engine;
use crate::fleet::{Fetched, Pool, Replica};

pub use findings::Finding;
pub use rounds::{Rounds, rounds};

/// Most bytes of one answer.
const MOST: usize = 1 << 20;
/// Words of the prompt that is sent to see what usage says: a few blocks, whatever their size.
const WORDS: usize = 300;

/// How an engine is examined.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Longest time for each answer.
    pub within: Duration,
    /// Whether a token may be generated, twice, to see what usage says of cached ones.
    pub generate: bool,
}

/// What an engine told.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Examined {
    /// Why it could not be asked; the rest is then unknown.
    pub unreachable: Option<String>,
    /// Which engine it is.
    pub engine: Option<&'static str>,
    /// Its version, or build.
    pub version: Option<String>,
    /// The names that it serves.
    pub models: Vec<String>,
    /// Whether prefixes are cached.
    pub prefix_caching: Option<bool>,
    /// Tokens in a block.
    pub block_size: Option<u32>,
    /// Tokens of KV cache, of all ranks.
    pub cache_tokens: Option<u64>,
    /// Whether it tells of its load.
    pub metrics: bool,
    /// Whether usage says what was cached.
    pub cached_tokens: Option<bool>,
    /// Publishers of KV events; 0: none.
    pub event_sources: Option<usize>,
    /// Whether it makes the same tokens of a chat as the pool's tokenizer; unknown without one.
    pub same_template: Option<bool>,
    /// What is missing.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    kind: Option<Engine>,
}

impl Examined {
    /// Whether requests that are sent there would fail.
    pub fn fails(&self) -> bool {
        self.unreachable.is_some() || self.findings.iter().any(|finding| finding.fatal)
    }
}

/// Asks a replica's engine, as one of a pool.
pub async fn examine(replica: &Replica, pool: &Pool, settings: Settings) -> Examined {
    let get = async |path: &str| replica.fetch(Method::GET, path, None, MOST, settings.within).await;
    let (models, metrics, version, server, sources, props) = tokio::join!(
        get("/v1/models"),
        get("/metrics"),
        get("/version"),
        get("/server_info"),
        get("/kv_event_sources"),
        get("/props"),
    );
    let models = match models {
        Ok(answer) if answer.status.is_success() => answer,
        Ok(answer) => return unreachable(format!("/v1/models answered {}", answer.status)),
        Err(cause) => return unreachable(cause),
    };
    let Some(models) = info::models(&models.body) else {
        return unreachable("/v1/models is no list of models".into());
    };
    let report = found(metrics).and_then(|page| EngineReport::of_metrics(&page));
    let server = found(server).and_then(|body| info::server_info(&body)).unwrap_or_default();
    let props = found(props).and_then(|body| info::props(&body)).unwrap_or_default();
    let sources = found(sources).and_then(|body| info::kv_event_sources(&body));
    let kind = report.as_ref().and_then(|report| report.engine).or(models.first().and_then(info::ModelEntry::engine));
    let of = report.clone().unwrap_or_default();
    let mut examined = Examined {
        kind,
        engine: kind.map(Engine::as_str),
        models: models.into_iter().map(|entry| entry.id).collect(),
        metrics: report.is_some(),
        block_size: of.block_size(),
        cache_tokens: of.cache_tokens(),
        ..Examined::default()
    };
    match kind {
        Some(Engine::Vllm) => {
            examined.version = found(version).and_then(|body| info::version(&body));
            examined.prefix_caching = of.prefix_caching();
            examined.event_sources = sources.map(|sources| sources.len());
        }
        Some(Engine::Sglang) => examined.sglang(&server),
        Some(Engine::Llamacpp) => {
            let slots = props.total_slots.map(u64::from);
            examined.cache_tokens = slots.zip(props.context()).map(|(slots, context)| slots.saturating_mul(context));
            examined.version = props.build_info;
            examined.prefix_caching = Some(true);
            // `timings` is in every answer.
            examined.cached_tokens = Some(true);
            examined.event_sources = Some(0);
        }
        Some(Engine::Openai) | None => {}
    }
    let asked = asked_for(pool, &examined.models);
    examined.same_template = template::same(replica, pool, asked.as_deref(), settings.within).await;
    if settings.generate && examined.cached_tokens.is_none() {
        examined.cached_tokens = reports_cached(replica, asked.as_deref(), settings.within).await;
    }
    examined.findings = findings::of(&examined, pool);
    examined
}

impl Examined {
    fn sglang(&mut self, server: &ServerInfo) {
        self.version = server.version.clone();
        self.prefix_caching = server.disable_radix_cache.map(|disabled| !disabled);
        self.block_size = self.block_size.or(server.page_size);
        self.cache_tokens = self.cache_tokens.or(server.max_total_num_tokens);
        self.cached_tokens = server.enable_cache_report;
        let ranks = server.kv_events.as_ref().map(|events| events.dp_size.max(1) as usize);
        let configured = server.kv_events_config.is_some().then_some(1);
        // It would have said so.
        self.event_sources = ranks.or(configured).or(server.version.is_some().then_some(0));
    }
}

/// The model to ask about: the pool's, or, where that is not served under its name, the one that is. A wrong name must not
/// hide what else is wrong.
fn asked_for(pool: &Pool, served: &[String]) -> Option<String> {
    let model = pool.model()?;
    let known = served.is_empty() || served.iter().any(|name| **name == **model);
    Some(if known { model.to_string() } else { served[0].clone() })
}

fn unreachable(cause: String) -> Examined {
    Examined { unreachable: Some(cause), ..Examined::default() }
}

fn found(answer: Result<Fetched, String>) -> Option<Bytes> {
    answer.ok().filter(|answer| answer.status == StatusCode::OK).map(|answer| answer.body)
}

/// Has the engine answer one prompt twice, a token each time. vLLM leaves out what is zero, so the second answer tells.
async fn reports_cached(replica: &Replica, model: Option<&str>, within: Duration) -> Option<bool> {
    let prompt: String = (0..WORDS).map(|word| format!("{word} ")).collect();
    let mut body = json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0 });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let body = Bytes::from(body.to_string());
    let mut reports = None;
    for _ in 0..2 {
        let asked = replica.fetch(Method::POST, "/v1/completions", Some(body.clone()), MOST, within).await;
        let mut observer = Observer::new(false);
        observer.feed(&found(asked)?);
        reports = observer.finish().map(|usage| usage.cached_tokens.is_some());
    }
    reports
}
