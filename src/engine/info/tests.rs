use proptest::prelude::*;

use super::*;

fn recorded(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/fixtures/engine/{name}.json", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn lists_of_models_name_the_engine() {
    for (name, engine, length) in [
        ("vllm-0.32.0.models", Engine::Vllm, Some(1_024)),
        ("sglang-0.5.23.models", Engine::Sglang, Some(1_024)),
        ("llamacpp-2026.10.11549.models", Engine::Llamacpp, None),
    ] {
        let list = models(&recorded(name)).unwrap();
        assert_eq!((list.len(), &*list[0].id), (1, "tiny-qwen3"), "{name}");
        assert_eq!((list[0].engine(), list[0].max_model_len), (Some(engine), length), "{name}");
    }
    let odd = models(br#"{"data":[{"id":"m","owned_by":7,"max_model_len":"x"},{"id":"n","owned_by":"me"}]}"#).unwrap();
    assert_eq!((odd[0].engine(), odd[1].engine()), (None, None));
    assert_eq!(models(br#"{"detail":"Not Found"}"#), None);
}

#[test]
fn sglang_tells_of_its_cache_reports_and_events() {
    let info = server_info(&recorded("sglang-0.5.23.server_info")).unwrap();
    assert_eq!(
        (info.version.as_deref(), info.max_total_num_tokens, info.page_size),
        (Some("0.5.23"), Some(2_048), Some(16))
    );
    assert_eq!((info.enable_cache_report, info.disable_radix_cache), (Some(true), Some(false)));
    let events = info.kv_events.unwrap();
    assert_eq!((&*events.endpoint_host, events.endpoint_port_base, events.dp_size), ("127.0.0.1", 18_217, 1));
    assert_eq!((&*events.topic, events.replay_endpoint_port_base), ("kv-events", Some(18_218)));
    // Before 0.5.23, and without events.
    let info = server_info(br#"{"page_size":1,"kv_events":null,"enable_cache_report":"odd"}"#).unwrap();
    assert_eq!((info.page_size, info.kv_events, info.enable_cache_report), (Some(1), None, None));
}

#[test]
fn loads_have_a_rank_each() {
    let body = br#"{"version":"0.5.23","dp_rank_count":2,"loads":[
        {"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":0,"token_usage":0.5,"max_total_num_tokens":1000},
        {"dp_rank":1,"num_running_reqs":"?","num_waiting_reqs":2,"token_usage":70}]}"#;
    let report = loads(body).unwrap();
    assert_eq!((report.engine, report.running(), report.waiting()), (Some(Engine::Sglang), Some(3), Some(2)));
    assert_eq!((report.cache_use(), report.cache_tokens()), (Some(0.5), Some(1_000)));
    assert_eq!(loads(b"[]"), None);
}

#[test]
fn small_answers() {
    assert_eq!(version(br#"{"version":"0.32.0"}"#).as_deref(), Some("0.32.0"));
    let sources = kv_event_sources(&recorded("vllm-0.32.0.kv_event_sources")).unwrap();
    assert_eq!((sources.len(), &*sources[&0].endpoint), (1, "tcp://[::ffff:127.0.0.1]:5557"));
    assert_eq!(kv_event_sources(br#"{"detail":"Not Found"}"#), None);
    let props = props(&recorded("llamacpp-2026.10.11549.props")).unwrap();
    assert_eq!(
        (props.total_slots, props.context(), props.build_info.as_deref()),
        (Some(2), Some(4_096), Some("b0-unknown"))
    );
    assert!(props.chat_template.is_some_and(|template| template.contains("<|im_start|>")));
    assert_eq!(tokenized(br#"{"count":2,"tokens":[1,2],"token_strs":null}"#), Some(vec![1, 2]));
}

proptest! {
    #[test]
    fn nothing_is_their_end(cut in 0usize..3_000, at in 0usize..3_000, noise in prop::collection::vec(any::<u8>(), 0..8)) {
        for name in ["sglang-0.5.23.server_info", "llamacpp-2026.10.11549.props", "vllm-0.32.0.models"] {
            let mut body = recorded(name);
            let at = at.min(body.len());
            body.splice(at..at, noise.iter().copied());
            body.truncate(cut);
            let _ = (server_info(&body), props(&body), models(&body), loads(&body), kv_event_sources(&body));
        }
    }
}
