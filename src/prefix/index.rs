//! The index: which leading blocks of a prompt each replica holds, or is expected to.
use std::collections::{BTreeSet, HashMap};

/// One life of one replica in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    at: u16,
    life: u32,
}

impl Slot {
    /// Its place in the depths that [`Index::lookup`] fills in. Places of replicas that left are used again.
    pub fn at(self) -> usize {
        self.at.into()
    }
}

/// A prompt that was placed on a replica: its blocks are pinned there until [`Index::finish`] or [`Index::withdraw`].
#[derive(Debug)]
#[must_use]
pub struct Placement {
    slot: Slot,
    /// Leading blocks of the chain that were placed.
    depth: u32,
}

/// Figures of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// (block, replica) pairs.
    pub pairs: usize,
    /// Bytes of memory, its own estimate.
    pub bytes: usize,
    /// Pairs given back so far, to keep within capacity or bytes.
    pub evicted: u64,
}

#[derive(Debug, Default)]
struct Held {
    confirmed: bool,
    pins: u32,
    used: u64,
}

#[derive(Debug, Default)]
struct Replica {
    life: u32,
    present: bool,
    capacity: usize,
    blocks: HashMap<u64, Held>,
    order: BTreeSet<(u64, u64)>,
}

/// The index of one pool.
#[derive(Debug)]
pub struct Index {
    replicas: Vec<Replica>,
    max_bytes: usize,
    clock: u64,
    evicted: u64,
}

impl Index {
    /// An empty index of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { replicas: Vec::new(), max_bytes, clock: 0, evicted: 0 }
    }

    /// Changes its bound; what is over it goes, least recently used first.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// A replica joins, with an empty cache of so many blocks.
    pub fn add(&mut self, capacity: usize) -> Slot {
        let free = self.replicas.iter().position(|replica| !replica.present);
        let at = free.unwrap_or_else(|| {
            self.replicas.push(Replica::default());
            self.replicas.len() - 1
        });
        let life = self.replicas[at].life + 1;
        self.replicas[at] = Replica { life, present: true, capacity, ..Replica::default() };
        Slot { at: at as u16, life }
    }

    /// Changes a replica's capacity, in blocks.
    pub fn set_capacity(&mut self, slot: Slot, capacity: usize) {
        if let Some(replica) = self.replica(slot) {
            replica.capacity = capacity;
        }
    }

    /// A replica leaves, or lost its cache: from now on it holds nothing. What it held is swept later, in small steps.
    pub fn remove(&mut self, slot: Slot) {
        if let Some(replica) = self.replica(slot) {
            *replica = Replica { life: slot.life, ..Replica::default() };
        }
    }

    /// Sweeps up to `steps` holdings of replicas that left; whether there is more.
    pub fn sweep(&mut self, _steps: usize) -> bool {
        false
    }

    /// How many leading blocks of `chain` each replica holds: `depths[slot.at()]`. `depths` is resized and overwritten.
    pub fn lookup(&self, chain: &[u64], depths: &mut Vec<u32>) {
        depths.clear();
        depths.extend(
            self.replicas
                .iter()
                .map(|replica| chain.iter().take_while(|hash| replica.blocks.contains_key(hash)).count() as u32),
        );
    }

    /// Places a prompt: its blocks are the replica's most recently used ones, expected where they are new, and pinned.
    /// A chain longer than the replica's capacity is placed as far as that goes.
    pub fn place(&mut self, slot: Slot, chain: &[u64]) -> Placement {
        self.clock += 1;
        let clock = self.clock;
        let Some(replica) = self.replica(slot) else { return Placement { slot, depth: 0 } };
        let depth = chain.len().min(replica.capacity);
        for (at, hash) in chain[..depth].iter().enumerate() {
            let held = replica.blocks.entry(*hash).or_default();
            replica.order.remove(&(held.used, *hash));
            held.pins += 1;
            held.used = clock * 1_000_000 + (depth - at) as u64;
        }
        self.evict(slot);
        Placement { slot, depth: depth as u32 }
    }

    /// The replica has begun to answer: what was expected, and is still held, is there.
    pub fn confirm(&mut self, placement: &Placement, chain: &[u64]) {
        let Some(replica) = self.replica(placement.slot) else { return };
        for hash in chain.iter().take(placement.depth as usize) {
            if let Some(held) = replica.blocks.get_mut(hash) {
                held.confirmed = true;
            }
        }
    }

    /// The request has ended: its blocks are used once more, and may go from now on.
    pub fn finish(&mut self, placement: Placement, chain: &[u64]) {
        self.unpin(&placement, chain);
        self.evict(placement.slot);
    }

    /// The request never got there: what only it expected is taken back.
    pub fn withdraw(&mut self, placement: Placement, chain: &[u64]) {
        self.unpin(&placement, chain);
        let Some(replica) = self.replica(placement.slot) else { return };
        for hash in chain[..placement.depth as usize].iter().rev() {
            match replica.blocks.get(hash) {
                Some(held) if !held.confirmed && held.pins == 0 => {
                    replica.order.remove(&(held.used, *hash));
                    replica.blocks.remove(hash);
                }
                _ => break,
            }
        }
    }

    /// Its figures.
    pub fn stats(&self) -> Stats {
        let pairs = self.replicas.iter().map(|replica| replica.blocks.len()).sum();
        Stats { pairs, bytes: pairs * 64, evicted: self.evicted }
    }

    /// Blocks that a replica holds.
    pub fn held(&self, slot: Slot) -> usize {
        self.replicas
            .get(slot.at())
            .filter(|replica| replica.life == slot.life)
            .map_or(0, |replica| replica.blocks.len())
    }

    fn replica(&mut self, slot: Slot) -> Option<&mut Replica> {
        self.replicas.get_mut(slot.at()).filter(|replica| replica.present && replica.life == slot.life)
    }

    fn unpin(&mut self, placement: &Placement, chain: &[u64]) {
        self.clock += 1;
        let clock = self.clock;
        let Some(replica) = self.replica(placement.slot) else { return };
        for (at, hash) in chain[..placement.depth as usize].iter().enumerate() {
            if let Some(held) = replica.blocks.get_mut(hash) {
                held.pins -= 1;
                held.used = clock * 1_000_000 + (placement.depth as usize - at) as u64;
                if held.pins == 0 {
                    replica.order.insert((held.used, *hash));
                }
            }
        }
    }

    fn evict(&mut self, slot: Slot) {
        let mut evicted = 0;
        if let Some(replica) = self.replica(slot) {
            while replica.blocks.len() > replica.capacity {
                let Some((_, oldest)) = replica.order.pop_first() else { break };
                replica.blocks.remove(&oldest);
                evicted += 1;
            }
        }
        self.evicted += evicted;
    }
}
