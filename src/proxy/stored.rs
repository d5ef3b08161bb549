//! Which replica holds a stored response: learned beside the relay, bounded, least recently used first out.
//!
//! Ids are kept as 128-bit hashes. An id that isn't known (another router relayed it, or it was forgotten) is sought on
//! each replica in turn.
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

/// Where a response is stored.
#[derive(Debug, Clone)]
pub struct Place {
    /// Pool's name.
    pub pool: Arc<str>,
    /// Replica's id.
    pub replica: Arc<str>,
}

/// The table.
#[derive(Debug)]
pub struct StoredResponses(Mutex<LruCache<u128, Place>>);

impl StoredResponses {
    /// Remembers at most `capacity` (at least one) ids.
    pub fn new(capacity: usize) -> Self {
        Self(Mutex::new(LruCache::new(NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN))))
    }

    /// Remembers where `id` is.
    pub fn learn(&self, id: &str, place: Place) {
        self.0.lock().put(xxh3_128(id.as_bytes()), place);
    }

    /// Where `id` is.
    pub fn find(&self, id: &str) -> Option<Place> {
        self.0.lock().get(&xxh3_128(id.as_bytes())).cloned()
    }

    /// Ids remembered.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}
