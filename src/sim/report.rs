//! Results as a table for people, or as JSON or CSV for programs: the same figures, equal to the last digit from run to
//! run.
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::grid::{Row, Setup};

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// An array of objects, one a row.
    Json,
    /// A head, then a line a row.
    Csv,
}

/// Under which conditions a row came about, so that the rows of several runs may stand in one table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conditions {
    /// When requests came, as `--arrivals` has it.
    pub arrivals: String,
    /// How many times as fast as recorded.
    pub speed: f64,
    /// What a cache was.
    pub cache_model: &'static str,
    /// Tokens of KV cache that a replica kept.
    pub cache_tokens: u64,
    /// What policies took that for, as a multiple of it.
    pub believed_cache: f64,
    /// Tokens a second that a replica wrote; none: at once.
    pub decode_tps: Option<f64>,
    /// Standard deviation of the logarithm of prefill times about the model's.
    pub noise: f64,
    /// Whether replicas reported what they found in their caches.
    pub reports: bool,
    /// The first seed.
    pub seed: u64,
    /// Seeds that the figures are the mean of.
    pub seeds: u64,
}

impl Conditions {
    /// Those of a setup.
    #[must_use]
    pub fn of(setup: &Setup) -> Self {
        Self {
            arrivals: setup.arrivals.to_string(),
            speed: setup.speed,
            cache_model: setup.cache.as_str(),
            cache_tokens: setup.cache_tokens,
            believed_cache: setup.believed_cache,
            decode_tps: Some(setup.decode_tps).filter(|tps| tps.is_finite()),
            noise: setup.noise,
            reports: setup.reports,
            seed: setup.seed,
            seeds: setup.seeds,
        }
    }
}

/// One row as it is printed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The workload.
    pub workload: String,
    /// The policy.
    pub policy: &'static str,
    /// Replicas.
    pub replicas: usize,
    /// What was so for all rows of the run.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// Prompt tokens computed, of all, in percent.
    pub recompute_pct: f64,
    /// Requests of the busiest replica ÷ mean.
    pub skew_requests: f64,
    /// Prefill seconds of the busiest replica ÷ mean.
    pub skew_seconds: f64,
    /// Time to first token.
    pub ttft_mean_ms: f64,
    /// Half were as fast.
    pub ttft_p50_ms: f64,
    /// All but one in a hundred were as fast.
    pub ttft_p99_ms: f64,
    /// Dollars of prefill for a million requests.
    pub cost_per_million_usd: f64,
    /// Recompute with a cache that forgets nothing.
    pub floor_infinite_pct: f64,
    /// With all caches in one, least recently used goes first.
    pub floor_pooled_lru_pct: f64,
    /// The same, knowing the future.
    pub floor_pooled_belady_pct: f64,
    /// Tokens that the policy expected in caches and that were not there, net, in percent of all prompt tokens.
    pub overpredicted_pct: f64,
    /// Requests answered, all seeds together.
    pub requests: u64,
    /// Requests longer than a whole cache.
    pub refused: u64,
}

impl Line {
    /// Of a setup's result; a replica costs so many dollars an hour.
    #[must_use]
    pub fn new(setup: &Setup, row: &Row, price_per_hour: f64) -> Self {
        let outcome = &row.outcome;
        Self {
            workload: setup.workload.name().to_owned(),
            policy: row.rule.as_str(),
            replicas: row.replicas,
            conditions: Conditions::of(setup),
            recompute_pct: round(100.0 * outcome.recompute, 3),
            skew_requests: round(outcome.skew_requests, 3),
            skew_seconds: round(outcome.skew_seconds, 3),
            ttft_mean_ms: round(1e3 * outcome.ttft_mean, 3),
            ttft_p50_ms: round(1e3 * outcome.ttft_p50, 3),
            ttft_p99_ms: round(1e3 * outcome.ttft_p99, 3),
            cost_per_million_usd: round(outcome.cost_per_million(price_per_hour), 3),
            floor_infinite_pct: round(100.0 * row.floors.infinite, 3),
            floor_pooled_lru_pct: round(100.0 * row.floors.pooled_lru, 3),
            floor_pooled_belady_pct: round(100.0 * row.floors.pooled_belady, 3),
            overpredicted_pct: round(100.0 * outcome.overpredicted, 3),
            requests: outcome.requests,
            refused: outcome.refused,
        }
    }
}

/// So many digits after the point; never "-0".
pub(super) fn round(value: f64, digits: i32) -> f64 {
    let unit = 10_f64.powi(digits);
    (value * unit).round() / unit + 0.0
}

/// The rows in the form asked for.
#[must_use]
pub fn print(lines: &[Line], format: Format) -> String {
    match format {
        Format::Table => table(lines),
        Format::Json => json(lines),
        Format::Csv => csv(lines),
    }
}

/// An array, indented.
pub(super) fn json(rows: &[impl Serialize]) -> String {
    match serde_json::to_string_pretty(rows) {
        Ok(text) => text + "\n",
        // Numbers and strings under string keys: there is nothing that could fail.
        Err(error) => format!("{{\"error\": \"{error}\"}}\n"),
    }
}

/// The fields' names, then each row's values.
pub(super) fn csv(rows: &[impl Serialize]) -> String {
    let mut text = String::new();
    for row in rows {
        let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(row) else { continue };
        if text.is_empty() {
            text = fields.keys().map(String::as_str).collect::<Vec<_>>().join(",") + "\n";
        }
        let cells = fields.values().map(|value| match value {
            serde_json::Value::String(cell) if cell.contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", cell.replace('"', "\"\""))
            }
            serde_json::Value::String(cell) => cell.clone(),
            serde_json::Value::Null => String::new(),
            other => other.to_string(),
        });
        text += &(cells.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

fn table(lines: &[Line]) -> String {
    let mut table = plain();
    table.set_header([
        "policy",
        "replicas",
        "recompute %",
        "skew (requests)",
        "skew (seconds)",
        "TTFT mean ms",
        "p50 ms",
        "p99 ms",
        "$ per 1M",
    ]);
    let mut floors = Vec::new();
    for line in lines {
        table.add_row([
            line.policy.to_owned(),
            line.replicas.to_string(),
            format!("{:.2}", line.recompute_pct),
            format!("{:.2}", line.skew_requests),
            format!("{:.2}", line.skew_seconds),
            format!("{:.1}", line.ttft_mean_ms),
            format!("{:.1}", line.ttft_p50_ms),
            format!("{:.1}", line.ttft_p99_ms),
            format!("{:.2}", line.cost_per_million_usd),
        ]);
        if !floors.iter().any(|(replicas, _)| *replicas == line.replicas) {
            floors.push((line.replicas, line));
        }
    }
    right(&mut table, 1);
    let mut text = format!("{table}\n\n");
    for (replicas, line) in floors {
        text += &format!(
            "Floors of {} on {replicas}: {:.2} % with a cache that forgets nothing, {:.2} % with all caches in one (LRU), \
             {:.2} % with the same one knowing the future.\n",
            line.workload, line.floor_infinite_pct, line.floor_pooled_lru_pct, line.floor_pooled_belady_pct
        );
    }
    if let Some(line) = lines.iter().find(|line| line.refused > 0) {
        text += &format!("{} requests were longer than a replica's whole cache, and were left out.\n", line.refused);
    }
    text
}

pub(super) fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table
}

/// Numbers stand on the right, from this column on.
pub(super) fn right(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Cells {
        name: &'static str,
        value: Option<f64>,
    }

    #[test]
    fn csv_quotes_what_must_be() {
        let rows = [Cells { name: "a,\"b\"", value: Some(1.5) }, Cells { name: "c", value: None }];
        assert_eq!(csv(&rows), "name,value\n\"a,\"\"b\"\"\",1.5\nc,\n");
    }

    #[test]
    fn figures_are_rounded_and_zero_has_no_sign() {
        assert_eq!((round(1.23456, 3), round(-0.00001, 3).to_string()), (1.235, "0".to_owned()));
    }
}
