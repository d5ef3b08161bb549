//! What one replica holds, in one life: its engine's hashes, how many copies of each, and which own blocks those make.
use std::ops::Range;

use hashbrown::HashMap;

use super::entries::{Entry, VOID};
use super::pages::Pages;
use super::runs::{Place, Runs};
use super::table::{self, Table};

/// Where an engine keeps a copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The accelerator's memory: only what is here needs no loading.
    Device,
    /// The host's memory.
    Host,
    /// Disks of any kind.
    Disk,
    /// Elsewhere, or not said where.
    Remote,
}

pub(super) const TIERS: usize = 4;
const DEVICE: usize = Tier::Device as usize;

/// Copies of one of the engine's blocks, by tier.
pub(super) type Copies = [u32; TIERS];

/// What a change of copies changed: whether there is any, and whether there is one on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub any: bool,
    pub device: bool,
}

/// By holding and offset.
type Again = HashMap<(u32, u32), [u32; 2]>;

/// One life of one replica; also of the keeper, who holds what open blocks of small pages begin with.
#[derive(Debug, Default)]
pub(super) struct Life {
    id: u16,
    pub engine: Table,
    /// Copies of the engine's blocks that have two in one tier, by key.
    more: HashMap<u64, Copies>,
    /// Own blocks that several of the engine's are of: how many beyond the first, in any tier and on the device.
    again: Again,
    /// Where the engine's blocks are smaller than ours.
    pub pages: Option<Box<Pages>>,
    /// Own blocks that it holds, in any tier.
    pub held: usize,
}

impl Life {
    pub(super) fn new(id: u16) -> Self {
        Self { id, ..Self::default() }
    }

    /// Whether nothing was ever stored.
    pub(super) fn is_new(&self) -> bool {
        self.engine.len() == 0 && self.pages.is_none()
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        let pages = self.pages.as_ref().map_or(0, |pages| pages.bytes());
        self.engine.bytes() + self.more.allocation_size() + self.again.allocation_size() + pages
    }

    /// What its tables may grow by at most, beside what the blocks need that are stored.
    pub(super) fn most_growth(&self) -> usize {
        (self.engine.bytes() + self.more.allocation_size() + self.again.allocation_size()) * 9 / 8
    }

    /// What its tables may grow by at most for so many blocks, whose keys these are, beside those.
    pub(super) fn growth(&self, blocks: usize, keys: impl Iterator<Item = u64>) -> usize {
        let more = if self.more.capacity() - self.more.len() < blocks { self.more.allocation_size() } else { 0 };
        let again = if self.again.capacity() - self.again.len() < blocks { self.again.allocation_size() } else { 0 };
        self.engine.growth(keys) + more + again
    }

    /// The holding in which a block is, or would be: it has to be covered at once.
    pub(super) fn seat(&self, runs: &mut Runs, place: Place) -> u32 {
        runs.seat(place.run, self.id)
    }

    /// Covers own blocks of a holding once more, for one of the engine's each; of how many it is the first.
    pub(super) fn cover_all(&mut self, runs: &mut Runs, holding: u32, offsets: Range<u32>, device: bool) -> usize {
        if runs.hold_next(holding, &offsets, device) {
            self.held += offsets.len();
            return offsets.len();
        }
        let covered = offsets.filter(|&offset| {
            let first = self.cover(runs, holding, offset, false);
            if device {
                self.cover(runs, holding, offset, true);
            }
            first
        });
        covered.count()
    }

    /// Uncovers own blocks of a holding, for one of the engine's each; there may be none.
    pub(super) fn uncover_all(&mut self, runs: &mut Runs, holding: u32, offsets: Range<u32>, device: bool) {
        if offsets.is_empty() {
            return;
        }
        if self.again.is_empty() && runs.release_last(holding, &offsets) {
            self.held -= offsets.len();
            return;
        }
        for offset in offsets {
            if device {
                self.uncover(runs, holding, offset, true);
            }
            self.uncover(runs, holding, offset, false);
        }
    }

    /// One more of the engine's blocks is of this own block; whether it is the first.
    pub(super) fn cover(&mut self, runs: &mut Runs, holding: u32, offset: u32, device: bool) -> bool {
        let first = runs.hold(holding, offset, device);
        if !first {
            self.again.entry((holding, offset)).or_default()[usize::from(device)] += 1;
        }
        self.held += usize::from(first && !device);
        first
    }

    /// One less; whether it was the last.
    pub(super) fn uncover(&mut self, runs: &mut Runs, holding: u32, offset: u32, device: bool) -> bool {
        if !self.again.is_empty()
            && let Some(again) = self.again.get_mut(&(holding, offset))
            && again[usize::from(device)] > 0
        {
            again[usize::from(device)] -= 1;
            if *again == [0, 0] {
                self.again.remove(&(holding, offset));
            }
            return false;
        }
        let last = runs.release(holding, offset, device);
        self.held -= usize::from(last && !device);
        last
    }

    pub(super) fn copies(&self, entry: &Entry) -> Copies {
        let mask = entry.mask();
        let more = if mask == 0 { self.more.get(&entry.key) } else { None };
        more.copied().unwrap_or_else(|| std::array::from_fn(|tier| mask >> tier & 1))
    }

    /// Adds a copy of an engine's block that is in the table, or takes one back; what that changed, or `None` where
    /// there was none to take.
    pub(super) fn copy(&mut self, entry: &Entry, tier: Tier, add: bool) -> Option<Change> {
        let before = self.copies(entry);
        let mut copies = before;
        let count = &mut copies[tier as usize];
        *count = if add { count.saturating_add(1) } else { count.checked_sub(1)? };
        let plain = copies.iter().all(|&count| count < 2);
        if !plain {
            self.more.insert(entry.key, copies);
        } else if entry.mask() == 0 {
            self.more.remove(&entry.key);
        }
        let mask = if plain { (0..TIERS).map(|tier| copies[tier] << tier).sum() } else { 0 };
        if let Some(entry) = self.engine.get_mut(entry.key) {
            entry.set_mask(mask);
        }
        let any = |copies: Copies| copies != [0; TIERS];
        let device = (before[DEVICE] > 0) != (copies[DEVICE] > 0);
        Some(Change { any: any(before) != any(copies), device })
    }

    /// The entry of the last of an engine's block's own blocks.
    pub(super) fn last_part(&self, hash: u64, first: &Entry) -> Option<Entry> {
        if first.parts() == 1 { Some(*first) } else { self.engine.get(table::key(hash, first.parts() - 1)) }
    }

    /// One of the engine's blocks, cut into own ones, has its first copy (of all, or on the device), or lost its last.
    /// The number of own blocks that are thereby held, or not any more.
    pub(super) fn turn(&mut self, runs: &mut Runs, hash: u64, entry: &Entry, device: bool, on: bool) -> usize {
        let mut turned = 0;
        for part in 0..entry.parts() {
            let entry = if part == 0 { Some(*entry) } else { self.engine.get(table::key(hash, part)) };
            let Some(entry) = entry else { continue };
            let (holding, offset) = (entry.target, entry.offset());
            let changed = match on {
                true => self.cover(runs, holding, offset, device),
                false => self.uncover(runs, holding, offset, device),
            };
            turned += usize::from(changed);
        }
        turned
    }

    /// Takes an engine's block back, all its copies with it.
    pub(super) fn drop_block(&mut self, runs: &mut Runs, hash: u64, entry: &Entry) {
        let copies = self.copies(entry);
        if copies[DEVICE] > 0 {
            self.turn(runs, hash, entry, true, false);
        }
        if copies != [0; TIERS] {
            self.turn(runs, hash, entry, false, false);
        }
        self.forget(entry);
        (1..entry.parts()).for_each(|part| self.engine.remove(table::key(hash, part)));
    }

    /// Takes an entry out of the table.
    pub(super) fn forget(&mut self, entry: &Entry) {
        self.more.remove(&entry.key);
        self.engine.remove(entry.key);
    }

    /// From now on an engine's hash means nothing.
    pub(super) fn void(&mut self, key: u64) {
        self.more.remove(&key);
        self.engine.remove(key);
        self.engine.insert(Entry::new(key, VOID, 0, 1, 0));
    }

    #[cfg(test)]
    pub(super) fn parts_for_check(&self) -> (u16, &HashMap<u64, Copies>, &Again) {
        (self.id, &self.more, &self.again)
    }
}
