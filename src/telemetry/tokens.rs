//! Counters of prompt tokens on one replica in one pool: what the router sends and expects there, and what the engine
//! reports.
use prometheus::{IntCounter, IntCounterVec};

use super::Metrics;

/// The families.
pub(super) struct TokenFamilies {
    pub parity: IntCounterVec,
    pub sent: IntCounterVec,
    pub matched: IntCounterVec,
    pub reports: IntCounterVec,
    pub prompt: IntCounterVec,
    pub cached: IntCounterVec,
    pub predicted: IntCounterVec,
    pub error: IntCounterVec,
    pub predictions: IntCounterVec,
}

impl TokenFamilies {
    pub fn on(&self, pool: &str, replica: &str) -> TokenMetrics {
        let of = |family: &IntCounterVec| family.with_label_values(&[pool, replica]);
        let reports = |report| self.reports.with_label_values(&[pool, replica, report]);
        let predictions = |result| self.predictions.with_label_values(&[pool, replica, result]);
        TokenMetrics {
            sent: of(&self.sent),
            matched: of(&self.matched),
            reports: ["cached_tokens", "prompt_tokens", "none"].map(reports),
            prompt: of(&self.prompt),
            cached: of(&self.cached),
            predicted: of(&self.predicted),
            error: ["over", "under"].map(|direction| self.error.with_label_values(&[pool, replica, direction])),
            predictions: ["right", "over", "under"].map(predictions),
        }
    }
}

impl Metrics {
    /// Counters of the prompt tokens that go to one replica in one pool, and of what it says of them.
    pub fn tokens(&self, pool: &str, replica: &str) -> TokenMetrics {
        self.tokens.on(pool, replica)
    }

    /// Counter of comparisons of token counts in one pool: `same` or `other`.
    pub fn parity(&self, pool: &str, result: &str) -> IntCounter {
        self.tokens.parity.with_label_values(&[pool, result])
    }
}

/// Handles for one replica in one pool.
#[derive(Debug)]
pub struct TokenMetrics {
    sent: IntCounter,
    matched: IntCounter,
    reports: [IntCounter; 3],
    prompt: IntCounter,
    cached: IntCounter,
    predicted: IntCounter,
    error: [IntCounter; 2],
    predictions: [IntCounter; 3],
}

impl TokenMetrics {
    /// A prompt of so many tokens went there, of which so many were expected to be there.
    pub fn sent(&self, tokens: u32, matched: u32) {
        self.sent.inc_by(tokens.into());
        self.matched.inc_by(matched.into());
    }

    /// An answer came whole, and reported its prompt's tokens, or those and how many of them were cached, or nothing.
    pub fn reported(&self, prompt: Option<u32>, cached: Option<u32>) {
        match (prompt, cached) {
            (Some(prompt), Some(cached)) => {
                self.reports[0].inc();
                self.prompt.inc_by(prompt.into());
                self.cached.inc_by(cached.into());
            }
            (Some(_), None) => self.reports[1].inc(),
            (None, _) => self.reports[2].inc(),
        }
    }

    /// So many tokens were predicted to be cached, of which an answer reports how many were; a difference of up to
    /// `tolerance` is none.
    pub fn predicted(&self, predicted: u32, cached: u32, tolerance: u32) {
        let (over, under) = (predicted.saturating_sub(cached), cached.saturating_sub(predicted));
        self.predicted.inc_by(predicted.into());
        self.error[0].inc_by(over.into());
        self.error[1].inc_by(under.into());
        let result = if over > tolerance {
            1
        } else if under > tolerance {
            2
        } else {
            0
        };
        self.predictions[result].inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_predictions_are_counted_apart() {
        let metrics = Metrics::new().unwrap();
        let tokens = metrics.tokens("p", "a");
        for (prompt, cached) in [(Some(100), Some(40)), (Some(50), None), (None, None), (None, None)] {
            tokens.reported(prompt, cached);
        }
        for (predicted, cached) in [(72, 40), (73, 40), (40, 72), (40, 73)] {
            tokens.predicted(predicted, cached, 32);
        }
        let text = metrics.render().unwrap();
        let value = |series: &str| {
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let of = |line: &&str| {
                line.starts_with(&format!("warmroute_{name}{{")) && line.contains(labels.trim_end_matches('}'))
            };
            text.lines().find(of).and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.to_owned()).unwrap()
        };
        let reports = ["cached_tokens", "prompt_tokens", "none"]
            .map(|report| value(&format!("usage_reports_total{{report=\"{report}\"}}")));
        assert_eq!(reports, ["1", "1", "2"]);
        assert_eq!([value("reported_prompt_tokens_total"), value("reported_cached_tokens_total")], ["100", "40"]);
        assert_eq!(value("predicted_cached_tokens_total"), "225");
        let errors = ["over", "under"]
            .map(|direction| value(&format!("prediction_error_tokens_total{{direction=\"{direction}\"}}")));
        assert_eq!(errors, ["65", "65"]);
        let results = ["right", "over", "under"]
            .map(|result| value(&format!("predictions_total{{pool=\"p\",replica=\"a\",result=\"{result}\"}}")));
        assert_eq!(results, ["2", "1", "1"]);
    }
}
