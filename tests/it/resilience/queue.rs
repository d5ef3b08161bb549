//! Requests that wait for a place: in order, not for ever, not too many, and nobody in their way.
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;

use super::*;

/// An engine that answers a request only when it is let.
pub struct Gate {
    upstream: Upstream,
    open: Arc<Semaphore>,
}

impl Gate {
    pub async fn closed() -> Self {
        let open = Arc::new(Semaphore::new(0));
        let gate = open.clone();
        let upstream = Upstream::start(move |_, mut wire| {
            let gate = gate.clone();
            async move {
                tokio::select! {
                    permit = gate.acquire() => permit.ok()?.forget(),
                    () = wire.gone() => return None,
                }
                wire.reply(200, &[], b"{}").await.ok()?;
                Some(wire)
            }
        })
        .await;
        Self { upstream, open }
    }

    /// A replica with one place.
    fn replica(&self) -> String {
        format!("{{ id: a, url: \"{}\", max_in_flight: 1 }}", self.upstream.url())
    }

    pub fn pool(&self, queue: &str) -> Pool {
        Pool::model("m").replica(&self.replica()).with(queue)
    }

    /// The `max_tokens` of the requests it has seen, which tell them apart.
    fn seen(&self) -> Vec<u64> {
        let number = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).unwrap()["max_tokens"].as_u64();
        self.upstream.seen("/v1/chat/completions").iter().filter_map(|seen| number(&seen.body)).collect()
    }
}

async fn waiting(proxy: &Proxy, wanted: usize, deadline: Duration) {
    let what = format!("{wanted} wait");
    wait_until(&what, deadline, || async { count(proxy, "warmroute_queue_requests{pool=\"m\"}").await == wanted })
        .await;
}

/// A request that the engine has, or that waits.
async fn sent(proxy: &Proxy, number: u32) -> Client {
    let mut client = proxy.client().await;
    client.send(&chat(false, number)).await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn first_in_first_out() {
    let gate = Gate::closed().await;
    let proxy = Proxy::start(&Config::new(gate.pool("queue: 100"))).await;
    let mut clients = Vec::new();
    for number in 1..=9 {
        clients.push(sent(&proxy, number).await);
        match number {
            1 => wait_until("the engine has the first", PATIENCE, || async { gate.seen() == [1] }).await,
            _ => {
                wait_until("it waits", PATIENCE, || async {
                    count(&proxy, "warmroute_queue_requests{pool=\"m\"}").await == number as usize - 1
                })
                .await
            }
        };
    }
    for (done, client) in clients.iter_mut().enumerate() {
        assert_eq!(gate.seen().len(), done + 1, "one at a time");
        gate.open.add_permits(1);
        assert_eq!(client.head().await.status(), 200, "request {}", done + 1);
        client.rest().await;
        wait_until("the next is sent", PATIENCE, || async { gate.seen().len() == (done + 2).min(9) }).await;
    }
    assert_eq!(gate.seen(), (1..=9).collect::<Vec<_>>());
    waiting(&proxy, 0, PATIENCE).await;
    assert_eq!(count(&proxy, "warmroute_queue_wait_seconds_count{pool=\"m\"}").await, 8);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_and_who_comes_too_many_is_told_when_to_come_back() {
    let gate = Gate::closed().await;
    let proxy = Proxy::start(&Config::new(gate.pool("queue: { max: 1, timeout: 300ms }"))).await;
    let mut first = sent(&proxy, 1).await;
    wait_until("the engine has the first", PATIENCE, || async { gate.seen() == [1] }).await;
    let mut second = sent(&proxy, 2).await;
    waiting(&proxy, 1, PATIENCE).await;

    let third = proxy.exchange(&chat(false, 3)).await;
    assert_eq!((third.status(), third.header("retry-after")), (429, Some("1")));
    assert_eq!(third.json()["error"]["code"], "queue_full");

    let head = second.head().await;
    assert_eq!((head.status(), head.get("retry-after")), (503, Some("1")));
    let body: serde_json::Value = serde_json::from_slice(&second.rest().await).unwrap();
    assert_eq!((&body["error"]["code"], &body["error"]["phase"]), (&"queue_timeout".into(), &"admit".into()));
    waiting(&proxy, 0, PATIENCE).await;

    gate.open.add_permits(1);
    assert_eq!(first.head().await.status(), 200);
    for cause in ["queue_full", "queue_timeout"] {
        let selector = format!("warmroute_requests_rejected_total{{pool=\"m\",cause=\"{cause}\"}}");
        assert_eq!(count(&proxy, &selector).await, 1, "{cause}");
    }
    assert_eq!(gate.seen(), [1]);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_the_line_is_forgotten_at_once() {
    let gate = Gate::closed().await;
    let proxy = Proxy::start(&Config::new(gate.pool("queue: 100"))).await;
    let mut first = sent(&proxy, 1).await;
    wait_until("the engine has the first", PATIENCE, || async { gate.seen() == [1] }).await;
    let second = sent(&proxy, 2).await;
    waiting(&proxy, 1, PATIENCE).await;
    let mut third = sent(&proxy, 3).await;
    waiting(&proxy, 2, PATIENCE).await;
    drop(second);
    waiting(&proxy, 1, RELEASE).await;
    gate.open.add_permits(2);
    assert_eq!((first.head().await.status(), third.head().await.status()), (200, 200));
    assert_eq!(gate.seen(), [1, 3]);
    proxy.load_is_zero().await;
}

// Ray #36460: with no replica free, a busy wait blocked the event loop for everyone.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_in_nobodys_way() {
    let gate = Gate::closed().await;
    let other = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(gate.pool("queue: 500")).pool(Pool::model("n").replica(&format!("\"{}\"", other.url())));
    let proxy = Proxy::start(&config).await;
    let mut clients = Vec::new();
    for number in 0..200 {
        clients.push(sent(&proxy, number).await);
    }
    waiting(&proxy, 199, PATIENCE).await;
    for _ in 0..50 {
        let request = Request::post("/v1/chat/completions", &chat_body("n", false, 1));
        assert_eq!(within("another pool's answer", RELEASE, proxy.exchange(&request)).await.status(), 200);
    }
    assert_eq!(proxy.admin_get("/readyz").await.status(), 200);
    clients.truncate(1);
    waiting(&proxy, 0, PATIENCE).await;
    drop(clients);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_that_share_a_replica_share_its_places() {
    let gate = Gate::closed().await;
    let of = |model| Pool::model(model).replica(&gate.replica()).with("queue: 100");
    let proxy = Proxy::start(&Config::new(of("m")).pool(of("n"))).await;
    let mut clients = Vec::new();
    for number in 0..20 {
        let mut client = proxy.client().await;
        let model = ["m", "n"][number % 2];
        client.send(&Request::post("/v1/chat/completions", &chat_body(model, false, number as u32))).await;
        clients.push(client);
    }
    wait_until("all but one wait", PATIENCE, || async { count(&proxy, "warmroute_queue_requests").await == 19 }).await;
    gate.open.add_permits(20);
    for client in &mut clients {
        assert_eq!(client.head().await.status(), 200);
        client.rest().await;
    }
    assert_eq!(count(&proxy, "warmroute_queue_requests").await, 0);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_served_to_the_last() {
    let mocks = [Mock::fast(), Mock::fast()];
    let pool = mocks.iter().enumerate().fold(Pool::model("m").with("queue: 1000"), |pool, (n, mock)| {
        pool.replica(&format!("{{ id: r{n}, url: \"http://{}\", max_in_flight: 2 }}", mock.address()))
    });
    let proxy = Proxy::start(&Config::new(pool)).await;
    let address = proxy.address();
    let mut crowd = tokio::task::JoinSet::new();
    for client in 0..200 {
        crowd.spawn(async move {
            if client % 5 == 0 {
                // Leaves without waiting for anything.
                let mut gone = Client::connect(address).await;
                gone.send(&chat(true, 50)).await;
                return 200;
            }
            exchange(address, &chat(client % 2 == 0, 5)).await.status()
        });
    }
    while let Some(status) = within("the last answer", PATIENCE, crowd.join_next()).await {
        assert_eq!(status.expect("a client's end"), 200);
    }
    proxy.load_is_zero().await;
    waiting(&proxy, 0, PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_met_a_dead_replica_waits_for_a_living_one() {
    let gate = Gate::closed().await;
    let dead = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
    let pool = gate.pool("queue: 100").replica(&format!("{{ id: dead, url: \"http://{dead}\" }}"));
    let pool = pool.with("policy: round_robin").with("health: { interval: 1h, unhealthy_after: 1000 }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    // The first probe of the dead one may have taken it down already, or it is found dead by requests.
    let mut clients = Vec::new();
    for number in 1..=10 {
        clients.push(sent(&proxy, number).await);
    }
    waiting(&proxy, 9, PATIENCE).await;
    gate.open.add_permits(10);
    for client in &mut clients {
        assert_eq!(client.head().await.status(), 200);
        client.rest().await;
    }
    proxy.load_is_zero().await;
}

// vllm-router #140: thousands of 503 while an update left no worker up for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn requests_can_wait_for_a_replica_to_come_up() {
    let mut mock = Mock::fast();
    let pool = Pool::model("m").at(mock.address()).with("queue: { max: 100, wait_for_ready: true }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    mock.process.kill();
    wait_until("it is down", PATIENCE, || async { proxy.replicas().await[0]["state"] == "down" }).await;
    let mut clients = Vec::new();
    for number in 1..=20 {
        clients.push(sent(&proxy, number).await);
    }
    waiting(&proxy, 20, PATIENCE).await;
    let address = mock.address().to_string();
    let _again = Process::start(&["mock", "--listen", &address, "--model", "m"], &[]);
    for client in &mut clients {
        assert_eq!(client.head().await.status(), 200);
        client.rest().await;
    }
    proxy.load_is_zero().await;
}

// Those who wait were told only of replicas that came up, and kept newcomers behind them: with one replica hung and the
// other sick, everyone waited for queue.timeout beside a place that panic gives.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_let_in_where_panic_lets_others_in() {
    let (hung, sick) = (Mock::fast(), Mock::fast());
    sick.control(json!({"health_status": 503})).await;
    hung.control(json!({"hang": true})).await;
    let row = |id: &str, mock: &Mock| format!("{{ id: {id}, url: \"http://{}\", max_in_flight: 1 }}", mock.address());
    let health = "health: { interval: 50ms, down_interval: 50ms, unhealthy_after: 1 }";
    let pool = Pool::model("m").replica(&row("hung", &hung)).replica(&row("sick", &sick));
    let proxy = Proxy::start(&Config::new(pool.with("queue: 100").with(health))).await;
    let down = |id| {
        let proxy = &proxy;
        move || async move { proxy.replica(id).await.is_some_and(|row| row["state"] == "down") }
    };
    wait_until("one is sick", PATIENCE, down("sick")).await;
    let _holder = sent(&proxy, 1).await;
    wait_until("its place is taken", PATIENCE, || async { hung.stat("inflight").await == 1 }).await;
    let mut clients = Vec::new();
    for number in 2..=5 {
        clients.push(sent(&proxy, number).await);
    }
    waiting(&proxy, 4, PATIENCE).await;
    hung.control(json!({"health_status": 503})).await;
    wait_until("both are down", PATIENCE, down("hung")).await;
    for client in &mut clients {
        assert_eq!(within("a place in panic", PATIENCE, client.head()).await.status(), 200);
        client.rest().await;
    }
    assert_eq!(count(&proxy, "warmroute_panic_decisions_total{pool=\"m\"}").await, 4);
    // And a newcomer need not wait at all.
    assert_eq!(within("an answer", PATIENCE, proxy.exchange(&chat(false, 6))).await.status(), 200);
}
