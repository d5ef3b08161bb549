//! Counts of the recent past: a ring of slices of time, each forgotten as a whole.
//!
//! Pure: the time is given. It may step back a little between calls (callers look at the clock before they take a lock);
//! what is late counts for the present slice.
use std::time::{Duration, Instant};

/// Slices of a window. What is counted is forgotten between one window's length later and a slice less.
const SLICES: usize = 10;

/// Two counts over a sliding window.
#[derive(Debug)]
pub(super) struct Window {
    slice: Duration,
    counts: [[u32; 2]; SLICES],
    sums: [u32; 2],
    /// The slice of the present, and when it began.
    at: usize,
    since: Option<Instant>,
}

impl Window {
    /// Empty, of that length.
    pub fn new(length: Duration) -> Self {
        let slice = (length / SLICES as u32).max(Duration::from_micros(1));
        Self { slice, counts: [[0; 2]; SLICES], sums: [0; 2], at: 0, since: None }
    }

    /// Counts one of the two kinds, 0 or 1.
    pub fn count(&mut self, kind: usize, now: Instant) {
        self.turn(now);
        let slot = &mut self.counts[self.at][kind];
        if let Some(more) = slot.checked_add(1) {
            *slot = more;
            self.sums[kind] = self.sums[kind].saturating_add(1);
        }
    }

    /// Both counts.
    pub fn sums(&mut self, now: Instant) -> [u32; 2] {
        self.turn(now);
        self.sums
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self { slice: self.slice, ..Self::new(Duration::ZERO) };
    }

    fn turn(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since).as_nanos() / self.slice.as_nanos();
        let steps = usize::try_from(passed).unwrap_or(usize::MAX);
        if steps == 0 {
            return;
        }
        for _ in 0..steps.min(SLICES) {
            self.at = (self.at + 1) % SLICES;
            let old = std::mem::take(&mut self.counts[self.at]);
            for (sum, old) in self.sums.iter_mut().zip(old) {
                *sum = sum.saturating_sub(old);
            }
        }
        let whole = u32::try_from(steps).ok().and_then(|steps| self.slice.checked_mul(steps));
        self.since = Some(whole.and_then(|whole| since.checked_add(whole)).unwrap_or(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_window() {
        let mut random = fastrand::Rng::with_seed(3);
        let (start, length) = (Instant::now(), Duration::from_secs(10));
        let mut window = Window::new(length);
        let mut all: Vec<(Instant, usize)> = Vec::new();
        let mut now = start;
        for _ in 0..5_000 {
            let pause = if random.u8(..) == 0 { 30_000 } else { random.u64(..200) };
            now += Duration::from_millis(pause);
            let kind = random.usize(..2);
            window.count(kind, now);
            all.push((now, kind));
            let sums = window.sums(now);
            for (kind, sum) in sums.into_iter().enumerate() {
                let within =
                    |length: Duration| all.iter().filter(|(at, k)| *k == kind && *at + length > now).count() as u32;
                let (least, most) = (within(length - length / 10), within(length));
                assert!((least..=most).contains(&sum), "{sum} is not in {least}..={most}");
            }
        }
        window.clear();
        assert_eq!(window.sums(now), [0, 0]);
        assert_eq!(window.sums(start), [0, 0], "a clock that steps back does no harm");
    }
}
