//! When a prompt counts as computed, and what its time teaches.
use super::*;

/// What waits on a replica, as `POST /explain` tells it.
async fn queued(proxy: &Proxy, replica: &str) -> f64 {
    let said = explained(proxy, &Conversation::about("another ").body("?")).await;
    let rows = said["candidates"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["replica"] == replica).expect("a row");
    row["queued_seconds"].as_f64().expect("a number")
}

/// Prefills that take a minute, as the operator says.
fn slow(engine: &Upstream) -> Config {
    let pool = Pool::model("m").with("policy: { type: cache_aware, min_match_tokens: 64 }");
    let pool = pool.with("prefill: { overhead: 60s, per_token: 0s }");
    open(pool.replica(&format!("{{ id: r0, url: \"{}\" }}", engine.url())))
}

/// An engine that answers with `first` at once, and goes on with `then` when it is told to.
async fn in_two_steps(first: &'static str, then: &'static str) -> (Upstream, tokio::sync::watch::Sender<bool>) {
    let (go, goes) = tokio::sync::watch::channel(false);
    let engine = Upstream::start(move |_, mut wire| {
        let mut goes = goes.clone();
        async move {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{first}",
                first.len() + then.len()
            );
            wire.send(head.as_bytes()).await.ok()?;
            goes.wait_for(|goes| *goes).await.ok()?;
            wire.send(then.as_bytes()).await.ok()?;
            // The connection stays until the client has all.
            Some(wire)
        }
    })
    .await;
    (engine, go)
}

/// What an engine sends before it has computed anything does not end the prefill; what it sends after that does.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_computed_when_output_comes_and_not_before() {
    const BEGUN: &str = "event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n";
    const ADDED: &str = "event: response.output_item.added\ndata: {}\n\n";
    let input = "of what is there to be told, and to whom? ".repeat(60);
    let responses = json!({"model": "m", "stream": true, "input": input});
    let chat = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": input}]});
    for (path, body, first, then, computed) in [
        ("/v1/responses", &responses, BEGUN, ADDED, false),
        ("/v1/chat/completions", &chat, ": ping\n\n", "data: {}\n\n", false),
        ("/v1/chat/completions", &chat, "data: {}\n\n", "data: [DONE]\n\n", true),
    ] {
        let (engine, go) = in_two_steps(first, then).await;
        let proxy = Proxy::start(&slow(&engine)).await;
        let mut client = proxy.client().await;
        client.send(&Request::post(path, body)).await;
        client.head().await;
        client.until(first.as_bytes()).await;
        let waits = queued(&proxy, "r0").await;
        assert_eq!(waits < 1.0, computed, "{path} after {first:?}: {waits} s");
        go.send_replace(true);
        client.until(then.as_bytes()).await;
        wait_until("nothing waits", PATIENCE, || async { queued(&proxy, "r0").await == 0.0 }).await;
        proxy.load_is_zero().await;
        assert_eq!(pins(&proxy).await, 0);
    }
}

/// First tokens teach how long prefills take; whole answers, whose first byte comes at their end, teach nothing.
#[tokio::test(flavor = "multi_thread")]
async fn only_answers_in_pieces_teach_how_long_a_prefill_takes() {
    let mut booked = Vec::new();
    for streams in [false, true] {
        // Many times slower than the guess that stands before anything is learned.
        let mocks = [Mock::start(&["--model", "m", "--prefill-tps", "3000", "--decode-tps", "1000"])];
        let proxy = Proxy::start(&open(following(&mocks))).await;
        for at in 0..18 {
            let content = format!("{at} of many ").repeat(40);
            let mut body = json!({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 2});
            body["stream"] = streams.into();
            let answer = proxy.exchange(&Request::post("/v1/chat/completions", &body)).await;
            assert_eq!(answer.status(), 200, "{}", answer.text());
        }
        let mut client = proxy.client().await;
        let long = json!({"model": "m", "messages": [{"role": "user", "content": "x y z ".repeat(40_000)}]});
        client.send(&Request::post("/v1/chat/completions", &long)).await;
        proxy.wait_in_flight(1, PATIENCE).await;
        booked.push(queued(&proxy, "r0").await);
    }
    assert!(booked[0] > 0.0 && booked[1] > 1.5 * booked[0], "seconds, before and after learning: {booked:?}");
}
