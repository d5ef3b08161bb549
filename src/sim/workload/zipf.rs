//! Zipf's law with exponent 1: rank k is drawn 1/k times as often as the first.

/// So many ranks.
#[derive(Debug)]
pub(super) struct Zipf {
    /// Chance that a draw is this rank or one before it.
    cumulative: Vec<f64>,
}

impl Zipf {
    pub fn new(ranks: usize) -> Self {
        let total: f64 = (1..=ranks).map(|rank| 1.0 / rank as f64).sum();
        let mut sum = 0.0;
        let cumulative = (1..=ranks)
            .map(|rank| {
                sum += 1.0 / rank as f64 / total;
                sum
            })
            .collect();
        Self { cumulative }
    }

    /// The rank, from 0 on, that a draw of [0, 1) comes to.
    pub fn rank(&self, draw: f64) -> usize {
        self.cumulative.partition_point(|sum| *sum <= draw).min(self.cumulative.len().saturating_sub(1))
    }
}
