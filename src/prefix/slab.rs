//! Numbered entries in small chunks: growth copies nothing, and a chunk that empties gives its memory back.
use std::ops::{Index, IndexMut};

/// The number of no entry.
pub(super) const NONE: u32 = u32::MAX;

const CHUNK: usize = u64::BITS as usize;

/// Numbers stay valid until [`Slab::remove`]; a removed one is used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    /// Only what leads to the entries: a lookup waits for this, so it should be in the cache.
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
    /// By chunk: a bit for each entry that is used.
    used: Vec<u64>,
    /// Chunks with a free entry, the next one last.
    open: Vec<u32>,
    /// Chunks that have memory.
    allocated: usize,
    len: usize,
}

impl<T: Default> Slab<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), used: Vec::new(), open: Vec::new(), allocated: 0, len: 0 }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let at = self.open.last().copied().unwrap_or_else(|| {
            self.chunks.push(None);
            self.used.push(0);
            self.open.push((self.chunks.len() - 1) as u32);
            (self.chunks.len() - 1) as u32
        });
        let chunk = self.chunks[at as usize].get_or_insert_with(|| {
            self.allocated += 1;
            Box::new(std::array::from_fn(|_| T::default()))
        });
        let used = &mut self.used[at as usize];
        let free = used.trailing_ones();
        chunk[free as usize] = value;
        *used |= 1 << free;
        if *used == u64::MAX {
            self.open.pop();
        }
        self.len += 1;
        at * CHUNK as u32 + free
    }

    pub(super) fn remove(&mut self, id: u32) -> T {
        let at = id as usize / CHUNK;
        let removed = std::mem::take(&mut self[id]);
        let used = &mut self.used[at];
        if *used == u64::MAX {
            self.open.push(at as u32);
        }
        *used &= !(1 << (id as usize % CHUNK));
        self.len -= 1;
        // Some are kept, so that an entry that comes and goes does not ask for memory each time.
        let spare = self.allocated * CHUNK - self.len;
        if self.used[at] == 0 && spare > 2 * CHUNK + self.len / 8 {
            self.chunks[at] = None;
            self.allocated -= 1;
        }
        removed
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        let used = self.used.get(id as usize / CHUNK)?;
        (used >> (id as usize % CHUNK) & 1 == 1).then(|| &self[id])
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Its entries with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = self.chunks.iter().zip(&self.used).enumerate();
        chunks.filter_map(|(at, (chunk, used))| Some((at, chunk.as_ref()?, *used))).flat_map(|(at, chunk, used)| {
            let entries = chunk.iter().enumerate().filter(move |(place, _)| used >> place & 1 == 1);
            entries.map(move |(place, entry)| ((at * CHUNK + place) as u32, entry))
        })
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.allocated * CHUNK * size_of::<T>()
            + self.chunks.capacity() * size_of::<Option<Box<[T; CHUNK]>>>()
            + self.used.capacity() * size_of::<u64>()
            + self.open.capacity() * size_of::<u32>()
    }
}

/// Of an entry that is there, or was, as long as its chunk is.
impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        let chunk = self.chunks[id as usize / CHUNK].as_ref().expect("an entry's chunk is there as long as it is");
        &chunk[id as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        let chunk = self.chunks[id as usize / CHUNK].as_mut().expect("an entry's chunk is there as long as it is");
        &mut chunk[id as usize % CHUNK]
    }
}
