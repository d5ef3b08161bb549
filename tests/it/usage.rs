//! What answers report of their usage is counted and logged as the engine has it, in every API; what they don't is unknown.
use serde_json::{Value, json};

use crate::support::*;

/// APIs that generate, and what a stream has to be asked for.
const GENERATES: [&str; 5] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"];

/// A request with a prompt of a few blocks that begins like no other.
fn asks(endpoint: &Endpoint, stream: bool, include_usage: bool) -> Value {
    let text = endpoint.body("m", stream).to_string();
    let prompt = format!("{} {stream} {}", endpoint.path, letters(2_000, 7));
    let mut body: Value = serde_json::from_str(&text.replace("hello", &prompt)).expect("JSON");
    if stream && include_usage && endpoint.path.ends_with("completions") {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// A request's line in the access log.
async fn logged(proxy: &Proxy, id: &str) -> Value {
    let line = || {
        let lines = proxy.process.output().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        lines.into_iter().find(|line| line["request_id"] == id)
    };
    wait_until("its line", PATIENCE, || async { line().is_some() }).await;
    line().expect("it was there")
}

/// Prompt tokens of the engine so far, and of these the cached ones.
async fn truth(mock: &Mock) -> [u64; 2] {
    let stats = mock.stats().await;
    ["prompt_tokens", "cached_tokens"].map(|name| stats["engine"][name].as_u64().expect("a number"))
}

async fn reports(proxy: &Proxy, report: &str) -> f64 {
    proxy.metric(&format!("warmroute_usage_reports_total{{pool=\"m\",replica=\"r0\",report=\"{report}\"}}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_tokens_are_counted_and_logged_as_the_engine_has_them() {
    for engine in ["vllm", "sglang"] {
        let mock =
            Mock::start(&["--model", "m", "--engine", engine, "--prefill-tps", "1000000", "--decode-tps", "100000"]);
        let pool = Pool::model("m").at(mock.address()).with("policy: { type: cache_aware, min_match_tokens: 64 }");
        let proxy = Proxy::start(&Config::new(pool).with("logging: { format: json }")).await;
        let mut answers = 0;
        for endpoint in ENDPOINTS.iter().filter(|endpoint| GENERATES.contains(&endpoint.path)) {
            for (stream, again) in [(false, false), (false, true), (true, false), (true, true)] {
                let id = format!("{stream}-{again}-{}", endpoint.path.replace('/', "-"));
                let [prompt_before, cached_before] = truth(&mock).await;
                let request = Request::post(endpoint.path, &asks(endpoint, stream, true));
                let answer = proxy.exchange(&request.header("x-request-id", &id)).await;
                assert_eq!(answer.status(), 200, "{id}: {}", answer.text());
                let line = logged(&proxy, &id).await;
                let [prompt, cached] = truth(&mock).await;
                assert_eq!(line["cached_tokens"], cached - cached_before, "{engine} {id}: {line}");
                assert!(!again || cached - cached_before > 400, "{engine} {id}: {line}");
                assert!(prompt - prompt_before > 400, "{engine} {id}");
                answers += 1;
            }
        }
        let [prompt, cached] = truth(&mock).await;
        assert_eq!(proxy.metric("warmroute_reported_prompt_tokens_total").await, prompt as f64);
        assert_eq!(proxy.metric("warmroute_reported_cached_tokens_total").await, cached as f64);
        assert_eq!([reports(&proxy, "cached_tokens").await, reports(&proxy, "none").await], [f64::from(answers), 0.0]);
        // Every one of these was predicted.
        let error = |direction| format!("warmroute_prediction_error_tokens_total{{direction=\"{direction}\"}}");
        let (over, under) = (proxy.metric(&error("over")).await, proxy.metric(&error("under")).await);
        let predicted = proxy.metric("warmroute_predicted_cached_tokens_total").await;
        assert_eq!(predicted - over + under, cached as f64, "{predicted} − {over} + {under}");
        let right = proxy.metric("warmroute_predictions_total{result=\"right\"}").await;
        assert_eq!(right, f64::from(answers), "{predicted} − {over} + {under}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_reported_is_unknown_and_counted_apart() {
    let mock = Mock::fast();
    let pool = Pool::model("m").at(mock.address()).with("policy: { type: cache_aware, min_match_tokens: 64 }");
    let proxy = Proxy::start(&Config::new(pool).with("logging: { format: json }")).await;
    let chat = &ENDPOINTS[0];
    for id in ["first", "second"] {
        let request = Request::post(chat.path, &asks(chat, true, false)).header("x-request-id", id);
        assert_eq!(proxy.exchange(&request).await.status(), 200);
        let line = logged(&proxy, id).await;
        assert!(line.get("cached_tokens").is_none() && line["prompt_tokens"].as_u64() > Some(400), "{line}");
    }
    assert!(truth(&mock).await[1] > 400, "the engine knows better");
    assert_eq!([reports(&proxy, "none").await, reports(&proxy, "cached_tokens").await], [2.0, 0.0]);
    for family in ["reported_prompt_tokens", "reported_cached_tokens", "predicted_cached_tokens", "predictions"] {
        assert_eq!(proxy.metric(&format!("warmroute_{family}_total")).await, 0.0, "{family}");
    }
}

/// What the router has no part in making: errors, what it can't read, what generates nothing.
#[tokio::test(flavor = "multi_thread")]
async fn only_whole_answers_that_generate_count() {
    let usage = br#"{"usage":{"prompt_tokens":50,"prompt_tokens_details":{"cached_tokens":48}}}"#.to_vec();
    let gzip: &[(&str, &str)] = &[("content-encoding", "gzip")];
    for (status, headers, path, expected) in [
        (200, &[][..], "/v1/chat/completions", [1.0, 0.0]),
        (200, gzip, "/v1/chat/completions", [0.0, 1.0]),
        (404, &[], "/v1/chat/completions", [0.0, 0.0]),
        (200, &[], "/v1/embeddings", [0.0, 0.0]),
    ] {
        let upstream = Upstream::fixed(status, headers, usage.clone()).await;
        let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
        let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.path == path).expect("it is known");
        let answer = proxy.exchange(&endpoint.request(false)).await;
        assert_eq!((answer.status(), &answer.body[..]), (status, &usage[..]));
        proxy.load_is_zero().await;
        assert_eq!(
            [reports(&proxy, "cached_tokens").await, reports(&proxy, "none").await],
            expected,
            "{status} {path}"
        );
        assert_eq!(proxy.metric("warmroute_reported_cached_tokens_total").await, 48.0 * expected[0]);
    }
}

/// A cache of 5,000 tokens that is believed to be twenty times as large: each conversation is forgotten before its turn
/// comes again, and the router stops expecting it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_smaller_than_configured_is_found_out() {
    let mock =
        Mock::start(&["--model", "m", "--cache-tokens", "5000", "--prefill-tps", "1000000", "--decode-tps", "100000"]);
    let replica = format!("{{ id: r0, url: \"http://{}\", cache_tokens: 100000 }}", mock.address());
    let pool = Pool::model("m").replica(&replica).with("policy: { type: cache_aware, min_match_tokens: 64 }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    assert_eq!(proxy.metric("warmroute_index_capacity_blocks").await, 6_250.0);
    let prompts: Vec<_> = (0..10).map(|seed| letters(4_000, seed)).collect();
    let mut client = proxy.client().await;
    let over = || proxy.metric("warmroute_prediction_error_tokens_total{direction=\"over\"}");
    let mut after = [0.0; 2];
    for after in &mut after {
        for turn in 0..200 {
            let body = json!({"model": "m", "prompt": prompts[turn % prompts.len()], "max_tokens": 1});
            assert_eq!(client.exchange(&Request::post("/v1/completions", &body)).await.status(), 200);
        }
        *after = over().await;
    }
    let capacity = proxy.metric("warmroute_index_capacity_blocks").await;
    assert!(capacity < 1_000.0, "{capacity} blocks are assumed");
    let [first, second] = [after[0], after[1] - after[0]];
    assert!(first > 50_000.0 && second < first / 5.0, "{first} tokens over, and {second} in a second round");
}
