//! `study_cache_aware`: the replica that holds the longest prefix, unless its load is more than twice the least loaded
//! one's and more than 16 above it; then the least loaded. Load is the count among the last 256 placements; ties of load
//! go to the lowest index; a key that nobody holds goes to its hash.
use std::collections::VecDeque;

use super::study_hash::replica_of;
use super::{Chooser, Holdings, Placed};
use crate::routing::Reason;
use crate::sim::call::Call;
use crate::sim::engine::VirtualTime;

const WINDOW: usize = 256;
const RATIO: u32 = 2;
const GAP: u32 = 16;

#[derive(Debug)]
pub(super) struct StudyCacheAware {
    load: Vec<u32>,
    window: VecDeque<usize>,
}

impl StudyCacheAware {
    pub fn new(replicas: usize) -> Self {
        Self { load: vec![0; replicas], window: VecDeque::with_capacity(WINDOW + 1) }
    }

    fn record(&mut self, replica: usize) {
        self.load[replica] += 1;
        self.window.push_back(replica);
        if self.window.len() > WINDOW
            && let Some(oldest) = self.window.pop_front()
        {
            self.load[oldest] -= 1;
        }
    }
}

impl Chooser for StudyCacheAware {
    fn choose(
        &mut self,
        call: &Call,
        blocks: &[u64],
        holdings: &dyn Holdings,
        _: VirtualTime,
    ) -> Result<Placed, String> {
        // What all have in common tells nobody apart.
        let (mut longest, mut preferred) = (call.common_tokens, None);
        for replica in 0..self.load.len() {
            let held = holdings.held(replica, call, blocks);
            let lighter = preferred.is_some_and(|best: usize| self.load[replica] < self.load[best]);
            if held > longest || (held == longest && lighter) {
                (longest, preferred) = (held, Some(replica));
            }
        }
        let hashed = replica_of(call.key, self.load.len());
        let wanted = preferred.unwrap_or(hashed);
        let least = (0..self.load.len()).min_by_key(|&replica| self.load[replica]).unwrap_or(wanted);
        let busy = self.load[wanted] > RATIO * self.load[least] && self.load[wanted] > self.load[least] + GAP;
        let (replica, reason) = match preferred {
            Some(_) if busy => (least, Reason::PrefixOverflow),
            Some(_) => (wanted, Reason::Prefix),
            None => (wanted, Reason::Hashed),
        };
        self.record(replica);
        Ok(Placed::plain(replica, reason))
    }
}
