//! The naive index: each replica's blocks in a map, one by one. Slow, and plainly right.
use std::collections::{BTreeSet, HashMap};

/// As many as the run tree's in tests.
const EVICTED_AT_ONCE: usize = crate::prefix::index::EVICTED_AT_ONCE;

#[derive(Debug, Default, Clone)]
pub struct Held {
    pub confirmed: bool,
    pins: u32,
    used: (u64, usize),
    parent: Option<u64>,
    children: usize,
}

#[derive(Debug)]
pub struct Placed {
    replica: usize,
    depth: usize,
}

/// A replica has its number for good: one that comes back is another one.
#[derive(Debug, Default)]
pub struct Replica {
    pub gone: bool,
    pub capacity: usize,
    pub blocks: HashMap<u64, Held>,
    /// What may be evicted, oldest first; of one use the deepest first.
    order: BTreeSet<((u64, usize), u64)>,
}

#[derive(Debug, Default)]
pub struct Naive {
    pub replicas: Vec<Replica>,
    pub evicted: u64,
    clock: u64,
}

impl Naive {
    pub fn add(&mut self, capacity: usize) {
        self.replicas.push(Replica { capacity, ..Replica::default() });
    }

    pub fn remove(&mut self, replica: usize) {
        self.replicas[replica] = Replica { gone: true, ..Replica::default() };
    }

    pub fn depth(&self, replica: usize, chain: &[u64]) -> usize {
        chain.iter().take_while(|hash| self.replicas[replica].blocks.contains_key(hash)).count()
    }

    pub fn confirmed(&self, replica: usize, chain: &[u64]) -> usize {
        let blocks = &self.replicas[replica].blocks;
        chain.iter().take_while(|hash| blocks.get(hash).is_some_and(|held| held.confirmed)).count()
    }

    pub fn place(&mut self, at: usize, chain: &[u64]) -> Placed {
        let replica = &mut self.replicas[at];
        let depth = chain.len().min(replica.capacity);
        let before = replica.blocks.len();
        let mut parent = None;
        for hash in &chain[..depth] {
            if !replica.blocks.contains_key(hash) {
                replica.blocks.insert(*hash, Held { parent, ..Held::default() });
                if let Some(parent) = parent {
                    replica.blocks.get_mut(&parent).unwrap().children += 1;
                }
            }
            parent = Some(*hash);
        }
        let added = replica.blocks.len() - before;
        self.touch(at, &chain[..depth], |pins| pins + 1);
        self.evict(at, added + EVICTED_AT_ONCE);
        Placed { replica: at, depth }
    }

    pub fn confirm(&mut self, placed: &Placed, chain: &[u64]) {
        for hash in &chain[..placed.depth] {
            if let Some(held) = self.replicas[placed.replica].blocks.get_mut(hash) {
                held.confirmed = true;
            }
        }
    }

    pub fn finish(&mut self, placed: Placed, chain: &[u64]) {
        self.touch(placed.replica, &chain[..placed.depth], |pins| pins - 1);
        self.evict(placed.replica, EVICTED_AT_ONCE);
    }

    pub fn withdraw(&mut self, placed: Placed, chain: &[u64]) {
        self.touch(placed.replica, &chain[..placed.depth], |pins| pins - 1);
        for hash in chain[..placed.depth].iter().rev() {
            let held = self.replicas[placed.replica].blocks.get(hash);
            if held.is_none_or(|held| held.confirmed || held.pins > 0 || held.children > 0) {
                break;
            }
            self.drop(placed.replica, *hash);
        }
        self.evict(placed.replica, EVICTED_AT_ONCE);
    }

    fn touch(&mut self, at: usize, chain: &[u64], pins: impl Fn(u32) -> u32) {
        self.clock += 1;
        let replica = &mut self.replicas[at];
        for (place, hash) in chain.iter().enumerate() {
            let Some(held) = replica.blocks.get_mut(hash) else { continue };
            replica.order.remove(&(held.used, *hash));
            held.pins = pins(held.pins);
            held.used = (self.clock, chain.len() - place);
            if held.pins == 0 {
                replica.order.insert((held.used, *hash));
            }
        }
    }

    fn evict(&mut self, at: usize, most: usize) {
        for _ in 0..most {
            let replica = &self.replicas[at];
            if replica.blocks.len() <= replica.capacity {
                return;
            }
            let Some(&(_, oldest)) = replica.order.first() else { return };
            self.drop(at, oldest);
            self.evicted += 1;
        }
    }

    fn drop(&mut self, at: usize, hash: u64) {
        let replica = &mut self.replicas[at];
        let held = replica.blocks.remove(&hash).unwrap();
        assert_eq!((held.pins, held.children), (0, 0), "only an unpinned leaf goes");
        replica.order.remove(&(held.used, hash));
        if let Some(parent) = held.parent {
            replica.blocks.get_mut(&parent).unwrap().children -= 1;
        }
    }
}
