//! Runs: stretches of chains, found by their first hash, and who holds which of their blocks.
//!
//! A run is never cut in two, since the engines' hashes point into it; where a chain leaves one in the middle, a new
//! run begins, and is found by its own first hash. A run ends with a block that someone holds, and one that nobody holds
//! is gone. So a hash stands in one place only, and who stores it again finds it there.
use std::ops::{Index, Range};

use hashbrown::HashTable;

use super::super::common::common;
use super::super::slab::{NONE, Slab};
use super::blocks::{self, Beyond};
use super::entries::MOST_OFFSETS;

/// Bytes for a few more runs and holdings, and what a run keeps free.
const CHUNKS: usize = 12 << 10;
/// Blocks for which a run keeps room.
const SPARE: usize = 256;

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

    /// One of its hashes: the last one, most often, which needs no other line.
    pub(super) fn hash(&self, offset: u32) -> u64 {
        let offset = offset as usize;
        if offset + 1 == self.hashes.len() { self.last } else { self.hashes[offset] }
    }

    /// How many leading blocks of `chain`, which begins with its first hash, it has.
    pub(super) fn common(&self, chain: &[u64]) -> usize {
        common(&self.hashes, self.last, Some(self.fork), chain)
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

    /// Of own blocks that come after another one, or begin a chain: where the first stands, or is to stand, and how many
    /// of them follow it there. [`Runs::extend`] has to be called at once, and they have to be held.
    pub(super) fn stretch(&mut self, after: Option<Place>, own: &[u64]) -> (Place, usize) {
        let next = after.map(|Place { run, offset }| Place { run, offset: offset + 1 });
        let other = next.and_then(|Place { run, offset }| self.runs[run].hashes.get(offset as usize).copied());
        let (place, is_new) = match (next, self.find(own[0])) {
            (Some(next), _) if other == Some(own[0]) => (next, false),
            (_, Some(run)) => (Place { run, offset: 0 }, false),
            (Some(next), None) if other.is_none() && (next.offset as usize) < MOST_OFFSETS => (next, false),
            (next, None) => {
                if let (Some(Place { run, offset }), Some(_)) = (next, other) {
                    self.runs[run].fork = offset - 1;
                }
                (Place { run: self.runs.insert(Run::default()), offset: 0 }, true)
            }
        };
        let there = &self.runs[place.run].hashes[place.offset as usize..];
        let known = there.iter().zip(own).take_while(|(there, own)| there == own).count();
        if known < there.len() {
            return (place, known);
        }
        // Any of them may be the first of a run that was left without what came before.
        let room = MOST_OFFSETS - place.offset as usize - known;
        let new = own[known..].iter().take(room).take_while(|&&hash| self.find(hash).is_none()).count();
        if is_new {
            self.heads.insert_unique(own[0], (own[0], place.run), |&(head, _)| head);
        }
        (place, known + new)
    }

    /// Adds to a run what it has not yet of these blocks, the first of which is at `place`; `more` are likely to follow.
    pub(super) fn extend(&mut self, place: Place, own: &[u64], more: usize) {
        let known = self.runs[place.run].hashes.len() - place.offset as usize;
        let Some(new @ [.., last]) = own.get(known..) else { return };
        self.blocks += new.len();
        self.change(place.run, |run| {
            if run.hashes.capacity() - run.hashes.len() < new.len() {
                // To copy a run with each turn would be a third of what the turn costs.
                let spare = (run.hashes.len() / 2).min(SPARE.max(run.hashes.len() / 8));
                run.hashes.reserve_exact(new.len() + more + spare);
            }
            run.hashes.extend_from_slice(new);
            run.last = *last;
        });
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

    /// Takes such a mark back; whether there was one.
    pub(super) fn release(&mut self, id: u32, offset: u32, device: bool) -> bool {
        let released = self.mark(id, device, |leading, beyond| blocks::remove(leading, beyond, offset));
        if released && !device {
            self.released(id, offset + 1);
        }
        released
    }

    /// Marks blocks as held where they come right after the leading ones, and none is beyond a gap; whether they do.
    pub(super) fn hold_next(&mut self, id: u32, offsets: &Range<u32>, device: bool) -> bool {
        let holding = &self.holdings[id];
        let holder = &mut self.runs[holding.run].holders[holding.seat as usize];
        let is_next = holding.beyond.is_none() && holder.any == offsets.start;
        if !is_next || device && holder.device != offsets.start {
            return false;
        }
        holder.any = offsets.end;
        if device {
            holder.device = offsets.end;
        }
        true
    }

    /// Takes all marks of blocks back where they are the last ones, and there is no gap; whether they are.
    pub(super) fn release_last(&mut self, id: u32, offsets: &Range<u32>) -> bool {
        let holding = &self.holdings[id];
        let holder = &mut self.runs[holding.run].holders[holding.seat as usize];
        if holding.beyond.is_some() || holder.any != offsets.end {
            return false;
        }
        holder.any = offsets.start;
        holder.device = holder.device.min(offsets.start);
        self.released(id, offsets.end);
        true
    }

    /// A holding has lost blocks, the last one just before `end`. Without any left it goes, and the run as far as it was
    /// the last to hold it.
    fn released(&mut self, id: u32, end: u32) {
        let Holding { run, seat, .. } = self.holdings[id];
        if self.runs[run].holders[seat as usize].any == 0 && self.holdings[id].beyond()[0].is_empty() {
            self.inner -= self.holdings.remove(id).bytes();
            self.unseat(run, seat);
        }
        if end as usize == self.runs[run].hashes.len() || self.runs[run].holders.is_empty() {
            self.trim(run);
        }
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
