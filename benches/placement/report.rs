//! From where each request went: hits, evenness, verdicts; as a table or as JSON.
use std::collections::{BTreeMap, HashSet};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use warmroute::prefix::BLOCK_TOKENS;

/// One request and where it went.
#[derive(Debug)]
pub struct Sent {
    /// Requests were sent in this order.
    pub order: u64,
    pub replica: usize,
    /// Ours says why; empty where nobody does.
    pub reason: String,
    pub blocks: Vec<u64>,
    pub tokens: usize,
    /// What the engine said of it, in its own tokens.
    pub engine_tokens: u64,
    pub engine_cached: u64,
}

/// What a round came to, and what it should have.
#[derive(Debug, Serialize)]
pub struct Row {
    pub scenario: String,
    pub requests: usize,
    /// Requests of each replica.
    pub by_replica: Vec<usize>,
    /// Busiest ÷ mean.
    pub busiest_to_mean: f64,
    /// Requests by the reason that the router gave.
    pub reasons: BTreeMap<String, usize>,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Whether every target was met.
    pub met: bool,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// A closed loop of sessions.
    Sessions {
        /// Share of prompt tokens in blocks that the chosen replica had, had it forgotten nothing.
        hit: f64,
        /// At least this is asked for.
        least_hit: f64,
        /// The share if each session had stayed on one replica, and each replica had computed the common head once.
        ceiling: f64,
        /// What the engines reported: cached ÷ prompt tokens.
        engine_hit: f64,
        /// At most this busiest ÷ mean is asked for.
        most_busiest: f64,
    },
    /// A burst of one prompt.
    Burst {
        /// Replicas that computed it.
        computed: usize,
        /// At most so many are asked for.
        most_computed: usize,
        /// Largest difference of in-flight requests while they came in.
        difference: u64,
        /// The most requests by which any replica was above what ratio and gap allow: at most one.
        excess: u64,
    },
}

fn counts(sent: &[Sent], replicas: usize) -> (Vec<usize>, f64) {
    let mut by_replica = vec![0; replicas];
    sent.iter().for_each(|sent| by_replica[sent.replica] += 1);
    let busiest = by_replica.iter().copied().max().unwrap_or(0);
    let mean = sent.len() as f64 / replicas.max(1) as f64;
    (by_replica, busiest as f64 / mean)
}

fn reasons(sent: &[Sent]) -> BTreeMap<String, usize> {
    let mut reasons = BTreeMap::new();
    sent.iter().for_each(|sent| *reasons.entry(sent.reason.clone()).or_default() += 1);
    reasons
}

/// Judges a closed loop. `ceiling` is the share that perfect placement would have had.
pub fn sessions(scenario: String, mut sent: Vec<Sent>, replicas: usize, ceiling: f64, targets: (f64, f64)) -> Row {
    sent.sort_by_key(|sent| sent.order);
    let (by_replica, busiest_to_mean) = counts(&sent, replicas);
    let mut caches = vec![HashSet::new(); replicas];
    let (mut hits, mut tokens) = (0, 0);
    for request in &sent {
        let cache = &mut caches[request.replica];
        hits += BLOCK_TOKENS * request.blocks.iter().take_while(|hash| cache.contains(*hash)).count();
        tokens += request.tokens;
        cache.extend(request.blocks.iter().copied());
    }
    let hit = hits as f64 / tokens as f64;
    let engine = |of: fn(&Sent) -> u64| sent.iter().map(of).sum::<u64>() as f64;
    let engine_hit = engine(|sent| sent.engine_cached) / engine(|sent| sent.engine_tokens);
    let (least_hit, most_busiest) = targets;
    Row {
        scenario,
        requests: sent.len(),
        by_replica,
        busiest_to_mean,
        reasons: reasons(&sent),
        met: hit >= least_hit && busiest_to_mean <= most_busiest,
        outcome: Outcome::Sessions { hit, least_hit, ceiling, engine_hit, most_busiest },
    }
}

/// Judges a burst, from the in-flight counts seen while it came in.
pub fn burst(scenario: String, sent: &[Sent], samples: &[Vec<u64>], replicas: usize, ratio: f64, gap: u64) -> Row {
    let (by_replica, busiest_to_mean) = counts(sent, replicas);
    let computed = by_replica.iter().filter(|count| **count > 0).count();
    let most_computed = (sent.len() as u64).div_ceil(gap) as usize;
    let (mut difference, mut excess) = (0, 0);
    for sample in samples {
        let (least, most) = (sample.iter().copied().min().unwrap_or(0), sample.iter().copied().max().unwrap_or(0));
        let allowed = (least + gap).max((ratio * least as f64) as u64);
        difference = difference.max(most - least);
        excess = excess.max(most.saturating_sub(allowed));
    }
    // The request that is being placed is not in the loads it is placed by.
    let met = computed <= most_computed && excess <= 1;
    let outcome = Outcome::Burst { computed, most_computed, difference, excess };
    Row { scenario, requests: sent.len(), by_replica, busiest_to_mean, reasons: reasons(sent), outcome, met }
}

/// For people.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "scenario",
        "requests",
        "result",
        "asked for",
        "busiest/mean",
        "by replica",
        "reasons",
        "verdict",
    ]);
    for row in rows {
        let (result, asked) = match &row.outcome {
            Outcome::Sessions { hit, least_hit, ceiling, engine_hit, most_busiest } => (
                format!("hit {hit:.3} (engines: {engine_hit:.3}, ceiling {ceiling:.3})"),
                format!("hit >= {least_hit}, busiest <= {most_busiest}"),
            ),
            Outcome::Burst { computed, most_computed, difference, excess } => (
                format!("computed {computed} times, in flight differ by {difference}, {excess} over"),
                format!("computed <= {most_computed}, over <= 1"),
            ),
        };
        let by_replica = row.by_replica.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let reasons =
            row.reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect::<Vec<_>>().join(", ");
        let verdict = if row.met { "met" } else { "MISSED" };
        let busiest = format!("{:.2}", row.busiest_to_mean);
        table.add_row([
            &row.scenario,
            &row.requests.to_string(),
            &result,
            &asked,
            &busiest,
            &by_replica,
            &reasons,
            verdict,
        ]);
        for cell in [1, 4] {
            if let Some(column) = table.column_mut(cell) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    format!("{table}\n")
}

/// For programs.
pub fn json(rows: &[Row]) -> String {
    serde_json::to_string_pretty(rows).map_or_else(|error| format!("\"{error}\"\n"), |text| text + "\n")
}
