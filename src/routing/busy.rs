//! How busy the replicas are, and so what a second of work costs.
//!
//! In a line that is busy for a share ρ of the time, one more second of work makes those that come later wait for
//! 1 ÷ (1 − ρ) seconds in all (M/G/1: the delay that a job causes until the line is empty). So work that a longer
//! match would save is dear while replicas are busy, and cheap while they idle. ρ is the share of replicas at which
//! prefills wait or run, seen by the requests that come (who see time averages), over the last [`WINDOW_MICROS`].
use super::Tick;

/// What came so long ago counts 1/e.
const WINDOW_MICROS: f64 = 30e6;
/// However busy: at some point the line is too long for the estimate, and balance counts more than saved work.
const MOST: f64 = 16.0;

/// The moving share of replicas that have a queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Busy {
    /// Sum of what was seen, and of its weights: less than 1 in the beginning.
    busy: f64,
    weight: f64,
    seen: Tick,
}

impl Busy {
    /// A request comes: so many of the replicas have a queue now.
    pub fn see(&mut self, share: f64, now: Tick) {
        let passed = now.0.saturating_sub(self.seen.0) as f64;
        let fades = (-passed / WINDOW_MICROS).exp();
        self.busy = fades * self.busy + (1.0 - fades) * share;
        self.weight = fades * self.weight + (1.0 - fades);
        self.seen = now.max(self.seen);
    }

    /// What a second of work costs, in seconds of everybody's: from 1 (idle) to [`MOST`].
    pub fn price(&self) -> f64 {
        let share = if self.weight > 0.0 { self.busy / self.weight } else { 0.0 };
        (1.0 / (1.0 - share)).clamp(1.0, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_dearer_the_busier_the_replicas_are() {
        let mut busy = Busy::default();
        assert_eq!(busy.price(), 1.0);
        for second in 1..=300 {
            busy.see(0.5, Tick(second * 1_000_000));
        }
        assert!((busy.price() - 2.0).abs() < 0.01, "{}", busy.price());
        for second in 301..=900 {
            busy.see(1.0, Tick(second * 1_000_000));
        }
        assert_eq!(busy.price(), MOST);
        busy.see(0.0, Tick(930 * 1_000_000));
        assert!((busy.price() - 1.0 / (1.0 - (-1.0_f64).exp())).abs() < 0.01, "{}", busy.price());
    }

    #[test]
    fn a_burst_in_one_instant_and_a_clock_that_stands_still_move_nothing() {
        let mut busy = Busy::default();
        busy.see(0.4, Tick(10_000_000));
        let before = busy.price();
        (0..1_000).for_each(|_| busy.see(1.0, Tick(10_000_000)));
        busy.see(1.0, Tick(9_000_000));
        assert_eq!(busy.price(), before);
    }
}
