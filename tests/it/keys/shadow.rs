//! `pools[].shadow`: who would have been chosen.
use super::*;
use crate::resilience::shadow::agreement;

checks! {
    short_form: "pools[].shadow";
    kind: "pools[].shadow.type";
    header: "pools[].shadow.header";
    fallback: "pools[].shadow.fallback";
    load_bound: "pools[].shadow.max_load_ratio", "pools[].shadow.min_load_gap";
}

/// How often the shadow agrees and disagrees with the policy, over so many requests.
async fn agree(policy: &str, shadow: &str, requests: Vec<Request>) -> (usize, usize) {
    let engines = two().await;
    let pool = engines.iter().fold(Pool::model("m").with(policy), |pool, engine| pool.at(engine.address()));
    let proxy = Proxy::start(&Config::new(if shadow.is_empty() { pool } else { pool.with(shadow) })).await;
    shares(&proxy, requests).await;
    agreement(&proxy).await
}

fn of_one_session(count: usize) -> Vec<Request> {
    plain(count, |n, request| {
        let request = request.header("x-session-id", "a-session-of-its-own");
        request.header("x-user-id", "the-same").header("x-other", &format!("other-{n}"))
    })
}

/// Whether they always agree or never do: each stays where it is, or both take turns.
fn in_step((same, other): (usize, usize)) -> bool {
    same == 0 || other == 0
}

pub async fn short_form() {
    let with = agree("policy: round_robin", "shadow: least_load", plain(6, |_, request| request)).await;
    assert_eq!(with.0 + with.1, 6);
    assert_eq!(agree("policy: round_robin", "", plain(6, |_, request| request)).await, (0, 0));
}

pub async fn kind() {
    let turns = agree("policy: round_robin", "shadow: { type: round_robin }", of_one_session(20)).await;
    assert!(in_step(turns), "{turns:?}");
    let sticky = agree("policy: round_robin", "shadow: { type: session_sticky }", of_one_session(20)).await;
    assert_eq!(sticky, (10, 10));
}

pub async fn header() {
    let hash = |header: &str| format!("shadow: {{ type: header_hash, header: {header} }}");
    let same = agree("policy: session_sticky", &hash("x-user-id"), of_one_session(30)).await;
    let other = agree("policy: session_sticky", &hash("x-other"), of_one_session(30)).await;
    assert!(in_step(same) && !in_step(other), "{same:?} {other:?}");
}

pub async fn fallback() {
    let sticky = |fallback: &str| format!("shadow: {{ type: session_sticky{fallback} }}");
    let requests = || plain(30, |_, request| request);
    let with = agree("policy: round_robin", &sticky(", fallback: random"), requests()).await;
    let without = agree("policy: round_robin", &sticky(""), requests()).await;
    assert!(!in_step(with) && in_step(without), "{with:?} {without:?}: of two idle ones, the less used is next");
}

/// How often the shadow leaves a replica on which six streams of one key are, because of its load.
async fn leaves(bound: &str) -> usize {
    let engines = two().await;
    let hash = "type: header_hash, header: x-user-id";
    let pool = engines.iter().fold(Pool::model("m"), |pool, engine| pool.at(engine.address()));
    let pool = pool.with(&format!("policy: {{ {hash} }}")).with(&format!("shadow: {{ {hash}{bound} }}"));
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut open = Vec::new();
    for _ in 0..6 {
        open.push(held(&proxy, |request| request.header("x-user-id", "the-same")).await);
    }
    agreement(&proxy).await.1
}

pub async fn load_bound() {
    assert_eq!(leaves("").await, 0, "by default a key stays until it is eight requests above the mean");
    assert!(leaves(", min_load_gap: 1").await > 0, "the gap is reached");
    assert_eq!(leaves(", min_load_gap: 1, max_load_ratio: 3").await, 0, "the gap is, the ratio is not");
}
