//! A model engine: a block cache that evicts, clears and restarts, and a publisher with a ring of its last messages.
use std::collections::VecDeque;
use std::rc::Rc;

use fastrand::Rng;
use rmp::encode;

/// A published message, with what its bytes don't say.
#[derive(Debug, Clone)]
pub struct Message {
    pub life: u32,
    pub sequence: u64,
    pub changes: Rc<Vec<Change>>,
    bytes: Rc<Vec<u8>>,
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Stored { parent: Option<u64>, blocks: Vec<u64> },
    Removed(u64),
    Cleared,
}

#[derive(Debug)]
pub struct Engine {
    /// Counts restarts.
    pub life: u32,
    /// Blocks that it holds, with their parents; oldest use first.
    pub cache: Vec<(u64, Option<u64>)>,
    capacity: usize,
    /// Everything that this life published.
    pub published: Vec<Message>,
    /// Messages that a replay still has.
    pub ring: VecDeque<Message>,
    ring_size: usize,
}

impl Engine {
    pub fn new(capacity: usize, ring_size: usize) -> Self {
        let (cache, published, ring) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { life: 0, cache, capacity, published, ring, ring_size }
    }

    pub fn restart(&mut self) {
        *self = Self { life: self.life + 1, ..Self::new(self.capacity, self.ring_size) };
    }

    /// One step of the scheduler: a prompt is served and what it changes is published. `None` where nothing changes.
    pub fn serve(&mut self, now: f64, rng: &mut Rng) -> Option<Message> {
        let mut changes = Vec::new();
        let (mut parent, mut path) = (None, Vec::new());
        for _ in 0..rng.usize(1..6) {
            let block = child(parent, rng.u64(0..3));
            path.push((block, parent));
            parent = Some(block);
        }
        for &(block, parent) in &path {
            if self.holds(block) {
                continue;
            }
            match changes.last_mut() {
                Some(Change::Stored { blocks, .. }) if blocks.last().copied() == parent => blocks.push(block),
                _ => changes.push(Change::Stored { parent, blocks: vec![block] }),
            }
        }
        self.cache.retain(|held| !path.contains(held));
        self.cache.extend(path.into_iter().rev());
        while self.cache.len() > self.capacity {
            // The oldest that nothing builds on; now and then any.
            let builds_on = |block| self.cache.iter().any(|held| held.1 == Some(block));
            let at = match rng.u32(0..8) {
                0 => rng.usize(..self.cache.len()),
                _ => self.cache.iter().position(|held| !builds_on(held.0)).unwrap_or(0),
            };
            changes.push(Change::Removed(self.cache.remove(at).0));
        }
        (!changes.is_empty()).then(|| self.publish(changes, now))
    }

    fn holds(&self, block: u64) -> bool {
        self.cache.iter().any(|held| held.0 == block)
    }

    pub fn clear(&mut self, now: f64) -> Message {
        self.cache.clear();
        self.publish(vec![Change::Cleared], now)
    }

    fn publish(&mut self, changes: Vec<Change>, now: f64) -> Message {
        let bytes = Rc::new(pack(&changes, now));
        let sequence = self.published.len() as u64;
        let message = Message { life: self.life, sequence, changes: Rc::new(changes), bytes };
        self.published.push(message.clone());
        self.ring.push_back(message.clone());
        if self.ring.len() > self.ring_size {
            self.ring.pop_front();
        }
        message
    }
}

/// A block's name: equal names, equal prefix.
fn child(parent: Option<u64>, token: u64) -> u64 {
    parent.unwrap_or(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(token + 1).rotate_left(23)
}

/// As vLLM 0.10.2 writes it, with blocks of one token.
fn pack(changes: &[Change], now: f64) -> Vec<u8> {
    let mut out = Vec::new();
    encode::write_array_len(&mut out, 2).unwrap();
    encode::write_f64(&mut out, now).unwrap();
    encode::write_array_len(&mut out, changes.len() as u32).unwrap();
    for change in changes {
        match change {
            Change::Stored { parent, blocks } => {
                encode::write_array_len(&mut out, 7).unwrap();
                encode::write_str(&mut out, "BlockStored").unwrap();
                hashes(&mut out, blocks);
                match parent {
                    Some(parent) => drop(encode::write_uint(&mut out, *parent).unwrap()),
                    None => encode::write_nil(&mut out).unwrap(),
                }
                hashes(&mut out, &vec![1; blocks.len()]);
                encode::write_uint(&mut out, 1).unwrap();
                encode::write_nil(&mut out).unwrap();
                encode::write_str(&mut out, "GPU").unwrap();
            }
            Change::Removed(block) => {
                encode::write_array_len(&mut out, 3).unwrap();
                encode::write_str(&mut out, "BlockRemoved").unwrap();
                hashes(&mut out, &[*block]);
                encode::write_str(&mut out, "GPU").unwrap();
            }
            Change::Cleared => {
                encode::write_array_len(&mut out, 1).unwrap();
                encode::write_str(&mut out, "AllBlocksCleared").unwrap();
            }
        }
    }
    out
}

fn hashes(out: &mut Vec<u8>, hashes: &[u64]) {
    encode::write_array_len(out, hashes.len() as u32).unwrap();
    for &hash in hashes {
        encode::write_uint(out, hash).unwrap();
    }
}
