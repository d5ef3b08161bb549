//! An engine's block hashes, and where our blocks for them are: 21 to 41 bytes each, 29 for all tables together.
//!
//! It is cut into [`SEGMENTS`], which grow one at a time, so that none takes long; and as the last is twice as large as
//! the first, they do not all grow at once, so that the bytes stay in proportion.

use std::hint::black_box;

use hashbrown::HashTable;

use super::super::slab::NONE;

const SEGMENTS: usize = 32;
/// Of an entry whose hash the engine has used for two different blocks.
pub(super) const VOID: u32 = NONE - 1;

const OFFSET_BITS: u32 = 20;
const SPAN_BITS: u32 = 8;
/// Bytes that an entry takes at most, where there are some already.
pub(super) const ENTRY_BYTES: usize = 42;
/// Blocks that a run may have.
pub(super) const MOST_OFFSETS: usize = 1 << OFFSET_BITS;
/// Own blocks that one of the engine's may be cut into.
pub(super) const MOST_PARTS: usize = (1 << SPAN_BITS) - 1;

/// One of the engine's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Of its hash: see [`key`].
    pub key: u64,
    /// The holding in which its own block is; or its page; or [`VOID`].
    pub target: u32,
    /// The own block's offset in the run, how many own blocks the engine's has, and the mask of its copies.
    bits: u32,
}

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

/// The segment of a key, by one byte of it: of the bits that `hashbrown` uses least. The shares rise from 1 to 2.
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
    usize::from(SEGMENT_OF[(key >> 48) as usize & 0xff])
}

type Segment = HashTable<Entry>;

/// All of one replica's.
#[derive(Debug, Default)]
pub(super) struct Table {
    segments: [Segment; SEGMENTS],
    len: usize,
    bytes: usize,
    /// Where `pop` goes on in the last segment that has any.
    buckets: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it may grow by for these keys, beside [`ENTRY_BYTES`] for each.
    pub(super) fn growth(&self, keys: impl Iterator<Item = u64>) -> usize {
        let mut more = [0; SEGMENTS];
        keys.for_each(|key| more[segment_of(key)] += 1);
        let growing =
            self.segments.iter().zip(more).filter(|(segment, more)| segment.capacity() - segment.len() < *more);
        growing.map(|(segment, _)| segment.allocation_size() * 9 / 8).sum()
    }

    /// Reads what belongs to these hashes, none waiting for another, so that it is in the cache when each is looked up:
    /// most of what an event costs is waiting for memory.
    pub(super) fn warm(&self, hashes: &[u64]) {
        let targets = hashes.iter().map(|&hash| self.get(key(hash, 0)).map_or(0, |entry| entry.target));
        black_box(targets.fold(0, |sum, target| sum ^ target));
    }

    pub(super) fn get(&self, key: u64) -> Option<Entry> {
        self.segments[segment_of(key)].find(key, |entry| entry.key == key).copied()
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Entry> {
        self.segments[segment_of(key)].find_mut(key, |entry| entry.key == key)
    }

    /// Adds an entry, unless its key is there already; whether it was not.
    pub(super) fn insert(&mut self, entry: Entry) -> bool {
        let key = entry.key;
        let segment = &mut self.segments[segment_of(key)];
        if segment.len() == segment.capacity() {
            self.bytes -= segment.allocation_size();
            rebuild(segment);
            self.bytes += segment.allocation_size();
        }
        let hashbrown::hash_table::Entry::Vacant(place) =
            segment.entry(key, |other| other.key == key, |entry| entry.key)
        else {
            return false;
        };
        place.insert(entry);
        self.len += 1;
        true
    }

    pub(super) fn remove(&mut self, key: u64) {
        self.take(key, |_| true);
    }

    /// Takes an entry out, if it is such a one.
    pub(super) fn take(&mut self, key: u64, is_such: impl FnOnce(&Entry) -> bool) -> Option<Entry> {
        let segment = &mut self.segments[segment_of(key)];
        let found = segment.find_entry(key, |entry| entry.key == key).ok()?;
        if !is_such(found.get()) {
            return None;
        }
        let (entry, _) = found.remove();
        self.len -= 1;
        if segment.len() * 3 < segment.num_buckets() && segment.num_buckets() > 16 {
            self.bytes -= segment.allocation_size();
            rebuild(segment);
            self.bytes += segment.allocation_size();
        }
        Some(entry)
    }

    /// Takes any entry out. For a table that is taken apart: nothing may be added to it any more.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let segment = self.segments.iter_mut().rev().find(|segment| !segment.is_empty())?;
        let found = loop {
            self.buckets = if self.buckets == 0 { segment.num_buckets() } else { self.buckets } - 1;
            if let Ok(found) = segment.get_bucket_entry(self.buckets) {
                break found;
            }
        };
        let (entry, _) = found.remove();
        self.len -= 1;
        if segment.is_empty() {
            self.bytes -= segment.allocation_size();
            *segment = Segment::new();
            self.buckets = 0;
        }
        Some(entry)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.segments.iter().flatten().copied()
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.iter().count(), self.len);
        assert_eq!(self.segments.iter().map(Segment::allocation_size).sum::<usize>(), self.bytes);
        assert!(self.iter().all(|entry| self.get(entry.key) == Some(entry)), "an entry is found by its key");
    }
}

/// Gives a segment the size for what it has, and a sixteenth more. `hashbrown` would rather take twice the memory than
/// clean up after what was removed.
fn rebuild(segment: &mut Segment) {
    let old = std::mem::take(segment);
    segment.reserve(old.len() + old.len() / 16 + 1, |entry| entry.key);
    old.into_iter().for_each(|entry| _ = segment.insert_unique(entry.key, entry, |entry| entry.key));
}
