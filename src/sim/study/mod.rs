//! The published study of 2026-11-04 (three ways to place requests on replicas of Qwen3-8B, an H100 each): its figures,
//! ours, and the difference; and what the product's own policies do with the same calls.
//!
//! The study printed results, not all of its assumptions; those that `workload`, `choose` and `replay` make reproduce
//! each figure within `within`.
mod figures;
mod hosted;

pub use figures::{Figure, PRICE_PER_HOUR, Reading, calls_in_all, figures};
pub use hosted::{Prices, keys_for, monthly_hours};

use super::report::{self, Format};

/// The figures in the form asked for.
#[must_use]
pub fn print(figures: &[Figure], format: Format) -> String {
    match format {
        Format::Json => report::json(figures),
        Format::Csv => report::csv(figures),
        Format::Table => table(figures),
    }
}

fn table(figures: &[Figure]) -> String {
    let mut table = report::plain();
    table.set_header(["of", "policy", "replicas", "figure", "study", "ours", "difference"]);
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    for figure in figures {
        table.add_row([
            figure.of.to_owned(),
            figure.policy.unwrap_or("-").to_owned(),
            figure.replicas.map_or_else(|| "-".to_owned(), |replicas| replicas.to_string()),
            figure.figure.to_owned(),
            shown(figure.study),
            shown(Some(figure.ours)),
            shown(figure.difference),
        ]);
    }
    report::right(&mut table, 4);
    let held = figures.iter().filter(|figure| figure.study.is_some()).count();
    let off = figures.iter().filter(|figure| !figure.holds()).count();
    format!("{table}\n\n{held} figures of the study, {off} of them further off than its residuals allow.\n")
}

#[cfg(test)]
mod tests;
