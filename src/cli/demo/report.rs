//! What was counted, as a table with its meaning in words, or as JSON.
use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::POLICIES;
use super::load::Tally;

/// What the load and the replicas were.
#[derive(Debug, Serialize)]
pub struct Settings {
    pub replicas: u32,
    pub sessions: u32,
    pub turns: u32,
    pub seed: u64,
    /// Of each replica.
    pub cache_tokens: u64,
    pub prefill_tokens_per_second: f64,
}

/// One policy's result.
#[derive(Debug, Serialize)]
pub struct Row {
    pub policy: &'static str,
    pub requests: u64,
    pub errors: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// Prompt tokens computed ÷ prompt tokens.
    pub recompute_ratio: f64,
    /// Requests of the busiest replica ÷ mean.
    pub skew: f64,
    pub ttft_p50_ms: f64,
    pub ttft_p99_ms: f64,
    pub seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Row {
    pub fn new(policy: &'static str, tally: Tally, by_replica: &[u64], took: Duration) -> Self {
        let mut first_tokens = tally.first_tokens;
        first_tokens.sort_unstable();
        let millis = |share: f64| round(quantile(&first_tokens, share).as_secs_f64() * 1e3, 3);
        let computed = tally.prompt_tokens.saturating_sub(tally.cached_tokens);
        Self {
            policy,
            requests: tally.requests,
            errors: tally.errors,
            prompt_tokens: tally.prompt_tokens,
            cached_tokens: tally.cached_tokens,
            recompute_ratio: round(computed as f64 / tally.prompt_tokens.max(1) as f64, 4),
            skew: round(skew(by_replica), 3),
            ttft_p50_ms: millis(0.5),
            ttft_p99_ms: millis(0.99),
            seconds: round(took.as_secs_f64(), 3),
            first_error: tally.first_error,
        }
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let unit = 10_f64.powi(digits);
    (value * unit).round() / unit
}

/// Busiest ÷ mean; even when nothing came.
pub(super) fn skew(by_replica: &[u64]) -> f64 {
    let total: u64 = by_replica.iter().sum();
    match by_replica.iter().max() {
        Some(most) if total > 0 => *most as f64 * by_replica.len() as f64 / total as f64,
        _ => 1.0,
    }
}

/// The smallest value that a share of all does not exceed (nearest rank); `sorted` is.
pub(super) fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    pub settings: Settings,
    /// One replica that forgets nothing.
    pub floor: Row,
    pub policies: Vec<Row>,
}

impl Report {
    /// Requests that failed, in all rounds.
    pub fn errors(&self) -> u64 {
        self.rows().map(|row| row.errors).sum()
    }

    /// The first error of each round that had any.
    pub fn first_errors(&self) -> impl Iterator<Item = String> {
        self.rows().filter_map(|row| {
            let error = row.first_error.as_ref()?;
            Some(format!("{}: {} of {} requests failed; the first: {error}", row.policy, row.errors, row.requests))
        })
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        std::iter::once(&self.floor).chain(&self.policies)
    }

    /// One object, indented.
    pub fn json(&self) -> String {
        match serde_json::to_string_pretty(self) {
            Ok(text) => text + "\n",
            // Numbers and strings under string keys: there is nothing that could fail.
            Err(error) => format!("{{\"error\": \"{error}\"}}\n"),
        }
    }

    /// The table, what it shows, and what to do next.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["policy", "requests", "recompute %", "skew", "TTFT p50 ms", "TTFT p99 ms", "errors"]);
        for row in &self.policies {
            table.add_row([
                row.policy.to_owned(),
                row.requests.to_string(),
                percent(row),
                format!("{:.2}", row.skew),
                format!("{:.1}", row.ttft_p50_ms),
                format!("{:.1}", row.ttft_p99_ms),
                row.errors.to_string(),
            ]);
        }
        let (none, floor) = (String::from("-"), &self.floor);
        table.add_row([
            floor.policy.to_owned(),
            floor.requests.to_string(),
            percent(floor),
            none.clone(),
            none.clone(),
            none,
            floor.errors.to_string(),
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{table}\n\n");
        self.explain(&mut text);
        text
    }

    fn explain(&self, text: &mut String) {
        let Settings { replicas, sessions, turns, cache_tokens, .. } = &self.settings;
        let s = |n: u32| if n == 1 { "" } else { "s" };
        let _ = writeln!(
            text,
            "{sessions} chat{} of {turns} turn{} on {replicas} virtual replica{} with {cache_tokens} tokens of cache each.",
            s(*sessions),
            s(*turns),
            s(*replicas)
        );
        let by_recompute = |a: &&Row, b: &&Row| a.recompute_ratio.total_cmp(&b.recompute_ratio);
        let best = self.policies.iter().min_by(by_recompute);
        // What most balancers do when told nothing is what a policy is held against.
        let plainest = self.policies.iter().find(|row| row.policy == "round_robin");
        let other = plainest.or(self.policies.iter().max_by(by_recompute));
        if let (Some(best), Some(other)) = (best, other) {
            let floor = format!("{} % were new: no router can compute less.", percent(&self.floor));
            if best.recompute_ratio < other.recompute_ratio {
                let _ = writeln!(
                    text,
                    "{} computed {} % of all prompt tokens, {} {} %; {floor}\nHalf of the first tokens came within \
                     {:.1} ms under {0}, within {:.1} ms under {2}.",
                    other.policy,
                    percent(other),
                    best.policy,
                    percent(best),
                    other.ttft_p50_ms,
                    best.ttft_p50_ms,
                );
            } else {
                let _ = writeln!(text, "{} computed {} % of all prompt tokens; {floor}", best.policy, percent(best));
            }
        }
        let row = |name: &str| self.policies.iter().find(|row| row.policy == name);
        if let Some(told) = row("session_sticky") {
            for prompts in ["cache_aware", "least_cost"].into_iter().filter_map(row) {
                let _ = writeln!(
                    text,
                    "A header named each chat, and session_sticky read it: {} %. {} was not told of it and went by the \
                     prompts alone: {} %.",
                    percent(told),
                    prompts.policy,
                    percent(prompts)
                );
            }
        }
        // Flags can say a policy that needs no settings; of those, the one that kept most.
        let plain = |row: &&Row| POLICIES.iter().any(|policy| policy.name == policy.yaml && policy.name == row.policy);
        if let Some(best) = self.policies.iter().filter(plain).min_by(by_recompute) {
            let _ = writeln!(
                text,
                "\nNext, with replicas of your own:\n  warmroute serve --listen 127.0.0.1:8080 --model NAME \\\n    --replica \
                 http://HOST:PORT --replica http://HOST:PORT --policy {}",
                best.policy
            );
        }
    }
}

fn percent(row: &Row) -> String {
    format!("{:.1}", row.recompute_ratio * 100.0)
}
