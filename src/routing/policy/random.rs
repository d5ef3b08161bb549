//! `random`: drawn, by weight.
use crate::routing::candidates::Candidates;

/// A row, with a probability of its share of all shares.
pub(super) fn choose(table: &Candidates, rng: &mut fastrand::Rng) -> Option<usize> {
    draw(table, None, rng)
}

/// A row other than `except`, by share.
pub(super) fn draw(table: &Candidates, except: Option<usize>, rng: &mut fastrand::Rng) -> Option<usize> {
    let rows = || table.shares().iter().copied().enumerate().filter(|&(row, _)| Some(row) != except);
    let total: u64 = rows().map(|(_, share)| share).sum();
    if total == 0 {
        return None;
    }
    let mut left = rng.u64(..total);
    for (row, share) in rows() {
        if left < share {
            return Some(row);
        }
        left -= share;
    }
    None
}
