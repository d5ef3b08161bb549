//! The virtual engine on a real clock: submits, cancels, and wakes whoever waits for tokens.
//!
//! Time advances whenever a request comes, and by a timer in between. Tokio's timer has a grain of a millisecond, so
//! the engine may run up to `AHEAD` before the wall clock rather than a millisecond behind it.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::sim::engine::{Engine, Event, Options, Request, RequestId, Stats, TooLarge, VirtualTime, What};

const AHEAD: Duration = Duration::from_micros(250);

/// How far a request has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Prompt tokens found in the cache; set when prefill is over.
    pub cached: Option<u32>,
    /// Tokens generated so far.
    pub tokens: u32,
    /// All of them are.
    pub finished: bool,
    /// The engine restarted and forgot it.
    pub lost: bool,
}

#[derive(Debug, Default)]
struct Ticket {
    progress: Progress,
    output: u32,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    tickets: HashMap<RequestId, Arc<Mutex<Ticket>>>,
    /// When the timer will fire; a submission that needs it earlier wakes it.
    timer: Option<VirtualTime>,
    events: Vec<Event>,
}

#[derive(Debug)]
pub(super) struct Driver {
    inner: Mutex<Inner>,
    earlier: Notify,
    started: Instant,
}

/// A request in the engine. Dropping it before it is finished cancels it.
#[derive(Debug)]
pub(super) struct Job {
    driver: Arc<Driver>,
    id: RequestId,
    ticket: Arc<Mutex<Ticket>>,
}

impl Driver {
    pub(super) fn new(options: Options) -> Self {
        let inner = Inner { engine: Engine::new(options), tickets: HashMap::new(), timer: None, events: Vec::new() };
        Self { inner: Mutex::new(inner), earlier: Notify::new(), started: Instant::now() }
    }

    fn now(&self) -> VirtualTime {
        VirtualTime(0) + self.started.elapsed()
    }

    pub(super) fn submit(self: &Arc<Self>, request: Request) -> Result<Job, TooLarge> {
        let ticket = Arc::new(Mutex::new(Ticket { output: request.output_tokens, ..Ticket::default() }));
        let mut inner = self.inner.lock();
        let now = self.now();
        let id = inner.engine.submit(now, request)?;
        inner.tickets.insert(id, Arc::clone(&ticket));
        inner.pump(now);
        self.reset_timer(&mut inner);
        drop(inner);
        Ok(Job { driver: Arc::clone(self), id, ticket })
    }

    fn reset_timer(&self, inner: &mut Inner) {
        if let Some(next) = inner.engine.next_event_at()
            && inner.timer.is_none_or(|timer| next < timer)
        {
            inner.timer = Some(next);
            self.earlier.notify_one();
        }
    }

    fn cancel(&self, id: RequestId) {
        let mut inner = self.inner.lock();
        let now = self.now();
        if inner.tickets.remove(&id).is_some() {
            inner.engine.cancel(now, id);
            inner.pump(now);
            self.reset_timer(&mut inner);
        }
    }

    pub(super) fn restart(&self) {
        let mut inner = self.inner.lock();
        let now = self.now();
        inner.engine.restart(now);
        for (_, ticket) in inner.tickets.drain() {
            let mut ticket = ticket.lock();
            ticket.progress.lost = true;
            if let Some(waker) = ticket.waker.take() {
                waker.wake();
            }
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let mut inner = self.inner.lock();
        inner.pump(self.now());
        inner.engine.stats()
    }
}

impl Inner {
    /// Lets the engine reach `now` and tells those concerned.
    fn pump(&mut self, now: VirtualTime) {
        self.engine.advance(now + AHEAD, &mut self.events);
        for event in self.events.drain(..) {
            let Some(ticket) = self.tickets.get(&event.id) else { continue };
            let mut ticket = ticket.lock();
            match event.what {
                What::FirstToken { cached_tokens, .. } => {
                    ticket.progress.cached = Some(cached_tokens);
                    ticket.progress.tokens = ticket.output.min(1);
                }
                What::Tokens { n } => ticket.progress.tokens += n,
                What::Finished => {
                    ticket.progress.tokens = ticket.output;
                    ticket.progress.finished = true;
                }
            }
            let waker = ticket.waker.take();
            drop(ticket);
            if event.what == What::Finished {
                self.tickets.remove(&event.id);
            }
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// The timer: advances the engine when something is due and nobody else does.
pub(super) async fn run(driver: Arc<Driver>, mut stopped: watch::Receiver<bool>) {
    loop {
        let next = {
            let mut inner = driver.inner.lock();
            inner.pump(driver.now());
            inner.timer = inner.engine.next_event_at();
            inner.timer
        };
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(driver.started + Duration::from_nanos(at.0)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = driver.earlier.notified() => {}
            _ = stopped.changed() => return,
        }
    }
}

impl Job {
    /// Waits until `ready` says yes to how far the request has come.
    pub(super) fn poll(&self, cx: &mut Context<'_>, ready: impl Fn(&Progress) -> bool) -> Poll<Progress> {
        let mut ticket = self.ticket.lock();
        if ticket.progress.lost || ready(&ticket.progress) {
            return Poll::Ready(ticket.progress);
        }
        if ticket.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            ticket.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits for the end.
    pub(super) async fn finished(&self) -> Progress {
        std::future::poll_fn(|cx| self.poll(cx, |progress| progress.finished)).await
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ticket.lock().progress.finished {
            self.driver.cancel(self.id);
        }
    }
}
