//! The boundary cache: a text that begins like one seen before is encoded from where they part.
//!
//! A text is cut where encoding may resume exactly, into pieces of at least [`PIECE`] bytes. Cuts depend on the text
//! before them only, so two texts with a common head have common pieces, and a piece's key, a hash of all text up to
//! its end, names its whole past. What is kept for it is what it *added*: hashes of the blocks that it filled, and the
//! tokens of the block left open. So a conversation's turns share their past, as do conversations a system prompt,
//! and each block costs its 8 bytes once. Keys are of 128 bits, seeded per process, over the rendered text and all that
//! makes up the chain's root; nothing is ever looked up by messages, since templates change earlier text.
//!
//! Exact repeats are a second kind of entry: of a whole prompt, the keys of its pieces and what its last piece added.
use std::hash::BuildHasher as _;
use std::hash::{BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::prefix::Chain;

/// Bytes of a piece, at least: smaller ones cost more to keep than to encode again.
const PIECE: usize = 512;
/// Bytes that an entry takes beside its content: key, links and table slot, and the allocator's share.
const ENTRY: usize = 160;

/// Names all that stands before a place in a text, and the chain's root.
pub(super) type Key = u128;

/// What a piece added to the chain.
#[derive(Debug)]
struct Piece {
    /// Blocks that it filled.
    hashes: Box<[u64]>,
    /// Tokens of the block that it left open.
    open: Box<[u32]>,
}

/// A whole prompt.
#[derive(Debug)]
struct Whole {
    root: u64,
    pieces: Box<[Key]>,
    last: Piece,
}

#[derive(Debug, Clone)]
enum Entry {
    Piece(Arc<Piece>),
    Whole(Arc<Whole>),
}

#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<Key, Entry> for Bytes {
    fn weight(&self, _: &Key, entry: &Entry) -> u64 {
        let of = |piece: &Piece| size_of_val(&*piece.hashes) + size_of_val(&*piece.open);
        let content = match entry {
            Entry::Piece(piece) => of(piece),
            Entry::Whole(whole) => of(&whole.last) + size_of_val(&*whole.pieces),
        };
        (ENTRY + content) as u64
    }
}

/// Keys are hashes already.
#[derive(Debug, Default, Clone)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    #[expect(clippy::cast_possible_truncation, reason = "half of a hash is one")]
    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

/// What the cache holds, and how often it helped.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes in use.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
    /// Prompts of which at least a head was known.
    pub hits: u64,
    /// Prompts of which nothing was known.
    pub misses: u64,
}

/// A cache of one tokenizer's work, shared by all threads.
#[derive(Debug)]
pub(super) struct Boundaries {
    cache: Cache<Key, Entry, Bytes, BuildHasherDefault<AsIs>>,
    seed: u64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Boundaries {
    /// One that keeps to about so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let weight = bytes as u64;
        let cache =
            Cache::with(bytes / 1024, weight, Bytes, BuildHasherDefault::default(), DefaultLifecycle::default());
        // The standard library's own random keys.
        let seed = RandomState::new().hash_one(0);
        Self { cache, seed, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// A key of these parts; their borders count.
    pub(super) fn key(&self, parts: &[&[u8]]) -> Key {
        let mut key = 0;
        for part in parts {
            key = self.after(key, part);
        }
        key
    }

    fn after(&self, key: Key, text: &[u8]) -> Key {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&key.to_le_bytes());
        both[16..].copy_from_slice(&xxh3_128_with_seed(text, self.seed).to_le_bytes());
        xxh3_128_with_seed(&both, self.seed)
    }

    /// The chain of a whole prompt that was [kept](Self::keep) under `key`, if all of it is still here.
    pub(super) fn whole(&self, key: Key) -> Option<Chain> {
        let Some(Entry::Whole(whole)) = self.cache.get(&key) else { return None };
        let mut hashes = Vec::new();
        for key in &whole.pieces {
            let Some(Entry::Piece(piece)) = self.cache.get(key) else { return None };
            hashes.extend_from_slice(&piece.hashes);
        }
        hashes.extend_from_slice(&whole.last.hashes);
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(Chain::resume(whole.root, hashes, &whole.last.open))
    }

    /// Keeps a prompt's chain under a key that names all that it was made of.
    pub(super) fn keep(&self, key: Key, root: u64, chain: &Chain, path: Path) {
        let last = Piece { hashes: chain.hashes()[path.blocks..].into(), open: chain.open().into() };
        self.cache.insert(key, Entry::Whole(Arc::new(Whole { root, pieces: path.keys.into(), last })));
    }

    /// Adds `text` to `chain`, whose state `start` names. `cuts` are places where it may be cut, ascending; `encode`
    /// adds the ids of a piece to the chain, given how many bytes are left to encode with it.
    ///
    /// # Errors
    /// Those of `encode`. Pieces before it stay known, so that another try comes further.
    pub(super) fn extend<E>(
        &self,
        chain: &mut Chain,
        root: u64,
        start: Key,
        text: &str,
        cuts: impl Iterator<Item = usize>,
        mut encode: impl FnMut(&str, usize, &mut Chain) -> Result<(), E>,
    ) -> Result<Path, E> {
        let mut path = Path::default();
        let (mut end, mut key) = (0, start);
        let mut pieces = cuts.filter_map(|cut| {
            let piece = (cut >= end + PIECE).then(|| &text[end..cut])?;
            end = cut;
            key = self.after(key, piece.as_bytes());
            Some((piece, end, key))
        });
        let mut done = 0;

        // What is known, from the text's start on.
        let mut hashes = Vec::with_capacity(chain.hashes().len() + text.len() / 32);
        hashes.extend_from_slice(chain.hashes());
        let mut last = None;
        let mut first_unknown = None;
        for (piece, end, key) in &mut pieces {
            let Some(Entry::Piece(known)) = self.cache.get(&key) else {
                first_unknown = Some((piece, end, key));
                break;
            };
            hashes.extend_from_slice(&known.hashes);
            last = Some(known);
            path.keys.push(key);
            done = end;
        }
        path.blocks = hashes.len();
        let counter = if last.is_some() { &self.hits } else { &self.misses };
        if let Some(last) = last {
            *chain = Chain::resume(root, hashes, &last.open);
        }

        // What is not.
        for (piece, end, key) in first_unknown.into_iter().chain(pieces) {
            encode(piece, text.len() - done, chain)?;
            let hashes = chain.hashes()[path.blocks..].into();
            self.cache.insert(key, Entry::Piece(Arc::new(Piece { hashes, open: chain.open().into() })));
            path.blocks = chain.hashes().len();
            path.keys.push(key);
            done = end;
        }
        encode(&text[done..], text.len() - done, chain)?;
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(path)
    }

    /// What it holds, and how often it helped.
    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            bytes: self.cache.weight(),
            entries: self.cache.len() as u64,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }
}

/// The pieces of a text, but for its last.
#[derive(Debug, Default)]
pub(super) struct Path {
    keys: Vec<Key>,
    /// Blocks that they fill, with what stands before them.
    blocks: usize,
}

#[cfg(test)]
#[path = "tests/boundary.rs"]
mod tests;
