//! A replica's breaker: what requests say about it, as a pure state machine with the time given.
//!
//! ```text
//! closed ── failures in a row, or their share in a window ──▶ open ── its time passes ──▶ half-open
//!    ▲                                                         ▲                             │ a good probe
//!    └──── the first request that is answered ── probation ◀───┼─────────────────────────────┘
//!                                                    └─────────┘ the first that fails: open for twice as long
//! ```
//!
//! While it is open or half-open, requests that were sent before count for nothing. The time that it stays open starts
//! anew with the first request that is answered, not with a probe: a probe can be well where generation is not.
use std::time::{Duration, Instant};

use super::window::Window;
use crate::config;

const OK: usize = 0;
const FAILED: usize = 1;

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass.
    Closed,
    /// They pass, and the first one decides.
    Probation,
    /// None passes, until this long from now.
    Open(Duration),
    /// None passes until a probe is answered.
    HalfOpen,
}

impl BreakerState {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Probation => "probation",
            Self::Open(_) => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Closed,
    Probation,
    Open { since: Instant, length: Duration },
}

/// A replica's breaker.
#[derive(Debug)]
pub(super) struct Breaker {
    settings: config::Breaker,
    at: At,
    in_a_row: u32,
    /// Times it has opened since a request was last answered.
    opened: u32,
    window: Window,
}

impl Breaker {
    /// Closed.
    pub fn new(settings: config::Breaker) -> Self {
        Self { at: At::Closed, in_a_row: 0, opened: 0, window: Window::new(settings.window), settings }
    }

    /// Takes new settings; where it stands stays, and what was counted unless the window is another.
    pub fn set(&mut self, settings: config::Breaker) {
        if settings.window != self.settings.window {
            self.window = Window::new(settings.window);
        }
        self.settings = settings;
    }

    /// A request was answered, whatever it was told, unless it was told of a fault of the replica's own.
    pub fn answered(&mut self, now: Instant) {
        match self.at {
            At::Open { .. } => {}
            At::Closed | At::Probation => {
                self.at = At::Closed;
                self.in_a_row = 0;
                self.opened = 0;
                self.window.count(OK, now);
            }
        }
    }

    /// Requests that failed one after the other, up to now.
    pub fn fails_in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// A request failed. True if this opened it.
    pub fn failed(&mut self, now: Instant) -> bool {
        if matches!(self.at, At::Open { .. }) {
            return false;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.window.count(FAILED, now);
        let [ok, failed] = self.window.sums(now);
        let all = ok.saturating_add(failed);
        let often = all >= self.settings.min_requests && f64::from(failed) >= self.settings.share * f64::from(all);
        if self.at == At::Probation || self.in_a_row >= self.settings.failures || often {
            self.open(now);
            return true;
        }
        false
    }

    fn open(&mut self, now: Instant) {
        let doubled = self.settings.open_for.saturating_mul(1_u32.checked_shl(self.opened).unwrap_or(u32::MAX));
        let length = doubled.min(self.settings.max_open.max(self.settings.open_for));
        self.opened = self.opened.saturating_add(1);
        self.at = At::Open { since: now, length };
        // What led here must not open it again.
        self.in_a_row = 0;
        self.window.clear();
    }

    /// A probe was answered as it should. True if this closed it, on probation.
    pub fn probed(&mut self, now: Instant) -> bool {
        let half_open = self.state(now) == BreakerState::HalfOpen;
        if half_open {
            self.at = At::Probation;
        }
        half_open
    }

    /// The replica is a new process: whatever its predecessor did is forgotten.
    pub fn reset(&mut self) {
        *self = Self::new(self.settings);
    }

    /// Where it stands.
    pub fn state(&self, now: Instant) -> BreakerState {
        match self.at {
            At::Closed => BreakerState::Closed,
            At::Probation => BreakerState::Probation,
            At::Open { since, length } => match length.saturating_sub(now.saturating_duration_since(since)) {
                Duration::ZERO => BreakerState::HalfOpen,
                left => BreakerState::Open(left),
            },
        }
    }

    /// Since when it keeps requests away.
    pub fn ejected_since(&self) -> Option<Instant> {
        match self.at {
            At::Open { since, .. } => Some(since),
            At::Closed | At::Probation => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn settings() -> config::Breaker {
        config::Breaker::default()
    }

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(settings());
        (0..5).for_each(|_| assert!(breaker.failed(now) || breaker.ejected_since().is_none()));
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_answers_between_them_do_not() {
        let now = Instant::now();
        let mut breaker = Breaker::new(config::Breaker { min_requests: 1_000, ..settings() });
        for turn in 0..15 {
            assert!(!breaker.failed(now), "turn {turn}");
            if turn % 4 == 3 {
                (0..4).for_each(|_| breaker.answered(now));
            }
            assert_eq!(breaker.state(now), BreakerState::Closed);
        }
        breaker.reset();
        assert_eq!((0..5).map(|_| breaker.failed(now)).collect::<Vec<_>>(), [false, false, false, false, true]);
        assert_eq!(breaker.state(now), BreakerState::Open(settings().open_for));
    }

    #[test]
    fn a_share_of_failures_opens_it_once_there_were_enough() {
        let now = Instant::now();
        let mut breaker = Breaker::new(settings());
        let mut requests = 0;
        loop {
            breaker.answered(now);
            requests += 2;
            if breaker.failed(now) {
                break;
            }
            assert!(requests < settings().min_requests, "half of {requests} failed");
        }
        assert_eq!(requests, settings().min_requests);
        // Spread over more than the window, the same share is never enough requests.
        let mut breaker = Breaker::new(settings());
        for turn in 0..100 {
            breaker.answered(now + turn * 1_200 * MS);
            assert!(!breaker.failed(now + turn * 1_200 * MS), "turn {turn}");
        }
    }

    #[test]
    fn a_good_probe_closes_it_only_after_its_time() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert!(!breaker.probed(now + 999 * MS));
        breaker.answered(now + 999 * MS);
        assert_eq!(breaker.state(now + 999 * MS), BreakerState::Open(MS), "late answers of before change nothing");
        assert_eq!(breaker.state(now + 1000 * MS), BreakerState::HalfOpen);
        assert!(breaker.probed(now + 1000 * MS));
        assert_eq!(breaker.state(now + 1000 * MS), BreakerState::Probation);
        breaker.answered(now + 1000 * MS);
        assert_eq!(breaker.state(now + 1000 * MS), BreakerState::Closed);
    }

    #[test]
    fn each_time_it_opens_for_twice_as_long_up_to_a_cap() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let length = Duration::from_secs(seconds);
            assert_eq!(breaker.state(now), BreakerState::Open(length));
            now += length;
            assert!(breaker.probed(now));
            assert!(breaker.failed(now), "one failure is enough on probation");
        }
        now += settings().max_open;
        assert!(breaker.probed(now));
        breaker.answered(now);
        (0..5).for_each(|_| assert!(breaker.failed(now) || breaker.ejected_since().is_none()));
        assert_eq!(breaker.state(now), BreakerState::Open(settings().open_for), "an answer starts it anew");
    }

    /// Seeded histories against what must hold at each step, whatever comes.
    #[test]
    fn simulated() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let settings = config::Breaker {
                failures: random.u32(1..8),
                min_requests: random.u32(1..40),
                open_for: random.u32(1..5_000) * MS,
                max_open: random.u32(1..60_000) * MS,
                ..settings()
            };
            let mut breaker = Breaker::new(settings);
            let mut now = Instant::now();
            let (mut row, mut open_until) = (0, None::<Instant>);
            for step in 0..2_000 {
                now += random.u32(..300) * MS;
                let before = breaker.state(now);
                match random.u8(..10) {
                    0..3 => {
                        breaker.answered(now);
                        row = 0;
                    }
                    3..8 => {
                        let opened = breaker.failed(now);
                        row += 1;
                        let passes = matches!(before, BreakerState::Closed | BreakerState::Probation);
                        assert!(!opened || passes, "seed {seed} step {step}: opened twice");
                        assert!(opened || before != BreakerState::Probation, "seed {seed} step {step}");
                        if opened {
                            let BreakerState::Open(length) = breaker.state(now) else {
                                panic!("seed {seed}: not open")
                            };
                            let cap = settings.max_open.max(settings.open_for);
                            assert!((settings.open_for.min(cap)..=cap).contains(&length), "seed {seed}: {length:?}");
                            open_until = Some(now + length);
                        } else if passes {
                            assert!(row < settings.failures, "seed {seed} step {step}: {row} in a row");
                        }
                        if !passes || opened {
                            row = 0;
                        }
                    }
                    _ => {
                        let closed = breaker.probed(now);
                        assert_eq!(closed, before == BreakerState::HalfOpen, "seed {seed} step {step}");
                        assert!(!closed || open_until.is_some_and(|until| now >= until), "seed {seed}: too early");
                    }
                }
            }
        }
    }
}
