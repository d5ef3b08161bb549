//! Numbered entries in small chunks: growth copies nothing, and a chunk that empties gives its memory back.
use std::ops::{Index, IndexMut};

/// The number of no entry.
pub(super) const NONE: u32 = u32::MAX;

const CHUNK: usize = u64::BITS as usize;

/// Numbers stay valid until [`Slab::remove`]; a removed one is used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with a free entry, the next one last.
    open: Vec<u32>,
    /// Chunks that have memory.
    allocated: usize,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    entries: Box<[T]>,
    used: u64,
}

impl<T: Default> Slab<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), open: Vec::new(), allocated: 0, len: 0 }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let at = self.open.last().copied().unwrap_or_else(|| {
            self.chunks.push(Chunk { entries: Box::default(), used: 0 });
            self.open.push((self.chunks.len() - 1) as u32);
            (self.chunks.len() - 1) as u32
        });
        let chunk = &mut self.chunks[at as usize];
        if chunk.entries.is_empty() {
            chunk.entries = (0..CHUNK).map(|_| T::default()).collect();
            self.allocated += 1;
        }
        let free = chunk.used.trailing_ones();
        chunk.entries[free as usize] = value;
        chunk.used |= 1 << free;
        if chunk.used == u64::MAX {
            self.open.pop();
        }
        self.len += 1;
        at * CHUNK as u32 + free
    }

    pub(super) fn remove(&mut self, id: u32) -> T {
        let at = id as usize / CHUNK;
        let chunk = &mut self.chunks[at];
        let removed = std::mem::take(&mut chunk.entries[id as usize % CHUNK]);
        if chunk.used == u64::MAX {
            self.open.push(at as u32);
        }
        chunk.used &= !(1 << (id as usize % CHUNK));
        self.len -= 1;
        // Some are kept, so that an entry that comes and goes does not ask for memory each time.
        let spare = self.allocated * CHUNK - self.len;
        if chunk.used == 0 && spare > 2 * CHUNK + self.len / 8 {
            chunk.entries = Box::default();
            self.allocated -= 1;
        }
        removed
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        let chunk = self.chunks.get(id as usize / CHUNK)?;
        (chunk.used >> (id as usize % CHUNK) & 1 == 1).then(|| &chunk.entries[id as usize % CHUNK])
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Its entries with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(at, chunk)| {
            let used = chunk.used;
            let entries = chunk.entries.iter().enumerate().filter(move |(place, _)| used >> place & 1 == 1);
            entries.map(move |(place, entry)| ((at * CHUNK + place) as u32, entry))
        })
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.allocated * CHUNK * size_of::<T>()
            + self.chunks.capacity() * size_of::<Chunk<T>>()
            + self.open.capacity() * size_of::<u32>()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        &self.chunks[id as usize / CHUNK].entries[id as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.chunks[id as usize / CHUNK].entries[id as usize % CHUNK]
    }
}
