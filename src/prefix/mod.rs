//! Prompts as chains of blocks, and who holds which: pure, like `routing`.
//!
//! `hash` makes the chains; `index` knows the replicas' caches by what was sent there, `truth` by what they tell.
mod common;
mod hash;
mod index;
mod slab;
#[cfg(test)]
mod tests;
mod truth;

pub use hash::{BLOCK_TOKENS, Basis, Chain, TOKEN_BYTES, root};
pub use index::{Dump, DumpHolder, DumpRun, Index, Placement, Slot, Stats};
pub use truth::{Held, Stored, Tier, Truth, TruthStats, Unstored};
