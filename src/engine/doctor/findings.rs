//! What is missing in what an engine told: what it costs, and what to set.
use serde::Serialize;

use super::Examined;
use crate::config::Engine;
use crate::fleet::Pool;

/// One thing that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub missing: String,
    /// What it costs.
    pub costs: &'static str,
    /// What to set, and where.
    pub set: String,
    /// Whether requests fail because of it.
    pub fatal: bool,
}

/// The findings of one replica in a pool.
pub(super) fn of(examined: &Examined, pool: &Pool) -> Vec<Finding> {
    let mut list = Vec::new();
    let mut add = |missing: String, costs, set: String, fatal| list.push(Finding { missing, costs, set, fatal });
    if let Some(model) = pool.model()
        && !examined.models.iter().any(|name| **name == **model)
    {
        let served = examined.models.join(", ");
        let set = format!(
            "`--served-model-name {model}` (llama.cpp: `--alias`), or `model: {served}` and `aliases: [{model}]` in the pool"
        );
        add(
            format!("it serves `{served}`, not `{model}`"),
            "engines answer 404 to names that they do not know",
            set,
            true,
        );
    }
    for adapter in
        pool.settings().adapters.iter().filter(|adapter| !examined.models.iter().any(|name| **name == ***adapter))
    {
        let missing = format!("the adapter `{adapter}` is not among its models");
        add(missing, "requests for it fail there", "load it, or take it out of `adapters`".into(), false);
    }
    let Some(kind) = examined.kind else {
        let missing = "which engine this is: it has no metrics that are known, and its list of models does not say";
        add(
            missing.into(),
            "its load, its cache and its restarts are unknown",
            "nothing, if it is none of vLLM, SGLang, llama.cpp".into(),
            false,
        );
        return list;
    };
    if let Some(configured) = pool.settings().engine.filter(|configured| *configured != kind) {
        let missing = format!("it is {}, and the pool says {}", kind.as_str(), configured.as_str());
        add(missing, "it is asked what it has no answer to", format!("`engine: {}` in the pool", kind.as_str()), false);
    }
    if !examined.metrics {
        let set = match kind {
            Engine::Sglang => "`--enable-metrics`",
            Engine::Llamacpp => "`--metrics`",
            Engine::Vllm | Engine::Openai => "no `--disable-log-stats`; let this router reach `/metrics`",
        };
        let costs = match kind {
            Engine::Sglang => {
                "restarts are found out late; where it has no `/v1/loads`, its load and the size of its cache are unknown"
            }
            _ => "saturation and restarts are found out late, and the size of its cache must be configured",
        };
        add("no metrics".into(), costs, set.into(), false);
    }
    if examined.prefix_caching == Some(false) {
        let set = if kind == Engine::Sglang { "no `--disable-radix-cache`" } else { "`--enable-prefix-caching`" };
        add("prefixes are not cached".into(), "every prompt is computed whole, wherever it is sent", set.into(), false);
    }
    if examined.cached_tokens == Some(false) {
        let set = if kind == Engine::Sglang { "`--enable-cache-report`" } else { "`--enable-prompt-tokens-details`" };
        let costs =
            "what is expected to be cached is never checked: a cache that is smaller than assumed goes unnoticed";
        add("usage does not say what was cached".into(), costs, set.into(), false);
    }
    if kind != Engine::Llamacpp && examined.event_sources == Some(0) {
        let set = match kind {
            Engine::Sglang => {
                r#"`--kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'`"#
            }
            _ => {
                r#"`--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'`"#
            }
        };
        let costs = "what it has evicted is only estimated, and what it had before this router started is unknown";
        add("no KV events".into(), costs, set.into(), false);
    }
    if kind == Engine::Sglang && examined.block_size == Some(1) && examined.event_sources != Some(0) {
        add("pages of one token".into(), "an event for each token", "`--page-size 16`".into(), false);
    }
    if examined.same_template == Some(false) {
        let costs = "prompts are compared by tokens that the engine does not have: matches are an illusion";
        let set = "`tokenizer:` of the pool to the folder that the engine loads, and the same chat template";
        add("it makes other tokens of a chat than the pool's tokenizer".into(), costs, set.into(), false);
    }
    list
}
