//! An engine's block hashes, and where our blocks for them are: 23 to 26 bytes each.
//!
//! The entries of one event stand side by side; what leads to them by their keys is cut into [`SEGMENTS`], which grow one at
//! a time, so that none takes long.

use std::hint::black_box;

use super::entries::{Entries, Entry};
use super::segment::Segment;

const SEGMENTS: usize = 32;
/// Bytes that an entry takes at most, where there are some already.
pub(super) const ENTRY_BYTES: usize = 26;

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

/// The segment of a key, by bits that it does not look at. The shares rise from 1 to 2, so that they do not all grow at
/// once.
const SEGMENT_OF: [u8; 256] = {
    let mut of = [0; 256];
    let (mut byte, mut segment, mut share) = (0, 0, 0);
    while byte < of.len() {
        // Segment `i` has `SEGMENTS + i` of so many parts.
        let all = SEGMENTS * (3 * SEGMENTS - 1) / 2;
        while (byte * 2 + 1) * all >= (share + SEGMENTS + segment) * of.len() * 2 {
            share += SEGMENTS + segment;
            segment += 1;
        }
        of[byte] = segment as u8;
        byte += 1;
    }
    of
};

fn segment_of(key: u64) -> usize {
    usize::from(SEGMENT_OF[key as usize & 0xff])
}

/// All of one replica's.
#[derive(Debug)]
pub(super) struct Table {
    segments: [Segment; SEGMENTS],
    entries: Entries,
    /// Bytes of the segments.
    inner: usize,
    /// Where `pop` goes on in the last segment that has any.
    line: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self { segments: Default::default(), entries: Entries::default(), inner: 0, line: usize::MAX }
    }
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.inner + self.entries.bytes()
    }

    /// What it may grow by for these keys, at most.
    pub(super) fn growth(&self, keys: impl Iterator<Item = u64>) -> usize {
        let mut more = [0; SEGMENTS];
        keys.for_each(|key| more[segment_of(key)] += 1);
        let segments: usize = self.segments.iter().zip(more).map(|(segment, more)| segment.growth(more)).sum();
        segments + self.entries.growth(more.iter().sum())
    }

    /// Reads what belongs to these hashes, none waiting for another, so that it is in the cache when each is looked up:
    /// most of what an event costs is waiting for memory.
    pub(super) fn warm(&self, hashes: &[u64]) {
        let lines = hashes.iter().map(|&hash| {
            let key = key(hash, 0);
            self.segments[segment_of(key)].warm(key)
        });
        black_box(lines.fold(0, |sum, line| sum ^ line));
    }

    fn id(&self, key: u64) -> Option<u32> {
        let segment = &self.segments[segment_of(key)];
        segment.find(key, |id| self.entries[id].key == key).map(|spot| segment.id(spot))
    }

    pub(super) fn get(&self, key: u64) -> Option<Entry> {
        self.id(key).map(|id| self.entries[id])
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Entry> {
        self.id(key).map(|id| &mut self.entries[id])
    }

    /// Adds an entry, unless its key is there already; whether it was not.
    pub(super) fn insert(&mut self, entry: Entry) -> bool {
        let at = segment_of(entry.key);
        if self.segments[at].is_full() {
            self.fit(at);
        }
        let segment = &mut self.segments[at];
        let is_new = segment.find(entry.key, |id| self.entries[id].key == entry.key).is_none();
        if is_new {
            segment.insert(entry.key, self.entries.insert(entry));
        }
        is_new
    }

    pub(super) fn remove(&mut self, key: u64) {
        self.take(key, |_| true);
    }

    /// Takes an entry out, if it is such a one.
    pub(super) fn take(&mut self, key: u64, is_such: impl FnOnce(&Entry) -> bool) -> Option<Entry> {
        let at = segment_of(key);
        let segment = &mut self.segments[at];
        let spot = segment.find(key, |id| self.entries[id].key == key)?;
        let id = segment.id(spot);
        if !is_such(&self.entries[id]) {
            return None;
        }
        segment.remove(spot, key);
        if segment.is_sparse() {
            self.fit(at);
        }
        Some(self.entries.remove(id))
    }

    /// Takes any entry out. For a table that is taken apart: nothing may be added to it any more.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let at = self.segments.iter().rposition(|segment| segment.len() > 0)?;
        let segment = &mut self.segments[at];
        let spot = segment.last(self.line)?;
        let id = segment.id(spot);
        segment.remove(spot, self.entries[id].key);
        self.line = spot.line();
        if segment.len() == 0 {
            self.fit(at);
            self.line = usize::MAX;
        }
        Some(self.entries.remove(id))
    }

    fn fit(&mut self, segment: usize) {
        let segment = &mut self.segments[segment];
        self.inner -= segment.bytes();
        segment.fit(|id| self.entries[id].key);
        self.inner += segment.bytes();
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.segments.iter().flat_map(Segment::ids).map(|id| self.entries[id])
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!((self.iter().count(), self.segments.iter().map(Segment::len).sum()), (self.len(), self.len()));
        assert_eq!(self.segments.iter().map(Segment::bytes).sum::<usize>(), self.inner);
        assert!(self.iter().all(|entry| self.get(entry.key) == Some(entry)), "an entry is found by its key");
    }
}
