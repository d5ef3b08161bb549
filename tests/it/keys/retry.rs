//! `pools[].retry`: what is replayed, and how often.
use super::*;
use crate::resilience::{Engine, drive, in_turn};

checks! {
    replay: "pools[].retry", "pools[].retry.replay";
    on: "pools[].retry.on";
    max: "pools[].retry.max";
    budget: "pools[].retry.budget";
    floor: "pools[].retry.floor";
}

/// How many of so many requests succeed, in turn on engines with these answers, none of which is left out.
async fn good(answers: &[u16], requests: usize, retry: &str) -> usize {
    let engines = futures_util::future::join_all(answers.iter().map(|answer| Engine::answering(*answer))).await;
    let retry = format!("retry: {{ {retry} }}");
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &[&retry, "health: { max_ejected: 0% }"]))).await;
    drive(&proxy, requests).await
}

pub async fn replay() {
    assert_eq!(good(&[502, 200], 4, "replay: true").await, 4);
    assert_eq!(good(&[502, 200], 4, "floor: 3").await, 2, "by default nothing is");
}

pub async fn on() {
    assert_eq!(good(&[502, 200], 4, "replay: true").await, 4);
    assert_eq!(good(&[502, 200], 4, "replay: true, on: [reset, 503]").await, 2);
}

pub async fn max() {
    assert_eq!(good(&[502, 502, 200], 6, "replay: true, floor: 100, max: 2").await, 6);
    assert!(good(&[502, 502, 200], 6, "replay: true, floor: 100").await < 6, "by default once");
}

pub async fn budget() {
    assert_eq!(good(&[502, 200], 40, "replay: true, budget: 100%").await, 40);
    assert!(good(&[502, 200], 40, "replay: true").await <= 20 + 8, "by default a fifth of forty");
}

pub async fn floor() {
    assert_eq!(good(&[502, 200], 20, "replay: true, floor: 100").await, 20);
    assert!(
        good(&[502, 200], 20, "replay: true").await <= 10 + 4,
        "by default a fifth of twenty is more than the floor"
    );
}
