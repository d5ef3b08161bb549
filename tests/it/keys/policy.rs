//! `pools[].policy`: who is chosen.
use super::*;

checks! {
    short_form: "pools[].policy";
    kind: "pools[].policy.type";
    header: "pools[].policy.header";
    fallback: "pools[].policy.fallback";
    load_bound: "pools[].policy.max_load_ratio", "pools[].policy.min_load_gap";
}

/// How four requests without a key are shared out while one stream is open.
async fn beside_a_stream(engines: &[Upstream], policy: &str) -> Vec<usize> {
    let proxy = Proxy::start(&one_pool(engines, policy)).await;
    let (_open, _) = held(&proxy, |request| request).await;
    shares(&proxy, plain(4, |_, request| request)).await.into_values().collect()
}

pub async fn short_form() {
    let engines = two().await;
    assert_eq!(beside_a_stream(&engines, "policy: round_robin").await, [2, 2], "in turn, whatever is open");
    assert_eq!(beside_a_stream(&engines, "").await, [4], "by default to the less loaded of the two");
}

pub async fn kind() {
    let engines = two().await;
    let (with, without) = pair(&one_pool(&engines, "policy: { type: session_sticky }"), &one_pool(&engines, "")).await;
    let session = plain(8, |_, request| request.header("x-session-id", "a-session-of-its-own"));
    assert_eq!(shares(&with, session.clone()).await.len(), 1, "one session, one replica");
    assert_eq!(shares(&without, session).await.len(), 2, "by default there are no sessions");
}

pub async fn header() {
    let engines = two().await;
    let hash = |header: &str| one_pool(&engines, &format!("policy: {{ type: header_hash, header: {header} }}"));
    let (with, other) = pair(&hash("x-user-id"), &hash("x-other")).await;
    let requests =
        plain(16, |n, request| request.header("x-user-id", "the-same").header("x-other", &format!("other-{n}")));
    assert_eq!(shares(&with, requests.clone()).await.len(), 1);
    assert_eq!(shares(&other, requests).await.len(), 2);
}

pub async fn fallback() {
    let engines = two().await;
    let sticky = |fallback: &str| format!("policy: {{ type: session_sticky{fallback} }}");
    assert_eq!(beside_a_stream(&engines, &sticky(", fallback: round_robin")).await, [2, 2]);
    assert_eq!(beside_a_stream(&engines, &sticky("")).await, [4], "by default to the less loaded of the two");
}

/// On how many replicas six open streams of one key are.
async fn spread(engines: &[Upstream], bound: &str) -> usize {
    let policy = format!("policy: {{ type: header_hash, header: x-user-id{bound} }}");
    let proxy = Proxy::start(&one_pool(engines, &policy)).await;
    let mut open = Vec::new();
    let mut names = BTreeSet::new();
    for _ in 0..6 {
        let (client, name) = held(&proxy, |request| request.header("x-user-id", "the-same")).await;
        open.push(client);
        names.insert(name);
    }
    names.len()
}

pub async fn load_bound() {
    let engines = two().await;
    assert_eq!(spread(&engines, "").await, 1, "by default a key stays until it is eight requests above the mean");
    assert_eq!(spread(&engines, ", min_load_gap: 1").await, 2, "the gap is reached");
    // All of it on one of two is twice the mean.
    assert_eq!(spread(&engines, ", min_load_gap: 1, max_load_ratio: 3").await, 1, "the gap is, the ratio is not");
}
