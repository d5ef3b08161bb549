//! One client connection that speaks HTTP/1.1: the timers that end silent clients, and draining.
//!
//! hyper speaks HTTP; the timers are ours, because they must tell three silences apart: a client that never began a
//! head, one that stopped within it (408), and one that is merely between two requests.
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use super::answer::Never;
use super::listener::Client;
use super::stream::Stream;
use super::{Proxy, service};

/// How long a closed connection is read on, so that the client sees our last answer instead of a reset.
pub const LINGER: Duration = Duration::from_secs(1);
/// Pause between two looks at a connection's timers, at least: one of a millisecond must not keep a core busy.
const LOOK: Duration = Duration::from_millis(50);

/// What a connection is doing, for its timers: written by its socket and its requests, read by its task.
#[derive(Debug)]
pub struct Activity {
    origin: Instant,
    /// Milliseconds since `origin` × 4 + state.
    word: AtomicU64,
    /// Requests being answered; more than one only in HTTP/2.
    open: AtomicUsize,
}

const WAITING: u64 = 0;
const IN_HEAD: u64 = 1;
const BUSY: u64 = 2;
/// Waiting, and no request has come yet.
const NEW: u64 = 3;

impl Activity {
    /// A connection on which nothing has happened.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { origin: Instant::now(), word: AtomicU64::new(NEW), open: AtomicUsize::new(0) })
    }

    /// Since when no request is being answered; `None` while one is.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.open.load(Ordering::Acquire) == 0).then(|| self.state().1)
    }

    fn set(&self, state: u64) {
        let millis = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX >> 2);
        self.word.store(millis << 2 | state, Ordering::Release);
    }

    /// Whether no request has come yet.
    pub fn is_new(&self) -> bool {
        self.state().0 == NEW
    }

    fn state(&self) -> (u64, Instant) {
        let word = self.word.load(Ordering::Acquire);
        (word & 3, self.origin + Duration::from_millis(word >> 2))
    }

    fn received(&self) {
        if matches!(self.state().0, WAITING | NEW) {
            self.set(IN_HEAD);
        }
    }

    /// A request has begun; it is busy until the returned guard is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.set(BUSY);
        Busy(self.clone())
    }
}

/// Held while a request is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(WAITING);
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The client's socket, which notes when bytes arrive.
struct Watched {
    stream: Stream,
    activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.received();
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Why a connection's task stopped serving it.
enum End {
    /// hyper is done with it: closed, or broken.
    Done,
    /// A head stopped half-way.
    SlowHead,
    /// Nothing came.
    Silent,
}

/// Serves a client that speaks HTTP/1.1, until either side is done.
pub async fn serve_connection(proxy: &Arc<Proxy>, stream: Stream, client: Client) {
    let config = proxy.snapshot().config.clone();
    let (timeouts, limits) = (&config.timeouts, &config.limits);
    let activity = Activity::new();
    let service = service_fn(|request: Request<Incoming>| {
        let (busy, proxy) = (activity.busy(), proxy.clone());
        Box::pin(async move {
            let mut answer = service::handle(proxy.clone(), busy, client, request).await?;
            if proxy.draining() {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Never>(answer)
        })
    });
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_headers(limits.headers)
        .max_buf_size(limits.head.max(8 * 1024))
        .serve_connection(TokioIo::new(Watched { stream, activity: activity.clone() }), service);

    let mut draining = proxy.draining.subscribe();
    let mut drained = false;
    // A head may begin at any time, and an answer end: looking as often as the shorter timer misses neither.
    let look = timeouts.head.min(timeouts.keep_alive).max(LOOK);
    let timer = tokio::time::sleep_until(Instant::now() + look);
    tokio::pin!(timer);
    let end = loop {
        tokio::select! {
            biased;
            _ = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break End::Done,
            () = &mut timer => {
                let now = Instant::now();
                let (state, since) = activity.state();
                let (most, end) = match state {
                    IN_HEAD => (timeouts.head, End::SlowHead),
                    NEW => (timeouts.head, End::Silent),
                    WAITING => (timeouts.keep_alive, End::Silent),
                    _ => (Duration::MAX, End::Done),
                };
                let deadline = since.checked_add(most).unwrap_or(now + look);
                if state != BUSY && now >= deadline {
                    let label = if state == WAITING { "keep_alive" } else { "head" };
                    proxy.metrics.client_timeouts.with_label_values(&[label]).inc();
                    break end;
                }
                timer.as_mut().reset(deadline.min(now + look));
            }
            _ = draining.wait_for(|draining| *draining), if !drained => {
                drained = true;
                // A request that has begun to arrive is answered; its answer says that it is the last.
                if matches!(activity.state().0, WAITING | BUSY) {
                    Pin::new(&mut connection).graceful_shutdown();
                }
            }
        }
    };
    let mut stream = connection.into_parts().io.into_inner().stream;
    if matches!(end, End::SlowHead) {
        say_too_slow(&mut stream).await;
    }
    linger(stream).await;
}

/// 408: a head stopped half-way.
pub async fn say_too_slow(stream: &mut Stream) {
    let head = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let _ = tokio::time::timeout(LINGER, stream.write_all(head)).await;
    let _ = stream.flush().await;
}

/// Says goodbye, then reads on for a moment: closing with unread bytes would reset the connection under the answer.
pub async fn linger(mut stream: Stream) {
    if !matches!(tokio::time::timeout(LINGER, stream.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    let drain = async {
        let mut scrap = [0; 16 * 1024];
        while stream.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
    };
    let _ = tokio::time::timeout(LINGER, drain).await;
}
