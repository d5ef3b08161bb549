//! `pools`: which requests are served, and by whom.
use super::*;
use crate::encoding::{compressed, gzip};

checks! {
    model: "pools", "pools[].model";
    models: "pools[].models";
    aliases: "pools[].aliases";
    paths: "pools[].paths";
    request_encoding: "pools[].request_encoding";
    stream_usage: "pools[].stream_usage";
    engine_kind: "pools[].engine";
    tokenizer: "pools[].tokenizer";
}

fn ask(model: &str) -> Request {
    Request::post("/v1/chat/completions", &chat_body(model, false, 1))
}

pub async fn model() {
    let engines = two().await;
    let m = Pool::model("m").at(engines[0].address());
    let n = Pool::model("n").replica(&format!("\"{}\"", engines[1].url()));
    let (with, without) = pair(&Config::new(m.clone()).pool(n), &Config::new(m)).await;
    assert_eq!((who(&with, &ask("m")).await, who(&with, &ask("n")).await), ("e0".into(), "e1".into()));
    assert_eq!(who(&without, &ask("m")).await, "e0");
    assert_eq!(without.exchange(&ask("n")).await.status(), 404);
}

pub async fn models() {
    let engine = engine("e0").await;
    let any = Config::new(Pool::any().at(engine.address()));
    let (with, without) = pair(&any, &Config::new(Pool::model("m").at(engine.address()))).await;
    assert_eq!(with.exchange(&ask("whatever")).await.status(), 200);
    assert_eq!(without.exchange(&ask("whatever")).await.status(), 404);
}

pub async fn aliases() {
    let engines = [engine("e0").await];
    let (with, without) = pair(&one_pool(&engines, "aliases: [default, short]"), &one_pool(&engines, "")).await;
    assert_eq!(with.exchange(&ask("short")).await.status(), 200);
    assert_eq!(
        engines[0].only("/v1/chat/completions").await.body,
        ask("m").body,
        "the engine gets its own name for it"
    );
    assert_eq!(without.exchange(&ask("short")).await.status(), 404);
}

pub async fn paths() {
    let engines = [engine("e0").await];
    let (with, without) = pair(&one_pool(&engines, "paths: [/pooling]"), &one_pool(&engines, "")).await;
    assert_eq!(with.exchange(&Request::get("/pooling")).await.status(), 200);
    assert_eq!(without.exchange(&Request::get("/pooling")).await.status(), 404);
}

pub async fn request_encoding() {
    let engines = [engine("e0").await];
    let (with, without) = pair(&one_pool(&engines, "request_encoding: pass"), &one_pool(&engines, "")).await;
    let (plain, packed) = (chat(false, 1).body, gzip(&chat(false, 1).body));
    for (proxy, got) in [(with, &packed), (without, &plain)] {
        who(&proxy, &compressed("gzip", packed.clone())).await;
        assert_eq!(&engines[0].seen("/v1/chat/completions").pop().unwrap().body, got);
    }
}

pub async fn stream_usage() {
    let (report, end) = ("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5}}\n\n", "data: [DONE]\n\n");
    let stream = [("Content-Type", "text/event-stream")];
    let engines = [Upstream::fixed(200, &stream, [report, end].concat()).await];
    let (with, without) = pair(&one_pool(&engines, "stream_usage: ask"), &one_pool(&engines, "")).await;
    for (proxy, asks, shown) in [(with, true, end.to_owned()), (without, false, [report, end].concat())] {
        assert_eq!(who(&proxy, &chat(true, 1)).await, shown);
        let seen = engines[0].seen("/v1/chat/completions").pop().unwrap().body;
        let seen: Value = serde_json::from_slice(&seen).unwrap();
        assert_eq!(seen["stream_options"]["include_usage"] == true, asks, "{seen}");
    }
}

/// What `check` says to a pool with this key: whether it passes, and its words.
fn judged(engines: &[Upstream], key: &str) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), one_pool(engines, key).yaml()).unwrap();
    let mut check = Process::start(&["check", file.path().to_str().unwrap()], &[]);
    let passes = check.wait(PATIENCE).success();
    let verdict = if passes { "valid:" } else { "1 error" };
    check.line("verdict", |line| line.contains(verdict).then_some(()));
    (passes, check.output().join("\n"))
}

/// So far nobody reads what the engine is; until health and metrics follow its dialect, this is all there is to see.
pub async fn engine_kind() {
    let engines = [engine("e0").await];
    let (with, without) = pair(&one_pool(&engines, "engine: sglang"), &one_pool(&engines, "")).await;
    assert_eq!(in_force(&with, "/pools/0/engine").await, "sglang");
    assert_eq!(in_force(&without, "/pools/0/engine").await, "detect");
    let (passes, said) = judged(&engines, "engine: sgland");
    assert!(!passes && said.contains("pools[0].engine") && said.contains("sglang"), "{said}");
}

pub async fn tokenizer() {
    let engines = [engine("e0").await];
    let folder = tempfile::tempdir().unwrap();
    let (passes, said) = judged(&engines, &format!("tokenizer: {}", folder.path().display()));
    assert!(!passes && said.contains("pools[0].tokenizer") && said.contains("tokenizer.json"), "{said}");
    let key = concat!("tokenizer: ", env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer");
    assert!(judged(&engines, key).0);
    for (key, basis) in [(key, " basis=tokens "), ("tokenizer: none", " basis=text ")] {
        let pool = Pool::model("m").with("policy: cache_aware").with(key);
        let mut proxy = Proxy::start(&Config::new(pool.at(engines[0].address()))).await;
        who(&proxy, &chat(false, 1)).await;
        proxy.process.line("access-log line", |line| line.contains(basis).then_some(()));
    }
}
