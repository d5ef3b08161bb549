//! `limits`: what passes by default is refused.
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::encoding::{compressed, gzip};

checks! {
    of_a_request: "limits", "limits.body", "limits.head", "limits.headers", "limits.uri";
    decode_ratio: "limits.decode_ratio";
    connections: "limits.connections";
    stored_responses: "limits.stored_responses";
}

pub async fn of_a_request() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let limits = "limits: { body: 2KiB, head: 8KiB, headers: 20, uri: 256B }";
    let (with, without) = pair(&without.clone().with(limits), &without).await;
    let mut long = chat(false, 1);
    long.target += &format!("?x={}", "a".repeat(1_000));
    let many = (0..30).fold(chat(false, 1), |request, n| request.header(&format!("x-{n}"), "a"));
    let wide = chat(false, 1).header("x-wide", &"a".repeat(20 << 10));
    for (key, request, status) in
        [("body", sized_chat(4_096, false), 413), ("head", wide, 431), ("headers", many, 431), ("uri", long, 414)]
    {
        assert_eq!(with.exchange(&request).await.status(), status, "limits.{key}");
        assert_eq!(without.exchange(&request).await.status(), 200, "limits.{key} by default");
    }
    assert_eq!(with.exchange(&chat(false, 1)).await.status(), 200, "what is under each of them passes");
}

pub async fn decode_ratio() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with("limits: { decode_ratio: 10 }"), &without).await;
    // Under 64 KiB any ratio passes.
    let plain = json!({"model": "m", "noise": letters(2_000, 1), "blank": " ".repeat(100_000)}).to_string();
    let packed = gzip(plain.as_bytes());
    let ratio = plain.len() / packed.len();
    assert!((20..150).contains(&ratio), "between the two limits: {ratio}");
    assert_eq!(with.exchange(&compressed("gzip", packed.clone())).await.status(), 413);
    assert_eq!(without.exchange(&compressed("gzip", packed)).await.status(), 200);
}

pub async fn connections() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with("limits: { connections: 1 }"), &without).await;
    let first = async |proxy: &Proxy| {
        let mut client = proxy.client().await;
        assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200);
        client
    };
    let (held, _also_held) = (first(&with).await, first(&without).await);
    let mut second = with.client().await;
    second.send(&chat(false, 1)).await;
    // As long as it takes to serve twenty others, nobody listens to the second client.
    let others = async {
        for _ in 0..20 {
            who(&without, &chat(false, 1)).await;
        }
    };
    sooner("the default", others, second.try_head()).await;
    drop(held);
    assert_eq!(second.head().await.status(), 200, "its turn has come");
}

pub async fn stored_responses() {
    let made = AtomicUsize::new(0);
    let engine = Upstream::start(move |_, mut wire| {
        let body = json!({"id": format!("resp_{}", made.fetch_add(1, Ordering::SeqCst)), "object": "response"});
        async move {
            let json = [("Content-Type", "application/json")];
            wire.reply(200, &json, body.to_string().as_bytes()).await.ok()?;
            Some(wire)
        }
    })
    .await;
    let engines = [engine];
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with("limits: { stored_responses: 1 }"), &without).await;
    for (proxy, kept) in [(with, 1.0), (without, 3.0)] {
        for _ in 0..3 {
            let answer = proxy.exchange(&Request::post("/v1/responses", &json!({"model": "m", "input": "x"}))).await;
            assert_eq!(answer.status(), 200);
        }
        assert_eq!(proxy.metric("warmroute_stored_responses").await, kept);
    }
}
