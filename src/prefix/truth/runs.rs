//! Runs: stretches of chains, found by their first hash, and who holds which of their blocks.
//!
//! A run is never cut in two, since the engines' hashes point into it; where a chain leaves one in the middle, a new
//! run begins, and is found by its own first hash. A run ends with a block that someone holds, and one that nobody holds
//! is gone. So a hash stands in one place only, and who stores it again finds it there.
use std::hint::black_box;
use std::ops::Index;

use hashbrown::HashTable;

use super::super::slab::{NONE, Slab};
use super::blocks::{self, Beyond};
use super::table::MOST_OFFSETS;

/// Bytes for a few more runs and holdings.
const CHUNKS: usize = 8 << 10;

/// Where an own block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub run: u32,
    pub offset: u32,
}

/// What a lookup needs of one replica's share of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    /// Whose.
    pub life: u16,
    /// How many leading blocks it holds, in any tier.
    pub any: u32,
    /// How many of those on the device.
    pub device: u32,
    pub holding: u32,
}

/// The rest of it; it keeps its number as long as it holds anything.
#[derive(Debug)]
pub(super) struct Holding {
    pub run: u32,
    /// Its holder's place in the run.
    pub seat: u32,
    /// What it holds beyond a gap.
    pub beyond: Option<Box<Beyond>>,
}

impl Default for Holding {
    fn default() -> Self {
        Self { run: NONE, seat: 0, beyond: None }
    }
}

impl Holding {
    fn beyond(&self) -> [&[u64]; 2] {
        self.beyond.as_ref().map_or([&[], &[]], |beyond| [&beyond.any, &beyond.device])
    }

    fn bytes(&self) -> usize {
        let inner = |beyond: &Beyond| (beyond.any.capacity() + beyond.device.capacity()) * size_of::<u64>();
        self.beyond.as_ref().map_or(0, |beyond| size_of::<Beyond>() + inner(beyond))
    }
}

/// One run. A cache line: a lookup that goes through the whole run reads no hashes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Run {
    last: u64,
    /// After which of its blocks a chain last went another way: the next one may, too.
    fork: u32,
    hashes: Vec<u64>,
    holders: Vec<Holder>,
}

impl Run {
    pub(super) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    pub(super) fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// How many leading blocks of `chain`, which begins with its first hash, it has. The last hash first, since equal
    /// there is equal before; then where other chains left it; else by bisection.
    pub(super) fn common(&self, chain: &[u64]) -> usize {
        let len = self.hashes.len().min(chain.len());
        let last = if len == self.hashes.len() { self.last } else { self.hashes[len - 1] };
        if last == chain[len - 1] {
            return len;
        }
        let (mut same, mut other) = (1, len - 1);
        let fork = self.fork as usize;
        if fork < other {
            if self.hashes[fork] != chain[fork] {
                other = fork;
            } else if self.hashes[fork + 1] != chain[fork + 1] {
                return fork + 1;
            } else {
                same = fork + 2;
            }
        }
        while same < other {
            let middle = same + (other - same) / 2;
            if self.hashes[middle] == chain[middle] { same = middle + 1 } else { other = middle }
        }
        same
    }

    fn bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>() + self.holders.capacity() * size_of::<Holder>()
    }
}

/// All runs and holdings.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Slab<Run>,
    /// First hash and run.
    heads: HashTable<(u64, u32)>,
    holdings: Slab<Holding>,
    /// Bytes of the runs' vectors and of the bitmaps.
    inner: usize,
    /// Blocks of all runs.
    blocks: usize,
}

impl Runs {
    pub(super) fn new() -> Self {
        Self { runs: Slab::new(), heads: HashTable::new(), holdings: Slab::new(), inner: 0, blocks: 0 }
    }

    pub(super) fn find(&self, head: u64) -> Option<u32> {
        self.heads.find(head, |&(other, _)| other == head).map(|&(_, run)| run)
    }

    /// As for the engines' hashes: see `Table::warm`.
    pub(super) fn warm(&self, hashes: &[u64]) {
        black_box(hashes.iter().filter(|&&hash| self.find(hash).is_some()).count());
    }

    /// How many blocks all of them have together.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.runs.bytes() + self.heads.allocation_size() + self.holdings.bytes() + self.inner
    }

    /// What its tables may grow by at most for so many blocks, beside those.
    pub(super) fn growth(&self, blocks: usize) -> usize {
        let heads = if self.heads.capacity() - self.heads.len() < blocks { self.heads.allocation_size() } else { 0 };
        heads + CHUNKS
    }

    pub(super) fn holding(&self, id: u32) -> &Holding {
        &self.holdings[id]
    }

    /// The place of the block `hash` that comes after another one's, or begins a chain. Where there is none it is made,
    /// and has to be held at once; `more` is how many are likely to follow.
    pub(super) fn place(&mut self, after: Option<Place>, hash: u64, more: usize) -> Place {
        if let Some(Place { run, offset }) = after
            && self.runs[run].hashes.get(offset as usize + 1) == Some(&hash)
        {
            return Place { run, offset: offset + 1 };
        }
        if let Some(run) = self.find(hash) {
            return Place { run, offset: 0 };
        }
        self.blocks += 1;
        if let Some(Place { run, offset }) = after {
            let next = offset as usize + 1;
            if next < self.runs[run].hashes.len() {
                self.runs[run].fork = offset;
            } else if next < MOST_OFFSETS {
                self.change(run, |run| {
                    if next == run.hashes.capacity() {
                        // Little more than asked for: most runs grow a few times and then stay.
                        run.hashes.reserve_exact(1 + more + next / 16);
                    }
                    run.hashes.push(hash);
                    run.last = hash;
                });
                return Place { run, offset: offset + 1 };
            }
        }
        let mut hashes = Vec::with_capacity(1 + more);
        hashes.push(hash);
        let run = self.runs.insert(Run { last: hash, fork: 0, hashes, holders: Vec::new() });
        self.inner += self.runs[run].bytes();
        self.heads.insert_unique(hash, (hash, run), |&(head, _)| head);
        Place { run, offset: 0 }
    }

    /// A replica's holding of a run; a new one has to hold something at once.
    pub(super) fn seat(&mut self, run: u32, life: u16) -> u32 {
        if let Some(holder) = self.runs[run].holders.iter().find(|holder| holder.life == life) {
            return holder.holding;
        }
        let seat = self.runs[run].holders.len() as u32;
        let holding = self.holdings.insert(Holding { run, seat, beyond: None });
        self.change(run, |run| {
            if run.holders.len() < 4 {
                run.holders.reserve_exact(1);
            }
            run.holders.push(Holder { life, any: 0, device: 0, holding });
        });
        holding
    }

    /// Marks a block as held, in any tier or on the device; whether it was not before.
    pub(super) fn hold(&mut self, id: u32, offset: u32, device: bool) -> bool {
        self.mark(id, device, |leading, beyond| blocks::add(leading, beyond, offset))
    }

    /// Takes such a mark back; whether there was one. Without any block left the holding goes, and the run as far as
    /// it was the last to hold it.
    pub(super) fn release(&mut self, id: u32, offset: u32, device: bool) -> bool {
        let released = self.mark(id, device, |leading, beyond| blocks::remove(leading, beyond, offset));
        if !released || device {
            return released;
        }
        let Holding { run, seat, .. } = self.holdings[id];
        if self.holdings[id].beyond()[0].is_empty() && self.runs[run].holders[seat as usize].any == 0 {
            self.inner -= self.holdings.remove(id).bytes();
            self.unseat(run, seat);
        }
        if offset as usize + 1 == self.runs[run].hashes.len() || self.runs[run].holders.is_empty() {
            self.trim(run);
        }
        true
    }

    fn mark(&mut self, id: u32, device: bool, change: impl FnOnce(&mut u32, &mut Vec<u64>) -> bool) -> bool {
        let holding = &mut self.holdings[id];
        let holder = &mut self.runs[holding.run].holders[holding.seat as usize];
        let before = holding.bytes();
        let leading = if device { &mut holder.device } else { &mut holder.any };
        let changed = if let Some(beyond) = &mut holding.beyond {
            change(leading, if device { &mut beyond.device } else { &mut beyond.any })
        } else {
            let mut bits = Vec::new();
            let changed = change(leading, &mut bits);
            if !bits.is_empty() {
                let (any, device) = if device { (Vec::new(), bits) } else { (bits, Vec::new()) };
                holding.beyond = Some(Box::new(Beyond { any, device }));
            }
            changed
        };
        if holding.beyond().iter().all(|bits| bits.is_empty()) {
            holding.beyond = None;
        }
        self.inner = self.inner + holding.bytes() - before;
        changed
    }

    fn unseat(&mut self, run: u32, seat: u32) {
        let moved = self.change(run, |run| {
            run.holders.swap_remove(seat as usize);
            if run.holders.capacity() > 4 && run.holders.capacity() > 2 * run.holders.len() {
                run.holders.shrink_to(run.holders.len() + run.holders.len() / 2);
            }
            run.holders.get(seat as usize).map(|moved| moved.holding)
        });
        if let Some(moved) = moved {
            self.holdings[moved].seat = seat;
        }
    }

    /// Cuts a run down to the last block that someone holds; one without holders goes.
    fn trim(&mut self, id: u32) {
        let run = &self.runs[id];
        let mut extent = 0;
        for holder in &run.holders {
            extent = extent.max(blocks::extent(holder.any, self.holdings[holder.holding].beyond()[0]) as usize);
            if extent == run.hashes.len() {
                return;
            }
        }
        self.blocks -= run.hashes.len() - extent;
        if extent > 0 {
            return self.change(id, |run| {
                run.hashes.truncate(extent);
                run.last = run.hashes[extent - 1];
                if run.hashes.capacity() > extent + extent / 4 + 8 {
                    run.hashes.shrink_to_fit();
                }
            });
        }
        let run = self.runs.remove(id);
        self.inner -= run.bytes();
        if let Ok(entry) = self.heads.find_entry(run.hashes[0], |&(_, other)| other == id) {
            entry.remove();
        }
        if self.heads.len() * 8 < self.heads.capacity() && self.heads.capacity() > 1024 {
            self.heads.shrink_to(self.heads.len() * 2, |&(head, _)| head);
        }
    }

    /// Any change of a run's vectors goes through here, so that the bytes stay true.
    fn change<T>(&mut self, id: u32, change: impl FnOnce(&mut Run) -> T) -> T {
        let run = &mut self.runs[id];
        self.inner -= run.bytes();
        let result = change(run);
        self.inner += run.bytes();
        result
    }

    /// Panics unless there are so many holdings and runs as can be found, and as many bytes.
    #[cfg(test)]
    pub(super) fn check_bytes(&self, holders: usize) {
        assert_eq!((self.heads.len(), self.holdings.len()), (self.runs.len(), holders));
        let runs: usize = self.iter().map(|(_, run)| run.bytes()).sum();
        let holdings: usize = self.holdings.iter().map(|(_, holding)| holding.bytes()).sum();
        assert_eq!(runs + holdings, self.inner, "bytes of vectors and bitmaps");
        assert!(self.iter().all(|(_, run)| run.hashes.last() == Some(&run.last)));
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Run)> {
        self.runs.iter()
    }
}

impl Index<u32> for Runs {
    type Output = Run;

    fn index(&self, id: u32) -> &Run {
        &self.runs[id]
    }
}
