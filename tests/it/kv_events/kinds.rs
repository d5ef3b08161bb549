//! Whose blocks they are, what they are made of beside tokens, and how many of them there may be.
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// An event of two blocks of this prompt with other fields.
fn with(prompt: u32, fields: Value) -> Value {
    let mut event = whole(prompt, 2);
    let fields = fields.as_object().expect("fields").clone();
    event.as_object_mut().expect("an event").extend(fields);
    event
}

/// A completion of two blocks of this prompt, with other fields.
fn asking(prompt: u32, fields: Value) -> Value {
    let mut asked = body(prompt, 2);
    asked.as_object_mut().expect("a body").extend(fields.as_object().expect("fields").clone());
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_an_adapter_or_a_salt_or_an_image_are_nobody_elses() {
    let mut publisher = Publisher::start(100).await;
    let mocks = [Mock::fast()];
    let proxy = Proxy::start(&Config::new(pool(&mocks, &[publisher.keys(true)]).with("adapters: [sql, chat]"))).await;
    until_state(&proxy, "r0", "live").await;
    publisher
        .publish(json!([
            with(1, json!({ "lora_id": 1, "lora_name": "sql", "extra_keys": [["sql"], ["sql"]] })),
            // Whose number that is, nobody says.
            with(2, json!({ "lora_id": 1 })),
            with(3, json!({ "extra_keys": [["tenant-a"], null] })),
            with(4, json!({ "extra_keys": [null, [["5f2a", 3]]] })),
            with(5, json!({ "lora_id": 1, "lora_name": "sql", "extra_keys": [["sql", "tenant-a"], ["sql"]] })),
            whole(6, 2),
        ]))
        .await;
    until_matched(&proxy, "r0", &body(6, 2), 32).await;
    let (sql, chat) = (json!({ "model": "sql" }), json!({ "model": "chat" }));
    let tenant = |name: &str| json!({ "cache_salt": name });
    let both = json!({ "model": "sql", "cache_salt": "tenant-a" });
    for (prompt, asked, tokens) in [
        (1, &sql, 32),
        (1, &chat, 0),
        (1, &json!({}), 0),
        (1, &both, 0),
        (2, &sql, 0),
        (2, &json!({}), 0),
        (3, &tenant("tenant-a"), 32),
        (3, &tenant("tenant-b"), 0),
        (3, &json!({}), 0),
        // Up to the image it is text like any other.
        (4, &json!({}), 16),
        (5, &both, 32),
        (5, &sql, 0),
        (5, &tenant("tenant-a"), 0),
        (6, &sql, 0),
        (6, &tenant("tenant-a"), 0),
    ] {
        assert_eq!(matched(&proxy, "r0", &asking(prompt, asked.clone())).await, tokens, "{prompt} {asked}");
    }
    assert_eq!(skipped(&proxy, "r0", "adapter_number").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rank_is_credited_with_what_its_own_port_says() {
    let [mut first, mut second] = Publisher::of_two_ranks().await;
    let mocks = [Mock::fast()];
    let keys = format!("ranks: 2, {}", first.keys(false));
    let proxy = Proxy::start(&Config::new(pool(&mocks, &[keys]))).await;
    publish_until_heard_of("r0@rank1", &mut second, &proxy, 1).await;
    assert_eq!(matched(&proxy, "r0@rank0", &body(1, 2)).await, 0);
    publish_until_heard_of("r0@rank0", &mut first, &proxy, 2).await;
    assert_eq!(matched(&proxy, "r0@rank1", &body(2, 2)).await, 0);
    assert_eq!(matched(&proxy, "r0@rank1", &body(1, 2)).await, 32);
    // Clearing one leaves the other alone.
    first.publish(json!([cleared()])).await;
    until_matched(&proxy, "r0@rank0", &body(2, 2), 0).await;
    assert_eq!(matched(&proxy, "r0@rank1", &body(1, 2)).await, 32);
    // A socket that brings another rank's is not believed.
    second.rank = 0;
    second.publish(json!([whole(3, 2)])).await;
    second.rank = 1;
    second.publish(json!([whole(4, 2)])).await;
    until_matched(&proxy, "r0@rank1", &body(4, 2), 32).await;
    for rank in ["r0@rank0", "r0@rank1"] {
        assert_eq!(matched(&proxy, rank, &body(3, 2)).await, 0, "{rank}");
    }
    assert_eq!(skipped(&proxy, "r0@rank1", "other_rank").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_over_the_budget_are_left_out_and_counted() {
    const BLOCKS: u32 = 40_000;
    let mut publisher = Publisher::start(100).await;
    let mocks = [Mock::fast()];
    let proxy = Proxy::start(&Config::new(pool(&mocks, &[publisher.keys(true)]).with("index: { size: 1MiB }"))).await;
    until_state(&proxy, "r0", "live").await;
    publisher.publish(json!([whole(1, 2)])).await;
    until_matched(&proxy, "r0", &body(1, 2), 32).await;
    let many: Vec<u64> = (1..=u64::from(BLOCKS)).collect();
    // More than is left, in one event; what comes before and after it in the batch has room.
    publisher.publish(json!([whole(2, 2), stored(&many, None, &tokens(9, BLOCKS)), whole(3, 2)])).await;
    until_matched(&proxy, "r0", &body(3, 2), 32).await;
    assert_eq!(skipped(&proxy, "r0", "over_budget").await, f64::from(BLOCKS));
    assert_eq!(matched(&proxy, "r0", &body(9, 2)).await, 0);
    for prompt in [1, 2] {
        assert_eq!(matched(&proxy, "r0", &body(prompt, 2)).await, 32, "{prompt}");
    }
    // Its removal is nothing, and the socket goes on.
    publisher.publish(json!([removed(&many), removed(&hashes(1, 2)), whole(4, 2)])).await;
    until_matched(&proxy, "r0", &body(4, 2), 32).await;
    assert_eq!(matched(&proxy, "r0", &body(1, 2)).await, 0);
    until_state(&proxy, "r0", "live").await;
}

/// Its address answered all the time, and no connection of the publisher's was closed.
#[tokio::test(flavor = "multi_thread")]
async fn another_start_of_the_process_ends_what_its_events_said() {
    let started = Arc::new(AtomicU32::new(100));
    let says = started.clone();
    let engine = Upstream::start(move |request, mut wire| {
        let started = says.load(Ordering::Relaxed);
        async move {
            let page = format!("vllm:num_requests_waiting 0.0\nprocess_start_time_seconds {started}.0\n");
            let (status, body) =
                if request.target() == "/metrics" { (200, page.as_bytes()) } else { (200, &b"{}"[..]) };
            wire.reply(status, &[("content-type", "application/json")], body).await.ok()?;
            Some(wire)
        }
    })
    .await;
    let mut publisher = Publisher::start(0).await;
    let pool = Pool::model("m").with("policy: cache_aware").with(&tokenizer()).with("engine_metrics: 100ms");
    let keys = publisher.keys(false);
    let pool = pool.replica(&format!("{{ id: r0, url: \"http://{}\", {keys} }}", engine.address()));
    let proxy = Proxy::start(&Config::new(pool)).await;
    let asked = "warmroute_engine_scrapes_total{replica=\"r0\",result=\"ok\"}";
    wait_until("its start is known", PATIENCE, || async { proxy.metric(asked).await >= 1.0 }).await;
    publish_until_heard(&mut publisher, &proxy, 1).await;

    started.store(200, Ordering::Relaxed);
    until_matched(&proxy, "r0", &body(1, 2), 0).await;
    publish_until_heard(&mut publisher, &proxy, 2).await;
    assert_eq!(matched(&proxy, "r0", &body(1, 2)).await, 0);
}
