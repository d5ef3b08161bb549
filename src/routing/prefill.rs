//! How long a prefill takes: T(n, m) = overhead + per_token·(n−m) + per_pair·(n²−m²) seconds for n tokens of which m are
//! cached. Linear layers cost by the uncached token; attention by the pair of an uncached token and one before it.
//!
//! Configured, or learned from the time to the first token of requests that met no queue: the last [`SAMPLES`] of them,
//! fitted every [`EVERY`]. The fit minimises relative deviations, not their squares (iteratively reweighted least
//! squares), so up to about half of the samples may be wrong without moving it much; no coefficient is negative. Before
//! there are [`ENOUGH`], the guess stands: a model of 8 billion parameters on one H100 at half its peak. After that the
//! guess, scaled to the samples' median, still counts as a few samples of its own at lengths from 0 to 128k tokens, so
//! that a fit to prompts of one length says nothing absurd of others.
use std::collections::VecDeque;

use crate::config::Prefill;

/// Samples kept.
const SAMPLES: usize = 256;
/// Samples from one fit to the next.
const EVERY: usize = 16;
/// Samples that a first fit needs.
const ENOUGH: usize = 16;
/// The weight of a guessed sample, next to a measured one's 1.
const GUESSED: f64 = 0.25;
/// Lengths of the guessed samples.
const LENGTHS: [f64; 5] = [16.0, 1_000.0, 8_000.0, 32_000.0, 128_000.0];
/// Longest time to a first token that is believed, in seconds.
const LONGEST: f64 = 600.0;

/// Overhead, per token, per pair: seconds.
type Coefficients = [f64; 3];

/// Of an 8-billion-parameter model with 36 layers of 32 × 128 on one H100 (0.5 × 989 TFLOPS): 2·8.19e9 FLOP a token,
/// 2·36·4096 a pair, and 10 ms for all that happens once.
const GUESS: Coefficients = [0.01, 3.3e-5, 6.0e-10];

/// One pool's model.
#[derive(Debug)]
pub(super) struct Model {
    coefficients: Coefficients,
    /// `None`: the operator's coefficients stand.
    samples: Option<VecDeque<Sample>>,
    /// Samples ever taken: each one's number is how many there were before it.
    taken: u64,
    unread: usize,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    of: Coefficients,
    seconds: f64,
    weight: f64,
}

impl Sample {
    fn new(tokens: f64, matched: f64, seconds: f64, weight: f64) -> Self {
        Self { of: [1.0, tokens - matched, tokens * tokens - matched * matched], seconds, weight }
    }
}

impl Model {
    pub fn new(settings: &Prefill) -> Self {
        match *settings {
            Prefill::Learned => Self { coefficients: GUESS, samples: Some(VecDeque::new()), taken: 0, unread: 0 },
            Prefill::Fixed { overhead, per_token, per_pair } => {
                Self { coefficients: [overhead, per_token, per_pair], samples: None, taken: 0, unread: 0 }
            }
        }
    }

    /// Takes new settings; what was learned stays while it is wanted.
    pub fn set(&mut self, settings: &Prefill) {
        if !(*settings == Prefill::Learned && self.samples.is_some()) {
            *self = Self { taken: self.taken, ..Self::new(settings) };
        }
    }

    /// Seconds to prefill `tokens` of which `matched` are cached.
    pub fn seconds(&self, tokens: u32, matched: u32) -> f64 {
        let matched = f64::from(matched.min(tokens));
        product(&self.coefficients, &Sample::new(tokens.into(), matched, 0.0, 0.0).of)
    }

    /// A request that met no queue had its first output after `seconds`. The sample's number, for [`Self::correct`].
    pub fn learn(&mut self, tokens: u32, matched: u32, seconds: f64) -> Option<u64> {
        let samples = self.samples.as_mut()?;
        if !(seconds > 0.0 && seconds <= LONGEST) {
            return None;
        }
        samples.push_back(Sample::new(tokens.into(), matched.min(tokens).into(), seconds, 1.0));
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
        self.unread += 1;
        if self.unread >= EVERY && samples.len() >= ENOUGH {
            self.unread = 0;
            self.coefficients = fit(samples);
        }
        self.taken += 1;
        Some(self.taken - 1)
    }

    /// So many tokens of a sample's prompt were cached, as the engine has it: the next fit takes that.
    pub fn correct(&mut self, sample: u64, tokens: u32, cached: u32) {
        let age = self.taken.checked_sub(sample + 1).and_then(|age| usize::try_from(age).ok());
        if let (Some(samples), Some(age)) = (&mut self.samples, age)
            && let Some(at) = samples.len().checked_sub(age + 1)
            && let Some(sample) = samples.get_mut(at)
        {
            *sample = Sample::new(tokens.into(), cached.min(tokens).into(), sample.seconds, sample.weight);
        }
    }
}

fn product(a: &Coefficients, b: &Coefficients) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn fit(measured: &VecDeque<Sample>) -> Coefficients {
    let mut ratios: Vec<_> = measured.iter().map(|sample| sample.seconds / product(&GUESS, &sample.of)).collect();
    ratios.sort_by(f64::total_cmp);
    let scale = ratios[ratios.len() / 2];
    let guessed = GUESS.map(|coefficient| coefficient * scale);
    let mut samples: Vec<_> = measured.iter().copied().collect();
    samples.extend(LENGTHS.map(|tokens| {
        let of = Sample::new(tokens, 0.0, 0.0, 0.0).of;
        Sample { of, seconds: product(&guessed, &of), weight: GUESSED }
    }));
    (0..16).fold(guessed, |before, _| solve(&samples, &before))
}

/// One step: least squares with each sample weighted by 1 ÷ its deviation under the coefficients before.
fn solve(samples: &[Sample], before: &Coefficients) -> Coefficients {
    // In units of the guess, so that the sums are of one size.
    let (mut squares, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
    for sample in samples {
        let x: Coefficients = std::array::from_fn(|at| sample.of[at] * GUESS[at] / sample.seconds);
        let off = (product(before, &sample.of) / sample.seconds - 1.0).abs();
        let weight = sample.weight / off.max(0.01);
        for row in 0..3 {
            right[row] += weight * x[row];
            for column in 0..3 {
                squares[row][column] += weight * x[row] * x[column];
            }
        }
    }
    // Coordinate descent keeps each at 0 or above; the sums are a convex bowl, so it only goes down.
    let mut found: Coefficients = std::array::from_fn(|at| before[at] / GUESS[at]);
    for _ in 0..200 {
        for at in 0..3 {
            let others: f64 = (0..3).filter(|&other| other != at).map(|other| squares[at][other] * found[other]).sum();
            found[at] = ((right[at] - others) / squares[at][at]).max(0.0);
        }
    }
    std::array::from_fn(|at| found[at] * GUESS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(tokens: f64, matched: f64) -> f64 {
        0.03 + 1.2e-4 * (tokens - matched) + 2.0e-9 * (tokens * tokens - matched * matched)
    }

    fn off(model: &Model, tokens: u32, matched: u32) -> f64 {
        model.seconds(tokens, matched) / truth(tokens.into(), matched.into()) - 1.0
    }

    #[test]
    fn fixed_coefficients_are_the_formula_and_nothing_moves_them() {
        let mut model = Model::new(&Prefill::Fixed { overhead: 0.5, per_token: 0.001, per_pair: 1e-6 });
        (0..100).for_each(|_| _ = model.learn(1_000, 0, 60.0));
        assert!((model.seconds(1_000, 400) - (0.5 + 0.6 + 0.84)).abs() < 1e-9);
        assert!((model.seconds(100, 400) - 0.5).abs() < 1e-9, "no more is cached than there is");
    }

    #[test]
    fn it_is_sane_before_it_knows_anything() {
        let model = Model::new(&Prefill::Learned);
        let (short, long) = (model.seconds(16, 0), model.seconds(128_000, 0));
        assert!(short > 0.0 && short < 0.1 && long > 1.0 && long < 60.0, "{short} {long}");
        assert!(model.seconds(8_000, 7_000) < model.seconds(8_000, 0));
    }

    #[test]
    fn it_learns_though_a_quarter_of_the_samples_is_far_off() {
        let mut model = Model::new(&Prefill::Learned);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..400 {
            let tokens = rng.u32(100..30_000);
            let matched = if rng.bool() { rng.u32(..tokens) } else { 0 };
            let noise = if rng.u32(..4) == 0 { 5.0 } else { 0.9 + 0.2 * rng.f64() };
            model.learn(tokens, matched, truth(tokens.into(), matched.into()) * noise);
        }
        for (tokens, matched) in [(500, 0), (4_000, 0), (4_000, 3_500), (16_000, 0), (30_000, 15_000)] {
            let off = off(&model, tokens, matched);
            assert!(off.abs() < 0.2, "{tokens} {matched}: {off}");
        }
    }

    #[test]
    fn prompts_of_one_length_say_nothing_absurd_of_others() {
        let mut model = Model::new(&Prefill::Learned);
        (0..256).for_each(|_| _ = model.learn(2_000, 0, truth(2_000.0, 0.0)));
        assert!(off(&model, 2_000, 0).abs() < 0.05);
        for tokens in [100, 16_000, 100_000] {
            let ratio = 1.0 + off(&model, tokens, 0);
            assert!(ratio > 0.2 && ratio < 5.0, "{tokens}: {ratio}");
        }
    }

    #[test]
    fn what_an_engine_says_was_cached_corrects_what_was_thought() {
        let mut model = Model::new(&Prefill::Learned);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            // All is thought to be cold, and half of it is not.
            let tokens = rng.u32(1_000..30_000);
            let cached = if rng.bool() { tokens / 2 } else { 0 };
            let sample = model.learn(tokens, 0, truth(tokens.into(), cached.into()));
            model.correct(sample.expect("it is learned"), tokens, cached);
        }
        model.correct(0, 1_000, 0);
        model.correct(u64::MAX - 1, 1_000, 0);
        (0..EVERY).for_each(|_| _ = model.learn(2_000, 0, truth(2_000.0, 0.0)));
        for (tokens, matched) in [(2_000, 0), (16_000, 0), (30_000, 15_000)] {
            let off = off(&model, tokens, matched);
            assert!(off.abs() < 0.1, "{tokens} {matched}: {off}");
        }
    }

    #[test]
    fn what_is_no_time_is_not_learned() {
        let mut model = Model::new(&Prefill::Learned);
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            (0..EVERY * 2).for_each(|_| _ = model.learn(1_000, 0, seconds));
        }
        assert_eq!(model.coefficients, GUESS);
    }

    #[test]
    fn what_was_learned_outlives_a_reload_that_still_wants_it() {
        let mut model = Model::new(&Prefill::Learned);
        (0..64).for_each(|_| _ = model.learn(2_000, 0, 1.0));
        let learned = model.coefficients;
        model.set(&Prefill::Learned);
        assert_eq!(model.coefficients, learned);
        model.set(&Prefill::Fixed { overhead: 1.0, per_token: 0.0, per_pair: 0.0 });
        assert_eq!(model.seconds(1_000, 0), 1.0);
    }
}
