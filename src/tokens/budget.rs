//! What encoding may cost: a time for each prompt, and what a text will take, learned from those before.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The most bytes of a prompt that is taken apart, rendered and encoded: some two million tokens. A longer one is cut as
/// text, which takes little more memory than the text itself.
pub(crate) const LONGEST: usize = 8 << 20;
/// Nanoseconds that a KiB takes, until it is known: 100 MB/s.
const FIRST: u64 = 10_000;
/// Texts shorter than this teach nothing: bytes.
const TEACHES: usize = 4096;

/// How long encoding takes here: a moving mean over texts that were encoded.
#[derive(Debug)]
pub(super) struct Rate {
    nanos_per_kib: AtomicU64,
}

impl Rate {
    pub(super) fn new() -> Self {
        Self { nanos_per_kib: AtomicU64::new(FIRST) }
    }

    /// What `bytes` will take, at the mean rate.
    fn estimate(&self, bytes: usize) -> Duration {
        Duration::from_nanos(self.nanos_per_kib.load(Ordering::Relaxed).saturating_mul(bytes as u64) / 1024)
    }

    /// `bytes` took so long. One odd text moves the mean by an eighth of what it took longer; concurrent teachers may
    /// overwrite each other, which is as good.
    pub(super) fn learn(&self, bytes: usize, took: Duration) {
        if bytes >= TEACHES {
            let now = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1024) / bytes as u64;
            let mean = self.nanos_per_kib.load(Ordering::Relaxed);
            self.nanos_per_kib.store(
                (mean.saturating_mul(7).saturating_add(now.min(mean.saturating_mul(16)))) / 8,
                Ordering::Relaxed,
            );
        }
    }
}

/// The time that one prompt has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    start: Instant,
    budget: Duration,
}

impl Budget {
    /// It begins now.
    pub(super) fn new(budget: Duration) -> Self {
        Self { start: Instant::now(), budget }
    }

    /// Whether there is time to encode so many bytes.
    pub(super) fn allows(&self, rate: &Rate, bytes: usize) -> bool {
        self.start.elapsed() + rate.estimate(bytes) <= self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_in_time_is_not_begun() {
        let rate = Rate::new();
        let budget = Budget::new(Duration::from_secs(3600));
        assert!(budget.allows(&rate, 1 << 20));
        (0..200).for_each(|_| rate.learn(1 << 20, Duration::from_secs(3600)));
        assert!(!budget.allows(&rate, 2 << 20), "an hour for each MiB is too slow for two");
        assert!(budget.allows(&rate, 1 << 10));
        (0..200).for_each(|_| rate.learn(1 << 20, Duration::from_millis(1)));
        assert!(budget.allows(&rate, 2 << 20), "what is fast again is begun again");
        assert!(!Budget::new(Duration::ZERO).allows(&rate, 0));
    }

    #[test]
    fn short_texts_teach_nothing() {
        let rate = Rate::new();
        let before = rate.estimate(1 << 20);
        (0..100).for_each(|_| rate.learn(10, Duration::from_secs(1)));
        assert_eq!(rate.estimate(1 << 20), before);
    }
}
