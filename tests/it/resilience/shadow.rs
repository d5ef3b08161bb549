//! A policy beside the real one is counted and never acts.
use super::*;

/// Decisions on which both agreed, and on which not.
pub async fn agreement(proxy: &Proxy) -> (usize, usize) {
    let each = async |agreement| {
        count(proxy, &format!("warmroute_shadow_decisions_total{{pool=\"m\",agreement=\"{agreement}\"}}")).await
    };
    (each("same").await, each("other").await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_is_counted_and_never_acts() {
    let engines = [Engine::answering(200).await, Engine::answering(200).await];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &["shadow: session_sticky"]))).await;
    for _ in 0..20 {
        assert_eq!(proxy.exchange(&chat(false, 1).header("x-session-id", "session-one")).await.status(), 200);
    }
    assert_eq!((engines[0].seen(), engines[1].seen()), (10, 10), "the policy goes in turn, whatever the shadow thinks");
    assert_eq!(agreement(&proxy).await, (10, 10), "the shadow stays where the session is");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_of_the_same_policy_agrees() {
    let engines = futures_util::future::join_all([200, 200, 200, 200].map(Engine::answering)).await;
    let keys = ["shadow: { type: session_sticky }", "policy: session_sticky"];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &keys))).await;
    for turn in 0..40 {
        let request = chat(false, 1).header("x-session-id", &format!("session-{}", turn % 10));
        assert_eq!(proxy.exchange(&request).await.status(), 200);
    }
    assert_eq!(agreement(&proxy).await, (40, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_takes_no_place_from_anyone() {
    // One place on each: a shadow that reserved would leave none.
    let engines = [Engine::answering(HANGS).await, Engine::answering(HANGS).await];
    let mut pool = Pool::model("m").with("policy: round_robin").with("shadow: least_load");
    for (n, engine) in engines.iter().enumerate() {
        pool = pool.replica(&format!("{{ id: r{n}, url: \"{}\", max_in_flight: 1 }}", engine.upstream.url()));
    }
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut clients = Vec::new();
    for open in 1..=2 {
        let mut client = proxy.client().await;
        client.send(&chat(false, 1)).await;
        clients.push(client);
        proxy.wait_in_flight(open, PATIENCE).await;
    }
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 503, "now both are full");
    let (same, other) = agreement(&proxy).await;
    assert_eq!(same + other, 2, "a refusal is no decision");
    drop(clients);
    proxy.load_is_zero().await;
}
