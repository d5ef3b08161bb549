//! The block cache of a virtual engine: a forest of blocks keyed by chained hash, evicted least recently used and
//! leaf first.
//!
//! A request holds a [`Lease`]: a path of pinned blocks from a root, and blocks reserved for what it has yet to fill.
//! Whoever pins a block pins all blocks before it, so a block without pins has no pinned descendant, and a released
//! path joins the idle list leaf first. Together they promise that a block is never evicted before its descendants,
//! with O(1) work a block and no ordering structure (vLLM's free queue rests on the same observation).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const NONE: u32 = u32::MAX;

/// Keys are hashes or small trace ids: one multiplication spreads both.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[derive(Debug, Clone)]
struct Node {
    hash: u64,
    parent: u32,
    /// Blocks from the root to here, this one included.
    depth: u32,
    pins: u32,
    older: u32,
    newer: u32,
}

/// What one request holds of the cache. Give it back with [`BlockCache::release`].
#[derive(Debug)]
#[must_use]
pub struct Lease {
    leaf: u32,
    depth: u32,
    matched: u32,
    reserved: u32,
    closed: bool,
}

impl Lease {
    /// Blocks that were in the cache when the lease began.
    #[must_use]
    pub fn matched(&self) -> u32 {
        self.matched
    }
    /// Blocks of the path that are in the cache now, pinned by this lease.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }
    /// Blocks reserved and not in the cache yet.
    #[must_use]
    pub fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// An LRU cache of a fixed number of blocks; see the module's head.
#[derive(Debug)]
pub struct BlockCache {
    capacity: u32,
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    by_hash: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    reserved: u32,
    oldest: u32,
    newest: u32,
    idle: u32,
}

impl BlockCache {
    /// An empty cache of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity,
            nodes: Vec::new(),
            vacant: Vec::new(),
            by_hash: HashMap::default(),
            reserved: 0,
            oldest: NONE,
            newest: NONE,
            idle: 0,
        }
    }

    /// Blocks it can hold.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }
    /// Blocks that a later request could match.
    #[must_use]
    pub fn cached(&self) -> u32 {
        self.by_hash.len() as u32
    }
    /// Blocks that no request may take: pinned ones and reserved ones.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.cached() - self.idle + self.reserved
    }
    /// Whether a block is cached.
    #[must_use]
    pub fn contains(&self, hash: u64) -> bool {
        self.by_hash.contains_key(&hash)
    }

    /// How many leading blocks of `chain` are cached.
    #[must_use]
    pub fn match_length(&self, chain: &[u64]) -> u32 {
        self.walk(chain).1
    }

    /// (leaf, blocks, idle blocks on the path) of the longest cached prefix of `chain`.
    fn walk(&self, chain: &[u64]) -> (u32, u32, u32) {
        // A cached block's ancestors are cached, so the end of a chain's prefix is found by halving.
        let (mut depth, mut beyond) = (0, chain.len());
        let mut leaf = NONE;
        while depth < beyond {
            let middle = depth.midpoint(beyond);
            match self.by_hash.get(&chain[middle]) {
                Some(&node) if self.nodes[node as usize].depth as usize == middle + 1 => {
                    (leaf, depth) = (node, middle + 1)
                }
                _ => beyond = middle,
            }
        }
        let (mut node, mut idle) = (leaf, 0);
        for hash in chain[..depth].iter().rev() {
            let entry = &self.nodes[node as usize];
            if entry.hash != *hash {
                // Hashes that stand elsewhere in the forest, too: no chain, of which nothing but a walk tells how far.
                return self.walk_down(chain);
            }
            idle += u32::from(entry.pins == 0);
            node = entry.parent;
        }
        (leaf, depth as u32, idle)
    }

    /// [`Self::walk`], block by block.
    fn walk_down(&self, chain: &[u64]) -> (u32, u32, u32) {
        let (mut leaf, mut depth, mut idle) = (NONE, 0, 0);
        for hash in chain {
            match self.by_hash.get(hash) {
                // The parent tells a chain from two places that happen to share a hash.
                Some(&node) if self.nodes[node as usize].parent == leaf => {
                    idle += u32::from(self.nodes[node as usize].pins == 0);
                    leaf = node;
                    depth += 1;
                }
                _ => break,
            }
        }
        (leaf, depth, idle)
    }

    /// Pins the longest cached prefix of `chain` and reserves what is missing of `total` blocks, evicting as needed;
    /// `None`, and no change, if that many blocks cannot be had now.
    pub fn acquire(&mut self, chain: &[u64], total: u32) -> Option<Lease> {
        let (leaf, matched, idle_on_path) = self.walk(chain);
        let missing = total.saturating_sub(matched);
        let free = self.capacity - self.cached() - self.reserved;
        if missing > free + self.idle - idle_on_path {
            return None;
        }
        let mut node = leaf;
        while node != NONE {
            self.pin(node);
            node = self.nodes[node as usize].parent;
        }
        for _ in free..missing {
            self.evict();
        }
        self.reserved += missing;
        Some(Lease { leaf, depth: matched, matched, reserved: missing, closed: false })
    }

    /// Puts the next blocks of a lease's path into the cache, out of what it has reserved. A block that another
    /// request put there meanwhile is shared, and the reserved one given back.
    pub fn extend(&mut self, lease: &mut Lease, hashes: impl IntoIterator<Item = u64>) {
        for hash in hashes {
            if lease.reserved == 0 || lease.closed {
                return;
            }
            let node = match self.by_hash.get(&hash) {
                Some(&node) if self.nodes[node as usize].parent == lease.leaf => {
                    self.pin(node);
                    node
                }
                // The same hash elsewhere in the forest: not a chain. Keep the rest of this request private.
                Some(_) => {
                    lease.closed = true;
                    return;
                }
                None => self.insert(hash, lease.leaf, lease.depth + 1),
            };
            lease.leaf = node;
            lease.depth += 1;
            lease.reserved -= 1;
            self.reserved -= 1;
        }
    }

    /// Ends a lease: its blocks stay cached, evictable once nobody else pins them.
    pub fn release(&mut self, lease: Lease) {
        self.reserved -= lease.reserved;
        let mut node = lease.leaf;
        while node != NONE {
            let entry = &mut self.nodes[node as usize];
            entry.pins -= 1;
            let (unpinned, parent) = (entry.pins == 0, entry.parent);
            if unpinned {
                self.link_newest(node);
            }
            node = parent;
        }
    }

    /// Forgets everything. Leases from before must be dropped, not released.
    pub fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    fn insert(&mut self, hash: u64, parent: u32, depth: u32) -> u32 {
        let fresh = Node { hash, parent, depth, pins: 1, older: NONE, newer: NONE };
        let node = match self.vacant.pop() {
            Some(node) => {
                self.nodes[node as usize] = fresh;
                node
            }
            None => {
                self.nodes.push(fresh);
                (self.nodes.len() - 1) as u32
            }
        };
        self.by_hash.insert(hash, node);
        node
    }

    fn pin(&mut self, node: u32) {
        if self.nodes[node as usize].pins == 0 {
            self.unlink(node);
        }
        self.nodes[node as usize].pins += 1;
    }

    fn evict(&mut self) {
        let node = self.oldest;
        debug_assert!(node != NONE, "acquire counted an idle block that is not there");
        self.unlink(node);
        self.by_hash.remove(&self.nodes[node as usize].hash);
        self.vacant.push(node);
    }

    fn link_newest(&mut self, node: u32) {
        let previous = self.newest;
        let entry = &mut self.nodes[node as usize];
        entry.older = previous;
        entry.newer = NONE;
        match previous {
            NONE => self.oldest = node,
            previous => self.nodes[previous as usize].newer = node,
        }
        self.newest = node;
        self.idle += 1;
    }

    fn unlink(&mut self, node: u32) {
        let Node { older, newer, .. } = self.nodes[node as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        self.idle -= 1;
    }
}
