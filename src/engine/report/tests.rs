use proptest::prelude::*;

use super::*;

fn recorded(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/fixtures/engine/{name}.metrics", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn of(page: &str) -> EngineReport {
    EngineReport::of_metrics(page.as_bytes()).unwrap()
}

#[test]
fn recorded_pages_say_what_the_engines_said() {
    let vllm = EngineReport::of_metrics(&recorded("vllm-0.32.0")).unwrap();
    assert_eq!((vllm.engine, vllm.process_start), (Some(Engine::Vllm), Some(1_795_999_213.93)));
    assert_eq!((vllm.running(), vllm.waiting(), vllm.cache_use()), (Some(0), Some(0), Some(0.0)));
    assert_eq!((vllm.cache_tokens(), vllm.block_size()), (Some(2_048), Some(32)));
    assert_eq!((vllm.prefix_queries, vllm.prefix_hits), (Some(6_944), Some(1_376)));
    assert_eq!((vllm.prefix_caching(), vllm.sleeping()), (Some(true), Some(false)));

    // It does not have `kv_cache_size_tokens` yet.
    let older = EngineReport::of_metrics(&recorded("vllm-0.22.1")).unwrap();
    assert_eq!((older.cache_tokens(), older.block_size(), older.prefix_queries), (Some(2_048), Some(32), Some(7_065)));

    let sglang = EngineReport::of_metrics(&recorded("sglang-0.5.23")).unwrap();
    assert_eq!((sglang.engine, sglang.process_start), (Some(Engine::Sglang), None));
    assert_eq!((sglang.running(), sglang.waiting(), sglang.cache_use()), (Some(0), Some(0), Some(0.0)));
    assert_eq!((sglang.cache_tokens(), sglang.block_size()), (Some(2_048), Some(16)));
    assert_eq!((sglang.prefix_queries, sglang.prefix_hits), (Some(7_242), Some(2_096)));
    assert_eq!((sglang.prefix_caching(), sglang.sleeping()), (None, None));

    let llamacpp = EngineReport::of_metrics(&recorded("llamacpp-2026.10.11549")).unwrap();
    assert_eq!((llamacpp.engine, llamacpp.running(), llamacpp.waiting()), (Some(Engine::Llamacpp), Some(0), Some(0)));
    assert_eq!((llamacpp.prefix_queries, llamacpp.prefix_hits), (Some(2_526), Some(2_010)));
    assert_eq!((llamacpp.cache_tokens(), llamacpp.cache_use()), (None, None));
}

#[test]
fn names_of_every_era_are_known() {
    let old = of("vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n\
                  vllm:gpu_prefix_cache_queries_total{engine=\"0\"} 10.0\nvllm:gpu_prefix_cache_hits_total{engine=\"0\"} 4.0\n\
                  vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",num_gpu_blocks=\"1000\"} 1.0\n");
    assert_eq!((old.cache_use(), old.prefix_queries, old.prefix_hits), (Some(0.5), Some(10), Some(4)));
    assert_eq!((old.cache_tokens(), old.prefix_caching()), (Some(16_000), Some(false)));
    // 0.10 has the gauge under both names.
    let both = of("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.5\n");
    assert_eq!(both.cache_use(), Some(0.5));
    assert_eq!(of("llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:prompt_tokens_total 9\n").prefix_queries, None);
}

#[test]
fn data_parallel_ranks_are_kept_apart_and_summed() {
    let report = of("vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
                     vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0\n\
                     vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 2.0\n\
                     vllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.6\n\
                     vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\n\
                     vllm:engine_sleep_state{engine=\"0\",sleep_state=\"discard_all\"} 1.0\n\
                     vllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 1.0\n\
                     vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"10\"} 1.0\n\
                     vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"20\"} 1.0\n");
    assert_eq!((report.running(), report.waiting(), report.cache_tokens()), (Some(7), Some(2), Some(480)));
    assert_eq!(report.ranks.len(), 2);
    assert_eq!((report.ranks[&0].waiting, report.ranks[&1].waiting), (None, Some(2)));
    assert!((report.cache_use().unwrap() - 0.4).abs() < 1e-9);
    assert_eq!((report.ranks[&0].sleeping, report.sleeping()), (Some(true), Some(false)));
    // Tensor-parallel ranks all tell the same.
    let report = of(
        "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 5\nsglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 5\n\
                     sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"2\"} 1\n",
    );
    assert_eq!(report.running(), Some(6));
}

#[test]
fn unknown_is_not_zero() {
    let report = of("vllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc 40\nvllm:num_requests_running -1\n\
                     vllm:cache_config_info{block_size=\"None\",num_gpu_blocks=\"0\",enable_prefix_caching=\"None\"} 1.0\n");
    assert_eq!((report.waiting(), report.cache_use(), report.running()), (None, None, None));
    assert_eq!((report.cache_tokens(), report.block_size(), report.prefix_caching()), (None, None, None));
    for page in ["", "\n\n", "process_start_time_seconds 1", "{\"detail\":\"Not Found\"}", "<html>vllm:x 1</html>"] {
        assert_eq!(EngineReport::of_metrics(page.as_bytes()), None, "{page}");
    }
}

proptest! {
    #[test]
    fn no_page_is_its_end(cut in 0usize..5_000, at in 0usize..5_000, noise in prop::collection::vec(any::<u8>(), 0..40)) {
        for name in ["vllm-0.32.0", "sglang-0.5.23", "llamacpp-2026.10.11549"] {
            let mut page = recorded(name);
            let at = at.min(page.len());
            page.splice(at..at, noise.iter().copied());
            page.truncate(cut);
            let report = EngineReport::of_metrics(&page).unwrap_or_default();
            prop_assert!(report.ranks.len() <= page.len());
            prop_assert!(report.cache_use().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }

    #[test]
    fn no_line_is_its_end(line in "(vllm|sglang|llamacpp):[a-z_]{0,20}(\\{[a-z_=\",\\\\}]{0,40})?[ -~]{0,20}", rank in any::<u64>()) {
        let _ = EngineReport::of_metrics(line.as_bytes());
        let page = format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1e300");
        prop_assert_eq!(of(&page).running(), Some(u32::MAX));
        prop_assert!(of(&page).ranks.keys().all(|&rank| rank < RANKS));
    }
}
