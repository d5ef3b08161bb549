//! How long a prefill takes on a virtual replica: T(n, c) = overhead + per_token·(n−c) + per_pair·(n²−c²) seconds for n
//! prompt tokens of which the first c are cached. Linear layers cost by the token, attention by the pair.
use std::path::Path;

use serde::Deserialize;

/// The name of the published study's model; see [`PrefillModel::QWEN3_8B_H100`].
pub const QWEN3_8B_H100: &str = "qwen3-8b-h100";

/// Seconds by token and by pair.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillModel {
    /// Seconds of each request.
    #[serde(default)]
    pub overhead: f64,
    /// Seconds of each uncached token.
    pub per_token: f64,
    /// Seconds of each pair of an uncached token and one before it.
    #[serde(default)]
    pub per_pair: f64,
}

impl PrefillModel {
    /// Qwen3-8B in bf16 on one H100 at half its peak of 989 TFLOPS: 2·P operations a token for P = 8.19e9 parameters,
    /// and 2·L·d a pair for L = 36 layers of d = 32 heads × 128 (the published study of 2026-11-04).
    pub const QWEN3_8B_H100: Self = Self {
        overhead: 0.0,
        per_token: 2.0 * 8.19e9 / (0.5 * 989e12),
        per_pair: 2.0 * 36.0 * 4096.0 / (0.5 * 989e12),
    };

    /// So many uncached tokens a second, whatever the prompt's length.
    #[must_use]
    pub fn linear(tokens_per_second: f64) -> Self {
        Self { overhead: 0.0, per_token: 1.0 / tokens_per_second, per_pair: 0.0 }
    }

    /// Seconds to prefill `tokens` of which `cached` are cached.
    #[must_use]
    pub fn seconds(&self, tokens: u32, cached: u32) -> f64 {
        let (n, c) = (f64::from(tokens), f64::from(cached.min(tokens)));
        self.overhead + self.per_token * (n - c) + self.per_pair * (n * n - c * c)
    }

    /// What `--prefill-model` says: a name, tokens a second, or a JSON file with the coefficients.
    ///
    /// # Errors
    /// A sentence that says what is wrong with `word`, and what to write.
    pub fn parse(word: &str) -> Result<Self, String> {
        if word == QWEN3_8B_H100 {
            return Ok(Self::QWEN3_8B_H100);
        }
        if let Ok(tps) = word.parse::<f64>() {
            if tps.is_finite() && tps > 0.0 {
                return Ok(Self::linear(tps));
            }
            return Err(format!("{word} tokens a second is no speed: give a number above 0"));
        }
        let remedy = format!(
            "give {QWEN3_8B_H100}, a number of tokens a second, or a JSON file such as {{\"overhead\": 0.01, \
             \"per_token\": 3.3e-5, \"per_pair\": 6e-10}} (seconds)"
        );
        let text = std::fs::read_to_string(Path::new(word))
            .map_err(|error| format!("{word} is no known model, no number, and cannot be read ({error}): {remedy}"))?;
        let model: Self = serde_json::from_str(&text).map_err(|error| format!("{word}: {error}: {remedy}"))?;
        let coefficients = [model.overhead, model.per_token, model.per_pair];
        if coefficients.iter().any(|seconds| !seconds.is_finite() || *seconds < 0.0) || model.per_token == 0.0 {
            return Err(format!("{word}: seconds are finite, not negative, and per_token is above 0: {remedy}"));
        }
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_names_speeds_and_files() {
        assert_eq!(PrefillModel::parse(QWEN3_8B_H100), Ok(PrefillModel::QWEN3_8B_H100));
        let linear = PrefillModel::parse("50000").expect("a speed");
        assert!((linear.seconds(1_500, 500) - 0.02).abs() < 1e-12);
        for (word, needed) in [("0", "above 0"), ("-3", "above 0"), ("qwen3", QWEN3_8B_H100)] {
            let error = PrefillModel::parse(word).expect_err(word);
            assert!(error.contains(word) && error.contains(needed), "{error}");
        }
    }

    #[test]
    fn a_file_gives_the_coefficients_and_is_checked() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("model.json");
        let parse = |text: &str| {
            std::fs::write(&file, text).expect("written");
            PrefillModel::parse(&file.display().to_string())
        };
        let model = parse(r#"{"overhead": 0.5, "per_token": 0.001, "per_pair": 1e-6}"#).expect("a model");
        assert!((model.seconds(1_000, 400) - (0.5 + 0.6 + 0.84)).abs() < 1e-9);
        for wrong in [r#"{"per_token": -1}"#, r#"{"per_tokens": 1}"#, "{}", r#"{"per_token": 0}"#] {
            let error = parse(wrong).expect_err(wrong);
            assert!(error.contains("model.json") && error.contains("per_token"), "{error}");
        }
    }
}
