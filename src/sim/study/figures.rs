//! Every figure of the study beside ours.
use serde::Serialize;

use super::hosted::{Prices, keys_for, monthly_hours};
use crate::sim::choose::Rule;
use crate::sim::grid::{CacheModel, Row, Setup, Workload};
use crate::sim::prefill::PrefillModel;
use crate::sim::replay::Arrivals;
use crate::sim::report::round;
use crate::sim::workload::Generated;

/// Dollars for an hour of an H100.
pub const PRICE_PER_HOUR: f64 = 4.29;
/// Tokens of idle KV cache of a replica.
const CACHE_TOKENS: u64 = 300_000;
/// More than any workload fills.
const ENDLESS: u64 = 1 << 50;
/// Figures are means of so many seeds.
const SEEDS: u64 = 3;
const REPLICAS: [usize; 4] = [1, 2, 4, 8];
const RECOMPUTE: &str = "recompute %";
/// The table whose references are not the study's: what a faithful model of blocks gives with its assumptions.
pub(super) const BLOCKS: &str = "chat, 16-token blocks";

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The table that it stands in.
    pub of: &'static str,
    /// Whose it is.
    pub policy: Option<&'static str>,
    /// On how many replicas.
    pub replicas: Option<usize>,
    /// What it is, with its unit.
    pub figure: &'static str,
    /// What the study printed, or what its assumptions give with blocks; none for the product's own policies.
    pub study: Option<f64>,
    /// What this program finds.
    pub ours: f64,
    /// Ours − the study's.
    pub difference: Option<f64>,
    /// How far off it may be, given what is known of the study's assumptions.
    pub within: Option<f64>,
}

impl Figure {
    /// Whether it is as near to the study's as it should be.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.difference.zip(self.within).is_none_or(|(difference, within)| difference.abs() <= within)
    }
}

/// What is wanted of [`figures`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The study's own figures.
    Study,
    /// Those, and the product's policies on the same calls.
    Whole,
}

struct Sheet(Vec<Figure>);

impl Sheet {
    fn add(
        &mut self,
        of: &'static str,
        at: (Option<&'static str>, Option<usize>),
        figure: &'static str,
        study: Option<(f64, f64)>,
        ours: f64,
    ) {
        let ours = round(ours, 3);
        self.0.push(Figure {
            of,
            policy: at.0,
            replicas: at.1,
            figure,
            study: study.map(|(study, _)| study),
            ours,
            difference: study.map(|(study, _)| round(ours - study, 3)),
            within: study.map(|(_, within)| within),
        });
    }

    /// Of one row: recompute, skews and cost, where the study has them.
    fn row(&mut self, of: &'static str, row: &Row, study: Study) {
        let at = (Some(row.rule.as_str()), Some(row.replicas));
        let outcome = &row.outcome;
        let product = study == Study::default();
        let mut add = |figure, study: Option<(f64, f64)>, ours| {
            if study.is_some() || (product && (row.replicas == 8 || figure == RECOMPUTE)) {
                self.add(of, at, figure, study, ours);
            }
        };
        add(RECOMPUTE, study.recompute, 100.0 * outcome.recompute);
        add("skew in requests", study.skew, outcome.skew_requests);
        add("$ per 1M requests", study.cost, outcome.cost_per_million(PRICE_PER_HOUR));
    }
}

/// What the study says of a row: each figure, and how far off ours may be.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Study {
    recompute: Option<(f64, f64)>,
    skew: Option<(f64, f64)>,
    cost: Option<(f64, f64)>,
}

fn setup(workload: Generated, rules: &[&str], replicas: &[usize], seeds: u64) -> Setup {
    Setup {
        workload: Workload::Generated(workload),
        rules: rules.iter().filter_map(|name| Rule::named(name)).collect(),
        replicas: replicas.to_vec(),
        cache_tokens: CACHE_TOKENS,
        believed_cache: 1.0,
        cache: CacheModel::Study,
        prefill: PrefillModel::QWEN3_8B_H100,
        decode_tps: f64::INFINITY,
        noise: 0.0,
        reports: false,
        arrivals: Arrivals::Closed(1),
        speed: 1.0,
        seed: 1,
        seeds,
        requests: workload.requests(),
        floors: false,
    }
}

const PRODUCT: [&str; 7] =
    ["random", "least_load", "power_of_two", "session_sticky", "header_hash", "cache_aware", "least_cost"];

fn chat() -> Setup {
    setup(Generated::Chat, &["round_robin", "study_hash", "study_cache_aware"], &REPLICAS, SEEDS)
}

fn endless_chat() -> Setup {
    Setup { cache_tokens: ENDLESS, ..setup(Generated::Chat, &["round_robin"], &[1, 4, 8], 1) }
}

fn documents() -> Setup {
    setup(Generated::Documents, &["random", "study_hash", "study_cache_aware"], &[8], SEEDS)
}

fn blocks_chat() -> Setup {
    let rules = ["round_robin", "session_sticky", "study_hash", "power_of_two", "header_hash", "cache_aware"];
    Setup { cache: CacheModel::Blocks, ..setup(Generated::Chat, &rules, &REPLICAS, 1) }
}

fn all(reading: Reading) -> Vec<Setup> {
    let mut setups = vec![chat(), endless_chat(), documents()];
    if reading == Reading::Whole {
        setups.push(setup(Generated::Chat, &PRODUCT, &REPLICAS, 1));
        setups.push(setup(Generated::Documents, &PRODUCT, &[8], 1));
        setups.push(blocks_chat());
    }
    setups
}

/// Calls that [`figures`] plays, for a measure of progress.
#[must_use]
pub fn calls_in_all(reading: Reading) -> u64 {
    all(reading).iter().map(Setup::calls_in_all).sum()
}

/// Plays the study; `ticks` hears of calls that have ended.
///
/// # Errors
/// When a policy finds no replica.
pub fn figures(reading: Reading, ticks: &(dyn Fn(u64) + Sync)) -> Result<Vec<Figure>, String> {
    let mut sheet = Sheet(Vec::new());
    prefill(&mut sheet);
    chats(&mut sheet, ticks)?;
    let documents_of = |name| match name {
        "random" => (60.9, 1.01, 499.0),
        "study_hash" => (17.4, 1.68, 144.0),
        _ => (19.1, 1.04, 157.0),
    };
    for row in documents().run(ticks)? {
        let (recompute, skew, cost) = documents_of(row.rule.as_str());
        let study = Study { recompute: Some((recompute, 1.0)), skew: Some((skew, 0.05)), cost: Some((cost, 6.0)) };
        sheet.row("documents", &row, study);
    }
    hosted(&mut sheet);
    if reading == Reading::Whole {
        for setup in all(reading).split_off(3) {
            let of = match (&setup.workload, setup.cache) {
                (_, CacheModel::Blocks) => BLOCKS,
                (Workload::Generated(Generated::Chat), _) => "chat, ours",
                _ => "documents, ours",
            };
            for row in setup.run(ticks)? {
                let study = if setup.cache == CacheModel::Blocks { blocks(&row) } else { Study::default() };
                sheet.row(of, &row, study);
            }
        }
    }
    Ok(sheet.0)
}

/// See [`BLOCKS`].
fn blocks(row: &Row) -> Study {
    let at = REPLICAS.iter().position(|&replicas| replicas == row.replicas);
    let figures = match row.rule.as_str() {
        "round_robin" => [41.2, 42.1, 43.8, 46.6],
        "study_hash" => [41.2, 22.1, 4.7, 3.7],
        _ => return Study::default(),
    };
    Study { recompute: at.map(|at| (figures[at], 0.5)), ..Study::default() }
}

fn prefill(sheet: &mut Sheet) {
    let of = "prefill of 8,800 tokens";
    for (figure, cached, study) in
        [("cold, ms", 0, 338.0), ("last turn cached, ms", 8_600, 9.0), ("system prompt cached, ms", 2_000, 269.0)]
    {
        let ours = 1e3 * PrefillModel::QWEN3_8B_H100.seconds(8_800, cached);
        sheet.add(of, (None, None), figure, Some((study, 1.0)), ours);
    }
}

/// Share of tokens that round robin computes of the study's chats on `replicas` that forget nothing: turn k finds the
/// last turn that came to the same replica, so 600·N·(1 − (1 − 1/N)^k) − 400 tokens of it are new on average.
#[must_use]
pub(super) fn closed_form(replicas: u32) -> f64 {
    let n = f64::from(replicas);
    let computed: f64 = (1..=12).map(|k| 600.0 * n * (1.0 - (1.0 - 1.0 / n).powi(k)) - 400.0).sum();
    let prompts: f64 = (1..=12).map(|k| 1_600.0 + 600.0 * f64::from(k)).sum();
    computed / prompts
}

fn chats(sheet: &mut Sheet, ticks: &(dyn Fn(u64) + Sync)) -> Result<(), String> {
    let mut costs = [0.0; 2];
    for row in chat().run(ticks)? {
        let rule = row.rule.as_str();
        let (recompute, cost, cost_within) = match rule {
            "round_robin" => ([48.6, 49.0, 49.7, 51.0], 127.4, 1.0),
            "study_hash" => ([48.6, 34.7, 12.8, 3.7], 9.5, 0.3),
            _ => ([48.6, 34.7, 12.4, 4.3], 11.0, 1.0),
        };
        let at = REPLICAS.iter().position(|&replicas| replicas == row.replicas);
        let eight = row.replicas == 8;
        sheet.row(
            "chat",
            &row,
            Study {
                recompute: at.map(|at| (recompute[at], 0.5)),
                skew: (eight && rule == "study_hash").then_some((1.08, 0.05)),
                cost: eight.then_some((cost, cost_within)),
            },
        );
        match (eight, rule) {
            (true, "round_robin") => costs[0] = row.outcome.cost_per_million(PRICE_PER_HOUR),
            (true, "study_hash") => costs[1] = row.outcome.cost_per_million(PRICE_PER_HOUR),
            _ => {}
        }
    }
    let of = "chat, infinite cache";
    for row in endless_chat().run(ticks)? {
        let figure = if row.replicas == 1 { "floor, recompute %" } else { "recompute %" };
        let study = match row.replicas {
            1 => 3.7,
            4 => 25.8,
            _ => 39.4,
        };
        let at = (Some("round_robin"), Some(row.replicas));
        sheet.add(of, at, figure, Some((study, 0.5)), 100.0 * row.outcome.recompute);
    }
    for (replicas, study) in [(4, 25.80), (8, 39.34)] {
        let at = (Some("round_robin"), Some(replicas as usize));
        sheet.add(of, at, "closed form, recompute %", Some((study, 0.1)), 100.0 * closed_form(replicas));
    }
    let saving = (costs[0] - costs[1]) * 30.0;
    sheet.add("chat, 1M requests a day", (None, Some(8)), "$ saved a month", Some((3_500.0, 50.0)), saving);
    let month = monthly_hours() * PRICE_PER_HOUR;
    sheet.add("an H100", (None, None), "$ a month", Some((3_132.0, 1.0)), month);
    Ok(())
}

fn hosted(sheet: &mut Sheet) {
    let (of, prices) = ("hosted API, 10 × 20,000 tokens", Prices::STUDY);
    for (figure, study, ours) in [
        ("uncached, cents", 40.0, prices.uncached(10, 20_000)),
        ("ten at once, cents", 50.0, prices.at_once(10, 20_000)),
        ("one first, then nine, cents", 6.8, prices.one_first(10, 20_000)),
        ("prewarmed, then ten, cents", 7.0, prices.prewarmed(10, 20_000)),
    ] {
        sheet.add(of, (None, None), figure, Some((study, 0.0)), ours);
    }
    let of = "prompt_cache_key";
    sheet.add(of, (None, None), "keys for 120 requests a minute", Some((8.0, 0.0)), keys_for(120, 15).into());
}
