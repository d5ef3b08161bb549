//! `least_cost`: the replica where the request costs least, in seconds: its own and those of others that wait for it.
//!
//! ```text
//! cost = price·T(n, m) + W + request_cost·(open − fewest open), ÷ the weight (and ramp) of the replica
//! ```
//!
//! T is the time to prefill n tokens of which m are held there (`prefill`), W the seconds of prefill that wait there, and
//! the price what a second of work costs those who come later ([`crate::routing::busy`]). Where costs are within
//! [`TIE`] of the least, the session's replica takes it, else who forgets least for it: the one with most room, and of
//! full ones the one whose oldest prefix was not used for longest.
//!
//! A prefix that many requests begin with belongs on as many replicas as its share of the requests asks for. While fewer
//! hold it, all others are judged as if they did ([`crate::routing::heads`]): without that, the second replica to hold
//! it would have to be cheaper by a whole prefill, so the first one's line would always grow that long before.
//!
//! Where no replica holds more of a prompt than all do, a session's replica counts as holding the session's last prompt
//! (same life of the replica, same first block): the index forgets sooner than some engines. A prompt that could not be
//! read counts for [`UNREAD`] tokens, which the session's replica holds.
use super::{Aids, Choice};
use crate::config::{LeastCost, LoadPolicy};
use crate::routing::Reason;
use crate::routing::candidates::{Candidates, FULL_SHARE, Remembered};
use crate::routing::prefill::Model;
use crate::routing::prefixes::{self, tokens};

/// Costs that differ by less, in seconds, are the same: no estimate is as good as that.
const TIE: f64 = 0.002;
/// Tokens of a prompt that could not be read.
const UNREAD: u32 = 1_024;

/// What the request asks of a replica.
pub(in crate::routing) struct Work<'a> {
    /// Tokens of the prompt; `None` where it could not be read, or is none.
    pub tokens: Option<u32>,
    /// How long a prefill takes.
    pub model: &'a Model,
    /// What a second of prefill costs, in seconds.
    pub price: f64,
    /// Leading blocks that count as held by every replica.
    pub seeded: u32,
    /// Blocks of the prompt.
    pub blocks: u32,
}

/// Costs of one decision.
struct Costs<'a> {
    settings: &'a LeastCost,
    table: &'a Candidates,
    work: &'a Work<'a>,
    /// The row of the session's replica.
    home: Option<usize>,
    /// What that one is taken to hold, beyond what the index knows.
    remembered: u32,
    fewest: u32,
}

impl Costs<'_> {
    fn held(&self, row: usize) -> u32 {
        let held = self.table.depth(row).max(self.work.seeded);
        if self.home == Some(row) { held.max(self.remembered) } else { held }
    }

    /// Seconds.
    fn of(&self, row: usize) -> f64 {
        let (table, work) = (self.table, self.work);
        let prompt = work.tokens.unwrap_or(UNREAD);
        let prefill = work.model.seconds(prompt, tokens(self.held(row)));
        let open = f64::from(table.open(row) - self.fewest);
        let cost = work.price * prefill + table.amount(row) + self.settings.request_cost * open;
        cost * FULL_SHARE as f64 / table.shares()[row] as f64
    }
}

pub(super) fn choose(settings: &LeastCost, table: &Candidates, aids: &mut Aids<'_>) -> Option<Choice> {
    let work = aids.work;
    let home = table.home().and_then(|home| {
        let row = (0..table.len()).find(|&row| table.member(row) == home.member as usize)?;
        Some((row, home.remembers))
    });
    let common = table.common();
    let longest = table.depths().max().unwrap_or(0);
    let remembered = match home {
        _ if longest > common => 0,
        Some((_, Some(Remembered::Blocks(blocks)))) => blocks,
        Some((_, Some(Remembered::Unknown))) => UNREAD / prefixes::tokens(1),
        _ => 0,
    };
    let fewest = (0..table.len()).map(|row| table.open(row)).min()?;
    let costs = Costs { settings, table, work, home: home.map(|(row, _)| row), remembered, fewest };
    let least = (0..table.len()).map(|row| costs.of(row)).min_by(f64::total_cmp)?;
    let tied = |row: &usize| costs.of(*row) <= least + TIE;

    let row = match costs.home.filter(tied) {
        Some(home) => home,
        None => {
            // Those that forget nothing first, by room; then by what they would forget.
            let order = |row| {
                let (new, room) = (work.blocks.saturating_sub(table.depth(row)) as usize, table.room(row));
                if room.free >= new { (0, usize::MAX - room.free) } else { (1 + room.oldest, 0) }
            };
            let tied = (0..table.len()).filter(tied);
            tied.min_by(|&a, &b| order(a).cmp(&order(b)).then_with(|| table.compare(a, b)))?
        }
    };
    let depth = table.depth(row);
    let reason = match depth {
        _ if costs.home == Some(row) && remembered > depth => Reason::Bound,
        _ if longest <= common => Reason::NoMatch,
        depth if depth == longest => Reason::Prefix,
        _ => Reason::PrefixOverflow,
    };
    // Of equals each has its turn.
    let by = (reason == Reason::NoMatch).then_some(LoadPolicy::LeastLoad);
    Some(Choice { row, reason, by })
}
