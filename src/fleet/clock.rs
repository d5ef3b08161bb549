//! The clock of the routing core's ticks.
use std::time::Instant;

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
}
