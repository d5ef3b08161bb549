//! `logging`: what the router prints.
use super::*;

checks! {
    level: "logging", "logging.level";
    format: "logging.format";
    access: "logging.access";
}

/// All that a router prints over one request, from start to end.
async fn printed(logging: &str) -> Vec<String> {
    let engines = [engine("e0").await];
    let mut proxy = Proxy::start(&one_pool(&engines, "").with(logging)).await;
    // Not JSON: worth a line at `debug`.
    let answer = proxy.exchange(&Request::new("POST", "/v1/chat/completions").body("{")).await;
    assert_eq!(answer.status(), 200);
    proxy.process.terminate();
    assert!(proxy.process.wait(PATIENCE).success());
    proxy.process.output()
}

fn has(lines: &[String], word: &str) -> bool {
    lines.iter().any(|line| line.contains(word))
}

pub async fn level() {
    assert!(has(&printed("logging: { level: debug }").await, "passes unparsed"));
    assert!(has(&printed("logging: { level: \"info,warmroute::proxy=debug\" }").await, "passes unparsed"));
    assert!(!has(&printed("logging: {}").await, "passes unparsed"));
}

pub async fn format() {
    for (logging, json) in [("logging: { format: json }", true), ("logging: {}", false)] {
        let lines = printed(logging).await;
        assert!(has(&lines, "listening"), "{lines:?}");
        for line in &lines {
            assert_eq!(serde_json::from_str::<Value>(line).is_ok(), json, "{logging}: {line}");
        }
    }
}

pub async fn access() {
    assert!(!has(&printed("logging: { access: false }").await, "duration_ms"));
    assert!(has(&printed("logging: {}").await, "duration_ms"));
}
