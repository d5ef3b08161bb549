//! An engine's block hashes, and where our blocks for them are: 19 to 24 bytes each, however many they are.
//!
//! Entries stand in the order of their keys, each as near after its key's share of the table as there is room (linear
//! probing, sorted). So a table grows by a quarter and not twofold, in one pass over memory, and can be taken apart from
//! its end. It is cut into [`SEGMENTS`], which grow one at a time: none of them long.

use std::hint::black_box;

use super::super::slab::NONE;

const SEGMENTS: usize = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = 2;
/// Of an entry whose hash the engine has used for two different blocks.
pub(super) const VOID: u32 = NONE - 1;

const OFFSET_BITS: u32 = 20;
const SPAN_BITS: u32 = 8;
/// Blocks that a run may have.
pub(super) const MOST_OFFSETS: usize = 1 << OFFSET_BITS;
/// Own blocks that one of the engine's may be cut into.
pub(super) const MOST_PARTS: usize = (1 << SPAN_BITS) - 1;

/// One of the engine's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Of its hash: see [`key`].
    pub key: u64,
    /// The holding in which its own block is; or its page; or [`VOID`]; [`NONE`] where there is no entry.
    pub target: u32,
    /// The own block's offset in the run, how many own blocks the engine's has, and the mask of its copies.
    bits: u32,
}

const EMPTY: Entry = Entry { key: 0, target: NONE, bits: 0 };

impl Entry {
    pub(super) fn new(key: u64, target: u32, offset: u32, parts: usize, mask: u32) -> Self {
        Self { key, target, bits: offset | (parts as u32) << OFFSET_BITS | mask << (OFFSET_BITS + SPAN_BITS) }
    }

    pub(super) fn offset(&self) -> u32 {
        self.bits & (MOST_OFFSETS as u32 - 1)
    }

    pub(super) fn parts(&self) -> usize {
        (self.bits >> OFFSET_BITS) as usize & MOST_PARTS
    }

    /// A bit for each tier where it has one copy; 0 where it has more, or none at all.
    pub(super) fn mask(&self) -> u32 {
        self.bits >> (OFFSET_BITS + SPAN_BITS)
    }

    pub(super) fn set_mask(&mut self, mask: u32) {
        self.bits = self.bits & ((1 << (OFFSET_BITS + SPAN_BITS)) - 1) | mask << (OFFSET_BITS + SPAN_BITS);
    }

    pub(super) fn is_void(&self) -> bool {
        self.target == VOID
    }
}

/// The key of the `part`th own block of an engine's block. Every hash has its own, and all are spread evenly.
pub(super) fn key(hash: u64, part: usize) -> u64 {
    // splitmix64's finish: it can be undone, so no two hashes meet.
    let mut key = hash.wrapping_add((part as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    key = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ key >> 31
}

/// The engine's hash of which a key is the first part's.
#[cfg(test)]
pub(super) fn hash_of(mut key: u64) -> u64 {
    key = key ^ key >> 31 ^ key >> 62;
    key = key.wrapping_mul(0x3196_42b2_d24d_8ec3);
    key = key ^ key >> 27 ^ key >> 54;
    key = key.wrapping_mul(0x96de_1b17_3f11_9089);
    key = key ^ key >> 30 ^ key >> 60;
    key.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// All of one replica's.
#[derive(Debug, Default)]
pub(super) struct Table {
    segments: [Segment; SEGMENTS],
    len: usize,
    bytes: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads where these hashes' entries would be, one by one and none waiting for another, so that they are in the cache
    /// when each is looked up: most of an event's time would go into waiting for memory.
    pub(super) fn warm(&self, hashes: &[u64]) {
        let homes = hashes.iter().map(|&hash| {
            let key = key(hash, 0);
            let segment = &self.segments[segment_of(key)];
            let home = segment.home(key);
            // An entry is within the next few of its home as a rule: in that line, or the one after it.
            [home, home + 4]
                .map(|at| segment.slots.get(at).map_or(0, |slot| slot.key))
                .iter()
                .fold(0, |sum, key| sum ^ key)
        });
        black_box(homes.fold(0, |sum, keys| sum ^ keys));
    }

    pub(super) fn get(&self, key: u64) -> Option<Entry> {
        let segment = &self.segments[segment_of(key)];
        segment.find(key).map(|at| segment.slots[at])
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Entry> {
        let segment = &mut self.segments[segment_of(key)];
        segment.find(key).map(|at| &mut segment.slots[at])
    }

    /// Adds an entry whose key is not there yet.
    pub(super) fn insert(&mut self, entry: Entry) {
        self.change(segment_of(entry.key), |segment| segment.insert(entry));
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key: u64) {
        if self.change(segment_of(key), |segment| segment.remove(key)) {
            self.len -= 1;
        }
    }

    /// Takes any entry out. For a table that is taken apart: nothing may be added to it any more.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let at = self.segments.iter().rposition(|segment| segment.len > 0)?;
        self.len -= 1;
        self.change(at, Segment::pop)
    }

    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut Segment) -> T) -> T {
        let segment = &mut self.segments[at];
        self.bytes -= segment.bytes();
        let result = change(segment);
        self.bytes += segment.bytes();
        result
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        let slots = self.segments.iter().flat_map(|segment| &segment.slots);
        slots.copied().filter(|entry| entry.target != NONE)
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.iter().count(), self.len);
        assert_eq!(self.segments.iter().map(Segment::bytes).sum::<usize>(), self.bytes);
        assert!(self.iter().all(|entry| self.get(entry.key) == Some(entry)), "an entry is found by its key");
    }
}

fn segment_of(key: u64) -> usize {
    (key >> (u64::BITS - SEGMENT_BITS)) as usize
}

#[derive(Debug, Default)]
struct Segment {
    /// As many as there are homes, and those that had no room before the end.
    slots: Vec<Entry>,
    homes: usize,
    len: usize,
}

impl Segment {
    /// Where a key would like to be: larger keys never before smaller ones.
    fn home(&self, key: u64) -> usize {
        (u128::from(key << SEGMENT_BITS) * self.homes as u128 >> u64::BITS) as usize
    }

    /// The first slot from a key's home on that is empty, or whose key is not smaller.
    fn place(&self, key: u64) -> usize {
        let home = self.home(key);
        let from = self.slots.get(home..).unwrap_or_default();
        home + from.iter().take_while(|slot| slot.target != NONE && slot.key < key).count()
    }

    fn find(&self, key: u64) -> Option<usize> {
        let at = self.place(key);
        self.slots.get(at).is_some_and(|slot| slot.key == key && slot.target != NONE).then_some(at)
    }

    fn insert(&mut self, entry: Entry) {
        // 17 in 20 full at most.
        if (self.len + 1) * 20 > self.homes * 17 {
            self.resize((self.homes + self.homes / 4).max(8));
        }
        let at = self.place(entry.key);
        let rest = self.slots.get(at..).unwrap_or_default();
        let free = at + rest.iter().take_while(|slot| slot.target != NONE).count();
        if free == self.slots.len() {
            self.slots.push(EMPTY);
        }
        self.slots.copy_within(at..free, at + 1);
        self.slots[at] = entry;
        self.len += 1;
    }

    fn remove(&mut self, key: u64) -> bool {
        let Some(at) = self.find(key) else { return false };
        let after = self.slots[at + 1..].iter().enumerate();
        let moving = after.take_while(|(next, slot)| slot.target != NONE && self.home(slot.key) <= at + next).count();
        self.slots.copy_within(at + 1..at + 1 + moving, at);
        self.slots[at + moving] = EMPTY;
        self.len -= 1;
        if self.len * 3 < self.homes && self.homes > 16 {
            self.resize((self.len + self.len / 2).max(8));
        }
        true
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = std::iter::from_fn(|| self.slots.pop()).find(|slot| slot.target != NONE);
        self.len -= usize::from(entry.is_some());
        if self.len == 0 {
            *self = Self::default();
        }
        entry
    }

    fn resize(&mut self, homes: usize) {
        let old = std::mem::take(&mut self.slots);
        self.homes = homes;
        self.slots = Vec::with_capacity(homes + homes / 64 + 2);
        for entry in old.into_iter().filter(|slot| slot.target != NONE) {
            let home = self.home(entry.key).max(self.slots.len());
            self.slots.resize(home, EMPTY);
            self.slots.push(entry);
        }
        self.slots.resize(homes.max(self.slots.len()), EMPTY);
    }

    fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Entry>()
    }
}
