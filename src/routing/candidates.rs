//! The table of candidates of one decision: a column for each thing that policies judge by.
//!
//! It is filled once, from members that may take the request, and policies only read it. Its rows have no order that
//! means anything: every comparison ends in a rule that is not "the first one".
use std::cmp::Ordering;

use crate::config::LoadUnit;

/// A share of 1 000 is a weight of 1: thousandths leave room for the ramp of a warming replica.
pub(super) const FULL_SHARE: u64 = 1_000;

/// One member, as it is put into the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Position among the router's members.
    pub member: u32,
    /// Hash of the replica's id.
    pub id_hash: u64,
    /// Weight as configured, at least 1.
    pub weight: u32,
    /// Weight × ramp, in thousandths, at least 1.
    pub share: u64,
    /// Open requests.
    pub open: u32,
    /// Recent placements.
    pub placed: u32,
    /// The same, and what the sessions begun there lately will bring.
    pub coming: f64,
    /// Seconds of prefill placed there lately.
    pub work: f64,
    /// Seconds of prefill that wait there; only where they are what counts as load.
    pub queued: f64,
    /// Leading blocks of the prompt that it holds.
    pub depth: u32,
}

impl Row {
    /// The same as one that is kept out.
    pub fn full(self) -> Full {
        Full { member: self.member, id_hash: self.id_hash, weight: self.weight, depth: self.depth }
    }
}

/// A member that would be a candidate if it were not at its `max_in_flight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    /// Position among the router's members.
    pub member: u32,
    /// Hash of the replica's id.
    pub id_hash: u64,
    /// Weight as configured.
    pub weight: u32,
    /// Leading blocks of the prompt that it holds.
    pub depth: u32,
}

/// The replica that the request's session is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Home {
    /// Position among the router's members.
    pub member: u32,
    /// What it holds if it still has the session's last prompt, where that may be assumed (policies say when it counts).
    pub remembers: Option<Remembered>,
}

/// What a session's home may hold of a prompt, by the session's last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remembered {
    /// So many leading blocks.
    Blocks(u32),
    /// Nothing is known of this prompt or the last one.
    Unknown,
}

/// Columns of the candidates, and the members that would be candidates if they were not full.
#[derive(Debug)]
pub(super) struct Candidates {
    member: Vec<u32>,
    id_hash: Vec<u64>,
    weight: Vec<u32>,
    share: Vec<u64>,
    open: Vec<u32>,
    placed: Vec<u32>,
    coming: Vec<f64>,
    work: Vec<f64>,
    queued: Vec<f64>,
    depth: Vec<u32>,
    load: Vec<f64>,
    full: Vec<Full>,
    unit: LoadUnit,
    /// Whose turn it is when all else is equal.
    cursor: u32,
    /// Leading blocks that count for nobody, as others than these candidates know.
    shared: u32,
    home: Option<Home>,
}

impl Default for Candidates {
    fn default() -> Self {
        Self {
            member: Vec::new(),
            id_hash: Vec::new(),
            weight: Vec::new(),
            share: Vec::new(),
            open: Vec::new(),
            placed: Vec::new(),
            coming: Vec::new(),
            work: Vec::new(),
            queued: Vec::new(),
            depth: Vec::new(),
            load: Vec::new(),
            full: Vec::new(),
            unit: LoadUnit::Requests,
            cursor: 0,
            shared: 0,
            home: None,
        }
    }
}

impl Candidates {
    /// Empties the table for a new decision; its memory is kept. `cursor` is the member that wins a perfect tie; the
    /// turn then goes up and wraps. `shared` leading blocks of the prompt count for nobody.
    pub fn clear(&mut self, cursor: u32, unit: LoadUnit, shared: u32, home: Option<Home>) {
        self.member.clear();
        self.id_hash.clear();
        self.weight.clear();
        self.share.clear();
        self.open.clear();
        self.placed.clear();
        self.coming.clear();
        self.work.clear();
        self.queued.clear();
        self.depth.clear();
        self.load.clear();
        self.full.clear();
        (self.cursor, self.unit, self.shared, self.home) = (cursor, unit, shared, home);
    }

    /// Adds a candidate.
    pub fn push(&mut self, row: Row) {
        self.member.push(row.member);
        self.id_hash.push(row.id_hash);
        self.weight.push(row.weight);
        self.share.push(row.share);
        self.open.push(row.open);
        self.placed.push(row.placed);
        self.coming.push(row.coming);
        self.work.push(row.work);
        self.queued.push(row.queued);
        self.depth.push(row.depth);
        self.load.push(self.amount(self.len() - 1) * FULL_SHARE as f64 / row.share as f64);
    }

    /// Notes a member that is kept out only by its `max_in_flight`.
    pub fn push_full(&mut self, full: Full) {
        self.full.push(full);
    }

    /// Moves a candidate to the full ones: another pool that shares the replica took its last place meanwhile.
    pub fn drop_full(&mut self, row: usize) {
        self.full.push(Full {
            member: self.member[row],
            id_hash: self.id_hash[row],
            weight: self.weight[row],
            depth: self.depth[row],
        });
        self.member.swap_remove(row);
        self.id_hash.swap_remove(row);
        self.weight.swap_remove(row);
        self.share.swap_remove(row);
        self.open.swap_remove(row);
        self.placed.swap_remove(row);
        self.coming.swap_remove(row);
        self.work.swap_remove(row);
        self.queued.swap_remove(row);
        self.depth.swap_remove(row);
        self.load.swap_remove(row);
    }

    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.member.len()
    }

    /// Position among the router's members.
    pub fn member(&self, row: usize) -> usize {
        self.member[row] as usize
    }

    /// Hash of the replica's id.
    pub fn id_hash(&self, row: usize) -> u64 {
        self.id_hash[row]
    }

    /// Weight as configured.
    pub fn weight(&self, row: usize) -> u32 {
        self.weight[row]
    }

    /// Open requests.
    pub fn open(&self, row: usize) -> u32 {
        self.open[row]
    }

    /// Shares, row by row.
    pub fn shares(&self) -> &[u64] {
        &self.share
    }

    /// What counts as load: open requests, recent placements or seconds.
    pub fn amount(&self, row: usize) -> f64 {
        match self.unit {
            LoadUnit::Requests => self.open[row].into(),
            LoadUnit::Placements => self.placed[row].into(),
            LoadUnit::QueuedSeconds => self.queued[row],
        }
    }

    /// What counts as load ÷ (weight × ramp).
    pub fn load(&self, row: usize) -> f64 {
        self.load[row]
    }

    /// Leading blocks of the prompt that it holds.
    pub fn depth(&self, row: usize) -> u32 {
        self.depth[row]
    }

    /// Leading blocks of the prompt that each who is ready holds, the full ones too.
    pub fn depths(&self) -> impl Iterator<Item = u32> {
        self.depth.iter().copied().chain(self.full.iter().map(|full| full.depth))
    }

    /// Leading blocks of the prompt that count for nobody: what all who are ready hold, or are about to.
    pub fn common(&self) -> u32 {
        self.depths().min().unwrap_or(0).max(self.shared)
    }

    /// The replica of the request's session.
    pub fn home(&self) -> Option<Home> {
        self.home
    }

    /// The members that only `max_in_flight` keeps out.
    pub fn full(&self) -> &[Full] {
        &self.full
    }

    /// Less: `a` is the better place. Load, then recent placements ÷ share, then whose turn it is. Never `Equal` for two
    /// different rows.
    pub fn compare(&self, a: usize, b: usize) -> Ordering {
        let recent = |row: usize| f64::from(self.placed[row]) / self.share[row] as f64;
        self.load[a]
            .total_cmp(&self.load[b])
            .then_with(|| recent(a).total_cmp(&recent(b)))
            .then_with(|| self.turn(a).cmp(&self.turn(b)))
    }

    /// Less: less was placed on `a` lately and will follow, for its share; then whose turn it is.
    pub fn compare_coming(&self, a: usize, b: usize) -> Ordering {
        let coming = |row: usize| self.coming[row] / self.share[row] as f64;
        coming(a).total_cmp(&coming(b)).then_with(|| self.turn(a).cmp(&self.turn(b)))
    }

    /// Less: less work was placed on `a` lately, for its share; then whose turn it is.
    pub fn compare_work(&self, a: usize, b: usize) -> Ordering {
        let work = |row: usize| self.work[row] / self.share[row] as f64;
        work(a).total_cmp(&work(b)).then_with(|| self.turn(a).cmp(&self.turn(b)))
    }

    /// How long until a row's turn: those at or after the cursor come first, in order, then those before it.
    pub fn turn(&self, row: usize) -> u32 {
        self.member[row].wrapping_sub(self.cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_candidate_leaves_the_others_whole() {
        let row = |at: u32| Row {
            member: at,
            id_hash: 100 + u64::from(at),
            weight: at + 1,
            share: FULL_SHARE * u64::from(at + 1),
            open: 60 * at,
            placed: at,
            coming: f64::from(at) * 3.0,
            work: f64::from(at) * 5.0,
            queued: f64::from(at) / 2.0,
            depth: 7 * at,
        };
        let mut table = Candidates::default();
        table.clear(0, LoadUnit::Requests, 0, None);
        (0..4).for_each(|at| table.push(row(at)));
        table.drop_full(1);
        assert_eq!(table.full(), [Full { member: 1, id_hash: 101, weight: 2, depth: 7 }]);
        let mut seen = Vec::new();
        for at in 0..table.len() {
            let whole = row(table.member[at]);
            assert_eq!(
                (table.id_hash[at], table.weight[at], table.share[at]),
                (whole.id_hash, whole.weight, whole.share)
            );
            assert_eq!((table.open[at], table.placed[at]), (whole.open, whole.placed));
            assert_eq!((table.queued[at], table.depth[at], table.work[at]), (whole.queued, whole.depth, whole.work));
            assert_eq!(table.load[at], f64::from(whole.open) / f64::from(whole.weight));
            seen.push(whole.member);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 2, 3]);
    }
}
