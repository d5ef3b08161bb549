//! The table of candidates of one decision: a column for each thing that policies judge by.
//!
//! It is filled once, from members that may take the request, and policies only read it. Its rows have no order that
//! means anything: every comparison ends in a rule that is not "the first one".
use std::cmp::Ordering;

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
}

/// Columns of the candidates, and the members that would be candidates if they were not full.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    member: Vec<u32>,
    id_hash: Vec<u64>,
    weight: Vec<u32>,
    share: Vec<u64>,
    open: Vec<u32>,
    placed: Vec<u32>,
    load: Vec<f64>,
    full: Vec<(u64, u32)>,
    /// Whose turn it is when all else is equal.
    cursor: u32,
}

impl Candidates {
    /// Empties the table for a new decision; its memory is kept. `cursor` is the member that wins a perfect tie; the
    /// turn then goes up and wraps.
    pub fn clear(&mut self, cursor: u32) {
        self.member.clear();
        self.id_hash.clear();
        self.weight.clear();
        self.share.clear();
        self.open.clear();
        self.placed.clear();
        self.load.clear();
        self.full.clear();
        self.cursor = cursor;
    }

    /// Adds a candidate.
    pub fn push(&mut self, row: Row) {
        self.member.push(row.member);
        self.id_hash.push(row.id_hash);
        self.weight.push(row.weight);
        self.share.push(row.share);
        self.open.push(row.open);
        self.placed.push(row.placed);
        self.load.push(f64::from(row.open) * FULL_SHARE as f64 / row.share as f64);
    }

    /// Notes a member that is kept out only by its `max_in_flight`.
    pub fn push_full(&mut self, id_hash: u64, weight: u32) {
        self.full.push((id_hash, weight));
    }

    /// Moves a candidate to the full ones: another pool that shares the replica took its last place meanwhile.
    pub fn drop_full(&mut self, row: usize) {
        self.full.push((self.id_hash[row], self.weight[row]));
        self.member.swap_remove(row);
        self.id_hash.swap_remove(row);
        self.weight.swap_remove(row);
        self.share.swap_remove(row);
        self.open.swap_remove(row);
        self.placed.swap_remove(row);
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

    /// Open requests ÷ (weight × ramp).
    pub fn load(&self, row: usize) -> f64 {
        self.load[row]
    }

    /// Id hash and weight of the members that only `max_in_flight` keeps out.
    pub fn full(&self) -> &[(u64, u32)] {
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
        };
        let mut table = Candidates::default();
        table.clear(0);
        (0..4).for_each(|at| table.push(row(at)));
        table.drop_full(1);
        assert_eq!(table.full(), [(101, 2)]);
        let mut seen = Vec::new();
        for at in 0..table.len() {
            let whole = row(table.member[at]);
            assert_eq!(
                (table.id_hash[at], table.weight[at], table.share[at]),
                (whole.id_hash, whole.weight, whole.share)
            );
            assert_eq!((table.open[at], table.placed[at]), (whole.open, whole.placed));
            assert_eq!(table.load[at], f64::from(whole.open) / f64::from(whole.weight));
            seen.push(whole.member);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 2, 3]);
    }
}
