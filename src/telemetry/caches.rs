//! Gauges of a pool's prefix index and of its boundary cache, read off at scrape time.
use super::Metrics;
use super::metrics::follow;

impl Metrics {
    /// Sets what a pool's prefix index knows of a replica, and what it assumes that it keeps.
    pub fn set_index_blocks(&self, pool: &str, replica: &str, held: usize, capacity: usize) {
        for (family, blocks) in [(&self.index_pairs, held), (&self.index_capacity, capacity)] {
            family.with_label_values(&[pool, replica]).set(i64::try_from(blocks).unwrap_or(i64::MAX));
        }
    }

    /// Sets the figures of a pool's prefix index.
    pub fn set_index(&self, pool: &str, bytes: usize, evicted: u64) {
        self.index_bytes.with_label_values(&[pool]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        follow(&self.index_evicted.with_label_values(&[pool]), evicted);
    }

    /// Sets the figures of a pool's boundary cache.
    pub fn set_boundary_cache(&self, pool: &str, bytes: u64, entries: u64, [hits, misses]: [u64; 2]) {
        self.boundary_bytes.with_label_values(&[pool]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.boundary_entries.with_label_values(&[pool]).set(i64::try_from(entries).unwrap_or(i64::MAX));
        follow(&self.boundary_lookups.with_label_values(&[pool, "hit"]), hits);
        follow(&self.boundary_lookups.with_label_values(&[pool, "miss"]), misses);
    }
}
