//! Guarantee 4 on the data path: a client that does not read stalls the engine, and the router holds next to nothing.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;

const MIB: usize = 1 << 20;
/// What an engine would send if anyone took it.
const STREAM: usize = 192 * MIB;
/// Socket buffers of both connections (the kernel's, autotuned, a few MiB each on loopback) and one read.
const IN_FLIGHT: usize = 32 * MIB;

/// Slow readers at once.
const READERS: usize = 16;

/// Streams `STREAM` bytes and counts those the router took.
async fn firehose(taken: Arc<AtomicUsize>, left: Arc<AtomicBool>) -> Upstream {
    Upstream::start(move |_, mut wire| {
        let (taken, left) = (taken.clone(), left.clone());
        async move {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            wire.send(head).await.ok()?;
            let mut chunk = b"4000\r\n".to_vec();
            chunk.extend(std::iter::repeat_n(b'x', 0x4000));
            chunk.extend(b"\r\n");
            for _ in 0..STREAM / 0x4000 {
                if wire.send(&chunk).await.is_err() {
                    left.store(true, Ordering::SeqCst);
                    return None;
                }
                taken.fetch_add(0x4000, Ordering::SeqCst);
            }
            wire.send("0\r\n\r\n").await.ok()?;
            Some(wire)
        }
    })
    .await
}

/// Waits until a counter has stood still for a while.
async fn settled(counter: &AtomicUsize) -> usize {
    let mut last = (counter.load(Ordering::SeqCst), std::time::Instant::now());
    wait_until("the stream stands still", PATIENCE, move || {
        let now = counter.load(Ordering::SeqCst);
        if now != last.0 {
            last = (now, std::time::Instant::now());
        }
        let still = now > 0 && last.1.elapsed() > Duration::from_millis(700);
        async move { still }
    })
    .await;
    counter.load(Ordering::SeqCst)
}

/// A stream of which only the head has been read.
async fn stalled(proxy: &Proxy) -> Client {
    let mut client = proxy.client().await;
    client.send(&chat(true, 1)).await;
    assert_eq!(client.head().await.status(), 200);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_stalls_the_engine() {
    let (taken, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let upstream = firehose(taken.clone(), left.clone()).await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut client = stalled(&proxy).await;
    let held = settled(&taken).await;
    assert!(held < IN_FLIGHT, "{held} bytes were taken though nobody reads");
    let one = proxy.process.resident();

    // Every further slow reader costs a bounded piece of memory, not its stream.
    let mut others = Vec::new();
    for _ in 0..READERS {
        others.push(stalled(&proxy).await);
    }
    settled(&taken).await;
    let each = proxy.process.resident().saturating_sub(one) / READERS as u64;
    println!("a slow reader: {held} bytes in flight, {each} bytes of the router's memory");
    assert!(each < MIB as u64, "each of {READERS} slow readers costs {each} bytes");
    assert_eq!(proxy.in_flight().await, 1 + READERS as u64);
    drop(others);
    proxy.wait_in_flight(1, PATIENCE).await;

    // It flows again when the client reads, whole and unharmed, and memory stays flat.
    let before = proxy.process.resident();
    let mut read = 0;
    while let Some(piece) = client.next().await {
        assert!(piece.iter().all(|&byte| byte == b'x'));
        read += piece.len();
    }
    assert_eq!(read, STREAM);
    let grown = proxy.process.resident().saturating_sub(before);
    assert!(grown < 16 * MIB as u64, "the router grew by {grown} bytes over {STREAM} relayed");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_client_that_leaves_frees_the_engine() {
    let (taken, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let upstream = firehose(taken.clone(), left.clone()).await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 1)).await;
    client.head().await;
    settled(&taken).await;
    drop(client);
    wait_until("the engine is told", RELEASE, || async { left.load(Ordering::SeqCst) }).await;
    proxy.wait_in_flight(0, RELEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_ended_by_the_idle_timer() {
    let (taken, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let upstream = firehose(taken.clone(), left.clone()).await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("timeouts: { idle: 500ms }");
    let proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 1)).await;
    client.head().await;
    wait_until("the engine is freed", PATIENCE, || async { left.load(Ordering::SeqCst) }).await;
    proxy.load_is_zero().await;
}
