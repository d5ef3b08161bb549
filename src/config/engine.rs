//! What a pool's engines are, and what is asked of them beside requests.
use std::time::Duration;

use serde_json::{Value, json};

use super::check::Item;
use super::resolve::or;
use super::units::show_duration;

/// The dialects of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    Llamacpp,
    /// Anything else that speaks OpenAI's API.
    Openai,
}

/// Tokens of KV cache that a replica is taken to keep of which nobody says.
pub const CACHE_TOKENS: u64 = 500_000;

/// How engines' metrics are asked for, and what they lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineMetrics {
    /// Time between two looks; `None`: none. Default 1 s; none where the engine is [`Engine::Openai`].
    pub interval: Option<Duration>,
    /// So many requests that wait in an engine keep others away from it; `None`: any number may. Default 16.
    pub max_waiting: Option<u32>,
}

/// How a streamed chat or completion comes to report its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUsage {
    /// Where its client asks for it (default).
    Observe,
    /// The router asks where its client did not, and hides the event that reports it.
    Ask,
}

pub(super) fn stream_usage(pool: &Item) -> StreamUsage {
    or(Some(pool), "stream_usage", StreamUsage::Observe)
}

pub(super) fn engine_metrics(pool: &Item) -> EngineMetrics {
    let item = pool.get("engine_metrics");
    let engine: Option<Engine> = or(Some(pool), "engine", None);
    let interval = (engine != Some(Engine::Openai)).then_some(Duration::from_secs(1));
    EngineMetrics { interval: or(item, "interval", interval), max_waiting: or(item, "max_waiting", Some(16)) }
}

impl EngineMetrics {
    pub(super) fn effective(&self) -> Value {
        json!({
            "interval": self.interval.map_or("off".into(), show_duration),
            "max_waiting": self.max_waiting.map_or(json!("none"), Value::from),
        })
    }
}
