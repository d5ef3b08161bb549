//! The entries of one replica's table, by number. Those of one event stand side by side as a rule, since the last places
//! that came free are taken first.
use std::ops::{Index, IndexMut};

use super::super::slab::NONE;

const CHUNK: usize = 64;
/// Of an entry whose hash the engine has used for two different blocks.
pub(super) const VOID: u32 = NONE - 1;

const OFFSET_BITS: u32 = 20;
const SPAN_BITS: u32 = 8;

/// Blocks that a run may have.
pub(super) const MOST_OFFSETS: usize = 1 << OFFSET_BITS;
/// Own blocks that one of the engine's may be cut into.
pub(super) const MOST_PARTS: usize = (1 << SPAN_BITS) - 1;

/// One of the engine's blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Of its hash: see [`key`](super::table::key).
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

/// Numbers stay valid until [`Entries::remove`]. Growth copies nothing.
#[derive(Debug)]
pub(super) struct Entries {
    #[expect(clippy::vec_box, reason = "growth must not move them")]
    chunks: Vec<Box<[Entry; CHUNK]>>,
    /// One that came free; it leads to the next.
    free: u32,
    /// From here on none was used yet.
    unused: u32,
    len: usize,
}

impl Default for Entries {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: NONE, unused: 0, len: 0 }
    }
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * size_of::<[Entry; CHUNK]>() + self.chunks.capacity() * size_of::<Box<[Entry; CHUNK]>>()
    }

    /// What it may grow by, at most, for so many more entries.
    pub(super) fn growth(&self, more: usize) -> usize {
        let chunks = more.saturating_sub(self.chunks.len() * CHUNK - self.len).div_ceil(CHUNK);
        // A list that is full takes twice the room, and four places at first.
        let list = if chunks == 0 { 0 } else { (self.chunks.capacity() + chunks + 4) * size_of::<usize>() };
        chunks * size_of::<[Entry; CHUNK]>() + list
    }

    pub(super) fn insert(&mut self, entry: Entry) -> u32 {
        self.len += 1;
        let id = self.free;
        if id == NONE {
            return self.insert_unused(entry);
        }
        self.free = std::mem::replace(&mut self[id], entry).target;
        id
    }

    fn insert_unused(&mut self, entry: Entry) -> u32 {
        if self.unused as usize == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new([Entry::default(); CHUNK]));
        }
        let id = self.unused;
        self.unused += 1;
        self[id] = entry;
        id
    }

    /// Takes one out. The memory goes with the last.
    pub(super) fn remove(&mut self, id: u32) -> Entry {
        let next = Entry::new(0, self.free, 0, 0, 0);
        let entry = std::mem::replace(&mut self[id], next);
        self.free = id;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        }
        entry
    }
}

impl Index<u32> for Entries {
    type Output = Entry;

    fn index(&self, id: u32) -> &Entry {
        &self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

impl IndexMut<u32> for Entries {
    fn index_mut(&mut self, id: u32) -> &mut Entry {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}
