//! Prefix awareness: what the policies `cache_aware` and `least_cost` are set by, what memory and time prompts may take,
//! and how long a prefill is taken to last.
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::check::Item;
use super::model::{LoadPolicy, Policy, Pool};
use super::resolve::{Read as _, or};
use super::units::{show_duration, show_seconds, show_size};

impl Policy {
    /// Whether it looks at prompts, and so at what replicas hold of them.
    pub fn uses_prompts(&self) -> bool {
        matches!(self, Self::CacheAware(_) | Self::LeastCost(_))
    }
}

/// What `cache_aware` is set by.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheAware {
    /// Whether load may keep a request from its prefix. Default [`Stay::Balanced`].
    pub affinity: Stay,
    /// A shorter match is none, in tokens. Default 1,024.
    pub min_match_tokens: u32,
    /// A preferred replica is left when its load is over this multiple of the alternative's (default 2)…
    pub max_load_ratio: f64,
    /// …and so much above it: in requests (default 8) or placements (default 16)…
    pub min_load_gap: u32,
    /// …or, where queued seconds are the load, in time. Default 2 s.
    pub min_queue_gap: Duration,
    /// Where a request without a preferred replica goes. Default [`LoadPolicy::PowerOfTwo`].
    pub fallback: LoadPolicy,
    /// What counts as load. Default [`LoadUnit::Requests`].
    pub load: LoadUnit,
}

impl Default for CacheAware {
    fn default() -> Self {
        Self {
            affinity: Stay::Balanced,
            min_match_tokens: 1_024,
            max_load_ratio: 2.0,
            min_load_gap: LoadUnit::Requests.min_load_gap(),
            min_queue_gap: Duration::from_secs(2),
            fallback: LoadPolicy::PowerOfTwo,
            load: LoadUnit::Requests,
        }
    }
}

/// What `least_cost` is set by.
#[derive(Debug, Clone, PartialEq)]
pub struct LeastCost {
    /// Seconds that a request in flight costs those beside it, whatever its prompt. Default 0.5 ms.
    pub request_cost: f64,
}

impl Default for LeastCost {
    fn default() -> Self {
        Self { request_cost: 0.0005 }
    }
}

/// Whether a request stays with its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// As long as the replica admits it.
    Prefer,
    /// Unless the replica is much busier than the alternative.
    Balanced,
}

/// What counts as a replica's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadUnit {
    /// Requests in flight.
    Requests,
    /// Requests lately placed there.
    Placements,
    /// Seconds of prefill that wait there.
    QueuedSeconds,
}

impl LoadUnit {
    /// The default of `min_load_gap`.
    pub fn min_load_gap(self) -> u32 {
        if self == Self::Placements { 16 } else { 8 }
    }
}

/// How long a prefill of n tokens takes of which m are cached: `overhead + per_token·(n−m) + per_pair·(n²−m²)` seconds
/// (linear layers, then attention).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Prefill {
    /// Learned from the first tokens of requests that met no queue.
    #[default]
    Learned,
    /// As the operator measured it.
    Fixed {
        /// Seconds of each request.
        overhead: f64,
        /// Seconds of each uncached token.
        per_token: f64,
        /// Seconds of each pair of an uncached token and one before it.
        per_pair: f64,
    },
}

/// The settings of a `cache_aware` policy, of which those that it would not use have been refused.
pub(super) fn cache_aware(policy: &Item) -> CacheAware {
    let (item, d) = (Some(policy), CacheAware::default());
    let load = or(item, "load", d.load);
    CacheAware {
        affinity: or(item, "affinity", d.affinity),
        min_match_tokens: or(item, "min_match_tokens", d.min_match_tokens),
        max_load_ratio: or(item, "max_load_ratio", d.max_load_ratio),
        min_load_gap: or(item, "min_load_gap", load.min_load_gap()),
        min_queue_gap: or(item, "min_queue_gap", d.min_queue_gap),
        fallback: or(item, "fallback", d.fallback),
        load,
    }
}

/// The settings of a `least_cost` policy.
pub(super) fn least_cost(policy: &Item) -> LeastCost {
    let d = LeastCost::default();
    LeastCost { request_cost: or(Some(policy), "request_cost", d.request_cost) }
}

pub(super) fn cache_tokens(pool: &Item) -> Option<u64> {
    or(Some(pool), "cache_tokens", None)
}

pub(super) fn index_bytes(pool: &Item) -> usize {
    or(pool.get("index"), "size", 24 << 20)
}

pub(super) fn tokens_bytes(pool: &Item) -> usize {
    or(pool.get("tokens"), "cache", 32 << 20)
}

pub(super) fn tokens_budget(pool: &Item) -> Duration {
    or(pool.get("tokens"), "budget", Duration::from_millis(100))
}

pub(super) fn tokens_parity(pool: &Item) -> bool {
    or(pool.get("tokens"), "parity", true)
}

pub(super) fn prefill(pool: &Item) -> Prefill {
    // `learned` is no map, and one without `per_token` has its own error.
    let item = pool.get("prefill");
    match item.and_then(|item| item.get("per_token")).and_then(|item| f64::read(&item.value)) {
        None => Prefill::Learned,
        Some(per_token) => {
            Prefill::Fixed { overhead: or(item, "overhead", 0.0), per_token, per_pair: or(item, "per_pair", 0.0) }
        }
    }
}

impl CacheAware {
    /// Adds what is in force to the policy's map; what it would not use is left out, as it may not be written.
    pub(super) fn effective(&self, map: &mut Map<String, Value>) {
        let mut insert = |key: &str, value: Value| drop(map.insert(key.to_owned(), value));
        insert("affinity", self.affinity.as_str().into());
        insert("min_match_tokens", self.min_match_tokens.into());
        insert("load", self.load.as_str().into());
        if self.affinity == Stay::Balanced {
            insert("max_load_ratio", self.max_load_ratio.into());
            match self.load {
                LoadUnit::QueuedSeconds => insert("min_queue_gap", show_duration(self.min_queue_gap).into()),
                LoadUnit::Requests | LoadUnit::Placements => insert("min_load_gap", self.min_load_gap.into()),
            }
        }
        insert("fallback", self.fallback.as_str().into());
    }
}

/// Adds a pool's budgets and its prefill to its map.
pub(super) fn effective(pool: &Pool, map: &mut Map<String, Value>) {
    let prefill = match pool.prefill {
        Prefill::Learned => json!("learned"),
        Prefill::Fixed { overhead, per_token, per_pair } => json!({
            "overhead": show_seconds(overhead),
            "per_token": show_seconds(per_token),
            "per_pair": show_seconds(per_pair),
        }),
    };
    let tokens = json!({
        "cache": show_size(pool.tokens_bytes as u64),
        "budget": show_duration(pool.tokens_budget),
        "parity": pool.tokens_parity,
    });
    map.insert("tokens".into(), tokens);
    map.insert("index".into(), json!({ "size": show_size(pool.index_bytes as u64) }));
    map.insert("cache_tokens".into(), pool.cache_tokens.map_or("detect".into(), Value::from));
    map.insert("prefill".into(), prefill);
}
