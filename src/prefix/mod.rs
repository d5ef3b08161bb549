//! Prompts as chains of block hashes, and who has seen which: pure, the same in every process.
//!
//! A block is a fixed number of bytes of a prompt's text, hashed together with the hash of the block before it; so equal
//! hashes at one depth mean equal text up to there. What stands here serves the estimate of a shadow policy; the index
//! that policies route by will take its place.
mod blocks;
mod seen;

pub use blocks::{BLOCK_TOKENS, Chain};
pub use seen::Seen;
