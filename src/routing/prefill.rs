//! How long a prefill takes: T(n, m) = overhead + per_token·(n−m) + per_pair·(n²−m²) seconds for n tokens of which m are
//! cached. Linear layers cost by the uncached token; attention by the pair of an uncached token and one before it.
//!
//! Configured, or learned from the time to the first token of requests that met no queue: the last [`SAMPLES`] of them,
//! fitted every [`EVERY`]. The fit minimises relative deviations, not their squares (iteratively reweighted least
//! squares), so up to about half of the samples may be wrong without moving it much; no coefficient is negative.
//!
//! Prompts of which little is known to be cached are fitted to their slowest tenth, not to their middle ([`COLD`]): the
//! replica may hold what the index has forgotten, and nothing tells such a hit from a fast replica. With the middle, hits
//! that nobody expects make prefills look cheap; requests then go where there is no line instead of where their prefix
//! is, so that most hits are unexpected from then on.
//!
//! Before there are [`ENOUGH`], the guess stands: a model of 8 billion parameters on one H100 at half its peak. After that
//! the guess, scaled to the samples, still counts as a few samples of its own at lengths from 0 to 128k tokens, so that a
//! fit to prompts of one length says nothing absurd of others.
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
/// The quantile that cold prompts are fitted to, and the others.
const COLD: f64 = 0.9;
const WARM: f64 = 0.5;
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
    /// So many of such samples are faster.
    quantile: f64,
}

impl Sample {
    fn new(tokens: f64, matched: f64, seconds: f64, weight: f64) -> Self {
        let quantile = if 2.0 * matched < tokens { COLD } else { WARM };
        Self { of: [1.0, tokens - matched, tokens * tokens - matched * matched], seconds, weight, quantile }
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
    let ratio = |sample: &Sample| sample.seconds / product(&GUESS, &sample.of);
    let scaled = |quantile: f64| {
        let mut ratios: Vec<_> = measured.iter().filter(|sample| sample.quantile == quantile).map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get((ratios.len() as f64 * quantile) as usize).copied()
    };
    let scale = scaled(COLD).or_else(|| scaled(WARM)).unwrap_or(1.0);
    let guessed = GUESS.map(|coefficient| coefficient * scale);
    let mut samples: Vec<_> = measured.iter().copied().collect();
    samples.extend(LENGTHS.map(|tokens| {
        let of = Sample::new(tokens, 0.0, 0.0, 0.0).of;
        Sample { quantile: WARM, ..Sample::new(tokens, 0.0, product(&guessed, &of), GUESSED) }
    }));
    (0..16).fold(guessed, |before, _| solve(&samples, &guessed, &before))
}

/// One step: least squares with each sample weighted by 1 ÷ its deviation under the coefficients before, and by its
/// quantile (the pinball loss of quantile regression).
fn solve(samples: &[Sample], guessed: &Coefficients, before: &Coefficients) -> Coefficients {
    // Deviations are relative to the guess or to what was measured, whichever is more: so what is far off, either way,
    // weighs no more than the rest. Coefficients are in units of the guess, so that the sums are of one size.
    let (mut squares, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
    for sample in samples {
        let scale = product(guessed, &sample.of).max(sample.seconds);
        let x: Coefficients = std::array::from_fn(|at| sample.of[at] * GUESS[at] / scale);
        let off = (product(before, &sample.of) - sample.seconds) / scale;
        let side = if off < 0.0 { sample.quantile } else { 1.0 - sample.quantile };
        let weight = 2.0 * side * sample.weight / off.abs().max(0.01);
        for row in 0..3 {
            right[row] += weight * x[row] * sample.seconds / scale;
            for column in 0..3 {
                squares[row][column] += weight * x[row] * x[column];
            }
        }
    }
    // Coordinate descent keeps each at 0 or above; the sums are a convex bowl, so it only goes down.
    let mut found: Coefficients = std::array::from_fn(|at| before[at] / GUESS[at]);
    for _ in 0..200 {
        let mut moved = 0.0_f64;
        for at in 0..3 {
            let others: f64 = (0..3).filter(|&other| other != at).map(|other| squares[at][other] * found[other]).sum();
            let better = ((right[at] - others) / squares[at][at]).max(0.0);
            moved = moved.max((better - found[at]).abs());
            found[at] = better;
        }
        // In units of the guess: less of it is nothing that samples tell.
        if moved < 1e-4 {
            break;
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

    /// Learns 400 samples, each `wrong` in its own way; how far off it is for prompts of several lengths.
    fn after(wrong: impl Fn(&mut fastrand::Rng, u32, u32) -> f64) -> Vec<f64> {
        let mut model = Model::new(&Prefill::Learned);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..400 {
            let tokens = rng.u32(100..30_000);
            let matched = if rng.bool() { rng.u32(tokens / 2..tokens) } else { 0 };
            let noise = wrong(&mut rng, tokens, matched) * (0.95 + 0.1 * rng.f64());
            model.learn(tokens, matched, truth(tokens.into(), matched.into()) * noise);
        }
        let lengths = [(500, 0), (4_000, 0), (4_000, 3_500), (16_000, 0), (30_000, 15_000)];
        lengths.map(|(tokens, matched)| off(&model, tokens, matched)).to_vec()
    }

    #[test]
    fn it_learns_though_a_few_samples_are_far_too_slow() {
        let slow = |rng: &mut fastrand::Rng, _, _| if rng.u32(..20) == 0 { 5.0 } else { 1.0 };
        for off in after(slow) {
            assert!(off.abs() < 0.2, "{off}");
        }
    }

    #[test]
    fn it_learns_though_most_prompts_taken_for_cold_are_not() {
        let hit = |rng: &mut fastrand::Rng, tokens: u32, matched| {
            let is_hit = matched == 0 && rng.u32(..10) < 7;
            if is_hit { truth(tokens.into(), f64::from(tokens) - 50.0) / truth(tokens.into(), 0.0) } else { 1.0 }
        };
        for off in after(hit) {
            assert!(off.abs() < 0.3, "{off}");
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
