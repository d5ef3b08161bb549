//! Weighted rendezvous hashing: which replicas a key prefers, in order, with nothing shared and nothing remembered.
//!
//! Each (replica id, key) pair hashes to a uniform u in (0, 1); the replica with the least −ln(u)/w comes first. That is
//! the earliest of exponential arrivals with rate w, so replica i is first for a share wᵢ/Σw of all keys, and when a
//! replica leaves, only its own keys move (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005).
//! The hash has no per-process seed: all routers that know the same ids and weights agree.
use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use super::candidates::Candidates;
use crate::config::Affinity;

/// Hash of a replica's id: computed once, when the replica becomes a member.
pub(super) fn id_hash(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

/// A replica's place in a key's order; the least comes first.
#[derive(Debug, Clone, Copy)]
struct Rank {
    cost: f64,
    id_hash: u64,
}

impl Rank {
    fn compare(&self, other: &Self) -> Ordering {
        self.cost.total_cmp(&other.cost).then(self.id_hash.cmp(&other.id_hash))
    }
}

/// Ranks replicas for one key.
struct Order {
    key: u128,
    /// With equal weights the order of u itself is the order of −ln(u)/w, without the logarithm.
    equal_weights: bool,
}

impl Order {
    fn new(key: u128, table: &Candidates) -> Self {
        let mut weights =
            (0..table.len()).map(|row| table.weight(row)).chain(table.full().iter().map(|full| full.weight));
        let first = weights.next();
        Self { key, equal_weights: weights.all(|weight| Some(weight) == first) }
    }

    fn rank(&self, id_hash: u64, weight: u32) -> Rank {
        let mut input = [0; 24];
        input[..16].copy_from_slice(&self.key.to_le_bytes());
        input[16..].copy_from_slice(&id_hash.to_le_bytes());
        // 52 bits and a half: exact in an f64, and neither 0 nor 1.
        let u = ((xxh3_64(&input) >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        let cost = if self.equal_weights { -u } else { -u.ln() / f64::from(weight) };
        Rank { cost, id_hash }
    }

    /// The first row that comes after `after`.
    fn next(&self, table: &Candidates, after: Option<Rank>) -> Option<(usize, Rank)> {
        (0..table.len())
            .map(|row| (row, self.rank(table.id_hash(row), table.weight(row))))
            .filter(|(_, rank)| after.is_none_or(|after| rank.compare(&after).is_gt()))
            .min_by(|(_, a), (_, b)| a.compare(b))
    }
}

/// The replica for a key, and whether it is another than the key's first choice.
///
/// The first choice is left when it is full, or when its load is over `max_load_ratio` × the mean of the candidates
/// **and** at least `min_load_gap` requests above it; then the next that is not follows. Hashing uses the configured
/// weight also for a replica that warms up: otherwise routers would disagree, and keys would move twice.
pub(super) fn choose(key: u128, table: &Candidates, affinity: &Affinity) -> Option<(usize, bool)> {
    let order = Order::new(key, table);
    let (first, first_rank) = order.next(table, None)?;
    let bound = Bound::new(table, affinity);
    if !bound.over(table, first) {
        let first_is_full =
            table.full().iter().any(|full| order.rank(full.id_hash, full.weight).compare(&first_rank).is_lt());
        return Some((first, first_is_full));
    }
    let mut after = first_rank;
    while let Some((row, rank)) = order.next(table, Some(after)) {
        if !bound.over(table, row) {
            return Some((row, true));
        }
        after = rank;
    }
    // Only a ratio under 1 gets here: all are "over". Then nowhere is better than the first choice.
    Some((first, false))
}

/// The load bound of one decision.
struct Bound {
    /// Open requests a unit of weight, over all candidates.
    mean: f64,
    max_load_ratio: f64,
    min_load_gap: f64,
}

impl Bound {
    fn new(table: &Candidates, affinity: &Affinity) -> Self {
        let (open, weight) = (0..table.len())
            .fold((0_u64, 0_u64), |(o, w), row| (o + u64::from(table.open(row)), w + u64::from(table.weight(row))));
        Self {
            mean: open as f64 / weight.max(1) as f64,
            max_load_ratio: affinity.max_load_ratio,
            min_load_gap: f64::from(affinity.min_load_gap),
        }
    }

    /// Compares in requests, not in requests ÷ weight: a gap of 8 requests means the same whatever unit weights have.
    fn over(&self, table: &Candidates, row: usize) -> bool {
        let fair = self.mean * f64::from(table.weight(row));
        let open = f64::from(table.open(row));
        open > self.max_load_ratio * fair && open - fair >= self.min_load_gap
    }
}
