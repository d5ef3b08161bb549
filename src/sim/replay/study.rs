//! The study's replica: its cache holds whole conversations (or documents), least recently used goes first; a system
//! prompt counts in every conversation's entry, and is always hit on a miss. One call after the other, no queues.
use std::collections::{BTreeMap, HashMap};

use super::tally::{Outcome, Tally};
use crate::sim::call::Call;
use crate::sim::choose::{Chooser, Holdings};
use crate::sim::engine::VirtualTime;
use crate::sim::prefill::PrefillModel;

/// One replica's cache.
#[derive(Debug)]
pub struct StudyCache {
    capacity: u64,
    held: u64,
    clock: u64,
    /// Tokens and last use of each key.
    entries: HashMap<u64, (u32, u64)>,
    by_use: BTreeMap<u64, u64>,
}

impl StudyCache {
    /// An empty one of so many tokens.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, held: 0, clock: 0, entries: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// Leading tokens of the call that are cached.
    #[must_use]
    pub fn cached(&self, call: &Call) -> u32 {
        self.entries.get(&call.key).map_or(call.common_tokens, |(tokens, _)| (*tokens).min(call.prompt_tokens))
    }

    /// The call has been answered: what it leaves is the most recently used.
    pub fn keep(&mut self, call: &Call) {
        self.clock += 1;
        if let Some((tokens, used)) = self.entries.insert(call.key, (call.lasting_tokens, self.clock)) {
            self.held -= u64::from(tokens);
            self.by_use.remove(&used);
        }
        self.by_use.insert(self.clock, call.key);
        self.held += u64::from(call.lasting_tokens);
        while self.held > self.capacity
            && let Some((_, key)) = self.by_use.pop_first()
        {
            let tokens = self.entries.remove(&key).map_or(0, |(tokens, _)| tokens);
            self.held -= u64::from(tokens);
        }
    }
}

struct All<'a>(&'a [StudyCache]);

impl Holdings for All<'_> {
    fn held(&self, replica: usize, call: &Call, _: &[u64]) -> u32 {
        self.0[replica].cached(call)
    }
}

/// Plays `calls` one after the other on `replicas` of `cache_tokens` each; `ticks` hears of each.
///
/// # Errors
/// When the chooser finds no replica.
pub fn play_study(
    calls: impl Iterator<Item = Call>,
    replicas: usize,
    cache_tokens: u64,
    prefill: &PrefillModel,
    chooser: &mut dyn Chooser,
    ticks: &dyn Fn(u64),
) -> Result<Outcome, String> {
    let mut caches: Vec<_> = (0..replicas).map(|_| StudyCache::new(cache_tokens)).collect();
    let mut tally = Tally::new(replicas);
    let mut seconds = 0.0;
    let mut blocks = Vec::new();
    for call in calls {
        if chooser.reads_blocks() {
            blocks = call.blocks();
        }
        let mut placed = chooser.choose(&call, &blocks, &All(&caches), VirtualTime::from_secs_f64(seconds))?;
        let replica = placed.replica;
        let cached = caches[replica].cached(&call);
        let takes = prefill.seconds(call.prompt_tokens, cached);
        caches[replica].keep(&call);
        seconds += takes;
        let now = VirtualTime::from_secs_f64(seconds);
        tally.first_token(&call, replica, cached, takes, takes);
        if let Some(expected) = placed.expected {
            tally.predicted(expected, cached);
        }
        chooser.first_token(&mut placed, now);
        chooser.finished(placed, now);
        ticks(1);
    }
    Ok(tally.outcome())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(key: u64, prompt: u32, lasting: u32) -> Call {
        Call { key, prompt_tokens: prompt, lasting_tokens: lasting, common_tokens: 10, ..Call::default() }
    }

    #[test]
    fn whole_entries_go_least_recently_used_first() {
        let mut cache = StudyCache::new(300);
        for key in 1..=3 {
            cache.keep(&call(key, 90, 100));
        }
        cache.keep(&call(1, 90, 100));
        cache.keep(&call(4, 40, 50));
        let cached = |key| cache.cached(&call(key, 200, 0));
        assert_eq!([cached(1), cached(2), cached(3), cached(4)], [100, 10, 100, 50], "2 went, as a whole");
        assert_eq!(cache.cached(&call(1, 60, 0)), 60, "no more than the prompt has");
    }

    #[test]
    fn an_entry_that_grows_counts_once() {
        let mut cache = StudyCache::new(300);
        for size in [100, 150, 200] {
            cache.keep(&call(1, size, size));
        }
        cache.keep(&call(2, 100, 100));
        assert_eq!((cache.held, cache.cached(&call(1, 500, 0))), (300, 200));
    }
}
