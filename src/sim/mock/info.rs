//! What an engine tells about itself: model, server, load. Served in both dialects, so that a probe finds each.

use serde_json::{Value, json};

use super::errors::Reply;
use super::state::Mock;

/// `GET /get_model_info`.
pub(super) fn model_info(mock: &Mock) -> Reply {
    let model = mock.default_model();
    Reply::json(&json!({
        "model_path": model, "served_model_name": model, "tokenizer_path": model, "is_generation": true,
        "preferred_sampling_params": null, "weight_version": "default", "model_type": "mock",
        "has_image_understanding": true, "has_audio_understanding": true, "architectures": ["MockForCausalLM"],
    }))
}

/// `GET /server_info` and `/get_server_info`.
pub(super) fn server_info(mock: &Mock) -> Reply {
    let (model, engine) = (mock.default_model(), &mock.options.engine);
    let max_running = (engine.max_running != u32::MAX).then_some(engine.max_running);
    Reply::json(&json!({
        "model_path": model, "served_model_name": model, "tokenizer_path": model, "context_length": mock.max_model_len(),
        "page_size": engine.block_size, "chunked_prefill_size": engine.chunk_tokens,
        "max_running_requests": max_running, "max_total_num_tokens": engine.cache_tokens,
        "max_req_input_len": mock.max_model_len().saturating_sub(1), "tp_size": 1, "dp_size": 1,
        "disable_radix_cache": false, "enable_cache_report": true, "disaggregation_mode": "null", "kv_events": null,
        "status": "ready", "version": "0.5.23", "internal_states": [{"load": loads(mock), "page_size": engine.block_size}],
    }))
}

fn loads(mock: &Mock) -> Value {
    let stats = mock.driver.stats();
    let block = u64::from(mock.options.engine.block_size);
    let used = u64::from(stats.blocks_in_use) * block;
    json!({
        "dp_rank": 0, "num_running_reqs": stats.running, "num_waiting_reqs": stats.waiting,
        "num_waiting_uncached_tokens": stats.waiting_tokens, "num_used_tokens": used,
        "num_total_tokens": used + stats.waiting_tokens, "max_total_num_tokens": u64::from(stats.blocks_total) * block,
        "max_running_requests": mock.options.engine.max_running, "token_usage": stats.usage(),
        "cache_hit_rate": stats.hit_rate(), "gen_throughput": 0.0,
    })
}

/// `GET /v1/loads`.
pub(super) fn v1_loads(mock: &Mock) -> Reply {
    let load = loads(mock);
    let total = json!({
        "total_running_reqs": load["num_running_reqs"], "total_waiting_reqs": load["num_waiting_reqs"],
    });
    Reply::json(&json!({"version": "0.5.23", "dp_rank_count": 1, "loads": [load], "aggregate": total}))
}

/// `GET /get_load`, as SGLang before 0.5.23.
pub(super) fn get_load(mock: &Mock) -> Reply {
    let load = loads(mock);
    let stats = mock.driver.stats();
    Reply::json(&json!([{
        "dp_rank": 0, "num_reqs": stats.running + stats.waiting, "num_waiting_reqs": stats.waiting,
        "num_tokens": load["num_total_tokens"],
    }]))
}

/// `GET /load` of vLLM: requests in the server.
pub(super) fn server_load(mock: &Mock) -> Reply {
    Reply::json(&json!({"server_load": mock.counters.inflight()}))
}

/// `GET /version`.
pub(super) fn version(mock: &Mock) -> Reply {
    Reply::json(&json!({"version": if mock.is_sglang() { "0.5.23" } else { "0.32.0" }}))
}

/// `/flush_cache` and `/reset_prefix_cache`: refused while requests run.
pub(super) fn flush(mock: &Mock) -> Reply {
    let stats = mock.driver.stats();
    if stats.running + stats.waiting > 0 {
        return Reply::detail(400, "The cache was not flushed: requests are running or waiting.");
    }
    mock.driver.restart();
    Reply::empty(200)
}
