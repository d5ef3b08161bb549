//! `least_cost`: the replica where the request costs least, in seconds: its own and those of others that wait for it.
//!
//! ```text
//! cost = price·T(n, m) + (W + request_cost·(open − fewest open)) ÷ the weight (and ramp) of the replica
//! ```
//!
//! T is the time to prefill n tokens of which m are held there (`prefill`), W the seconds of prefill that wait there, and
//! the price what a second of work costs those who come later ([`crate::routing::busy`]). Where costs are within
//! [`TIE`] of the least, the session's replica takes it, else the one that was given the least prefill lately, for its weight: where
//! sessions begin, that is who has fewest of them, and where prompts are found or not, whose cache was churned least.
//!
//! A prefix that many requests begin with belongs on as many replicas as its share of the requests asks for. While fewer
//! hold it, all others are judged as if they did ([`crate::routing::heads`]): without that, the second replica to hold
//! it would have to be cheaper by a whole prefill, so the first one's line would always grow that long before.
//!
//! A conversation's replica holds more of the next turn than it was ever asked: the answer, which it wrote. It is judged
//! as if it held it ([`Look::with_answer`]); without that, moving a young conversation looks a third as dear as it is.
//!
//! Where no replica holds more of a prompt than all do, a session's replica counts as holding the session's last prompt
//! (same life of the replica, same first block): the index forgets sooner than some engines. A prompt that could not be
//! read counts for [`UNREAD`] tokens, which the session's replica holds.
use super::{Aids, Choice};
use crate::config::{LeastCost, LoadPolicy};
use crate::routing::Reason;
use crate::routing::candidates::{Candidates, FULL_SHARE, Home, Remembered};
use crate::routing::prefill::Model;
use crate::routing::prefixes::{Look, tokens};

/// Costs that differ by less, in seconds, are the same: no estimate is as good as that.
const TIE: f64 = 0.002;
/// Tokens of a prompt that could not be read.
const UNREAD: u32 = 1_024;

/// What the request asks of a replica.
pub(in crate::routing) struct Work<'a> {
    /// Its prompt.
    pub look: Look,
    /// How long a prefill takes.
    pub model: &'a Model,
    /// What a second of prefill costs, in seconds.
    pub price: f64,
}

/// Costs of one decision.
pub(in crate::routing) struct Costs<'a> {
    settings: &'a LeastCost,
    table: &'a Candidates,
    work: &'a Work<'a>,
    /// The row of the session's replica.
    home: Option<usize>,
    /// Blocks that this one is taken to hold, whatever the index knows.
    remembered: u32,
    /// Open requests where they are fewest.
    fewest: u32,
    /// Blocks that the replica with the longest match holds.
    longest: u32,
}

impl<'a> Costs<'a> {
    pub fn new(settings: &'a LeastCost, table: &'a Candidates, work: &'a Work<'a>) -> Self {
        let home = table.home().and_then(|home| {
            let row = (0..table.len()).find(|&row| table.member(row) == home.member as usize)?;
            Some((row, home))
        });
        let longest = table.depths().max().unwrap_or(0);
        let remembered = home.map_or(0, |(_, home)| remembered(table, home, longest));
        let fewest = (0..table.len()).map(|row| table.open(row)).min().unwrap_or(0);
        Self { settings, table, work, home: home.map(|(row, _)| row), remembered, fewest, longest }
    }

    /// Seconds.
    pub fn of(&self, row: usize) -> f64 {
        let (table, work) = (self.table, self.work);
        let known = work.look.with_answer(table.depth(row)).max(work.look.seeded);
        let held = if self.home == Some(row) { known.max(self.remembered) } else { known };
        let prefill = work.model.seconds(work.look.tokens.unwrap_or(UNREAD), tokens(held));
        let others = self.settings.request_cost * f64::from(table.open(row) - self.fewest);
        work.price * prefill + (table.amount(row) + others) * FULL_SHARE as f64 / table.shares()[row] as f64
    }

    fn reason(&self, row: usize) -> Reason {
        let depth = self.table.depth(row);
        if self.home == Some(row) && self.remembered > depth {
            Reason::Bound
        } else if self.longest <= self.table.common() {
            Reason::NoMatch
        } else if depth == self.longest {
            Reason::Prefix
        } else {
            Reason::PrefixOverflow
        }
    }
}

/// Blocks that a session's replica is taken to hold, whatever the index knows; `longest` is what any candidate holds.
fn remembered(table: &Candidates, home: Home, longest: u32) -> u32 {
    match home.remembers {
        Some(Remembered::Blocks(blocks)) if longest <= table.common() => blocks,
        Some(Remembered::Unknown) => UNREAD / tokens(1),
        _ => 0,
    }
}

/// Whether a session's home that is no candidate, as it drains, still serves it: while no other holds more. What waits
/// there does not matter: nobody new comes, and a move would cost a whole prefill.
pub(super) fn keeps(table: &Candidates, home: Home, depth: u32) -> bool {
    let longest = table.depths().max().unwrap_or(0);
    let held = depth.max(remembered(table, home, longest));
    held > table.common() && held >= longest
}

pub(super) fn choose(settings: &LeastCost, table: &Candidates, aids: &mut Aids<'_>) -> Option<Choice> {
    let costs = Costs::new(settings, table, aids.work);
    let least = (0..table.len()).map(|row| costs.of(row)).min_by(f64::total_cmp)?;
    let tied = |row: &usize| costs.of(*row) <= least + TIE;
    // What no work is known of is dealt by count.
    let order = |a, b| if aids.work.look.tokens.is_some() { table.compare_work(a, b) } else { table.compare(a, b) };
    let row = match costs.home.filter(tied) {
        Some(home) => home,
        None => (0..table.len()).filter(tied).min_by(|&a, &b| order(a, b))?,
    };
    let reason = costs.reason(row);
    // Of equals each has its turn.
    let by = (reason == Reason::NoMatch).then_some(LoadPolicy::LeastLoad);
    Some(Choice { row, reason, by })
}
