//! What engines report against what was expected of them.
//!
//! The index takes a replica's cache to be as large as is configured, and to give back what was used longest ago. One that
//! is smaller (running requests and answers take their part, the operator's figure is a guess) has forgotten what the
//! index still counts on. Its reports say so: where more than [`SHARE`] of what was known to be there, over
//! [`REPORTS`] requests, was not, the replica is assumed to keep that much less. What an assumption that holds costs is a
//! prefix computed again elsewhere, so it goes back up as long as predictions hold, a little at a time.
//!
//! A request that was computed anew is there now: its blocks stay in the index.
use crate::prefix::BLOCK_TOKENS;

/// Tokens by which a prediction may be off and is still right: an engine's own blocks end elsewhere than ours, and it
/// always computes the last token.
pub const TOLERANCE: u32 = 2 * BLOCK_TOKENS as u32;

/// Reports that are judged together.
const REPORTS: u32 = 64;
/// The share of what was known to be cached, in tokens, that may be missing.
const SHARE: f64 = 0.05;
/// A share so small that the assumption may go up again.
const HOLDS: f64 = 0.01;
/// The most that one step takes away.
const STEP: f64 = 0.5;
/// One step up: so much of what is configured.
const BACK: usize = 128;
/// At least so much of what is configured is assumed: what is missing then is missing for another reason.
const LEAST: usize = 16;

/// What an engine said of a request's prompt, in its own tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, what it found in its cache.
    pub cached_tokens: u32,
}

impl Reported {
    /// So many of the prompt's `tokens`, by the router's count, in the engine's: where a prompt's text is compared, the
    /// router only estimates.
    pub fn in_its_tokens(&self, matched: u32, tokens: u32) -> u32 {
        scaled(matched, tokens, self.prompt_tokens)
    }

    /// What it found in its cache, in the router's tokens, of which the prompt has so many.
    pub(super) fn cached_of(&self, tokens: u32) -> u32 {
        scaled(self.cached_tokens, self.prompt_tokens, tokens)
    }

    /// By how much a match of such a prompt may be off. Where the two count differently, the router estimates, and texts
    /// have their tokens in some parts more than in others.
    fn tolerance(&self, matched: u32, tokens: u32) -> u32 {
        if self.prompt_tokens.abs_diff(tokens) < BLOCK_TOKENS as u32 { TOLERANCE } else { TOLERANCE + matched / 4 }
    }
}

fn scaled(part: u32, of: u32, to: u32) -> u32 {
    if of == to || of == 0 {
        return part;
    }
    u32::try_from(u64::from(part) * u64::from(to) / u64::from(of)).unwrap_or(u32::MAX)
}

/// What one replica is assumed to keep.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trust {
    /// Blocks, as configured.
    configured: usize,
    /// Blocks, as assumed: never more.
    assumed: usize,
    /// Of the reports since the last judgement: how many, the tokens known to be cached or found so, and those that were
    /// known and not found.
    reports: u32,
    tokens: u64,
    missing: u64,
}

impl Trust {
    pub fn new(configured: usize) -> Self {
        Self { configured, assumed: configured, reports: 0, tokens: 0, missing: 0 }
    }

    /// Another configured capacity is believed anew.
    pub fn configure(&mut self, configured: usize) {
        if configured != self.configured {
            *self = Self::new(configured);
        }
    }

    /// Blocks that the replica is assumed to keep.
    pub fn capacity(&self) -> usize {
        self.assumed
    }

    /// A request ended of whose prompt of `tokens` so many were `known` to be cached, when the index counted on `held`
    /// blocks there. Whether the capacity is another one now.
    pub fn report(&mut self, known: u32, tokens: u32, reported: Reported, held: usize) -> bool {
        let cached = reported.cached_of(tokens);
        // What is found without being known counts as well: where too little is assumed, nothing may be known.
        let either = known.max(cached);
        if either <= TOLERANCE {
            return false;
        }
        let missing = known.saturating_sub(cached);
        self.reports += 1;
        self.tokens += u64::from(either);
        self.missing += if missing > reported.tolerance(known, tokens) { missing.into() } else { 0 };
        self.reports >= REPORTS && self.judge(held)
    }

    fn judge(&mut self, held: usize) -> bool {
        let (before, share) = (self.assumed, self.missing as f64 / self.tokens as f64);
        (self.reports, self.tokens, self.missing) = (0, 0, 0);
        if share > SHARE {
            // A replica that is not full yet can't lack more than it was given.
            let kept = self.assumed.min(held) as f64 * (1.0 - share.min(STEP));
            self.assumed = (kept as usize).max(self.configured / LEAST).min(before);
        } else if share < HOLDS {
            self.assumed = (self.assumed + (self.configured / BACK).max(1)).min(self.configured);
        }
        self.assumed != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: u32 = 2_000;

    fn reports(trust: &mut Trust, times: u32, cached: u32) {
        for _ in 0..times {
            trust.report(1_600, TOKENS, Reported { prompt_tokens: TOKENS, cached_tokens: cached }, 1_000);
        }
    }

    #[test]
    fn it_shrinks_by_what_is_missing_and_recovers_slowly() {
        let mut trust = Trust::new(1_000);
        reports(&mut trust, REPORTS - 1, 1_200);
        assert_eq!(trust.capacity(), 1_000, "a judgement takes its time");
        reports(&mut trust, 1, 1_200);
        assert_eq!(trust.capacity(), 750, "a quarter was missing");
        reports(&mut trust, REPORTS, 1_600);
        assert_eq!(trust.capacity(), 757);
        reports(&mut trust, 100 * REPORTS, 1_600);
        assert_eq!(trust.capacity(), 1_000, "and never more than is configured");
        reports(&mut trust, 100 * REPORTS, 0);
        assert_eq!(trust.capacity(), 1_000 / LEAST);
        trust.configure(1_000);
        assert_eq!(trust.capacity(), 1_000 / LEAST, "nothing new");
        trust.configure(500);
        assert_eq!(trust.capacity(), 500);
    }

    #[test]
    fn what_is_within_tolerance_or_nothing_was_known_of_says_nothing() {
        let mut trust = Trust::new(1_000);
        reports(&mut trust, 10 * REPORTS, 1_600 - TOLERANCE);
        for _ in 0..10 * REPORTS {
            trust.report(0, TOKENS, Reported { prompt_tokens: TOKENS, cached_tokens: 0 }, 1_000);
            // Estimated at 2,000 tokens, and of 1,500: the match, 1,600, is 1,200 of these, give or take.
            trust.report(1_600, TOKENS, Reported { prompt_tokens: 1_500, cached_tokens: 1_000 }, 1_000);
        }
        assert_eq!(trust.capacity(), 1_000);
        reports(&mut trust, 2 * REPORTS, 1_600 - TOLERANCE - 200);
        assert!(trust.capacity() < 1_000);
    }

    #[test]
    fn it_recovers_although_nothing_is_known_any_more() {
        let mut trust = Trust::new(1_000);
        reports(&mut trust, 100 * REPORTS, 0);
        let least = trust.capacity();
        for _ in 0..REPORTS {
            trust.report(0, TOKENS, Reported { prompt_tokens: TOKENS, cached_tokens: 1_600 }, 10);
        }
        assert!(trust.capacity() > least);
    }

    #[test]
    fn a_few_misses_are_no_pattern() {
        let mut trust = Trust::new(1_000);
        for _ in 0..20 {
            reports(&mut trust, 3, 0);
            reports(&mut trust, REPORTS - 3, 1_600);
        }
        assert_eq!(trust.capacity(), 1_000);
    }
}
