//! The entries of one replica's table, by number. Those of one event stand side by side as a rule, since the last places
//! that came free are taken first.
use std::ops::{Index, IndexMut};

use super::super::slab::NONE;
use super::table::Entry;

const CHUNK: usize = 64;

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
