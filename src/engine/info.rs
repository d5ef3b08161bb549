//! What engines say of themselves as JSON: version, models, load, where their events are.
//!
//! Each shape is read for the few fields that are wanted; what is missing or of another type is unknown.
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

use super::report::{EngineReport, RankReport};
use crate::config::Engine;

/// A field that is read if it has its type, and unknown if it has another: one odd field must not hide the others.
fn lenient<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        Wanted(T),
        Other(IgnoredAny),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::Wanted(value) => Some(value),
        Either::Other(_) => None,
    })
}

/// `GET /version` of vLLM: `{"version": "0.32.0"}`.
pub fn version(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    serde_json::from_slice(body).ok().map(|answer: Version| answer.version)
}

/// One entry of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ModelEntry {
    /// The name it is asked for by.
    pub id: String,
    /// The engine, where it is one that is known: `vllm`, `sglang`, `llamacpp`.
    #[serde(default, deserialize_with = "lenient")]
    pub owned_by: Option<String>,
    /// Longest prompt and answer together (vLLM, SGLang).
    #[serde(default, deserialize_with = "lenient")]
    pub max_model_len: Option<u64>,
}

impl ModelEntry {
    /// Whose list it stands in.
    pub fn engine(&self) -> Option<Engine> {
        self.owned_by.as_deref().and_then(Engine::named)
    }
}

/// `GET /v1/models`; `None` when it is no list of models.
pub fn models(body: &[u8]) -> Option<Vec<ModelEntry>> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<ModelEntry>,
    }
    serde_json::from_slice(body).ok().map(|list: Models| list.data)
}

/// Where one rank's events come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EventSource {
    /// Whether it makes events at all.
    pub enable_kv_cache_events: bool,
    /// How they are published: `zmq`.
    pub publisher: Option<String>,
    /// ZMQ endpoint; its host may be a wildcard, and is then the replica's.
    pub endpoint: String,
    /// Where missed ones can be asked for.
    pub replay_endpoint: Option<String>,
    /// What messages begin with.
    pub topic: String,
}

/// `GET /kv_event_sources` of vLLM (0.32 on): for each rank its publisher, or null; those that publish, by rank. `None`
/// when it is no such answer.
pub fn kv_event_sources(body: &[u8]) -> Option<BTreeMap<u32, EventSource>> {
    let sources: BTreeMap<u32, Option<EventSource>> = serde_json::from_slice(body).ok()?;
    let publishes = |source: &EventSource| source.enable_kv_cache_events && source.publisher.as_deref() == Some("zmq");
    Some(sources.into_iter().filter_map(|(rank, source)| Some((rank, source.filter(publishes)?))).collect())
}

/// `GET /server_info` of SGLang.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    /// SGLang's version.
    #[serde(deserialize_with = "lenient")]
    pub version: Option<String>,
    /// Tokens of KV cache of one rank.
    #[serde(deserialize_with = "lenient")]
    pub max_total_num_tokens: Option<u64>,
    /// Tokens in a page.
    #[serde(deserialize_with = "lenient")]
    pub page_size: Option<u32>,
    /// Whether prefixes are not cached.
    #[serde(deserialize_with = "lenient")]
    pub disable_radix_cache: Option<bool>,
    /// Whether `cached_tokens` are in its answers' usage.
    #[serde(deserialize_with = "lenient")]
    pub enable_cache_report: Option<bool>,
    /// Whether it has a metrics page.
    #[serde(deserialize_with = "lenient")]
    pub enable_metrics: Option<bool>,
    /// Its `--kv-events-config`, as it was given.
    #[serde(deserialize_with = "lenient")]
    pub kv_events_config: Option<String>,
    /// The same, resolved (0.5.23 on).
    #[serde(deserialize_with = "lenient")]
    pub kv_events: Option<KvEvents>,
}

/// SGLang's event publisher: ports count up from the base, one a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KvEvents {
    /// Host, or a wildcard: then the replica's.
    pub endpoint_host: String,
    /// Port of rank 0.
    pub endpoint_port_base: u16,
    /// What messages begin with.
    pub topic: String,
    /// Ranks.
    pub dp_size: u32,
    /// Port of rank 0 for missed ones.
    pub replay_endpoint_port_base: Option<u16>,
}

/// `GET /server_info` of SGLang; `None` when it is no such answer.
pub fn server_info(body: &[u8]) -> Option<ServerInfo> {
    serde_json::from_slice(body).ok()
}

/// `GET /v1/loads` of SGLang (0.5.12 on): a load for each rank.
pub fn loads(body: &[u8]) -> Option<EngineReport> {
    #[derive(Deserialize)]
    struct Loads {
        loads: Vec<Load>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Load {
        #[serde(deserialize_with = "lenient")]
        dp_rank: Option<u32>,
        #[serde(deserialize_with = "lenient")]
        num_running_reqs: Option<u32>,
        #[serde(deserialize_with = "lenient")]
        num_waiting_reqs: Option<u32>,
        #[serde(deserialize_with = "lenient")]
        token_usage: Option<f64>,
        #[serde(deserialize_with = "lenient")]
        max_total_num_tokens: Option<u64>,
    }
    let answer: Loads = serde_json::from_slice(body).ok()?;
    let rank = |load: Load| {
        let report = RankReport {
            running: load.num_running_reqs,
            waiting: load.num_waiting_reqs,
            cache_use: load.token_usage.filter(|share| (0.0..=1.0).contains(share)),
            cache_tokens: load.max_total_num_tokens.filter(|&tokens| tokens > 0),
            ..RankReport::default()
        };
        (load.dp_rank.unwrap_or(0), report)
    };
    let ranks: BTreeMap<u32, RankReport> = answer.loads.into_iter().map(rank).collect();
    Some(EngineReport { engine: Some(Engine::Sglang), ranks, ..EngineReport::default() })
}

/// `GET /props` of llama.cpp.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Props {
    /// The template of chats.
    #[serde(deserialize_with = "lenient")]
    pub chat_template: Option<String>,
    /// Conversations that it keeps.
    #[serde(deserialize_with = "lenient")]
    pub total_slots: Option<u32>,
    /// Its build.
    #[serde(deserialize_with = "lenient")]
    pub build_info: Option<String>,
    #[serde(deserialize_with = "lenient")]
    default_generation_settings: Option<Defaults>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct Defaults {
    #[serde(default, deserialize_with = "lenient")]
    n_ctx: Option<u64>,
}

impl Props {
    /// Tokens of one conversation.
    pub fn context(&self) -> Option<u64> {
        self.default_generation_settings.as_ref()?.n_ctx
    }
}

/// `GET /props` of llama.cpp; `None` when it is no such answer.
pub fn props(body: &[u8]) -> Option<Props> {
    serde_json::from_slice(body).ok()
}

/// The token ids that `POST /tokenize` (vLLM, SGLang) answers with.
pub fn tokenized(body: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Tokenized {
        tokens: Vec<u32>,
    }
    serde_json::from_slice(body).ok().map(|answer: Tokenized| answer.tokens)
}

#[cfg(test)]
mod tests;
