//! The virtual queue of a replica: prefill seconds that were placed there and are not computed yet, as far as one can
//! tell from outside.
//!
//! A prefill begins when it is placed or when the one before it ends, whichever is later, and takes as long as it was
//! booked with; the queue drains in wall time. First tokens correct it: what answers early takes its rest with it, what
//! answers late holds up those behind it. What is withdrawn is as if it had never been placed. So it is never negative,
//! and an idle replica's is zero whatever was booked: a booking that is lost drains like the others.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Tick;

/// One replica's queue, shared by the pools it serves.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// When it is empty, in microseconds: kept beside the line, so that a decision need not lock every replica's.
    until: AtomicU64,
    line: Mutex<Line>,
}

/// Prefills that are not over yet, oldest first.
#[derive(Debug, Default)]
struct Line {
    /// When the one before the first ended.
    base: u64,
    next: u64,
    waiting: VecDeque<Booked>,
}

#[derive(Debug)]
struct Booked {
    id: u64,
    at: u64,
    micros: u64,
}

/// A place in a queue. Copies name the same one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    id: u64,
    at: Tick,
    micros: u64,
    /// Nothing waited there before it.
    pub alone: bool,
}

impl Ticket {
    /// When it was placed.
    pub fn at(&self) -> Tick {
        self.at
    }
}

impl Queue {
    /// Seconds of prefill that wait.
    pub fn seconds(&self, now: Tick) -> f64 {
        seconds(self.until.load(Ordering::Acquire).saturating_sub(now.0))
    }

    /// The same, had this one never been placed.
    pub fn seconds_without(&self, ticket: &Ticket, now: Tick) -> f64 {
        seconds(self.line.lock().end(Some(ticket.id)).saturating_sub(now.0))
    }

    /// Places a prefill of so many seconds.
    pub fn book(&self, prefill: f64, now: Tick) -> Ticket {
        // Saturates; not a number is 0. A day is far more than any prefill, and far from an overflow.
        let micros = (prefill.clamp(0.0, 86_400.0) * 1e6) as u64;
        let mut line = self.line.lock();
        line.drain(now.0);
        let alone = line.waiting.is_empty();
        let id = line.next;
        line.next += 1;
        line.waiting.push_back(Booked { id, at: now.0, micros });
        self.publish(&line);
        Ticket { id, at: now, micros, alone }
    }

    /// It has begun to answer; `timely` when that came as soon as the prefill was over.
    pub fn confirm(&self, ticket: &Ticket, timely: bool, now: Tick) {
        let mut line = self.line.lock();
        line.drain(now.0);
        match line.find(ticket.id) {
            // Early. In the order of the line, those behind it begin only now.
            Some(0) => {
                line.waiting.pop_front();
                line.base = line.base.max(now.0);
            }
            // Before older ones: it did not wait for them, nor they for it.
            Some(at) => drop(line.waiting.remove(at)),
            // Late: so were those behind it. By no more than it was booked with: a longer delay is not the prefill's.
            None if timely => line.base = now.0.min(line.base.saturating_add(ticket.micros)).max(line.base),
            None => {}
        }
        self.publish(&line);
    }

    /// It was never computed, or is no longer.
    pub fn withdraw(&self, ticket: &Ticket, now: Tick) {
        let mut line = self.line.lock();
        line.drain(now.0);
        if let Some(at) = line.find(ticket.id) {
            line.waiting.remove(at);
        }
        self.publish(&line);
    }

    fn publish(&self, line: &Line) {
        self.until.store(line.end(None), Ordering::Release);
    }
}

impl Line {
    /// When the last one ends, without one of them.
    fn end(&self, except: Option<u64>) -> u64 {
        let counted = self.waiting.iter().filter(|booked| Some(booked.id) != except);
        counted.fold(self.base, |free, booked| free.max(booked.at) + booked.micros)
    }

    /// Those whose time is over leave.
    fn drain(&mut self, now: u64) {
        while let Some(first) = self.waiting.front() {
            let end = self.base.max(first.at) + first.micros;
            if end > now {
                return;
            }
            self.base = end;
            self.waiting.pop_front();
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&id, |booked| booked.id).ok()
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn it_drains_in_wall_time_and_is_never_negative() {
        let queue = Queue::default();
        let _ = (queue.book(2.0, Tick(0)), queue.book(1.0, Tick(S)));
        assert_eq!([0, 1, 2, 3, 9].map(|at| queue.seconds(Tick(at * S))), [3.0, 2.0, 1.0, 0.0, 0.0]);
        let _ = queue.book(1.0, Tick(10 * S));
        assert_eq!(queue.seconds(Tick(10 * S)), 1.0, "idle time is not saved up");
        assert_eq!(
            (Queue::default().book(f64::NAN, Tick(0)).micros, Queue::default().book(-1.0, Tick(0)).micros),
            (0, 0)
        );
    }

    #[test]
    fn first_tokens_correct_it() {
        let queue = Queue::default();
        let [a, b, c] = [2.0, 2.0, 2.0].map(|prefill| queue.book(prefill, Tick(0)));
        assert_eq!((a.alone, b.alone), (true, false));
        queue.confirm(&a, true, Tick(S));
        assert_eq!(queue.seconds(Tick(S)), 4.0, "early");
        queue.confirm(&b, true, Tick(4 * S));
        assert_eq!(queue.seconds(Tick(4 * S)), 2.0, "late: the next begins only now");
        queue.confirm(&c, true, Tick(20 * S));
        assert_eq!(queue.seconds(Tick(20 * S)), 0.0);
        let [a, _b] = [1.0, 5.0].map(|prefill| queue.book(prefill, Tick(30 * S)));
        queue.confirm(&a, false, Tick(34 * S));
        assert_eq!(queue.seconds(Tick(34 * S)), 2.0, "a whole answer's end tells nothing of its prefill's");
    }

    proptest! {
        #![proptest_config(crate::routing::tests::cases(300))]

        /// What is withdrawn before its time is over leaves the queue as if it had never been there.
        #[test]
        fn a_withdrawal_gives_back_exactly(
            steps in prop::collection::vec((0..4_u64, 1..5_u64, any::<bool>()), 1..40),
        ) {
            let (queue, without) = (Queue::default(), Queue::default());
            let (mut now, mut doomed) = (0, Vec::new());
            for (wait, prefill, dooms) in steps {
                // All within the first prefill's time, so that nothing has left the line.
                now += wait;
                let ticket = queue.book((100 * prefill) as f64, Tick(now * S / 10));
                if dooms { doomed.push(ticket) } else { let _ = without.book((100 * prefill) as f64, Tick(now * S / 10)); }
            }
            let end = Tick(now * S / 10);
            if let [only] = &doomed[..] {
                prop_assert_eq!(queue.seconds_without(only, end), without.seconds(end));
            }
            doomed.iter().for_each(|ticket| queue.withdraw(ticket, end));
            prop_assert_eq!(queue.seconds(end), without.seconds(end));
        }
    }
}
