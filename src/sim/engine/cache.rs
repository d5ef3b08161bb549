//! The block cache of a virtual engine: a forest of blocks keyed by chained hash, evicted least recently used and
//! leaf first.
//!
//! A request holds a [`Lease`]: a path of pinned blocks from a root, and blocks reserved for what it has yet to fill.
//! Whoever pins a block pins all blocks before it, so a block without pins has no pinned descendant, and a released
//! path joins the idle list leaf first. Together they promise that a block is never evicted before its descendants,
//! with no ordering structure (vLLM's free queue rests on the same observation).
//!
//! Blocks that stand one behind the other and are pinned and released together are one *run*, which is split where a
//! path ends or leaves it: a prompt of a thousand blocks costs a few steps, not a thousand. Eviction takes a run's tail.

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

/// Blocks in a row without a branch, all with the same pins and the same last use; never empty.
#[derive(Debug)]
struct Run {
    blocks: Vec<u64>,
    parent: u32,
    /// Runs that stand on this one.
    children: u32,
    pins: u32,
    older: u32,
    newer: u32,
}

impl Run {
    fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// How many leading blocks it has in common with `chain`. Equal hashes, equal prefixes: the end is found by halving.
    fn common(&self, chain: &[u64]) -> u32 {
        let most = self.blocks.len().min(chain.len());
        if most > 0 && self.blocks[most - 1] == chain[most - 1] {
            return most as u32;
        }
        let (mut common, mut beyond) = (0, most);
        while common < beyond {
            let middle = common.midpoint(beyond);
            if self.blocks[middle] == chain[middle] { common = middle + 1 } else { beyond = middle }
        }
        common as u32
    }
}

/// What one request holds of the cache. Give it back with [`BlockCache::release`].
#[derive(Debug)]
#[must_use]
pub struct Lease {
    /// The run that its path ends with: at that run's end.
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

/// The longest cached prefix of a chain.
#[derive(Debug, Clone, Copy)]
struct Match {
    /// Its last run, and how many blocks of that belong to it.
    run: u32,
    common: u32,
    /// Blocks in all, and those of them that nobody pins.
    depth: u32,
    idle: u32,
}

/// An LRU cache of a fixed number of blocks; see the module's head.
#[derive(Debug)]
pub struct BlockCache {
    capacity: u32,
    runs: Vec<Run>,
    vacant: Vec<u32>,
    /// Runs by their first block.
    heads: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    /// Blocks that are cached, that leases have reserved, and that are cached and not pinned.
    cached: u32,
    reserved: u32,
    idle: u32,
    oldest: u32,
    newest: u32,
}

impl BlockCache {
    /// An empty cache of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity,
            runs: Vec::new(),
            vacant: Vec::new(),
            heads: HashMap::default(),
            cached: 0,
            reserved: 0,
            idle: 0,
            oldest: NONE,
            newest: NONE,
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
        self.cached
    }
    /// Blocks that no request may take: pinned ones and reserved ones.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.cached - self.idle + self.reserved
    }

    /// How many leading blocks of `chain` are cached.
    #[must_use]
    pub fn match_length(&self, chain: &[u64]) -> u32 {
        self.walk(chain).depth
    }

    fn walk(&self, chain: &[u64]) -> Match {
        let mut found = Match { run: NONE, common: 0, depth: 0, idle: 0 };
        while let Some(id) = self.child(found.run, &chain[found.depth as usize..]) {
            let run = &self.runs[id as usize];
            let common = run.common(&chain[found.depth as usize..]);
            let idle = if run.pins == 0 { common } else { 0 };
            found = Match { run: id, common, depth: found.depth + common, idle: found.idle + idle };
            if common < run.len() {
                break;
            }
        }
        found
    }

    /// The run behind `parent` that begins as `chain` does.
    fn child(&self, parent: u32, chain: &[u64]) -> Option<u32> {
        // The parent tells a chain from two places that happen to share a hash.
        self.heads.get(chain.first()?).copied().filter(|&run| self.runs[run as usize].parent == parent)
    }

    /// Pins the longest cached prefix of `chain` and reserves what is missing of `total` blocks, evicting as needed;
    /// `None`, and no change, if that many blocks cannot be had now.
    pub fn acquire(&mut self, chain: &[u64], total: u32) -> Option<Lease> {
        let found = self.walk(chain);
        let missing = total.saturating_sub(found.depth);
        let free = self.capacity - self.cached - self.reserved;
        if missing > free + self.idle - found.idle {
            return None;
        }
        let leaf = if found.run == NONE { NONE } else { self.split(found.run, found.common) };
        let mut run = leaf;
        while run != NONE {
            self.pin(run);
            run = self.runs[run as usize].parent;
        }
        self.evict(missing.saturating_sub(free));
        self.reserved += missing;
        Some(Lease { leaf, depth: found.depth, matched: found.depth, reserved: missing, closed: false })
    }

    /// Puts the next blocks of a lease's path into the cache, out of what it has reserved. Blocks that another request
    /// put there meanwhile are shared, and the reserved ones given back.
    pub fn extend(&mut self, lease: &mut Lease, hashes: &[u64]) {
        let mut rest = &hashes[..hashes.len().min(lease.reserved as usize)];
        while !rest.is_empty() && !lease.closed {
            let taken = match self.child(lease.leaf, rest) {
                Some(run) => {
                    let common = self.runs[run as usize].common(rest);
                    lease.leaf = self.split(run, common);
                    self.pin(lease.leaf);
                    common
                }
                // The same hash elsewhere in the forest: not a chain. Keep the rest of this request private.
                None if self.heads.contains_key(&rest[0]) => {
                    lease.closed = true;
                    return;
                }
                None => {
                    lease.leaf = self.append(lease.leaf, rest);
                    rest.len() as u32
                }
            };
            rest = &rest[taken as usize..];
            lease.depth += taken;
            lease.reserved -= taken;
            self.reserved -= taken;
        }
    }

    /// Ends a lease: its blocks stay cached, evictable once nobody else pins them.
    pub fn release(&mut self, lease: Lease) {
        self.reserved -= lease.reserved;
        let mut id = lease.leaf;
        while id != NONE {
            let run = &mut self.runs[id as usize];
            run.pins -= 1;
            let (unpinned, parent) = (run.pins == 0, run.parent);
            if unpinned {
                self.link_newest(id);
            }
            id = parent;
        }
    }

    /// Forgets everything. Leases from before must be dropped, not released.
    pub fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// New blocks behind `leaf`, pinned once; the run that they end with. A run that is the caller's alone grows.
    fn append(&mut self, leaf: u32, blocks: &[u64]) -> u32 {
        self.cached += blocks.len() as u32;
        if let Some(run) = self.runs.get_mut(leaf as usize) {
            if run.pins == 1 && run.children == 0 {
                run.blocks.extend_from_slice(blocks);
                return leaf;
            }
            run.children += 1;
        }
        self.insert(Run { blocks: blocks.to_vec(), parent: leaf, children: 0, pins: 1, older: NONE, newer: NONE })
    }

    /// Cuts a run in two behind its first `len` blocks, if it has more; the run of those `len`. The rest keeps its
    /// number, so that leases and runs that stand on its end still do.
    fn split(&mut self, id: u32, len: u32) -> u32 {
        let run = &mut self.runs[id as usize];
        if len == run.len() {
            return id;
        }
        let tail = run.blocks.split_off(len as usize);
        let first = tail[0];
        let blocks = std::mem::replace(&mut run.blocks, tail);
        // In the idle list the rest is next to it, and older.
        let (older, newer) = if run.pins == 0 { (id, run.newer) } else { (NONE, NONE) };
        let (parent, pins) = (run.parent, run.pins);
        self.heads.insert(first, id);
        let head = self.insert(Run { blocks, parent, children: 1, pins, older, newer });
        self.runs[id as usize].parent = head;
        if pins == 0 {
            self.runs[id as usize].newer = head;
            match newer {
                NONE => self.newest = head,
                newer => self.runs[newer as usize].older = head,
            }
        }
        head
    }

    fn insert(&mut self, run: Run) -> u32 {
        let id = self.vacant.pop().unwrap_or(self.runs.len() as u32);
        self.heads.insert(run.blocks[0], id);
        match self.runs.get_mut(id as usize) {
            Some(vacant) => *vacant = run,
            None => self.runs.push(run),
        }
        id
    }

    fn pin(&mut self, id: u32) {
        if self.runs[id as usize].pins == 0 {
            self.unlink(id);
        }
        self.runs[id as usize].pins += 1;
    }

    /// Takes so many blocks from the ends of the oldest runs.
    fn evict(&mut self, mut count: u32) {
        while count > 0 {
            let id = self.oldest;
            debug_assert!(id != NONE, "acquire counted an idle block that is not there");
            let run = &mut self.runs[id as usize];
            debug_assert!(run.children == 0, "a run joins the list after those that stand on it");
            let taken = count.min(run.len());
            count -= taken;
            self.cached -= taken;
            if taken < run.len() {
                run.blocks.truncate((run.len() - taken) as usize);
                self.idle -= taken;
                continue;
            }
            let (head, parent) = (run.blocks[0], run.parent);
            self.unlink(id);
            self.heads.remove(&head);
            self.runs[id as usize].blocks = Vec::new();
            self.vacant.push(id);
            if let Some(parent) = self.runs.get_mut(parent as usize) {
                parent.children -= 1;
            }
        }
    }

    fn link_newest(&mut self, id: u32) {
        let previous = self.newest;
        let run = &mut self.runs[id as usize];
        run.older = previous;
        run.newer = NONE;
        self.idle += run.len();
        match previous {
            NONE => self.oldest = id,
            previous => self.runs[previous as usize].newer = id,
        }
        self.newest = id;
    }

    fn unlink(&mut self, id: u32) {
        let run = &self.runs[id as usize];
        let (older, newer) = (run.older, run.newer);
        self.idle -= run.len();
        match older {
            NONE => self.oldest = newer,
            older => self.runs[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.runs[newer as usize].older = older,
        }
    }

    /// All blocks.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> std::collections::HashSet<u64> {
        self.runs.iter().flat_map(|run| run.blocks.iter().copied()).collect()
    }
}
