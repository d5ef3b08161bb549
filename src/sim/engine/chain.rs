//! Block hashes as the virtual engine keys them: a chain, so that equal hashes mean equal prefixes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The hash of one block of token ids behind `parent` (the hash of the block before it, or the root).
#[must_use]
pub fn block_hash(parent: u64, tokens: &[u32], scratch: &mut Vec<u8>) -> u64 {
    scratch.clear();
    scratch.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    xxh3_64_with_seed(scratch, parent)
}

/// The hash that the engine gives a block of generated tokens when its caller did not say what they are.
#[must_use]
pub fn derived_hash(parent: u64, depth: u32) -> u64 {
    xxh3_64_with_seed(&depth.to_le_bytes(), parent ^ 0x6f75_7470_7574_0001)
}

/// Hashes of the full blocks of `tokens`; a rest shorter than `block_size` has none.
///
/// `root` separates what must not be shared although its tokens are equal: a model, an adapter, a cache salt.
#[must_use]
pub fn hash_blocks(tokens: &[u32], block_size: u32, root: u64) -> Vec<u64> {
    let size = block_size.max(1) as usize;
    let mut scratch = Vec::with_capacity(size * 4);
    let mut parent = root;
    tokens
        .chunks_exact(size)
        .map(|block| {
            parent = block_hash(parent, block, &mut scratch);
            parent
        })
        .collect()
}
