//! What is counted while calls are played.
use crate::sim::call::Call;

/// Sums of one replay.
#[derive(Debug)]
pub struct Tally {
    requests: Vec<u64>,
    seconds: Vec<f64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Tokens that the chooser expected to be cached, and how many of those calls' were, where it said so.
    expected: u64,
    found: u64,
    ttft: Vec<f64>,
    refused: u64,
}

impl Tally {
    /// Of a fleet of so many replicas.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        Self {
            requests: vec![0; replicas],
            seconds: vec![0.0; replicas],
            prompt_tokens: 0,
            cached_tokens: 0,
            expected: 0,
            found: 0,
            ttft: Vec::new(),
            refused: 0,
        }
    }

    /// A call has its first token: where, how much of its prompt was cached, the seconds that the rest took to compute
    /// and that its first token took to come.
    pub fn first_token(&mut self, call: &Call, replica: usize, cached: u32, prefill: f64, ttft: f64) {
        self.requests[replica] += 1;
        self.seconds[replica] += prefill;
        self.prompt_tokens += u64::from(call.prompt_tokens);
        self.cached_tokens += u64::from(cached);
        self.ttft.push(ttft);
    }

    /// What had been expected of a call that has its first token now.
    pub fn predicted(&mut self, expected: u32, cached: u32) {
        self.expected += u64::from(expected);
        self.found += u64::from(cached);
    }

    /// A call that no replica could ever take.
    pub fn refused(&mut self) {
        self.refused += 1;
    }

    /// What it comes to.
    #[must_use]
    pub fn outcome(mut self) -> Outcome {
        self.ttft.sort_by(f64::total_cmp);
        let count = self.ttft.len().max(1) as f64;
        let requests: Vec<_> = self.requests.iter().map(|requests| *requests as f64).collect();
        Outcome {
            requests: self.ttft.len() as u64,
            refused: self.refused,
            prompt_tokens: self.prompt_tokens,
            recompute: 1.0 - self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64,
            skew_requests: skew(&requests),
            skew_seconds: skew(&self.seconds),
            ttft_mean: self.ttft.iter().sum::<f64>() / count,
            ttft_p50: quantile(&self.ttft, 0.5),
            ttft_p99: quantile(&self.ttft, 0.99),
            prefill_mean: self.seconds.iter().sum::<f64>() / count,
            overpredicted: (self.expected as f64 - self.found as f64) / self.prompt_tokens.max(1) as f64,
        }
    }
}

/// A replay's result. Times in seconds, shares of 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Calls answered.
    pub requests: u64,
    /// Calls that no replica could ever take: longer than a whole cache.
    pub refused: u64,
    /// Prompt tokens of those answered.
    pub prompt_tokens: u64,
    /// Prompt tokens computed ÷ prompt tokens.
    pub recompute: f64,
    /// Calls of the busiest replica ÷ mean.
    pub skew_requests: f64,
    /// Prefill seconds of the busiest replica ÷ mean.
    pub skew_seconds: f64,
    /// Mean time to first token.
    pub ttft_mean: f64,
    /// Median of it.
    pub ttft_p50: f64,
    /// All but one in a hundred were as fast.
    pub ttft_p99: f64,
    /// Mean seconds of computing a prompt.
    pub prefill_mean: f64,
    /// Cached tokens expected but not found, net, as a share of all prompt tokens.
    pub overpredicted: f64,
}

impl Outcome {
    /// Mean of several runs, figure by figure; requests, refusals and tokens are summed.
    #[must_use]
    pub fn mean(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| runs.iter().map(figure).sum::<f64>() / runs.len().max(1) as f64;
        Self {
            requests: runs.iter().map(|run| run.requests).sum(),
            refused: runs.iter().map(|run| run.refused).sum(),
            prompt_tokens: runs.iter().map(|run| run.prompt_tokens).sum(),
            recompute: of(|run| run.recompute),
            skew_requests: of(|run| run.skew_requests),
            skew_seconds: of(|run| run.skew_seconds),
            ttft_mean: of(|run| run.ttft_mean),
            ttft_p50: of(|run| run.ttft_p50),
            ttft_p99: of(|run| run.ttft_p99),
            prefill_mean: of(|run| run.prefill_mean),
            overpredicted: of(|run| run.overpredicted),
        }
    }

    /// Dollars for the prefills of a million such requests, at so many dollars an hour of a replica.
    #[must_use]
    pub fn cost_per_million(&self, price_per_hour: f64) -> f64 {
        self.prefill_mean * price_per_hour / 3_600.0 * 1e6
    }
}

/// Busiest ÷ mean; even when nothing came.
fn skew(of: &[f64]) -> f64 {
    let total: f64 = of.iter().sum();
    if total > 0.0 { of.iter().copied().fold(0.0, f64::max) * of.len() as f64 / total } else { 1.0 }
}

/// Nearest rank; `sorted` is.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_they_say() {
        let call = Call { prompt_tokens: 100, ..Call::default() };
        let mut tally = Tally::new(2);
        for at in 0..100 {
            tally.first_token(&call, usize::from(at < 25), 40, 0.5, f64::from(at + 1));
        }
        let outcome = tally.outcome();
        assert!((outcome.recompute - 0.6).abs() < 1e-12);
        assert_eq!((outcome.skew_requests, outcome.skew_seconds), (1.5, 1.5));
        assert_eq!((outcome.ttft_p50, outcome.ttft_p99, outcome.ttft_mean), (50.0, 99.0, 50.5));
        assert!((outcome.cost_per_million(3.6) - 500.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_played_is_even_and_free() {
        let outcome = Tally::new(3).outcome();
        assert_eq!((outcome.skew_requests, outcome.ttft_p99, outcome.cost_per_million(1.0)), (1.0, 0.0, 0.0));
    }
}
