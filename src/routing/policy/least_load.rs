//! `least_load`: the lowest load for its weight.
use crate::routing::candidates::Candidates;

/// The row that every other compares worse to.
pub(super) fn choose(table: &Candidates) -> Option<usize> {
    (0..table.len()).min_by(|&a, &b| table.compare(a, b))
}
