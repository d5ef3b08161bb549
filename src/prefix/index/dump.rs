//! An index as it is, for debugging.
use serde::Serialize;

use super::Index;

/// What an index holds; as long as asked for.
#[derive(Debug, Clone, Serialize)]
pub struct Dump {
    /// How many runs there are.
    pub runs_total: usize,
    /// (block, replica) pairs.
    pub pairs: usize,
    /// Bytes of memory, as [`super::Stats::bytes`].
    pub bytes: usize,
    /// Uses so far: what stamps are to be compared with.
    pub clock: u64,
    /// Some of the runs, in no order.
    pub runs: Vec<DumpRun>,
}

/// A stretch of blocks without a branch.
#[derive(Debug, Clone, Serialize)]
pub struct DumpRun {
    /// The hash of its first block, in hexadecimal.
    pub head: String,
    /// How many blocks it has.
    pub blocks: usize,
    /// Who holds blocks of it.
    pub holders: Vec<DumpHolder>,
}

/// A replica's share of a run.
#[derive(Debug, Clone, Serialize)]
pub struct DumpHolder {
    /// The replica's place ([`super::Slot::at`]).
    pub at: u16,
    /// How many of the run's blocks it holds, from the first on.
    pub depth: u32,
    /// How many of those are confirmed, from the first on.
    pub confirmed: u32,
    /// Open placements that need all of them.
    pub pins: u32,
    /// The index' clock when they were last used.
    pub stamp: u64,
    /// Whether the replica has left, and this is only to be swept.
    pub gone: bool,
}

impl Index {
    /// A dump of at most `limit` runs.
    pub fn dump(&self, limit: usize) -> Dump {
        let runs = self.runs.iter().take(limit).map(|(_, run)| DumpRun {
            head: format!("{:016x}", run.head()),
            blocks: run.len(),
            holders: run.holders().iter().map(|&holder| self.dump_holder(holder)).collect(),
        });
        let stats = self.stats();
        Dump {
            runs_total: self.runs.len(),
            pairs: stats.pairs,
            bytes: stats.bytes,
            clock: self.clock,
            runs: runs.collect(),
        }
    }

    fn dump_holder(&self, holder: super::runs::Holder) -> DumpHolder {
        let holding = &self.holdings[holder.holding];
        DumpHolder {
            at: holder.at,
            depth: holder.cutoff,
            confirmed: holding.confirmed,
            pins: holding.pins,
            stamp: holding.stamp,
            gone: !self.replicas[usize::from(holder.at)].present,
        }
    }
}
