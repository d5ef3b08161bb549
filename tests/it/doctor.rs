//! `warmroute check --live`, and the same findings in the log: what engines are set up for, and what is missing.
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use warmroute::api;
use warmroute::tokens::{Content, Template, Tokenizer};

use crate::support::*;

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer");

/// Exit code, and what it printed.
async fn check(config: &Config, args: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("warmroute.yaml");
    std::fs::write(&path, config.yaml()).unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_warmroute"))
        .args(["check", "--live", "--config"])
        .arg(&path)
        .args(args)
        .output()
        .await
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// What each replica told.
async fn told(config: &Config, args: &[&str]) -> (i32, Vec<Value>) {
    let (code, text) = check(config, &[args, &["--json"]].concat()).await;
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (code, rows.into_iter().map(|row| row["told"].clone()).collect())
}

fn missing(told: &Value) -> Vec<&str> {
    told["findings"].as_array().unwrap().iter().map(|finding| finding["missing"].as_str().unwrap()).collect()
}

fn recorded(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engine").join(name)).unwrap()
}

/// An engine with these answers; to all else there is no such path.
async fn engine(answers: Vec<(&'static str, Vec<u8>)>) -> Upstream {
    let answers = Arc::new(answers);
    Upstream::start(move |request, mut wire| {
        let answers = answers.clone();
        async move {
            match answers.iter().find(|(path, _)| *path == request.target()) {
                Some((_, body)) => wire.reply(200, &[], body).await.ok()?,
                None => wire.reply(404, &[], b"{\"detail\":\"Not Found\"}").await.ok()?,
            }
            Some(wire)
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_tell_what_they_are_and_have() {
    let mock = |engine| Mock::start(&["--model", "m", "--cache-tokens", "32000", "--engine", engine]);
    let mocks = [mock("vllm"), mock("sglang")];
    let config = Config::new(mocks.iter().fold(Pool::model("m"), |pool, mock| pool.at(mock.address())));
    let (code, rows) = told(&config, &[]).await;
    assert_eq!((code, rows.len()), (0, 2));
    for (row, engine, version) in [(&rows[0], "vllm", "0.32.0"), (&rows[1], "sglang", "0.5.23")] {
        assert_eq!((&row["engine"], &row["version"]), (&json!(engine), &json!(version)));
        assert_eq!((&row["models"], &row["prefix_caching"]), (&json!(["m"]), &json!(true)), "{engine}");
        assert_eq!((&row["block_size"], &row["cache_tokens"]), (&json!(16), &json!(32_000)), "{engine}");
        assert_eq!((&row["metrics"], &row["same_template"]), (&json!(true), &json!(null)), "{engine}: no tokenizer");
    }
    assert_eq!((&rows[0]["cached_tokens"], &rows[1]["cached_tokens"]), (&json!(null), &json!(true)));
    assert_eq!((missing(&rows[0]), missing(&rows[1])), (vec![], vec!["no KV events"]));
    assert_eq!(mocks[0].stats().await["engine"]["generated_tokens"], 0, "nothing is generated that was not asked for");
    let (code, rows) = told(&config, &["--generate"]).await;
    assert_eq!((code, &rows[0]["cached_tokens"]), (0, &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_there_or_serves_another_model_is_exit_code_1() {
    let mock = Mock::start(&["--model", "another"]);
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, rows) = told(&Config::new(Pool::model("m").at(mock.address())), &[]).await;
    assert_eq!((code, missing(&rows[0])), (1, vec!["it serves `another`, not `m`"]));
    let (_, rows) = told(&Config::new(Pool::model("m").at(mock.address())), &["--generate"]).await;
    assert_eq!(&rows[0]["cached_tokens"], &json!(true), "asked under the name that it knows");
    let (code, rows) = told(&Config::new(Pool::model("another").at(mock.address()).at(gone)), &[]).await;
    assert_eq!((code, &rows[0]["unreachable"]), (1, &json!(null)));
    assert!(rows[1]["unreachable"].as_str().is_some_and(|cause| cause.contains("refused")), "{}", rows[1]);
    assert_eq!(told(&Config::new(Pool::any().at(mock.address())), &[]).await.0, 0, "any model will do");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_does_not_answer_is_given_up() {
    let hangs = Upstream::start(|_, mut wire| async move {
        wire.gone().await;
        None
    })
    .await;
    let config = Config::new(Pool::model("m").at(hangs.address()));
    let (code, text) = within("an end", PATIENCE, check(&config, &["--timeout", "200ms"])).await;
    assert_eq!(code, 1);
    assert!(text.contains("can't be asked: /v1/models: no answer within 200ms"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_engines_are_understood() {
    let llamacpp = engine(vec![
        ("/v1/models", recorded("llamacpp-2026.10.11549.models.json")),
        ("/metrics", recorded("llamacpp-2026.10.11549.metrics")),
        ("/props", recorded("llamacpp-2026.10.11549.props.json")),
    ])
    .await;
    let sglang = engine(vec![
        ("/v1/models", recorded("sglang-0.5.23.models.json")),
        ("/metrics", recorded("sglang-0.5.23.metrics")),
        ("/server_info", recorded("sglang-0.5.23.server_info.json")),
    ])
    .await;
    let pool = Pool::model("tiny-qwen3").at(llamacpp.address()).at(sglang.address());
    let (code, rows) = told(&Config::new(pool), &[]).await;
    assert_eq!((code, missing(&rows[0]), missing(&rows[1])), (0, vec![], vec![]));
    let llamacpp = &rows[0];
    assert_eq!((&llamacpp["engine"], &llamacpp["version"]), (&json!("llamacpp"), &json!("b0-unknown")));
    assert_eq!((&llamacpp["cached_tokens"], &llamacpp["cache_tokens"]), (&json!(true), &json!(8_192)));
    assert_eq!((&rows[1]["event_sources"], &rows[1]["cached_tokens"]), (&json!(1), &json!(true)));
}

/// The ids that the pool's tokenizer makes of a chat.
fn ids(body: &[u8]) -> Vec<u32> {
    let api::Route::Endpoint(endpoint) = api::find(&http::Method::POST, "/v1/chat/completions") else { panic!() };
    let Content::Chat(chat) = api::prompt(endpoint, body).content else { panic!("no chat") };
    let folder = Path::new(TOKENIZER);
    let text = Template::load(folder).unwrap().unwrap().render(&chat).unwrap().text;
    let mut ids = Vec::new();
    Tokenizer::load(folder).unwrap().encode(&text, chat.add_special_tokens, &mut ids).unwrap();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_told_with_its_cost_and_the_flag_to_set() {
    let page = b"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",enable_prefix_caching=\"False\"} 1\n";
    for (other, expected) in [(0, "as ours"), (1, "another than ours")] {
        let engine = Upstream::start(move |request, mut wire| async move {
            let body = match request.target() {
                "/v1/models" => br#"{"data":[{"id":"m","owned_by":"vllm"}]}"#.to_vec(),
                "/metrics" => page.to_vec(),
                "/version" => br#"{"version":"0.33.0"}"#.to_vec(),
                "/kv_event_sources" => b"{}".to_vec(),
                "/tokenize" => {
                    let mut ids = ids(&request.body);
                    ids[5] += other;
                    json!({ "count": ids.len(), "tokens": ids }).to_string().into_bytes()
                }
                // As without --enable-prompt-tokens-details.
                "/v1/completions" => br#"{"usage":{"prompt_tokens":300,"prompt_tokens_details":null}}"#.to_vec(),
                _ => {
                    wire.reply(404, &[], b"{}").await.ok()?;
                    return Some(wire);
                }
            };
            wire.reply(200, &[], &body).await.ok()?;
            Some(wire)
        })
        .await;
        let pool = Pool::model("m").with("policy: cache_aware").with(&format!("tokenizer: {TOKENIZER}"));
        let (code, text) = check(&Config::new(pool.at(engine.address())), &["--generate"]).await;
        assert_eq!(code, 0, "it costs, and nothing fails: {text}");
        for line in [
            "engine          vllm 0.33.0",
            "prefix caching  off",
            "cache           1600 tokens",
            "cached_tokens   not reported",
            "KV events       off",
            &format!("chat template   {expected}"),
            "set:   `--enable-prefix-caching`",
            "set:   `--enable-prompt-tokens-details`",
            "set:   `--kv-events-config '{\"enable_kv_cache_events\":true,",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert_eq!(text.contains("matches are an illusion"), other == 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_says_it_once_when_the_engine_is_up() {
    let mock = Mock::start(&["--model", "m", "--engine", "sglang"]);
    let pool = Pool::model("m").at(mock.address()).with("engine_metrics: 100ms");
    let proxy = Proxy::start(&Config::new(pool)).await;
    let is = |line: &str, what: &str| line.contains(what) && line.contains("replica=r0");
    proxy.process.says("what is missing", |line| is(line, "found") && line.contains("no KV events")).await;
    let lines = proxy.process.output();
    assert_eq!(lines.iter().filter(|line| is(line, "examined")).count(), 1);
    let heard = "warmroute_engine_scrapes_total{replica=\"r0\",result=\"ok\"}";
    let times = proxy.metric(heard).await;
    wait_until("it is heard often", PATIENCE, || async { proxy.metric(heard).await >= times + 40.0 }).await;
    assert_eq!(proxy.process.output().iter().filter(|line| is(line, "examined")).count(), 1, "nothing has changed");
}
