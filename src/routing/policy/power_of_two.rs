//! `power_of_two`: two different ones are drawn by weight, and the less loaded is taken.
//!
//! Close to `least_load` when one router decides, and better when several do, each with its own view: they do not all run
//! to the same replica.
use super::random::draw;
use crate::routing::candidates::Candidates;

/// The better of two draws; the only row if there is just one.
pub(super) fn choose(table: &Candidates, rng: &mut fastrand::Rng) -> Option<usize> {
    let first = draw(table, None, rng)?;
    match draw(table, Some(first), rng) {
        Some(second) if table.compare(second, first).is_lt() => Some(second),
        _ => Some(first),
    }
}
