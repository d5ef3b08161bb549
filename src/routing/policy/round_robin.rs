//! `round_robin`: in turn, smoothly by weight.
//!
//! The smooth weighted round robin that nginx made known: each turn, every candidate earns its share, the richest is
//! taken, and pays what all earned. Over Σw turns each is taken exactly w times, spread out and not in runs. Who is no
//! candidate earns nothing, so it neither distorts the others' turns nor catches up with a burst when it returns.
use crate::routing::candidates::Candidates;

/// What each member has earned. Members are named by their position.
#[derive(Debug, Default)]
pub(in crate::routing) struct RoundRobin {
    earned: Vec<i64>,
}

impl RoundRobin {
    /// The row whose turn it is.
    pub(super) fn choose(&self, table: &Candidates) -> Option<usize> {
        let shares = table.shares();
        (0..table.len()).max_by(|&a, &b| {
            let rich = |row: usize| self.earned[table.member(row)] + shares[row] as i64;
            rich(a).cmp(&rich(b)).then_with(|| table.turn(b).cmp(&table.turn(a)))
        })
    }

    /// Books a turn that was taken.
    pub fn commit(&mut self, table: &Candidates, chosen: usize) {
        let mut total = 0;
        for (row, &share) in table.shares().iter().enumerate() {
            self.earned[table.member(row)] += share as i64;
            total += share as i64;
        }
        self.earned[table.member(chosen)] -= total;
    }

    /// Follows the members to their new positions (`moved[old]`).
    pub fn remap(&mut self, moved: &[Option<u32>], members: usize) {
        let mut earned = vec![0; members];
        for (old, new) in moved.iter().enumerate() {
            if let Some(new) = new {
                earned[*new as usize] = self.earned[old];
            }
        }
        self.earned = earned;
    }
}
