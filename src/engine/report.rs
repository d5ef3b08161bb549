//! What an engine says of its load and its cache, from its metrics page.
//!
//! | what | vLLM (`vllm:`) | SGLang (`sglang:`) | llama.cpp (`llamacpp:`) |
//! | --- | --- | --- | --- |
//! | running | `num_requests_running` | `num_running_reqs` | `requests_processing` |
//! | waiting | `num_requests_waiting` | `num_queue_reqs` | `requests_deferred` |
//! | cache in use, 0 to 1 | `kv_cache_usage_perc`; up to 0.11 `gpu_cache_usage_perc` | `token_usage` | `kv_cache_usage_ratio` (older) |
//! | tokens of cache | `cache_config_info` (labels) | `max_total_num_tokens` | – |
//! | block | `cache_config_info` (labels) | `page_size` | – |
//! | looked up, found | `prefix_cache_queries`, `_hits`; up to 0.11 `gpu_prefix_cache_*` | `prompt_tokens`, `cached_tokens` | `prompt_tokens` + `prompt_tokens_cached`, the latter |
//! | start | `process_start_time_seconds` | – | the header `Process-Start-Time-Unix` |
//!
//! A data-parallel engine has a series for each rank (the label `engine`, or `dp_rank`). What a page does not have is
//! unknown, never zero.
use std::collections::BTreeMap;

use super::exposition::{self, Sample};
use crate::config::Engine;

/// Most of a page that is read; the largest seen is 70 KiB.
pub const MOST: usize = 1 << 20;

/// More ranks than any engine has: what is above is none.
const RANKS: u32 = 1_024;

const PREFIXES: [&str; 4] = ["vllm:", "sglang:", "llamacpp:", "process_start_time_seconds"];

/// What an engine says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineReport {
    /// Whose names these are.
    pub engine: Option<Engine>,
    /// What tells one process of it from the next. vLLM: seconds since 1970. llama.cpp: a count from a moment of its own.
    pub process_start: Option<f64>,
    /// Prompt tokens processed; falls only with the process.
    pub prompt_tokens: Option<u64>,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: Option<u64>,
    /// Of these, the ones found.
    pub prefix_hits: Option<u64>,
    /// By data-parallel rank; 0 where there are none.
    pub ranks: BTreeMap<u32, RankReport>,
}

/// What one rank says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankReport {
    /// Requests being computed.
    pub running: Option<u32>,
    /// Requests that wait to be.
    pub waiting: Option<u32>,
    /// The share of the KV cache that requests use, 0 to 1.
    pub cache_use: Option<f64>,
    /// Tokens that the KV cache holds.
    pub cache_tokens: Option<u64>,
    /// Tokens in a block, or page.
    pub block_size: Option<u32>,
    /// Whether prefixes are cached at all.
    pub prefix_caching: Option<bool>,
    /// Whether it sleeps: it answers nothing until it is woken.
    pub sleeping: Option<bool>,
}

impl EngineReport {
    /// Reads a metrics page; `None` when it is no engine's.
    pub fn of_metrics(page: &[u8]) -> Option<Self> {
        let mut report = Self::default();
        for sample in exposition::samples(page, &PREFIXES) {
            report.take(&sample);
        }
        report.prefix_queries = match report.engine? {
            Engine::Sglang => report.prompt_tokens,
            // Since it counts cached ones, the others are counted without them.
            Engine::Llamacpp => {
                report.prefix_hits.zip(report.prompt_tokens).map(|(hits, rest)| hits.saturating_add(rest))
            }
            Engine::Vllm | Engine::Openai => report.prefix_queries,
        };
        Some(report)
    }

    fn take(&mut self, sample: &Sample<'_>) {
        let engine = if let Some(name) = sample.name.strip_prefix(b"vllm:") {
            self.vllm(name, sample)
        } else if let Some(name) = sample.name.strip_prefix(b"sglang:") {
            self.sglang(name, sample)
        } else if let Some(name) = sample.name.strip_prefix(b"llamacpp:") {
            self.llamacpp(name, sample)
        } else {
            // Python's client library has it for the whole process. Others' pages, too: it makes nobody an engine.
            if sample.name == b"process_start_time_seconds" {
                self.process_start = sample.value();
            }
            return;
        };
        self.engine = self.engine.or(Some(engine));
    }

    fn vllm(&mut self, name: &[u8], sample: &Sample<'_>) -> Engine {
        match name {
            b"num_requests_running" => most(&mut self.rank(sample).running, whole(sample)),
            b"num_requests_waiting" => most(&mut self.rank(sample).waiting, whole(sample)),
            b"kv_cache_usage_perc" | b"gpu_cache_usage_perc" => {
                largest(&mut self.rank(sample).cache_use, share(sample))
            }
            b"engine_sleep_state" if sample.label("sleep_state") == Some("awake") => {
                self.rank(sample).sleeping = sample.value().map(|awake| awake == 0.0);
            }
            b"cache_config_info" => self.rank(sample).configured(sample),
            b"prefix_cache_queries_total" | b"gpu_prefix_cache_queries_total" | b"prefix_cache_queries" => {
                add(&mut self.prefix_queries, sample);
            }
            b"prefix_cache_hits_total" | b"gpu_prefix_cache_hits_total" | b"prefix_cache_hits" => {
                add(&mut self.prefix_hits, sample);
            }
            b"prompt_tokens_total" => add(&mut self.prompt_tokens, sample),
            _ => {}
        }
        Engine::Vllm
    }

    fn sglang(&mut self, name: &[u8], sample: &Sample<'_>) -> Engine {
        match name {
            b"num_running_reqs" => most(&mut self.rank(sample).running, whole(sample)),
            b"num_queue_reqs" => most(&mut self.rank(sample).waiting, whole(sample)),
            b"token_usage" => largest(&mut self.rank(sample).cache_use, share(sample)),
            b"max_total_num_tokens" => most(&mut self.rank(sample).cache_tokens, count(sample).filter(|&n| n > 0)),
            b"page_size" => most(&mut self.rank(sample).block_size, whole(sample).filter(|&n| n > 0)),
            b"cached_tokens_total" => add(&mut self.prefix_hits, sample),
            b"prompt_tokens_total" => add(&mut self.prompt_tokens, sample),
            _ => {}
        }
        Engine::Sglang
    }

    fn llamacpp(&mut self, name: &[u8], sample: &Sample<'_>) -> Engine {
        match name {
            b"requests_processing" => self.rank(sample).running = whole(sample),
            b"requests_deferred" => self.rank(sample).waiting = whole(sample),
            b"kv_cache_usage_ratio" => self.rank(sample).cache_use = share(sample),
            b"prompt_tokens_total" => self.prompt_tokens = count(sample),
            b"prompt_tokens_cached_total" => self.prefix_hits = count(sample),
            _ => {}
        }
        Engine::Llamacpp
    }

    fn rank(&mut self, sample: &Sample<'_>) -> &mut RankReport {
        let rank = sample.labels().find_map(|(name, value)| matches!(name, "engine" | "dp_rank").then_some(value));
        let rank = rank.and_then(|rank| rank.parse().ok()).filter(|&rank| rank < RANKS).unwrap_or(0);
        self.ranks.entry(rank).or_default()
    }

    /// Requests being computed, by all ranks.
    pub fn running(&self) -> Option<u32> {
        self.sum(|rank| rank.running)
    }

    /// Requests that wait to be.
    pub fn waiting(&self) -> Option<u32> {
        self.sum(|rank| rank.waiting)
    }

    /// The share of the KV cache in use: the mean of the ranks that say.
    pub fn cache_use(&self) -> Option<f64> {
        let known: Vec<f64> = self.ranks.values().filter_map(|rank| rank.cache_use).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }

    /// Tokens that the KV caches of all ranks hold.
    pub fn cache_tokens(&self) -> Option<u64> {
        self.ranks.values().filter_map(|rank| rank.cache_tokens).reduce(u64::saturating_add)
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> Option<u32> {
        self.ranks.values().find_map(|rank| rank.block_size)
    }

    /// Whether prefixes are cached.
    pub fn prefix_caching(&self) -> Option<bool> {
        self.ranks.values().find_map(|rank| rank.prefix_caching)
    }

    /// Whether all of it sleeps.
    pub fn sleeping(&self) -> Option<bool> {
        self.ranks.values().filter_map(|rank| rank.sleeping).reduce(|all, rank| all && rank)
    }

    fn sum(&self, of: impl Fn(&RankReport) -> Option<u32>) -> Option<u32> {
        self.ranks.values().filter_map(of).reduce(u32::saturating_add)
    }
}

impl RankReport {
    /// vLLM's configuration of its cache, all in labels.
    fn configured(&mut self, sample: &Sample<'_>) {
        let (mut blocks, mut tokens) = (None, None);
        for (name, value) in sample.labels() {
            match name {
                "block_size" => self.block_size = value.parse().ok().filter(|&size| size > 0),
                "num_gpu_blocks" => blocks = value.parse::<u64>().ok(),
                // Newer, and right for hybrid models, too, whose blocks are of several kinds.
                "kv_cache_size_tokens" => tokens = value.parse::<u64>().ok(),
                "enable_prefix_caching" => {
                    self.prefix_caching = match value {
                        "True" => Some(true),
                        "False" => Some(false),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        let product = blocks.zip(self.block_size).map(|(blocks, size)| blocks.saturating_mul(size.into()));
        self.cache_tokens = tokens.or(product).filter(|&tokens| tokens > 0);
    }
}

/// Several series of one rank (tensor-parallel ranks tell the same) count once.
fn most<T: Ord + Copy>(known: &mut Option<T>, value: Option<T>) {
    *known = (*known).max(value);
}

fn largest(known: &mut Option<f64>, value: Option<f64>) {
    *known = match (*known, value) {
        (Some(known), Some(value)) => Some(known.max(value)),
        (known, value) => known.or(value),
    };
}

fn add(known: &mut Option<u64>, sample: &Sample<'_>) {
    if let Some(value) = count(sample) {
        *known = Some(known.unwrap_or(0).saturating_add(value));
    }
}

fn whole(sample: &Sample<'_>) -> Option<u32> {
    count(sample).map(|value| u32::try_from(value).unwrap_or(u32::MAX))
}

fn count(sample: &Sample<'_>) -> Option<u64> {
    sample.value().filter(|&value| value >= 0.0).map(|value| value as u64)
}

fn share(sample: &Sample<'_>) -> Option<f64> {
    sample.value().filter(|value| (0.0..=1.0).contains(value))
}

#[cfg(test)]
mod tests;
