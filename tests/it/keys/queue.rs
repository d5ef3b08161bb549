//! `pools[].queue`: who waits for a place, how long, and how many.
use super::*;
use crate::resilience::count;
use crate::resilience::queue::Gate;

checks! {
    short_form: "pools[].queue";
    max: "pools[].queue.max";
    timeout: "pools[].queue.timeout";
    wait_for_ready: "pools[].queue.wait_for_ready";
}

/// Sends a request and waits until it waits; or returns the status it was answered with instead.
async fn waits(proxy: &Proxy, place: usize) -> Result<Client, u16> {
    let mut client = proxy.client().await;
    client.send(&chat(false, 1)).await;
    let line = || async { count(proxy, "warmroute_queue_requests").await == place };
    tokio::select! {
        head = client.head() => Err(head.status()),
        _ = wait_until("it waits or is answered", PATIENCE, line) => Ok(client),
    }
}

/// A router in front of an engine whose only place is taken, and what holds these.
async fn full(queue: &str) -> (Proxy, Client, Gate) {
    let gate = Gate::closed().await;
    let proxy = Proxy::start(&Config::new(gate.pool(queue))).await;
    let mut client = proxy.client().await;
    client.send(&chat(false, 1)).await;
    proxy.wait_in_flight(1, PATIENCE).await;
    (proxy, client, gate)
}

pub async fn short_form() {
    let (with, _client, _gate) = full("queue: 5").await;
    assert!(waits(&with, 1).await.is_ok());
    let (without, _client, _gate) = full("queue: off").await;
    assert_eq!(waits(&without, 1).await.err(), Some(503));
}

pub async fn max() {
    for (max, third) in [(1, Some(429)), (2, None)] {
        let (proxy, _first, _gate) = full(&format!("queue: {{ max: {max} }}")).await;
        let second = waits(&proxy, 1).await;
        assert!(second.is_ok(), "the second waits");
        assert_eq!(waits(&proxy, 2).await.err(), third, "max: {max}");
    }
}

pub async fn timeout() {
    let refused = async |queue: &str| {
        let (proxy, _client, _gate) = full(queue).await;
        assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 503);
    };
    sooner("a refusal", refused("queue: { max: 5, timeout: 100ms }"), refused("queue: { max: 5 }")).await;
}

pub async fn wait_for_ready() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    for (queue, refused) in [("queue: { max: 5, wait_for_ready: true }", None), ("queue: { max: 5 }", Some(503))] {
        let proxy = Proxy::start_unready(&Config::new(Pool::model("m").at(nobody).with(queue)));
        wait_until("it is down", PATIENCE, || async { proxy.replicas().await[0]["state"] == "down" }).await;
        assert_eq!(waits(&proxy, 1).await.err(), refused, "{queue}");
    }
}
