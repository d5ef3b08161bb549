//! Tests of what engines tell.
mod events;
mod model;
mod oracle;
mod pages;
mod sweeps;

use super::*;

/// A root like any.
const ROOT: u64 = 7;
/// More than any of these tests needs.
const ROOM: usize = usize::MAX / 2;

/// An engine's blocks of one prompt, as it tells of them.
#[derive(Debug, Clone)]
struct Engine {
    seed: u64,
    size: usize,
    tokens: Vec<u32>,
    extras: Vec<Option<u64>>,
}

impl Engine {
    /// Of tokens that go their own way from the first one on.
    fn new(seed: u64, size: usize, tokens: &[u32]) -> Self {
        Self { seed, size, tokens: tokens.to_vec(), extras: Vec::new() }
    }

    /// The engine's hash of each block.
    fn hashes(&self) -> Vec<u64> {
        let chain = self.tokens.chunks_exact(self.size).enumerate().scan(self.seed, |parent, (at, tokens)| {
            let own = tokens.iter().fold(*parent, |hash, &token| xxh(hash, token.into()));
            *parent = xxh(own, self.extras.get(at).copied().flatten().unwrap_or_default());
            Some(*parent)
        });
        chain.collect()
    }

    /// Tells of blocks `range`.
    fn store(
        &self,
        truth: &mut Truth,
        at: usize,
        range: std::ops::Range<usize>,
        tier: Tier,
    ) -> Result<usize, Unstored> {
        let hashes = self.hashes();
        truth.store(
            at,
            &Stored {
                root: ROOT,
                parent: range.start.checked_sub(1).map(|before| hashes[before]),
                hashes: &hashes[range.clone()],
                tokens: &self.tokens[range.start * self.size..range.end * self.size],
                block_size: self.size as u32,
                tier,
                extras: self.extras.get(range.start..).unwrap_or_default(),
            },
        )
    }

    /// Tells of all blocks, on the device.
    fn store_all(&self, truth: &mut Truth, at: usize) -> Result<usize, Unstored> {
        self.store(truth, at, 0..self.tokens.len() / self.size, Tier::Device)
    }

    fn remove(&self, truth: &mut Truth, at: usize, range: std::ops::Range<usize>, tier: Tier) -> usize {
        truth.remove(at, tier, &self.hashes()[range])
    }

    /// The prompt as a client would send it.
    fn chain(&self) -> Vec<u64> {
        let mut chain = Chain::new(ROOT);
        chain.push(&self.tokens);
        chain.finish()
    }
}

fn xxh(hash: u64, with: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&with.to_le_bytes(), hash)
}

/// `blocks` own blocks of one prompt.
fn tokens(prompt: u32, blocks: usize) -> Vec<u32> {
    (0..(blocks * BLOCK_TOKENS) as u32).map(|at| prompt * 1000 + at).collect()
}

fn following(replicas: usize) -> Truth {
    let mut truth = Truth::new(ROOM);
    (0..replicas).for_each(|at| truth.follow(at));
    truth
}

/// (any, device) of one replica; whatever else is done, the parts must fit.
fn held(truth: &Truth, at: usize, chain: &[u64]) -> (u32, u32) {
    truth.check();
    let mut depths = vec![Held { any: 77, device: 77 }; 3];
    truth.lookup(chain, &mut depths);
    depths.get(at).map_or((0, 0), |held| (held.any, held.device))
}
