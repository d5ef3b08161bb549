//! Leaving in good order, and handing over to another process: no connection refused or reset, no answer cut.
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::*;

async fn refused(address: SocketAddr) -> bool {
    TcpStream::connect(address).await.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_unready_then_closed_and_open_streams_end() {
    let mock = Mock::slow();
    let config = Config::new(Pool::model("m").at(mock.address())).with("timeouts: { drain_delay: 2s }");
    let mut proxy = Proxy::start(&config).await;
    let mut idle = proxy.client().await;
    assert_eq!(idle.exchange(&chat(false, 1)).await.status(), 200);
    let silent = TcpStream::connect(proxy.address()).await.unwrap();
    let mut stream = proxy.client().await;
    stream.send(&chat(true, 100)).await;
    stream.head().await;
    stream.until(b"data:").await;
    let start = Instant::now();
    proxy.process.terminate();

    wait_until("not ready", PATIENCE, || async { proxy.admin_get("/readyz").await.status() == 503 }).await;
    let mut late = proxy.client().await;
    let answer = late.exchange(&chat(false, 1)).await;
    assert_eq!((answer.status(), answer.header("connection")), (200, Some("close")), "still served, and told to go");
    assert!(late.closed().await);
    assert!(start.elapsed() < Duration::from_secs(2), "within the delay, or this shows nothing");

    assert!(idle.closed().await, "closed without a word");
    wait_until("no more connections", PATIENCE, || refused(proxy.address())).await;
    assert!(start.elapsed() >= Duration::from_secs(2));
    let rest = stream.rest().await;
    assert_eq!(sse_events(&rest).last().unwrap().data, "[DONE]", "an open stream ends as it should");
    assert!(!stream.was_cut());
    assert!(proxy.process.wait(PATIENCE).success());
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_sent_as_the_drain_began_is_answered() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    for turn in 0..5 {
        let mut proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
        // Connections at every step: accepted and silent, in the middle of a head, of a body.
        let request = chat(false, 1).bytes(proxy.address());
        let mut clients = Vec::new();
        for cut in [0, 1, 20, request.len() - 10] {
            let mut client = proxy.client().await;
            client.send_raw(&request[..cut]).await.unwrap();
            clients.push((client, cut));
        }
        wait_until("all are accepted", PATIENCE, || async {
            proxy.metric("warmroute_client_connections").await == 4.0
        })
        .await;
        proxy.process.terminate();
        wait_until("the drain", PATIENCE, || refused(proxy.address())).await;
        for (client, cut) in &mut clients {
            client.send_raw(&request[*cut..]).await.unwrap();
            let head = client.head().await;
            assert_eq!((head.status(), head.get("connection")), (200, Some("close")), "turn {turn}, cut {cut}");
            client.rest().await;
        }
        assert!(proxy.process.wait(PATIENCE).success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() {
    let mock = Mock::slow();
    for timeouts in ["timeouts: { drain_delay: 1h }", "timeouts: { drain: 1h }"] {
        let mut proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address())).with(timeouts)).await;
        let mut client = proxy.client().await;
        client.send(&chat(true, 10_000)).await;
        client.head().await;
        client.until(b"data:").await;
        proxy.process.terminate();
        proxy.process.line("the beginning of the end", |line| {
            (line.contains("leaving") || line.contains("draining")).then_some(())
        });
        proxy.process.terminate();
        proxy.process.wait(Duration::from_secs(5));
        let rest = client.rest().await;
        assert!(String::from_utf8_lossy(&rest).contains("shutting_down"), "it says why it ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_outlasts_the_limit_is_cut() {
    let mock = Mock::slow();
    let config = Config::new(Pool::model("m").at(mock.address())).with("timeouts: { drain: 500ms }");
    let mut proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 10_000)).await;
    client.head().await;
    client.until(b"data:").await;
    let start = Instant::now();
    proxy.process.terminate();
    let rest = client.rest().await;
    assert!(String::from_utf8_lossy(&rest).contains("shutting_down"), "it says why it ends");
    assert!(start.elapsed() >= Duration::from_millis(480), "after {:?}", start.elapsed());
    proxy.process.wait(PATIENCE);
}

/// Clients that each open a connection for each request, for as long as this lives.
struct Hammer {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: JoinSet<Vec<String>>,
}

impl Hammer {
    fn start(address: SocketAddr, clients: usize) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut set = JoinSet::new();
        for _ in 0..clients {
            let (stop, answered) = (stop.clone(), answered.clone());
            set.spawn(async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match once(address).await {
                        Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Err(failure) => failures.push(failure),
                    }
                }
                failures
            });
        }
        Self { stop, answered, clients: set }
    }

    /// Waits for so many further answers.
    async fn more(&self, answers: u64) {
        let target = self.answered.load(Ordering::Relaxed) + answers;
        wait_until("further answers", PATIENCE, || async { self.answered.load(Ordering::Relaxed) >= target }).await;
    }

    /// All that went wrong.
    async fn end(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        while let Some(failures) = self.clients.join_next().await {
            all.extend(failures.unwrap());
        }
        all
    }
}

async fn once(address: SocketAddr) -> Result<(), String> {
    let stream = TcpStream::connect(address).await.map_err(|error| format!("connect: {error}"))?;
    let mut client = Client::over(stream, address);
    client.try_send(&chat(true, 2).header("connection", "close")).await.map_err(|error| format!("send: {error}"))?;
    let head = within("an answer", PATIENCE, client.try_head()).await.ok_or("no answer")?;
    let body = client.rest().await;
    match head.status() {
        200 if !client.was_cut() && body.ends_with(b"data: [DONE]\n\n") => Ok(()),
        status => Err(format!("{status}, cut: {}", client.was_cut())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_takes_over_a_shared_port() {
    let mock = Mock::fast();
    let config = |listen: &str| Config::new(Pool::model("m").at(mock.address())).with(listen);
    let mut old = Proxy::start(&config("listen: [{ address: 127.0.0.1:0, reuse_port: true }]")).await;
    let address = old.address();
    let listen = format!("listen: [{{ address: \"{address}\", reuse_port: true }}]");
    let hammer = Hammer::start(address, 16);
    hammer.more(200).await;
    for _ in 0..3 {
        let new = Proxy::start(&config(&listen)).await;
        hammer.more(50).await;
        old.process.terminate();
        assert!(old.process.wait(PATIENCE).success());
        hammer.more(200).await;
        old = new;
    }
    let failures = hammer.end().await;
    assert!(failures.is_empty(), "{} failures: {:?}", failures.len(), &failures[..failures.len().min(5)]);
    assert_eq!(old.address(), address);
    old.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passed_socket_outlives_the_process() {
    let mock = Mock::fast();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let config = Config::new(Pool::model("m").at(mock.address())).with(&format!("listen: \"{address}\""));
    let mut old = Proxy::start_on(&config, &socket);
    assert_eq!(old.address(), address);
    let hammer = Hammer::start(address, 16);
    hammer.more(200).await;
    for _ in 0..3 {
        // One after the other, as a service manager restarts a unit: in between nobody accepts.
        old.process.terminate();
        assert!(old.process.wait(PATIENCE).success());
        old = Proxy::start_on(&config, &socket);
        hammer.more(200).await;
    }
    let failures = hammer.end().await;
    assert!(failures.is_empty(), "{} failures: {:?}", failures.len(), &failures[..failures.len().min(5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_is_told() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    let said = async || {
        let mut text = [0; 512];
        let length = within("word to the service manager", PATIENCE, socket.recv(&mut text)).await.unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let config = Config::new(Pool::model("m").at(upstream.address()));
    let mut proxy = Proxy::start_with(&config, &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    assert!(said().await.contains("READY=1"));
    proxy.process.terminate();
    assert!(said().await.contains("STOPPING=1"));
    assert!(proxy.process.wait(PATIENCE).success());
}
