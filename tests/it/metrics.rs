//! The table of metric names in `docs/metrics.md` is what `/metrics` shows, and labels never come from clients.
use std::collections::BTreeSet;

use crate::support::*;

/// Names in code spans of the reference.
fn documented() -> BTreeSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let text = std::fs::read_to_string(path).expect("docs/metrics.md");
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("warmroute_")).map(String::from).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_equal_the_reference() {
    let mock = Mock::fast();
    let upstream = Upstream::fixed(500, &[], "{}").await;
    let pool = Pool::model("m").at(mock.address()).at(upstream.address()).with("policy: { type: round_robin }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    for turn in 0..6 {
        proxy.exchange(&chat(turn % 2 == 0, 3)).await;
    }
    let shown: BTreeSet<String> = proxy
        .metrics()
        .await
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .map(String::from)
        .collect();
    let documented = documented();
    let unknown: Vec<_> = shown.difference(&documented).collect();
    assert!(unknown.is_empty(), "not in docs/metrics.md: {unknown:?}");
    assert!(shown.len() > documented.len() / 2, "{} of {} families shown", shown.len(), documented.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_outcome_once() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for _ in 0..7 {
        proxy.exchange(&chat(false, 1)).await;
    }
    let counted = || async { proxy.metric("warmroute_requests_total{pool=\"m\",replica=\"r0\"}").await == 7.0 };
    wait_until("seven requests counted", PATIENCE, counted).await;
    proxy.exchange(&Request::post("/v1/chat/completions", &chat_body("nope", false, 1))).await;
    let rejected =
        || async { proxy.metric("warmroute_requests_rejected_total{cause=\"model_not_found\"}").await == 1.0 };
    wait_until("one rejection counted", PATIENCE, rejected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_string_of_a_client_becomes_a_label() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for turn in 0..50 {
        let mark = format!("PLANTED{turn}");
        let chat = Request::post("/v1/chat/completions", &chat_body(&mark, false, 1));
        proxy.exchange(&chat.header("x-session-id", &format!("session-{mark}")).header("x-request-id", &mark)).await;
        proxy.exchange(&Request::get(&format!("/{mark}"))).await;
        proxy.exchange(&Request::new(&mark, "/v1/models")).await;
    }
    let metrics = proxy.metrics().await;
    assert!(!metrics.contains("PLANTED"), "{metrics}");
    assert!(metrics.lines().count() < 1_500, "{} lines", metrics.lines().count());
}
