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

#[tokio::test(flavor = "multi_thread")]
async fn what_policy_and_shadow_would_recompute_is_estimated() {
    const TURNS: usize = 8;
    let engines = [Engine::answering(200).await, Engine::answering(200).await];
    let proxy = Proxy::start(&Config::new(in_turn(&engines, &["shadow: session_sticky"]))).await;
    // One conversation that grows by 2,000 characters a turn.
    let mut messages = Vec::new();
    for turn in 0..TURNS {
        messages.push(serde_json::json!({"role": "user", "content": format!("{turn}").repeat(2_000)}));
        let body = serde_json::json!({"model": "m", "messages": messages}).to_string();
        let request = Request::new("POST", "/v1/chat/completions").header("x-session-id", "session-one").body(body);
        assert_eq!(proxy.exchange(&request).await.status(), 200);
    }
    let prompt = count(&proxy, "warmroute_shadow_prompt_tokens_total{pool=\"m\"}").await;
    let recomputed =
        async |by| count(&proxy, &format!("warmroute_shadow_recomputed_tokens_total{{by=\"{by}\",pool=\"m\"}}")).await;
    let (policy, shadow) = (recomputed("policy").await, recomputed("shadow").await);
    // 500 tokens a turn, 1 + 2 + … + 8 turns long; what the shadow would not find is each turn's own.
    assert!((500 * 36 - 8 * 64..=500 * 36 + 8 * 64).contains(&prompt), "{prompt}");
    assert!((500 * TURNS - 64..=500 * TURNS + TURNS * 64).contains(&shadow), "{shadow}");
    // In turn over two replicas, each finds what it saw two turns ago.
    assert!((2 * 500 * TURNS - 500 - TURNS * 64..=2 * 500 * TURNS).contains(&policy), "{policy}");
}
