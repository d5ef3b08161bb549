//! What is known to be at a replica, and not only expected there.
use super::{Index, Placement, Slot};

impl Index {
    /// How many leading blocks of a chain a replica holds that it has answered with.
    pub fn confirmed(&self, slot: Slot, mut chain: &[u64]) -> usize {
        let mut confirmed = 0;
        if !self.replicas.get(slot.at()).is_some_and(|replica| replica.is(slot)) {
            return confirmed;
        }
        // A block is confirmed with all that come before it.
        while let Some(run) = chain.first().and_then(|head| self.runs.find(*head))
            && let run = &self.runs[run]
            && let Some(seat) = run.seat_of(slot.at)
        {
            let common = run.common(chain);
            confirmed += common.min(self.holdings[run.holders()[seat as usize].holding].confirmed as usize);
            chain = if common == run.len() { &chain[common..] } else { &[] };
        }
        confirmed
    }
}

impl Placement {
    /// Where it is.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}
