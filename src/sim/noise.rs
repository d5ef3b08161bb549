//! Prefills that take longer or shorter than the model says: a factor for each call, log-normal with mean 1.
//!
//! It is drawn from the seed and the call's number alone, so whoever places the calls, and in whatever order they run,
//! the same call meets the same factor (common random numbers): what differs between two policies is the policies.
use fastrand::Rng;

use super::call::{Call, mix};

/// How much service times scatter.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Noise {
    /// Standard deviation of a factor's logarithm; 0: every prefill takes what the model says.
    pub sigma: f64,
    /// Draws the factors.
    pub seed: u64,
}

impl Noise {
    /// A call's prefill takes so many times as long as the model says: exp(σz − σ²/2), z standard normal.
    #[must_use]
    pub fn factor(&self, call: &Call) -> f64 {
        if self.sigma == 0.0 {
            return 1.0;
        }
        let mut rng = Rng::with_seed(mix(mix(0x6e01_5e00, self.seed), call.number));
        // Box and Muller's: two uniform draws make a normal one.
        let z = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
        (self.sigma * (z - self.sigma / 2.0)).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(sigma: f64, seed: u64) -> Vec<f64> {
        let noise = Noise { sigma, seed };
        (0..100_000).map(|number| noise.factor(&Call { number, ..Call::default() })).collect()
    }

    #[test]
    fn factors_have_the_mean_1_and_scatter_as_told() {
        for sigma in [0.1, 0.5, 1.0] {
            let factors = factors(sigma, 3);
            let mean = |of: &dyn Fn(f64) -> f64| factors.iter().map(|factor| of(*factor)).sum::<f64>() / 1e5;
            let log = mean(&f64::ln);
            let spread = mean(&|factor| (factor.ln() - log).powi(2)).sqrt();
            let skewness = mean(&|factor| ((factor.ln() - log) / spread).powi(3));
            assert!(
                (mean(&|factor| factor) - 1.0).abs() < 0.02 * sigma.max(0.5),
                "{sigma}: {}",
                mean(&|factor| factor)
            );
            assert!((spread / sigma - 1.0).abs() < 0.01, "{sigma}: {spread}");
            assert!(skewness.abs() < 0.03, "{sigma}: {skewness}");
        }
    }

    #[test]
    fn a_call_has_one_factor_a_seed_and_none_without_noise() {
        assert_eq!(factors(0.5, 1), factors(0.5, 1));
        assert!(factors(0.5, 1).iter().zip(factors(0.5, 2)).all(|(one, other)| *one != other));
        assert!(factors(0.0, 1).iter().all(|factor| *factor == 1.0));
    }
}
