//! How many requests may be replayed: a share of those that are live, or a floor, in any ten seconds.
//!
//! Pure: the time is given. A budget by concurrency alone would let a client that asks one thing after the other double
//! each of its requests; one over a window bounds what engines get, whatever the shape of the traffic: over any time in
//! which requests all fail, engines see at most (1 + share) × requests, plus the floor for each window of it. Requests
//! that are open but began earlier are live as well: when a replica with a hundred long ones dies, it is their number
//! that counts.
use std::time::{Duration, Instant};

use super::window::Window;
use crate::config::Retry;

const LENGTH: Duration = Duration::from_secs(10);
const REQUEST: usize = 0;
const REPLAY: usize = 1;

/// A pool's budget.
#[derive(Debug)]
pub(super) struct Budget {
    share: f64,
    floor: u32,
    window: Window,
}

impl Budget {
    /// Untouched.
    pub fn new(retry: &Retry) -> Self {
        Self { share: retry.budget, floor: retry.floor, window: Window::new(LENGTH) }
    }

    /// Takes new settings; what was counted stays.
    pub fn set(&mut self, retry: &Retry) {
        (self.share, self.floor) = (retry.budget, retry.floor);
    }

    /// A request has begun.
    pub fn began(&mut self, now: Instant) {
        self.window.count(REQUEST, now);
    }

    /// Takes one replay out, if there is one left; `open` requests are open now.
    pub fn take(&mut self, open: u32, now: Instant) -> bool {
        let [requests, replays] = self.window.sums(now);
        let share = f64::from(requests.max(open)) * self.share;
        // Truncated: a budget is never rounded up.
        let allowed = (share as u32).max(self.floor);
        let left = replays < allowed;
        if left {
            self.window.count(REPLAY, now);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(budget: f64, floor: u32) -> Budget {
        Budget::new(&Retry { budget, floor, ..Retry::default() })
    }

    #[test]
    fn under_total_failure_a_fifth_is_replayed_and_the_floor() {
        let now = Instant::now();
        for requests in [1_u32, 10, 100, 1_000] {
            let mut budget = budget(0.2, 3);
            let replays = (0..requests)
                .filter(|_| {
                    budget.began(now);
                    budget.take(1, now)
                })
                .count() as u32;
            assert_eq!(replays, (requests / 5).max(3).min(requests));
        }
    }

    #[test]
    fn open_requests_are_live_however_old() {
        let now = Instant::now();
        let mut budget = budget(0.2, 3);
        assert_eq!((0..200).filter(|_| budget.take(100, now)).count(), 20);
    }

    #[test]
    fn a_budget_of_nothing_gives_nothing() {
        assert!(!budget(0.0, 0).take(1_000, Instant::now()));
    }

    /// Whatever the traffic, replays stay under a fifth of it and the floor of each window.
    #[test]
    fn simulated() {
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (start, mut budget) = (Instant::now(), budget(0.2, 3));
            let mut now = start;
            let (mut requests, mut replays) = (0_u32, 0_u32);
            for _ in 0..3_000 {
                now += Duration::from_millis(random.u64(..100));
                requests += 1;
                budget.began(now);
                replays += u32::from(budget.take(1, now));
            }
            let windows = (now - start).as_secs_f64() / 9.0 + 1.0;
            let most = 0.2 * f64::from(requests) + 3.0 * windows;
            assert!(f64::from(replays) <= most, "seed {seed}: {replays} of {requests}");
            assert!(f64::from(replays) >= 0.15 * f64::from(requests), "seed {seed}: {replays} of {requests}");
        }
    }
}
