//! Tests of the prefix room: what it promises, seen from outside.
mod field;
mod hashing;
mod model;
mod oracle;
mod semantics;
mod truth;

use proptest::test_runner::{Config as Cases, RngSeed};

use super::*;

fn cases(cases: u32) -> Cases {
    Cases { cases, rng_seed: RngSeed::Fixed(0x5eed), failure_persistence: None, ..Cases::default() }
}

/// Blocks `from..to` of a prompt that goes its own way from its first block on.
fn blocks(prompt: u32, blocks: std::ops::Range<u32>) -> Vec<u64> {
    let mut chain = Chain::new(root(Basis::Tokens, "model", None, None));
    chain.push(&vec![prompt; BLOCK_TOKENS * blocks.end as usize]);
    chain.finish()[blocks.start as usize..].to_vec()
}

/// The first `shared` blocks of one prompt, then `own` of another's.
fn forked(shared: usize, prompt: u32, own: usize) -> Vec<u64> {
    let mut chain = Chain::new(root(Basis::Tokens, "model", None, None));
    chain.push(&vec![0; BLOCK_TOKENS * shared]);
    chain.push(&vec![prompt; BLOCK_TOKENS * own]);
    chain.finish()
}

fn depth(index: &Index, slot: Slot, chain: &[u64]) -> u32 {
    let mut depths = Vec::new();
    index.lookup(chain, &mut depths);
    depths[slot.at()]
}

/// A whole request that succeeds.
fn serve(index: &mut Index, slot: Slot, chain: &[u64]) {
    let placement = index.place(slot, chain);
    index.confirm(&placement, chain);
    index.finish(placement, chain);
}
