//! A replica's load, counted by ownership, and whether it may be chosen.
//!
//! Nothing but a [`Reservation`] changes a [`Load`]: taken by a decision, given back by its drop. Probes and scrapes
//! have no way to touch it, so the sum of reservations is always the number of open requests.
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::Tick;
use super::queue::Queue;
use super::reported::{QueueReport, Reported};

/// What is open on one replica.
#[derive(Debug, Default)]
pub struct Load {
    requests: AtomicU32,
    // Wider than the answer: clients choose `n`, and a sum that wraps would lie.
    sequences: AtomicU64,
    /// Prefills that are expected to wait there; a request's share is its [`super::Expectation`]'s.
    pub(super) queue: Queue,
    /// What the engine says of its own queue.
    reported: Reported,
}

impl Load {
    /// Open requests.
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Acquire)
    }

    /// Open sequences (n × batch summed over requests), saturated.
    pub fn sequences(&self) -> u32 {
        u32::try_from(self.sequences.load(Ordering::Acquire)).unwrap_or(u32::MAX)
    }

    /// Seconds of prefill that wait there: of prompts that were placed and have neither begun to be answered nor had the
    /// time they were expected to take. Never negative, and zero for an idle replica.
    pub fn queued_seconds(&self, now: Tick) -> f64 {
        self.queue.seconds(now)
    }

    /// The engine has said how much waits in it; `None`: nothing is known of that any more. It changes no count.
    pub fn report(&self, report: Option<QueueReport>) {
        self.reported.set(report, self.requests());
    }

    /// Whether the engine has said, not long ago, that it has more to do than it can begin.
    pub fn saturated(&self, now: Tick) -> bool {
        self.reported.saturated(self.requests(), now)
    }

    /// Books one request, unless `limit` are open already.
    pub fn reserve(self: &Arc<Self>, sequences: u32, limit: Option<u32>) -> Option<Reservation> {
        let limit = limit.unwrap_or(u32::MAX);
        self.requests
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| (open < limit).then(|| open + 1))
            .ok()?;
        self.sequences.fetch_add(u64::from(sequences), Ordering::AcqRel);
        Some(Reservation { load: self.clone(), sequences })
    }
}

/// A request's booked share of a replica's load, given back once, by drop.
#[derive(Debug)]
pub struct Reservation {
    load: Arc<Load>,
    sequences: u32,
}

impl Reservation {
    /// Sequences booked.
    pub fn sequences(&self) -> u32 {
        self.sequences
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.load.sequences.fetch_sub(u64::from(self.sequences), Ordering::AcqRel);
        self.load.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether a replica may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Takes requests.
    Ready = 0,
    /// New or returned: its share ramps up, except for sessions bound to it.
    Warming = 1,
    /// Takes only requests of sessions bound to it.
    Draining = 2,
    /// Takes none.
    Down = 3,
}

impl State {
    fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Ready,
            1 => Self::Warming,
            2 => Self::Draining,
            _ => Self::Down,
        }
    }

    /// The label: stable and lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Warming => "warming",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// A replica's state, written by health checks and operators, read by every decision.
#[derive(Debug)]
pub struct Status(AtomicU8);

impl Status {
    /// Starts in `state`.
    pub fn new(state: State) -> Self {
        Self(AtomicU8::new(state as u8))
    }

    /// The present state.
    pub fn get(&self) -> State {
        State::from_u8(self.0.load(Ordering::Acquire))
    }

    /// Moves to `state`; returns the one before.
    pub fn set(&self, state: State) -> State {
        State::from_u8(self.0.swap(state as u8, Ordering::AcqRel))
    }
}
