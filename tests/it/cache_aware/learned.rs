//! What the index learns of attempts, and when it forgets: nothing that was never computed is credited, nothing stays
//! pinned, and nothing that is gone is believed to be there.
use std::time::{Duration, Instant};

use super::*;
use crate::resilience::{CLOSES, Engine, HANGS};

/// One engine whose answer can be changed, and what the router holds of a prompt there.
async fn after(answers: u16) -> (Engine, Proxy, Value) {
    let engine = Engine::answering(answers).await;
    let pool = Pool::model("m").with("policy: { type: cache_aware, min_match_tokens: 64 }");
    let pool = pool.replica(&format!("{{ id: r0, url: \"{}\" }}", engine.upstream.url()));
    let proxy = Proxy::start(&open(pool.with("health: { interval: 100ms }"))).await;
    let body = Conversation::about("east ").body("what now?");
    let request = Request::post("/v1/chat/completions", &body);
    if answers == HANGS {
        let mut client = proxy.client().await;
        client.send(&request).await;
        proxy.wait_in_flight(1, PATIENCE).await;
        let said = explained(&proxy, &body).await;
        assert!(matched_on(&said, "r0") > 500, "from the decision on it is expected: {said}");
        assert!(pins(&proxy).await > 0);
    } else {
        proxy.exchange(&request).await;
    }
    proxy.load_is_zero().await;
    assert_eq!(pins(&proxy).await, 0, "nothing is pinned at rest");
    (engine, proxy, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_refuses_is_not_credited_and_what_it_answers_is() {
    for (answers, credited) in [(200, true), (400, false), (429, false), (500, false), (503, false)] {
        let (_engine, proxy, body) = after(answers).await;
        let said = explained(&proxy, &body).await;
        assert_eq!(matched_on(&said, "r0") > 500, credited, "{answers}: {said}");
    }
}

/// What may have been computed is still expected: a later request finds it there, or corrects it.
#[tokio::test(flavor = "multi_thread")]
async fn what_broke_off_after_it_was_sent_is_still_expected() {
    for answers in [CLOSES, HANGS] {
        let (_engine, proxy, body) = after(answers).await;
        let said = explained(&proxy, &body).await;
        assert!(matched_on(&said, "r0") > 500, "{answers}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_arrived_is_withdrawn_and_lives_where_the_next_attempt_went() {
    let mut mocks = vec![Mock::fast(), Mock::fast()];
    let proxy = Proxy::start(&open(following(&mocks).with("health: { interval: 1h }"))).await;
    // Nobody listens any more, and nobody has noticed.
    mocks[0].process.kill();
    for topic in ["a ", "b ", "c ", "d "] {
        let mut conversation = Conversation::about(topic);
        let (_, from) = conversation.turn(&proxy, "who is there?").await;
        assert_eq!(from.replica, "r1");
        let said = explained(&proxy, &conversation.body("and now?")).await;
        assert_eq!(matched_on(&said, "r0"), 0, "{said}");
        assert!(matched_on(&said, "r1") > 200, "{said}");
    }
    assert!(proxy.metric("warmroute_retries_total{cause=\"connect_failed\"}").await > 0.0);
}

/// A replica whose port was closed comes back with an empty cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_gone_has_lost_its_cache() {
    let mut mocks = vec![Mock::fast(), Mock::fast()];
    let proxy =
        Proxy::start(&open(following(&mocks).with("health: { interval: 50ms, down_interval: 50ms, timeout: 5s }")))
            .await;
    let mut conversation = Conversation::about("west ");
    let (_, from) = conversation.turn(&proxy, "where are we?").await;
    let (home, at) = if from.replica == "r0" { (0, "r0") } else { (1, "r1") };
    let said = explained(&proxy, &conversation.body("and now?")).await;
    assert!(matched_on(&said, at) > 500, "{said}");
    let address = mocks[home].address().to_string();
    mocks[home].process.kill();
    let restarts = async || proxy.replica(at).await.expect("a row")["restarts"].as_u64().expect("a number");
    wait_until("its end is noticed", PATIENCE, || async { restarts().await == 1 }).await;
    mocks[home] =
        Mock::start(&["--model", "m", "--prefill-tps", "1000000", "--decode-tps", "100000", "--listen", &address]);
    wait_until("it is back", PATIENCE, || async {
        let row = proxy.replica(at).await.expect("a row");
        row["state"] == "ready" || row["state"] == "warming"
    })
    .await;
    let said = explained(&proxy, &conversation.body("and now?")).await;
    assert_eq!(matched_on(&said, at), 0, "{said}");
    assert_eq!(restarts().await, 1);
    // It is learned anew.
    for _ in 0..4 {
        conversation.clone().turn(&proxy, "and now?").await;
    }
    let said = explained(&proxy, &conversation.body("and now?")).await;
    let known = ["r0", "r1"].map(|id| matched_on(&said, id));
    assert!(known.iter().any(|matched| *matched > 500), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_keeps_what_was_learned() {
    let mocks = [Mock::fast(), Mock::fast(), Mock::fast()];
    let pool = following(&mocks[..2]).with(&tokenizer());
    let proxy = Proxy::start(&open(pool)).await;
    let mut conversation = Conversation::about("up ");
    let (_, from) = conversation.turn(&proxy, "where to?").await;
    let (before, cached) = (
        explained(&proxy, &conversation.body("and now?")).await,
        proxy.metric("warmroute_boundary_cache_entries").await,
    );
    assert!(cached > 0.0);
    // Another member, another bound, another time to wait.
    let more = following(&mocks).with(&tokenizer()).with("index: 8MiB").with("queue: { max: 7 }");
    proxy.reload(&open(more)).await;
    let after = explained(&proxy, &conversation.body("and now?")).await;
    assert_eq!(matched_on(&after, &from.replica), matched_on(&before, &from.replica));
    assert!(matched_on(&after, &from.replica) > 500, "{after}");
    assert!(proxy.metric("warmroute_boundary_cache_entries").await >= cached, "the same encoder");
    let (_, next) = conversation.turn(&proxy, "and now?").await;
    assert_eq!((next.replica, &*next.reason), (from.replica, "prefix"));
}

/// Clients that leave in every phase, engines that break off: whatever becomes of a request, nothing stays pinned.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_pinned_after_a_run_with_aborts_and_resets() {
    let length = if std::env::var_os("WARMROUTE_SOAK").is_some() { 60 } else { 4 };
    let mocks = [Mock::start(&["--model", "m", "--prefill-tps", "50000", "--decode-tps", "2000"]), Mock::fast()];
    let resetting = Upstream::start(|request, mut wire| async move {
        match (request.connection + wire.served) % 4 {
            0 => {
                wire.reset();
                return None;
            }
            1 => wire.reply(503, &[], b"{}").await.ok()?,
            _ => wire.reply(200, &[("Content-Type", "application/json")], b"{}").await.ok()?,
        }
        Some(wire)
    })
    .await;
    let nobody = Upstream::fixed(200, &[], "{}").await.address();
    let pool = following(&mocks).with(&tokenizer()).at(resetting.address()).at(nobody);
    let pool =
        pool.with("shadow: session_sticky").with("retry: { replay: true }").with("queue: { max: 4, timeout: 50ms }");
    let proxy = Proxy::start(&Config::new(pool).with("logging: { access: false }")).await;
    let (address, end) = (proxy.address(), Instant::now() + Duration::from_secs(length));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..16_u64 {
        workers.spawn(async move {
            let mut random = fastrand::Rng::with_seed(worker);
            let (mut done, mut aborted) = (0_u64, 0_u64);
            while Instant::now() < end {
                let conversation = Conversation::about(["p ", "q ", "r ", "s "][random.usize(..4)]);
                let mut body = conversation.body(&"x".repeat(random.usize(..60_000)));
                body["stream"] = random.bool().into();
                let mut client = Client::connect(address).await;
                client.send(&Request::post("/v1/chat/completions", &body)).await;
                if random.f64() < 0.4 {
                    if random.bool() {
                        client.try_head().await;
                    }
                    aborted += 1;
                } else if within("an answer", PATIENCE, client.try_head()).await.is_some() {
                    client.rest().await;
                    done += 1;
                }
            }
            (done, aborted)
        });
    }
    let (mut done, mut aborted) = (0, 0);
    while let Some(result) = workers.join_next().await {
        let (d, a) = result.expect("a worker's end");
        (done, aborted) = (done + d, aborted + a);
    }
    assert!(done > 20 && aborted > 5, "{done} done, {aborted} aborted");
    proxy.load_is_zero().await;
    assert!(proxy.metric("warmroute_index_blocks").await > 0.0);
    assert_eq!(pins(&proxy).await, 0, "after {done} whole requests and {aborted} aborted ones");
    wait_until("queues are empty", PATIENCE, || async {
        proxy.metric("warmroute_replica_queued_seconds").await == 0.0
    })
    .await;
}
