//! Answers stay in order: a refusal comes behind the answers before it, and a client that leaves is noticed meanwhile.
use std::sync::Arc;

use tokio::sync::Notify;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_waits_for_the_answers_before_it() {
    let release = Arc::new(Notify::new());
    let upstream = Upstream::start({
        let release = release.clone();
        move |_, mut wire| {
            let release = release.clone();
            async move {
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab").await.ok()?;
                release.notified().await;
                wire.send("cd").await.ok()?;
                Some(wire)
            }
        }
    })
    .await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    let bad = "GET / HTTP/1.1\r\n\r\n";
    client.send_raw(format!("{}{}{bad}{}", good(), good(), good()).as_bytes()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(client.head().await.status(), 200);
        // Half an answer is out, and the guard has long seen what comes behind it.
        client.until(b"ab").await;
        release.notify_one();
        assert_eq!(client.rest().await, b"cd");
    }
    let head = client.head().await;
    assert_eq!((head.status(), head.get("connection")), (400, Some("close")));
    client.rest().await;
    assert!(client.closed().await, "nothing follows");
    assert_eq!(upstream.all().len(), 2, "what follows a refusal is not looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_body_is_answered_in_its_turn() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    let bytes = format!("{}{}{}", good(), chunked("2\r\n{}\n0\r\n\r\n"), good());
    client.send_raw(bytes.as_bytes()).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    client.rest().await;
    let head = client.head().await;
    assert_eq!((head.status(), head.get("connection")), (400, Some("close")));
    client.rest().await;
    assert!(client.closed().await);
    assert_eq!(upstream.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_behind_a_refused_head_frees_the_engine() {
    let gone = Arc::new(Notify::new());
    let upstream = Upstream::start({
        let gone = gone.clone();
        move |_, mut wire| {
            let gone = gone.clone();
            async move {
                wire.gone().await;
                gone.notify_one();
                None
            }
        }
    })
    .await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    client.send_raw(format!("{}GET / HTTP/1.1\r\n\r\n{}", good(), "x".repeat(20_000)).as_bytes()).await.unwrap();
    upstream.only(CHAT).await;
    drop(client);
    within("the engine is freed", RELEASE, gone.notified()).await;
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::start(|request, mut wire| async move {
        wire.reply(200, &[], &request.body).await.ok()?;
        Some(wire)
    })
    .await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    let bytes: String = (0..50).map(|n| post("Content-Length: 12\r\n", &format!("{{\"n\":  {n:04}}}"))).collect();
    client.send_raw(bytes.as_bytes()).await.unwrap();
    for n in 0..50 {
        assert_eq!(client.head().await.status(), 200);
        assert_eq!(client.rest().await, format!("{{\"n\":  {n:04}}}").as_bytes());
    }
}
