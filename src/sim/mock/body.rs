//! Response bodies: whole or streamed, cut short when a fault says so, and the guard that counts them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::server::Connection;
use super::sse::EventStream;
use super::state::Mock;

/// One request being answered, from its head to the end of its answer. Dropped before `done`, the client left.
#[derive(Debug)]
pub(super) struct InFlight {
    mock: Arc<Mock>,
    connection: Arc<Connection>,
    counted: bool,
    open: bool,
}

impl InFlight {
    pub(super) fn begin(mock: &Arc<Mock>, connection: &Arc<Connection>, counted: bool) -> Self {
        if counted {
            mock.counters.requests.fetch_add(1, Relaxed);
            mock.counters.inflight.fetch_add(1, Relaxed);
        }
        connection.begin();
        Self { mock: Arc::clone(mock), connection: Arc::clone(connection), counted, open: true }
    }

    /// The answer is out, or cut by ourselves.
    pub(super) fn done(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            if self.counted {
                self.mock.counters.inflight.fetch_sub(1, Relaxed);
            }
            self.connection.end();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.open && self.counted {
            self.mock.counters.disconnects.fetch_add(1, Relaxed);
        }
        self.done();
    }
}

/// Where a body's bytes come from.
pub(super) enum Source {
    /// All there.
    Full(Bytes),
    /// As the engine produces them.
    Stream(Box<EventStream>),
}

/// A response body.
pub(super) struct MockBody {
    source: Source,
    guard: InFlight,
    /// Bytes until the connection is to break.
    cut: Option<usize>,
    flushed: bool,
}

impl MockBody {
    pub(super) fn new(source: Source, mut guard: InFlight, cut: Option<usize>) -> Self {
        if matches!(&source, Source::Full(bytes) if bytes.is_empty()) {
            guard.done();
        }
        Self { source, guard, cut, flushed: false }
    }
}

impl Body for MockBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if this.cut == Some(0) {
            // Pend once, so that what was handed over is written before the connection breaks.
            if !std::mem::replace(&mut this.flushed, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            this.guard.done();
            return Poll::Ready(Some(Err(io::Error::other("cut by /__control"))));
        }
        let (next, last) = match &mut this.source {
            Source::Full(bytes) if bytes.is_empty() => (None, true),
            Source::Full(bytes) => (Some(std::mem::take(bytes)), true),
            Source::Stream(stream) => match ready!(stream.poll_next(cx)) {
                Some(Ok(bytes)) => (Some(bytes), stream.is_over()),
                Some(Err(error)) => {
                    this.guard.done();
                    return Poll::Ready(Some(Err(error)));
                }
                None => (None, true),
            },
        };
        let frame = next.map(|mut bytes| {
            if let Some(left) = &mut this.cut {
                bytes.truncate(*left);
                *left -= bytes.len();
            }
            Ok(Frame::data(bytes))
        });
        if last && this.cut != Some(0) {
            this.guard.done();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.cut != Some(0)
            && match &self.source {
                Source::Full(bytes) => bytes.is_empty(),
                Source::Stream(stream) => stream.is_over(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            // The full length also for a body that will be cut: a reader must see that bytes are missing.
            Source::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Stream(_) => SizeHint::default(),
        }
    }
}
