//! Runs: stretches of chains without a branch, found by their first hash.
//!
//! A chain hash names its whole prefix, so one table of heads is the tree: no child tables are needed. A run keeps no
//! hash that no replica holds; otherwise an orphaned tail would stand beside its own re-inserted head.
use std::ops::Index;

use hashbrown::HashTable;

use super::super::common::common;
use super::slab::Slab;

/// A replica that holds the first `cutoff` blocks of a run (at least one).
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    /// The replica's place.
    pub at: u16,
    /// How many of the run's blocks.
    pub cutoff: u32,
    /// Its [`super::holdings::Holding`].
    pub holding: u32,
}

/// One run. A cache line: with `head` and `last` in it, a lookup that goes through the whole run reads no hashes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Run {
    head: u64,
    last: u64,
    hashes: Vec<u64>,
    holders: Vec<Holder>,
}

impl Run {
    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Where a replica stands among its holders.
    pub(super) fn seat_of(&self, at: u16) -> Option<u32> {
        self.holders.iter().position(|holder| holder.at == at).map(|seat| seat as u32)
    }

    /// How many leading blocks of `chain`, which begins with its first hash, it has.
    pub(super) fn common(&self, chain: &[u64]) -> usize {
        common(&self.hashes, self.last, None, chain)
    }

    fn bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>() + self.holders.capacity() * size_of::<Holder>()
    }

    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        assert_eq!((self.hashes.first(), self.hashes.last()), (Some(&self.head), Some(&self.last)));
        let deepest = self.holders.iter().map(|holder| holder.cutoff as usize).max();
        assert_eq!(deepest, Some(self.len()), "a run keeps hashes that no replica holds");
        self.bytes()
    }
}

/// All runs of an index.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Slab<Run>,
    heads: HashTable<u32>,
    /// Bytes of the runs' vectors.
    vectors: usize,
}

impl Runs {
    pub(super) fn new() -> Self {
        Self { runs: Slab::new(), heads: HashTable::new(), vectors: 0 }
    }

    pub(super) fn find(&self, head: u64) -> Option<u32> {
        self.heads.find(head, |&run| self.runs[run].head == head).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Run)> {
        self.runs.iter()
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.runs.bytes() + self.heads.allocation_size() + self.vectors
    }

    /// A new run of `hashes` (at least one), which nobody holds yet.
    pub(super) fn create(&mut self, hashes: &[u64]) -> u32 {
        let (head, last) = (hashes[0], hashes[hashes.len() - 1]);
        let id = self.runs.insert(Run { head, last, hashes: hashes.to_vec(), holders: Vec::new() });
        self.vectors += self.runs[id].bytes();
        self.heads.insert_unique(head, id, |&run| self.runs[run].head);
        id
    }

    /// Appends to a run, which keeps its number.
    pub(super) fn extend(&mut self, id: u32, hashes: &[u64]) {
        self.change(id, |run| {
            let len = run.hashes.len() + hashes.len();
            if len > run.hashes.capacity() {
                // Little more than asked for: most runs grow a few times and then stay.
                run.hashes.reserve_exact(hashes.len() + len / 16);
            }
            run.hashes.extend_from_slice(hashes);
            run.last = run.hashes[len - 1];
        });
    }

    /// Cuts a run's hashes from `len` (at least one) on off, into a new run, which nobody holds yet.
    pub(super) fn split(&mut self, id: u32, len: usize) -> u32 {
        let tail = self.runs[id].hashes[len..].to_vec();
        self.truncate(id, len);
        self.create(&tail)
    }

    /// Cuts a run down to what its holders hold; one without holders goes.
    pub(super) fn trim(&mut self, id: u32) {
        let run = &self.runs[id];
        let len = run.len() as u32;
        let mut deepest = 0;
        for holder in &run.holders {
            deepest = deepest.max(holder.cutoff);
            if deepest == len {
                return;
            }
        }
        if deepest > 0 {
            return self.truncate(id, deepest as usize);
        }
        self.remove(id);
    }

    /// Puts `next`, which goes, at the end of `id`; the holders are the caller's to mend.
    pub(super) fn join(&mut self, id: u32, next: u32) {
        let next = self.remove(next);
        self.extend(id, &next.hashes);
    }

    fn remove(&mut self, id: u32) -> Run {
        let run = self.runs.remove(id);
        self.vectors -= run.bytes();
        if let Ok(entry) = self.heads.find_entry(run.head, |&other| other == id) {
            entry.remove();
        }
        if self.heads.len() * 8 < self.heads.capacity() && self.heads.capacity() > 1024 {
            self.heads.shrink_to(self.heads.len() * 2, |&run| self.runs[run].head);
        }
        run
    }

    /// Adds a holder; its seat.
    pub(super) fn seat(&mut self, id: u32, holder: Holder) -> u32 {
        self.change(id, |run| {
            if run.holders.len() < 4 {
                run.holders.reserve_exact(1);
            }
            run.holders.push(holder);
            run.holders.len() as u32 - 1
        })
    }

    /// Removes a holder; the holding that has its seat now, if one has.
    pub(super) fn unseat(&mut self, id: u32, seat: u32) -> Option<u32> {
        self.change(id, |run| {
            run.holders.swap_remove(seat as usize);
            if run.holders.capacity() > 4 && run.holders.capacity() > 2 * run.holders.len() {
                run.holders.shrink_to(run.holders.len() + run.holders.len() / 2);
            }
            run.holders.get(seat as usize).map(|moved| moved.holding)
        })
    }

    pub(super) fn holder(&mut self, id: u32, seat: u32) -> &mut Holder {
        &mut self.runs[id].holders[seat as usize]
    }

    fn truncate(&mut self, id: u32, len: usize) {
        self.change(id, |run| {
            run.hashes.truncate(len);
            run.last = run.hashes[len - 1];
            if run.hashes.capacity() > len + len / 4 + 8 {
                run.hashes.shrink_to_fit();
            }
        });
    }

    /// Any change of a run's vectors goes through here, so that the bytes stay true.
    fn change<T>(&mut self, id: u32, change: impl FnOnce(&mut Run) -> T) -> T {
        let run = &mut self.runs[id];
        self.vectors -= run.bytes();
        let result = change(run);
        self.vectors += run.bytes();
        result
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.heads.len(), self.runs.len(), "each run stands in the table once");
        let vectors: usize = self.iter().map(|(_, run)| run.check()).sum();
        assert_eq!(vectors, self.vectors, "bytes of the runs' vectors");
        for (id, run) in self.iter() {
            assert_eq!(self.find(run.head), Some(id), "a run is found by its head");
        }
    }
}

impl Index<u32> for Runs {
    type Output = Run;

    fn index(&self, id: u32) -> &Run {
        &self.runs[id]
    }
}
