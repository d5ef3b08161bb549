//! The study's questions about documents: 300 of 16,000 tokens, asked about by Zipf's law with exponent 1, each time a
//! question of 100 tokens. No system prompt, no session: a client names the document in a header, if anything.
use fastrand::Rng;

use super::{content, draws};
use crate::sim::call::{Call, Segment};

/// Documents.
pub const DOCUMENTS: usize = 300;
/// Tokens of a document.
pub const DOCUMENT_TOKENS: u32 = 16_000;
/// Tokens of a question.
pub const QUESTION_TOKENS: u32 = 100;

/// The stream; endless.
#[derive(Debug)]
pub struct Documents {
    rng: Rng,
    /// Chance that a draw is this document or one before it.
    cumulative: Vec<f64>,
    asked: u64,
    seed: u64,
}

impl Documents {
    /// Document 0 is the most popular.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let total: f64 = (1..=DOCUMENTS).map(|rank| 1.0 / rank as f64).sum();
        let mut sum = 0.0;
        let cumulative = (1..=DOCUMENTS)
            .map(|rank| {
                sum += 1.0 / rank as f64 / total;
                sum
            })
            .collect();
        Self { rng: draws(seed), cumulative, asked: 0, seed }
    }
}

impl Iterator for Documents {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        let draw = self.rng.f64();
        let key = self.cumulative.partition_point(|sum| *sum <= draw).min(DOCUMENTS - 1) as u64;
        self.asked += 1;
        Some(Call {
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
}
