//! An explanation, and how it reads.
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

/// What `POST /explain` answers. Where nobody was asked, what only a router knows is `None`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explanation {
    pub pool: String,
    /// As the engine knows it.
    pub model: Option<String>,
    /// The LoRA adapter that is asked for.
    pub adapter: Option<String>,
    pub endpoint: String,
    /// What the blocks are made of, `tokens` or `text`; `None` where no prompt was looked at.
    pub basis: Option<String>,
    /// Why that is text although there is a tokenizer.
    pub fallback: Option<String>,
    pub tokens: u64,
    pub blocks: u64,
    /// Where the session's key came from.
    pub session: Option<String>,
    pub decision: Option<Decision>,
    pub candidates: Vec<Candidate>,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Decision {
    Chosen { replica: String, reason: String, matched_tokens: u64 },
    Refused { refused: String },
}

/// A replica as the decision saw it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Candidate {
    pub replica: String,
    pub state: Option<String>,
    pub weight: Option<u32>,
    pub in_flight: Option<u64>,
    /// Requests lately placed there.
    pub placements: Option<f64>,
    /// Seconds of prefill that wait there.
    pub queued_seconds: Option<f64>,
    /// Leading tokens of the prompt that it holds, as far as is known…
    pub matched_tokens: Option<u64>,
    /// …and as many of them as count for it.
    pub counted_tokens: Option<u64>,
    /// What the policy compared.
    pub load: Option<f64>,
    /// What the request would cost there, under `least_cost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_seconds: Option<f64>,
    #[serde(default)]
    pub chosen: bool,
    /// Why it could not be chosen.
    pub note: Option<String>,
}

impl Explanation {
    /// For people: the request, the candidates, and what the columns are.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, text: &str| out.push_str(&format!("{name:<9} {text}\n"));
        line("pool", &self.pool);
        line("model", self.model.as_deref().unwrap_or("-"));
        if let Some(adapter) = &self.adapter {
            line("adapter", adapter);
        }
        line("endpoint", &self.endpoint);
        line("prompt", &self.prompt());
        line("session", self.session.as_deref().unwrap_or("none"));
        line("decision", &self.decision());
        let _ = write!(out, "\n{}\n", self.candidates());
        if self.decision.is_some() {
            out.push_str(COLUMNS);
        }
        if self.has_costs() {
            out.push_str(COSTS);
        }
        out
    }

    fn prompt(&self) -> String {
        let Some(basis) = &self.basis else {
            return "not looked at: neither policy nor shadow has a use for it".into();
        };
        let (tokens, blocks) = (grouped(self.tokens), grouped(self.blocks));
        match (basis.as_str(), &self.fallback) {
            ("none", why) => {
                format!("not looked at ({})", why.as_ref().map_or("it could not be read", |why| words(why)))
            }
            ("tokens", None) => format!("{tokens} tokens in {blocks} whole blocks, as the engine has them"),
            // An image or the like: what stands before it is shared as tokens.
            ("tokens", Some(why)) => {
                format!("{tokens} tokens in {blocks} whole blocks, in part as text ({why}: {})", words(why))
            }
            (_, None) => format!("about {tokens} tokens in {blocks} whole blocks of text: the pool has no tokenizer"),
            (_, Some(why)) => format!("about {tokens} tokens in {blocks} whole blocks of text ({why}: {})", words(why)),
        }
    }

    fn decision(&self) -> String {
        match &self.decision {
            None => "nobody was asked: what replicas hold and how busy they are is not known".into(),
            Some(Decision::Refused { refused }) => format!("refused ({refused}: {})", words(refused)),
            Some(Decision::Chosen { replica, reason, matched_tokens }) => {
                let share = match self.tokens {
                    0 => String::new(),
                    tokens => format!(" of {}", grouped(tokens)),
                };
                format!("{replica} ({reason}: {}); {}{share} tokens matched", words(reason), grouped(*matched_tokens))
            }
        }
    }

    fn has_costs(&self) -> bool {
        self.candidates.iter().any(|candidate| candidate.cost_seconds.is_some())
    }

    fn candidates(&self) -> Table {
        let costs = self.has_costs();
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        let mut header =
            vec!["", "replica", "state", "in flight", "placements", "queued s", "load", "matched", "counted", "note"];
        if costs {
            header.insert(COST_COLUMN, "cost s");
        }
        table.set_header(header);
        let count = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), grouped);
        let number = |value: Option<f64>, digits: usize| match value {
            Some(value) if value.fract() == 0.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.digits$}"),
            None => "?".to_owned(),
        };
        for candidate in &self.candidates {
            let weight = candidate.weight.filter(|weight| *weight != 1);
            let notes = [candidate.note.clone(), weight.map(|weight| format!("weight {weight}"))];
            let mut row = vec![
                if candidate.chosen { ">" } else { "" }.to_owned(),
                candidate.replica.clone(),
                candidate.state.clone().unwrap_or_else(|| "?".to_owned()),
                count(candidate.in_flight),
                number(candidate.placements, 1),
                number(candidate.queued_seconds, 2),
                number(candidate.load, 2),
                count(candidate.matched_tokens),
                count(candidate.counted_tokens),
                notes.into_iter().flatten().collect::<Vec<_>>().join(", "),
            ];
            if costs {
                // None for who can't be chosen.
                let cost = candidate.cost_seconds.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.4}"));
                row.insert(COST_COLUMN, cost);
            }
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(3).take(6 + usize::from(costs)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

/// Where costs stand, if there are any: after the load.
const COST_COLUMN: usize = 7;

const COSTS: &str = "cost s: what the request costs there, in seconds: its prefill at the present price of work, what waits, and the requests
in flight beyond those of the idlest; the least is taken, and within 2 ms of it the session's replica or who computed least.
";

const COLUMNS: &str = "
placements: requests lately sent there. queued s: seconds of prefill that wait there. load: what the policy compares, for
the replica's weight. matched: leading tokens of the prompt that it holds, as far as is known. counted: how much of that
speaks for it; 0 where it is under min_match_tokens, or what all of them hold.
";

/// What a label of a decision, or of a prompt that is text, means.
fn words(label: &str) -> &'static str {
    match label {
        "round_robin" => "its turn",
        "random" => "drawn",
        "least_load" => "the lowest load",
        "power_of_two" => "the less loaded of two",
        "bound" => "the session is bound to it",
        "hashed" => "the hash of the key leads there",
        "hash_overflow" => "the hash's first choice is too busy",
        "no_key" => "there is no key; the fallback chose",
        "stored" => "it holds the stored response",
        "prefix" => "it holds the longest prefix",
        "prefix_overflow" => "another holds the longest prefix, and is too busy",
        "no_match" => "no prefix tells the replicas apart; load chose",
        "none_ready" => "no replica is up",
        "all_full" => "every replica that is up is at its max_in_flight",
        "no_template" => "there is no chat template, or the request brings its own",
        "template_failed" => "the chat template refused the messages",
        "tokenizer_failed" => "the tokenizer failed",
        "time_budget" => "tokens.budget was over",
        "media" => "from an image, audio or the like on",
        "unknown_shape" => "the body has a shape that is not known",
        "unreadable" => "it could not be read",
        "encoded" => "the body is compressed and passed on as it is",
        "busy" => "too many long prompts at once",
        _ => "see docs/prefix-awareness.md",
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::Reason;
    use crate::tokens::Fallback;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn every_label_of_ours_has_words() {
        let reasons = [
            Reason::RoundRobin,
            Reason::Random,
            Reason::LeastLoad,
            Reason::PowerOfTwo,
            Reason::Bound,
            Reason::Hashed,
            Reason::HashOverflow,
            Reason::NoKey,
            Reason::Stored,
            Reason::Prefix,
            Reason::PrefixOverflow,
            Reason::NoMatch,
        ];
        let fallbacks = [
            Fallback::NoTemplate,
            Fallback::Template,
            Fallback::Tokenizer,
            Fallback::Budget,
            Fallback::Media,
            Fallback::Shape,
        ];
        for label in reasons.map(Reason::as_str).into_iter().chain(fallbacks.map(Fallback::as_str)) {
            assert!(!words(label).contains("docs/"), "{label}");
        }
    }
}
