//! A client's socket as hyper sees it: the framing guard in its read path, and notes of what the connection is doing.
//!
//! The connection's task reads the notes ([`Activity`]): its timers must tell silences apart, and a refusal must wait
//! until the answers before it are out.
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::guard::{Bounds, Guard, Violation};
use crate::api::Phase;

/// Reads of bytes that nobody will have, before others get their turn.
const DISCARDS: usize = 16;

/// What a connection is doing: written by its socket and its requests, read by its task.
#[derive(Debug)]
pub struct Activity {
    origin: Instant,
    /// Milliseconds since `origin` × 4 + state.
    word: AtomicU64,
    /// Requests being answered; more than one only in HTTP/2.
    open: AtomicUsize,
    /// Heads that the guard let through.
    passed: AtomicU64,
    /// Requests that hyper has begun to serve.
    begun: AtomicU64,
    /// The socket takes no more for now.
    blocked: AtomicBool,
    /// A head has begun, and is not whole.
    in_head: AtomicBool,
    violation: OnceLock<Violation>,
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Waiting for its next request.
    Waiting = 0,
    /// A head has begun.
    InHead = 1,
    /// A request is being answered.
    Busy = 2,
    /// Waiting, and no request has come yet.
    New = 3,
}

impl Activity {
    /// Of a new connection.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            word: AtomicU64::new(Doing::New as u64),
            open: AtomicUsize::new(0),
            passed: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            in_head: AtomicBool::new(false),
            violation: OnceLock::new(),
        })
    }

    fn set(&self, doing: Doing) {
        let millis = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX >> 2);
        self.word.store(millis << 2 | doing as u64, Ordering::Release);
    }

    /// What it does, and since when.
    pub fn state(&self) -> (Doing, Instant) {
        let word = self.word.load(Ordering::Acquire);
        let doing = match word & 3 {
            0 => Doing::Waiting,
            1 => Doing::InHead,
            2 => Doing::Busy,
            _ => Doing::New,
        };
        (doing, self.origin + Duration::from_millis(word >> 2))
    }

    /// Since when no request is being answered; `None` while one is.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.open.load(Ordering::Acquire) == 0).then(|| self.state().1)
    }

    /// Whether no request has come yet.
    pub fn is_new(&self) -> bool {
        self.state().0 == Doing::New
    }

    /// A request has begun; it is busy until the returned mark is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.set(Doing::Busy);
        Busy(self.clone())
    }

    /// The violation that ended it.
    pub fn violation(&self) -> Option<Violation> {
        self.violation.get().copied()
    }

    fn all_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) == self.passed.load(Ordering::Acquire)
    }

    /// A head that was refused, once everything before it has been answered. (A refused body is answered by the
    /// request it belongs to.)
    pub fn refused(&self) -> Option<Violation> {
        let violation = self.violation().filter(|violation| violation.phase == Phase::Head)?;
        let answered = self.all_begun() && self.state().0 != Doing::Busy && !self.blocked.load(Ordering::Acquire);
        answered.then_some(violation)
    }

    fn followed(&self, guard: &Guard) {
        self.passed.store(guard.heads(), Ordering::Release);
        let in_head = guard.in_head();
        self.in_head.store(in_head, Ordering::Release);
        if in_head && matches!(self.state().0, Doing::Waiting | Doing::New) {
            self.set(Doing::InHead);
        }
        if let Some(violation) = guard.violation() {
            let _ = self.violation.set(violation);
        }
    }
}

/// Held while a request is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        // The next head may have begun while this one was answered.
        let in_head = self.0.in_head.load(Ordering::Acquire);
        self.0.set(if in_head { Doing::InHead } else { Doing::Waiting });
        // Last: who sees that nothing is open must see since when.
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The client's socket.
#[derive(Debug)]
pub struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
    guard: Guard,
    /// A head that came in pieces; what has passed the guard stands first.
    held: Vec<u8>,
    /// How much of `held` has passed, and has not been handed on.
    passed: usize,
}

impl<S: AsyncRead + Unpin> Watched<S> {
    /// Watches a new connection.
    pub fn new(stream: S, activity: Arc<Activity>, bounds: Bounds) -> Self {
        Self { stream, activity, guard: Guard::new(bounds), held: Vec::new(), passed: 0 }
    }

    /// The socket itself.
    pub fn into_inner(self) -> S {
        self.stream
    }

    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) {
        let here = self.passed.min(buf.remaining());
        buf.put_slice(&self.held[..here]);
        self.passed -= here;
        if here == self.held.len() {
            self.held = Vec::new();
        } else {
            self.held.drain(..here);
        }
    }

    /// After a violation: nothing passes, but a client that leaves is still noticed.
    fn poll_stopped(
        &mut self,
        violation: Violation,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let busy = self.activity.state().0 == Doing::Busy;
        if self.activity.all_begun() {
            if violation.phase != Phase::Head {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
            }
            if !busy {
                // The connection's task ends it as soon as this poll is over.
                return Poll::Pending;
            }
        }
        let start = buf.filled().len();
        for _ in 0..DISCARDS {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            if buf.filled().len() == start {
                return Poll::Ready(Ok(()));
            }
            buf.set_filled(start);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.passed > 0 {
                this.hand_on(buf);
                return Poll::Ready(Ok(()));
            }
            if let Some(violation) = this.guard.violation() {
                this.held = Vec::new();
                return this.poll_stopped(violation, cx, buf);
            }
            // Straight into the reader's buffer; only the begin of a head is taken out again, until it is whole.
            let start = buf.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            let new = &buf.filled()[start..];
            if new.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let pass = if this.held.is_empty() {
                let pass = this.guard.check(new);
                this.held.extend_from_slice(&new[pass..]);
                pass
            } else {
                this.held.extend_from_slice(new);
                this.passed = this.guard.check(&this.held);
                0
            };
            buf.set_filled(start + pass);
            this.activity.followed(&this.guard);
            if pass > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Watched<S> {
    fn noted<T>(&self, result: Poll<T>) -> Poll<T> {
        self.activity.blocked.store(result.is_pending(), Ordering::Release);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.noted(result)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.noted(result)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS takes more than it has sent. Nothing is flushed before all is written.
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.noted(result)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
