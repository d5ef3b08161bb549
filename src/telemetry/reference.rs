//! `docs/metrics.md`, written from the table of metric families.
use std::fmt::Write;

use super::families::FAMILIES;

/// `docs/metrics.md`: the table as Markdown.
pub fn reference() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         Served by the admin listener at `/metrics` in Prometheus' text format. Label values come from the configuration or \
         from fixed lists, never from a client. The names and labels below are a contract.\n\n\
         | name | kind | labels | meaning |\n| --- | --- | --- | --- |\n",
    );
    for family in FAMILIES {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = format!("{:?}", family.kind).to_lowercase();
        let _ = writeln!(text, "| `{}` | {kind} | {} | {} |", family.name, labels.join(", "), family.help);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, reference(), "docs/metrics.md is out of date: run UPDATE_DOCS=1 cargo test --lib");
    }
}
