//! `GET /metrics` under the names of vLLM 0.32 or SGLang 0.5.23: the gauges and counters that a router reads.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::errors::Reply;
use super::state::Mock;
use crate::sim::engine::Stats;

/// Name, type, help, labels besides the common ones, value.
type Line = (&'static str, &'static str, &'static str, &'static str, f64);

pub(super) fn page(mock: &Mock) -> Reply {
    let stats = mock.driver.stats();
    let model = mock.default_model().replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    let (lines, common) = if mock.is_sglang() {
        (sglang(mock, &stats), format!(r#"engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="0""#))
    } else {
        (vllm(mock, &stats), format!(r#"engine="0",model_name="{model}""#))
    };
    let mut text = String::with_capacity(4_096);
    let mut named = "";
    for (name, kind, help, labels, value) in lines {
        if name != named {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            named = name;
        }
        let comma = if labels.is_empty() { "" } else { "," };
        let _ = writeln!(text, "{name}{{{common}{comma}{labels}}} {value:?}");
    }
    if !mock.is_sglang() {
        let start = mock.started + mock.restarts.load(Relaxed);
        let _ = writeln!(text, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}");
        let (size, blocks) = (mock.options.engine.block_size, stats.blocks_total);
        let tokens = u64::from(size) * u64::from(blocks);
        let _ = writeln!(
            text,
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n\
             vllm:cache_config_info{{block_size=\"{size}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",\
             hash_block_size=\"None\",kv_cache_size_tokens=\"{tokens}\",num_gpu_blocks=\"{blocks}\",\
             prefix_caching_hash_algo=\"mock\"}} 1.0"
        );
    }
    Reply::text(text)
}

fn vllm(mock: &Mock, stats: &Stats) -> Vec<Line> {
    let (prompt, cached) = (stats.prompt_tokens as f64, stats.cached_tokens as f64);
    let awake = f64::from(u8::from(!mock.faults.asleep()));
    vec![
        ("vllm:num_requests_running", "gauge", "Requests in model execution batches.", "", stats.running.into()),
        ("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", "", stats.waiting.into()),
        (
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Waiting requests by reason.",
            r#"reason="capacity""#,
            stats.waiting.into(),
        ),
        ("vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by reason.", r#"reason="deferred""#, 0.0),
        ("vllm:engine_sleep_state", "gauge", "Engine sleep state.", r#"sleep_state="awake""#, awake),
        ("vllm:kv_cache_usage_perc", "gauge", "KV cache in use by requests, 1 is all.", "", stats.usage()),
        ("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", "", prompt),
        ("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", "", cached),
        ("vllm:num_preemptions_total", "counter", "Preemptions.", "", 0.0),
        ("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", "", prompt),
        ("vllm:prompt_tokens_cached_total", "counter", "Prompt tokens from the cache.", "", cached),
        ("vllm:generation_tokens_total", "counter", "Tokens generated.", "", stats.generated_tokens as f64),
        (
            "vllm:request_success_total",
            "counter",
            "Requests by how they ended.",
            r#"finished_reason="length""#,
            stats.finished as f64,
        ),
        (
            "vllm:request_success_total",
            "counter",
            "Requests by how they ended.",
            r#"finished_reason="abort""#,
            stats.cancelled as f64,
        ),
    ]
}

fn sglang(mock: &Mock, stats: &Stats) -> Vec<Line> {
    let block = f64::from(mock.options.engine.block_size);
    let used = f64::from(stats.blocks_in_use) * block;
    vec![
        ("sglang:prompt_tokens_total", "counter", "Prefill tokens processed.", "", stats.prompt_tokens as f64),
        (
            "sglang:generation_tokens_total",
            "counter",
            "Generation tokens processed.",
            "",
            stats.generated_tokens as f64,
        ),
        (
            "sglang:cached_tokens_total",
            "counter",
            "Cached prompt tokens.",
            r#"cache_source="device""#,
            stats.cached_tokens as f64,
        ),
        ("sglang:num_requests_total", "counter", "Requests processed.", "", stats.finished as f64),
        ("sglang:num_running_reqs", "gauge", "Running requests.", "", stats.running.into()),
        ("sglang:num_queue_reqs", "gauge", "Requests in the waiting queue.", "", stats.waiting.into()),
        ("sglang:num_used_tokens", "gauge", "Tokens used by requests.", "", used),
        ("sglang:token_usage", "gauge", "Token usage, 1 is all.", "", stats.usage()),
        ("sglang:max_total_num_tokens", "gauge", "Tokens of the KV cache.", "", f64::from(stats.blocks_total) * block),
        ("sglang:page_size", "gauge", "Tokens in a page.", "", block),
        ("sglang:cache_hit_rate", "gauge", "Prefix cache hit rate.", "", stats.hit_rate()),
        ("sglang:gen_throughput", "gauge", "Generation throughput, tokens a second.", "", 0.0),
    ]
}
