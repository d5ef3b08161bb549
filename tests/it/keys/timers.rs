//! `timeouts`: each timer rings before its default would.
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use super::*;

checks! {
    connect: "timeouts", "timeouts.connect";
    head: "timeouts.head";
    body: "timeouts.body";
    first_byte: "timeouts.first_byte";
    idle: "timeouts.idle";
    keep_alive: "timeouts.keep_alive";
    upstream_idle: "timeouts.upstream_idle";
    drain: "timeouts.drain";
}

/// Two routers in front of one engine, the first with this timer.
async fn timed(engine: &Upstream, timer: &str) -> (Proxy, Proxy) {
    let without = Config::new(Pool::model("m").at(engine.address()));
    pair(&without.clone().with(&format!("timeouts: {{ {timer} }}")), &without).await
}

/// An engine that takes a request and says nothing.
async fn silent() -> Upstream {
    Upstream::start(|_, mut wire| async move {
        wire.gone().await;
        None
    })
    .await
}

/// An engine that answers the first probe of two routers and then takes no connection any more.
async fn deaf() -> (SocketAddr, JoinHandle<()>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut probe = Vec::new();
            while !probe.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut probe).await.unwrap() > 0, "a probe broke off");
            }
            stream.write_all(&respond(200, &[("Connection", "close")], b"")).await.unwrap();
        }
        let _kept = listener;
        std::future::pending::<()>().await;
    });
    (address, task)
}

pub async fn connect() {
    let (address, task) = deaf().await;
    let without = Config::new(Pool::model("m").at(address).with("health: { interval: 1h }"));
    let (with, without) = pair(&without.clone().with("timeouts: { connect: 100ms }"), &without).await;
    // The kernel's queue of that listener is filled: what comes now is neither taken nor refused.
    let mut queued = Vec::new();
    while let Ok(stream) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        queued.push(stream.unwrap());
    }
    let request = chat(false, 1);
    let answer = sooner("connect", with.exchange(&request), without.exchange(&request)).await;
    assert_eq!(answer.status(), 502, "{}", answer.text());
    assert!(answer.text().contains("no connection within 100ms"), "{}", answer.text());
    task.abort();
}

pub async fn head() {
    let engine = silent().await;
    let (with, without) = timed(&engine, "head: 300ms").await;
    let half = async |proxy: &Proxy| {
        let mut client = proxy.client().await;
        client.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le").await.unwrap();
        client.head().await
    };
    assert_eq!(sooner("half a head", half(&with), half(&without)).await.status(), 408);
}

pub async fn body() {
    let engine = silent().await;
    let (with, without) = timed(&engine, "body: 300ms").await;
    let half = async |proxy: &Proxy| {
        let mut client = proxy.client().await;
        let half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
        client.send_raw(half).await.unwrap();
        client.head().await
    };
    assert_eq!(sooner("half a body", half(&with), half(&without)).await.status(), 408);
}

pub async fn first_byte() {
    let engine = silent().await;
    let (with, without) = timed(&engine, "first_byte: 300ms").await;
    let request = chat(false, 1);
    let answer = sooner("a silent engine", with.exchange(&request), without.exchange(&request)).await;
    assert_eq!(answer.status(), 504);
}

pub async fn idle() {
    let engine = engine("e0").await;
    let (with, without) = timed(&engine, "idle: 300ms").await;
    let rest = async |proxy: &Proxy| {
        let (mut client, _) = held(proxy, |request| request).await;
        client.rest().await
    };
    let events = sse_events(&sooner("a stream that falls silent", rest(&with), rest(&without)).await);
    assert!(events.len() == 1 && events[0].json()["error"]["message"].is_string(), "{events:?}");
}

pub async fn keep_alive() {
    let engine = engine("e0").await;
    let (with, without) = timed(&engine, "keep_alive: 300ms").await;
    let closed = async |proxy: &Proxy| {
        let mut client = proxy.client().await;
        assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200);
        client.closed().await
    };
    assert!(sooner("a waiting connection", closed(&with), closed(&without)).await, "closed without a word");
}

pub async fn upstream_idle() {
    let engines = two().await;
    // No probe keeps a connection fresh.
    let config =
        |engine: &Upstream| Config::new(Pool::model("m").at(engine.address()).with("health: { interval: 1h }"));
    let short = config(&engines[0]).with("timeouts: { upstream_idle: 1ms }");
    let (with, without) = pair(&short, &config(&engines[1])).await;
    let connections = |engine: &Upstream| {
        let seen = engine.seen("/v1/chat/completions");
        seen.iter().map(|request| request.connection).collect::<BTreeSet<_>>().len()
    };
    wait_until("connections of their own", PATIENCE, async || {
        who(&with, &chat(false, 1)).await;
        who(&without, &chat(false, 1)).await;
        connections(&engines[0]) >= 5
    })
    .await;
    // One, or a second if the machine stood still for four seconds.
    assert!(connections(&engines[1]) <= 2, "{} connections by default", connections(&engines[1]));
}

pub async fn drain() {
    let engine = engine("e0").await;
    let (mut with, without) = timed(&engine, "drain: 300ms").await;
    let (mut cut, _) = held(&with, |request| request).await;
    let (mut open, _) = held(&without, |request| request).await;
    with.process.terminate();
    without.process.terminate();
    with.process.wait(PATIENCE);
    cut.rest().await;
    assert!(cut.was_cut());
    assert_eq!(without.admin_get("/livez").await.status(), 200, "by default a stream has ten minutes to end");
    let more = tokio::time::timeout(Duration::from_millis(1), open.piece()).await;
    assert!(more.is_err(), "the stream is still open: {more:?}");
}
