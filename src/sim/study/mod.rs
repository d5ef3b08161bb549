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
    let count = |printed: bool| {
        let those = figures.iter().filter(|figure| figure.study.is_some() && (figure.of != figures::BLOCKS) == printed);
        let off = those.clone().filter(|figure| !figure.holds()).count();
        (those.count(), off)
    };
    let ((study, study_off), (blocks, blocks_off)) = (count(true), count(false));
    format!(
        "{table}\n\n{study} figures of the study, {study_off} further off than its residuals allow; {blocks} of its \
         assumptions with 16-token blocks, {blocks_off} further off than half a point. One request at a time; the \
         product's policies with their defaults.\n"
    )
}

#[cfg(test)]
mod tests;
