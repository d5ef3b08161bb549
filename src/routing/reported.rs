//! What an engine says of its own queue: a slow signal, used to leave out who is saturated, never as the load itself.
//!
//! A report is as old as the last look, so it is corrected by what the router knows better: while requests wait, each
//! that it has sent since waits too, and each that has ended has let one in. It counts for nothing once it is too old,
//! and what it does not say is unknown, not zero.
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Tick;

/// The share of a KV cache in use from which on it is full: what waits then waits for others to end.
const CACHE_FULL: f64 = 0.95;

/// What an engine said of its queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueReport {
    /// Requests that wait in it.
    pub waiting: u32,
    /// The share of its KV cache that requests use, 0 to 1.
    pub cache_use: Option<f64>,
    /// So many that wait are too many; `None`: no number is.
    pub max_waiting: Option<u32>,
    /// From then on it counts for nothing.
    pub until: Tick,
}

/// The last such report of a replica.
#[derive(Debug, Default)]
pub(super) struct Reported {
    /// Whether any wait: where none do there is nothing to look at.
    any: AtomicBool,
    /// And how many requests of this router's were open then.
    last: Mutex<Option<(QueueReport, u32)>>,
}

impl Reported {
    /// Takes a report, made while so many requests were `open`; `None`: nothing is known any more.
    pub fn set(&self, report: Option<QueueReport>, open: u32) {
        let mut last = self.last.lock();
        *last = report.map(|report| (report, open));
        self.any.store(report.is_some_and(|report| report.waiting > 0), Ordering::Release);
    }

    /// Whether the engine has more to do than it can begin, with so many requests `open` now.
    pub fn saturated(&self, open: u32, now: Tick) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let Some((report, then)) = *self.last.lock() else { return false };
        let waiting = report.waiting.saturating_add(open).saturating_sub(then);
        let too_many = report.max_waiting.is_some_and(|most| waiting >= most);
        let no_room = waiting > 0 && report.cache_use.is_some_and(|share| share >= CACHE_FULL);
        now < report.until && report.max_waiting.is_some() && (too_many || no_room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(waiting: u32, cache_use: Option<f64>) -> QueueReport {
        QueueReport { waiting, cache_use, max_waiting: Some(4), until: Tick(100) }
    }

    #[test]
    fn many_that_wait_saturate_and_a_full_cache_does_with_any() {
        let reported = Reported::default();
        let saturated = |report, open| {
            reported.set(report, 10);
            reported.saturated(open, Tick(50))
        };
        assert!(!saturated(None, 10), "nothing is known");
        assert!(!saturated(Some(report(0, Some(1.0))), 40), "none wait: those sent since may run at once");
        assert!(!saturated(Some(report(3, None)), 10));
        assert!(saturated(Some(report(4, None)), 10));
        assert!(saturated(Some(report(3, None)), 11), "one more was sent since");
        assert!(!saturated(Some(report(4, None)), 9), "one has ended since, and one that waited begun");
        assert!(!saturated(Some(report(1, Some(0.94))), 10));
        assert!(saturated(Some(report(1, Some(0.95))), 10));
        assert!(!saturated(Some(report(1, Some(0.95))), 9));
        assert!(!saturated(Some(QueueReport { max_waiting: None, ..report(1_000, Some(1.0)) }), 10), "switched off");
    }

    #[test]
    fn an_old_report_counts_for_nothing() {
        let reported = Reported::default();
        reported.set(Some(report(9, None)), 0);
        assert!(reported.saturated(0, Tick(99)) && !reported.saturated(0, Tick(100)));
    }
}
