//! Guarantee 2: the sum of reservations is the number of open requests, at every step, and zero at rest.
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_sum_of_reservations_is_the_number_of_open_requests_at_every_step() {
    let mocks = [Mock::slow(), Mock::slow(), Mock::slow()];
    let mut pool = Pool::model("m").with("policy: { type: least_load }");
    for mock in &mocks {
        pool = pool.at(mock.address());
    }
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut random = fastrand::Rng::with_seed(11);
    let mut open = Vec::new();
    for step in 0..60 {
        if open.is_empty() || random.f64() < 0.6 {
            let mut client = proxy.client().await;
            client.send(&chat(true, 100_000)).await;
            assert_eq!(client.head().await.status(), 200);
            open.push(client);
        } else {
            drop(open.swap_remove(random.usize(..open.len())));
        }
        proxy.wait_in_flight(open.len() as u64, RELEASE).await;
        if step % 10 == 0 {
            let gauge = proxy.metric("warmroute_replica_in_flight_requests").await;
            assert_eq!(gauge, open.len() as f64, "the gauge tells the same");
        }
    }
    open.clear();
    proxy.load_is_zero().await;
    for mock in &mocks {
        wait_until("the mock is free", PATIENCE, || async { mock.stat("inflight").await == 0 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_scrapes_never_touch_the_load() {
    let mock = Mock::slow();
    let pool = Pool::model("m").at(mock.address()).with("health: { interval: 20ms, timeout: 5s }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 100_000)).await;
    client.head().await;
    let probed = proxy.metric("warmroute_health_probes_total{result=\"ok\"}").await;
    // Router #197: a prober that resets counters.
    wait_until("30 more probes", PATIENCE, || async {
        assert_eq!(proxy.in_flight().await, 1);
        proxy.metric("warmroute_health_probes_total{result=\"ok\"}").await >= probed + 30.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_aborts_and_resets_ends_with_zero() {
    let length = if std::env::var_os("CI").is_some() || std::env::var_os("WARMROUTE_SOAK").is_some() { 60 } else { 5 };
    let mocks = [Mock::start(&["--model", "m", "--prefill-tps", "50000", "--decode-tps", "2000"]), Mock::fast()];
    let resetting = Upstream::start(|request, mut wire| async move {
        // One in fifty of its answers is a reset, before the head or in mid-stream.
        if wire.served % 50 == 49 || request.connection % 50 == 49 {
            if request.connection % 2 == 0 {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\na\r\ndata: {}\n\n\r\n";
                wire.send(head).await.ok()?;
            }
            wire.reset();
            return None;
        }
        wire.reply(200, &[("Content-Type", "application/json")], b"{}").await.ok()?;
        Some(wire)
    })
    .await;
    let pool = Pool::model("m")
        .with("policy: { type: power_of_two }")
        .at(mocks[0].address())
        .at(mocks[1].address())
        .at(resetting.address());
    let proxy = Proxy::start(&Config::new(pool).with("logging: { access: false }")).await;

    let address = proxy.address();
    let end = Instant::now() + Duration::from_secs(length);
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..16_u64 {
        workers.spawn(async move {
            let mut random = fastrand::Rng::with_seed(worker);
            let (mut done, mut aborted) = (0_u64, 0_u64);
            while Instant::now() < end {
                let endpoint = &ENDPOINTS[random.usize(..4)];
                let mut client = Client::connect(address).await;
                client.send(&endpoint.request(random.bool())).await;
                if random.f64() < 0.1 {
                    if random.bool() {
                        client.try_head().await;
                    }
                    aborted += 1;
                    continue;
                }
                if within("an answer in the soak", PATIENCE, client.try_head()).await.is_some() {
                    client.rest().await;
                }
                done += 1;
            }
            (done, aborted)
        });
    }
    let (mut done, mut aborted) = (0, 0);
    while let Some(result) = workers.join_next().await {
        let (d, a) = result.expect("a worker's end");
        (done, aborted) = (done + d, aborted + a);
    }
    proxy.load_is_zero().await;
    assert_eq!(proxy.metric("warmroute_replica_in_flight_requests").await, 0.0);
    assert_eq!(proxy.metric("warmroute_replica_in_flight_sequences").await, 0.0);
    for mock in &mocks {
        wait_until("the mock is free", PATIENCE, || async { mock.stat("inflight").await == 0 }).await;
    }
    println!("soak: {length} s, {done} whole requests, {aborted} aborted, zero left");
    assert!(done > 100 && aborted > 5, "{done} done, {aborted} aborted");
    // It still serves.
    assert_eq!(proxy.exchange(&Request::get("/v1/models")).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_open_streams() {
    const STREAMS: usize = 5_000;
    // Two sockets a stream in the router; clients here and the mock have one each.
    let (_, hard) = rlimit::Resource::NOFILE.get().expect("a limit to read");
    let wanted = 65_536.min(hard);
    rlimit::Resource::NOFILE.set(wanted, hard).expect("the soft limit may rise to the hard one");
    assert!(wanted as usize > 2 * STREAMS + 1_000, "this machine allows only {hard} open files");

    // Children inherit the limit.
    let mock = Mock::slow();
    mock.control(json!({"inter_token_ms": 600_000})).await;
    let pool = Pool::model("m").at(mock.address());
    let proxy = Proxy::start(&Config::new(pool).with("logging: { access: false }")).await;
    let empty = proxy.process.resident();
    let address = proxy.address();
    let mut openers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        openers.spawn(async move {
            let mut open = Vec::with_capacity(STREAMS / 50);
            for _ in 0..STREAMS / 50 {
                let mut client = Client::connect(address).await;
                client.send(&chat(true, 1_000)).await;
                assert_eq!(client.head().await.status(), 200);
                open.push(client);
            }
            open
        });
    }
    let mut open = Vec::with_capacity(STREAMS);
    while let Some(streams) = within("5,000 streams", Duration::from_secs(180), openers.join_next()).await {
        open.extend(streams.expect("an opener's end"));
    }
    assert_eq!(open.len(), STREAMS);
    assert_eq!(proxy.in_flight().await, STREAMS as u64);
    assert_eq!(mock.stat("inflight").await, STREAMS as u64);
    let each = proxy.process.resident().saturating_sub(empty) / STREAMS as u64;
    println!("5,000 open streams: {each} bytes of the router's memory each");
    assert!(each < 100 << 10, "{each} bytes a stream");
    drop(open);
    let took = proxy.wait_in_flight(0, PATIENCE).await;
    wait_until("the mock is free", PATIENCE, || async { mock.stat("inflight").await == 0 }).await;
    println!("5,000 streams left: load zero after {took:?}");
    assert_eq!(mock.stat("disconnects").await, STREAMS as u64);
}
