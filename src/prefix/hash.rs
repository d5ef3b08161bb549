//! Tokens → chain of block hashes: equal hash at a depth means equal prompt up to there.
//!
//! Text that no tokenizer reads counts as 4 bytes a token, under another [`root`], so the two never meet.
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;
/// Bytes of text that count as one token, where no tokenizer tells.
pub const TOKEN_BYTES: usize = 4;

/// What the numbers in a chain are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The engine's token ids.
    Tokens,
    /// Bytes of canonical text, [`TOKEN_BYTES`] a token.
    Text,
}

/// The parent of a chain's first block: only prompts with all of this in common share blocks. No seed: the same in
/// every process.
pub fn root(basis: Basis, model: &str, adapter: Option<&str>, salt: Option<&str>) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[basis as u8]);
    for part in [Some(model), adapter, salt] {
        hash.update(&[part.is_some().into()]);
        hash.update(&(part.map_or(0, str::len) as u64).to_le_bytes());
        hash.update(part.unwrap_or_default().as_bytes());
    }
    hash.digest()
}

/// A block's hash: of its parent's and its tokens (xxh3-64 over 72 bytes).
fn extend(parent: u64, tokens: &[u32; BLOCK_TOKENS]) -> u64 {
    let mut input = [0; 8 + 4 * BLOCK_TOKENS];
    input[..8].copy_from_slice(&parent.to_le_bytes());
    for (at, token) in tokens.iter().enumerate() {
        input[8 + 4 * at..12 + 4 * at].copy_from_slice(&token.to_le_bytes());
    }
    xxh3_64(&input)
}

/// A chain under construction; cheap to clone as far as it has come, to go on from there later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    root: u64,
    hashes: Vec<u64>,
    open: [u32; BLOCK_TOKENS],
    filled: usize,
    bytes: [u8; TOKEN_BYTES],
    pending: usize,
}

impl Chain {
    /// An empty chain.
    pub fn new(root: u64) -> Self {
        Self { root, hashes: Vec::new(), open: [0; BLOCK_TOKENS], filled: 0, bytes: [0; TOKEN_BYTES], pending: 0 }
    }

    /// A chain that goes on after `hashes`, with `open` (fewer than [`BLOCK_TOKENS`]) tokens of the next block known.
    pub fn resume(root: u64, hashes: Vec<u64>, open: &[u32]) -> Self {
        let mut chain = Self { hashes, ..Self::new(root) };
        chain.push(open);
        chain
    }

    /// Adds tokens.
    pub fn push(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.open[self.filled] = token;
            self.filled += 1;
            if self.filled == BLOCK_TOKENS {
                let parent = self.hashes.last().copied().unwrap_or(self.root);
                self.hashes.push(extend(parent, &self.open));
                self.filled = 0;
            }
        }
    }

    /// Adds text, [`TOKEN_BYTES`] a token.
    pub fn push_text(&mut self, text: &[u8]) {
        for &byte in text {
            self.bytes[self.pending] = byte;
            self.pending += 1;
            if self.pending == TOKEN_BYTES {
                self.pending = 0;
                self.push(&[u32::from_le_bytes(self.bytes)]);
            }
        }
    }

    /// Hashes of the whole blocks so far.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Tokens of the block that is not whole yet.
    pub fn open(&self) -> &[u32] {
        &self.open[..self.filled]
    }

    /// Tokens so far; a started one of text counts.
    pub fn tokens(&self) -> usize {
        self.hashes.len() * BLOCK_TOKENS + self.filled + usize::from(self.pending > 0)
    }

    /// The whole blocks' hashes; what does not fill a block is left out, as in the engines.
    pub fn finish(self) -> Vec<u64> {
        self.hashes
    }
}
