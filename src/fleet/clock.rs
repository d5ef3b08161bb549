//! The clock of the routing core's ticks.
use std::time::{Duration, Instant};

use crate::routing::Tick;

/// Counts from a moment of its own. Copies agree.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// One whose origin is now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Microseconds since its origin.
    pub fn now(self) -> Tick {
        Tick(u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// The first moment, from `at` on, that is a whole number of steps from its origin.
    pub fn round_up(self, at: tokio::time::Instant, step: Duration) -> tokio::time::Instant {
        let step = step.as_nanos().max(1);
        let over = at.into_std().saturating_duration_since(self.0).as_nanos() % step;
        let rest = if over == 0 { 0 } else { step - over };
        at + Duration::from_nanos(u64::try_from(rest).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_whole_steps_from_the_origin() {
        let clock = Clock::start();
        let after = |nanos| tokio::time::Instant::from_std(clock.0 + Duration::from_nanos(nanos));
        let step = Duration::from_nanos(50);
        for (at, moment) in [(0, 0), (1, 50), (49, 50), (50, 50), (51, 100), (1_000_000_049, 1_000_000_050)] {
            assert_eq!(clock.round_up(after(at), step), after(moment));
        }
        assert_eq!(clock.round_up(after(7), Duration::ZERO), after(7));
    }
}
