//! The study's questions about documents: 300 of 16,000 tokens, asked about by Zipf's law with exponent 1, each time a
//! question of 100 tokens. No system prompt, no session: a client names the document in a header, if anything.
//!
//! Popularity may drift: every [`SWAP_EVERY`] requests two ranks drawn at random change their documents, so each document
//! gets another rank once in 20,000 requests on average. Questions fall on the same ranks as without: what differs is
//! what was asked about there before.
use fastrand::Rng;

use super::zipf::Zipf;
use super::{content, draws};
use crate::sim::call::{Call, Segment, mix};

/// Documents.
pub const DOCUMENTS: usize = 300;
/// Tokens of a document.
pub const DOCUMENT_TOKENS: u32 = 16_000;
/// Tokens of a question.
pub const QUESTION_TOKENS: u32 = 100;
/// Requests from one change of popularity to the next, where it drifts: 20,000 ÷ (300 ÷ 2).
pub const SWAP_EVERY: u64 = 133;

/// The stream; endless.
#[derive(Debug)]
pub struct Documents {
    rng: Rng,
    popularity: Zipf,
    /// Which document has which rank.
    ranks: Vec<u64>,
    /// Draws the ranks that change, if any do.
    drift: Option<Rng>,
    asked: u64,
    seed: u64,
}

impl Documents {
    /// Document 0 is the most popular, and stays so.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: draws(seed),
            popularity: Zipf::new(DOCUMENTS),
            ranks: (0..DOCUMENTS as u64).collect(),
            drift: None,
            asked: 0,
            seed,
        }
    }

    /// Document 0 is the most popular to begin with.
    #[must_use]
    pub fn drifting(seed: u64) -> Self {
        Self { drift: Some(draws(mix(seed, 1))), ..Self::new(seed) }
    }
}

impl Iterator for Documents {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        let due = self.asked > 0 && self.asked.is_multiple_of(SWAP_EVERY);
        if let Some(drift) = self.drift.as_mut().filter(|_| due) {
            self.ranks.swap(drift.usize(..DOCUMENTS), drift.usize(..DOCUMENTS));
        }
        let key = self.ranks[self.popularity.rank(self.rng.f64())];
        self.asked += 1;
        Some(Call {
            number: self.asked,
            key,
            session: None,
            header: Some(key),
            segments: vec![
                Segment { seed: content(3, key), tokens: DOCUMENT_TOKENS },
                Segment { seed: content(4, self.asked ^ (self.seed << 40)), tokens: QUESTION_TOKENS },
            ],
            prompt_tokens: DOCUMENT_TOKENS + QUESTION_TOKENS,
            output_tokens: 0,
            answer: None,
            common_tokens: 0,
            lasting_tokens: DOCUMENT_TOKENS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popularity_is_zipfs() {
        let mut counts = [0_u32; DOCUMENTS];
        for call in Documents::new(1).take(100_000) {
            counts[call.key as usize] += 1;
        }
        let share = |at: usize| f64::from(counts[at]) / 100_000.0;
        let first = 1.0 / (1..=DOCUMENTS).map(|rank| 1.0 / rank as f64).sum::<f64>();
        assert!((share(0) - first).abs() < 0.005 && (share(9) - first / 10.0).abs() < 0.003);
    }

    #[test]
    fn a_drift_begins_with_the_same_questions_and_turns_over_in_20_000_requests() {
        let mut drifting = Documents::drifting(1);
        let first = drifting.by_ref().take(SWAP_EVERY as usize);
        assert!(first.eq(Documents::new(1).take(SWAP_EVERY as usize)));
        // Ranks that changed hands, counted each time.
        let (mut changed, mut ranks) = (0, drifting.ranks.clone());
        for _ in 0..100_000 {
            drifting.next();
            changed += ranks.iter().zip(&drifting.ranks).filter(|(before, now)| before != now).count();
            ranks.clone_from(&drifting.ranks);
        }
        let turnovers = changed as f64 / DOCUMENTS as f64;
        assert!((turnovers / 5.0 - 1.0).abs() < 0.02, "{turnovers} in 100,000 requests");
    }
}
