//! Prompts as chains of blocks, and who holds which: pure, like `routing`.
//!
//! `hash` makes the chains, `index` knows the replicas' caches.
mod hash;
mod index;
#[cfg(test)]
mod tests;

pub use hash::{BLOCK_TOKENS, Basis, Chain, TOKEN_BYTES, root};
pub use index::{Dump, DumpHolder, DumpRun, Index, Placement, Slot, Stats};
