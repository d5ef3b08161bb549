//! An HTTP connection that is driven by whoever waits for its answer, in that one's own task.
//!
//! hyper would have each connection polled by a task of its own, which then wakes the task that waits: two hand-overs
//! for each piece of an answer. Here the connection and what is waited for are polled in turn, until both stand still.
//! What they tell each other meanwhile wakes nobody; what the socket tells wakes the task that waits.
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::payload::Payload;
use super::upstream_tls::Wire;

/// Turns before others get theirs: hyper, too, yields by waking itself.
const TURNS: usize = 8;

/// Nothing to do until it is woken.
const STILL: u8 = 0;
/// There is something to do, and whoever drives it knows, or has been woken.
const WOKEN: u8 = 1;
/// It is being driven.
const DRIVEN: u8 = 2;

/// What hyper and the socket wake.
#[derive(Debug)]
struct Signal {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Whoever drives it looks again before it rests.
        if self.state.swap(WOKEN, Ordering::AcqRel) == STILL {
            self.task.wake();
        }
    }
}

/// A connection and its signal. Dropped, it closes at once.
#[derive(Debug)]
pub(super) struct Driven {
    /// Gone when it has ended.
    connection: Option<Box<http1::Connection<TokioIo<Wire>, Full<Payload>>>>,
    signal: Arc<Signal>,
    /// The signal's.
    waker: Waker,
}

impl Driven {
    pub fn new(connection: http1::Connection<TokioIo<Wire>, Full<Payload>>) -> Self {
        let signal = Arc::new(Signal { state: AtomicU8::new(WOKEN), task: AtomicWaker::new() });
        Self { connection: Some(Box::new(connection)), waker: signal.clone().into(), signal }
    }

    /// Polls `step`, which waits for this connection and for nothing else, and the connection, until the one is ready
    /// or both stand still.
    pub fn drive<T>(&mut self, cx: &mut Context<'_>, mut step: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let state = &self.signal.state;
        self.signal.task.register(cx.waker());
        let mut inner = Context::from_waker(&self.waker);
        for _ in 0..TURNS {
            if state.compare_exchange(WOKEN, DRIVEN, Ordering::AcqRel, Ordering::Acquire).is_err() {
                return Poll::Pending;
            }
            let mut stepped = step(&mut inner);
            if stepped.is_pending()
                && let Some(connection) = &mut self.connection
            {
                // Its error reaches whoever waits for a response; nobody else needs it.
                if Pin::new(connection).poll(&mut inner).is_ready() {
                    self.connection = None;
                }
                stepped = step(&mut inner);
            }
            if stepped.is_ready() {
                // There may be more to do, and whoever waits for the next thing asks for it.
                self.busy();
                return stepped;
            }
            if state.compare_exchange(DRIVEN, STILL, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whoever holds it will drive it: until then, nobody need be woken.
    pub fn busy(&self) {
        self.signal.state.store(WOKEN, Ordering::Release);
    }

    /// Nobody waits for it any more.
    pub fn rest(&self) {
        self.busy();
        drop(self.signal.task.take());
    }
}
