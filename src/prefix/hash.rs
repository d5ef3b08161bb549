//! Tokens → chain of block hashes: equal hash at a depth means equal prompt up to there.
//!
//! Text that no tokenizer reads counts as 4 bytes a token, under another [`root`], so the two never meet.
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 16;
/// Bytes of text that count as one token, where no tokenizer tells.
pub const TOKEN_BYTES: usize = 4;

const BLOCK_BYTES: usize = BLOCK_TOKENS * TOKEN_BYTES;

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

/// A block's hash: of its parent's and its tokens, each in 4 bytes, little end first (xxh3-64 over 72 bytes).
fn extend(parent: u64, block: &[u8; BLOCK_BYTES]) -> u64 {
    let mut input = [0; 8 + BLOCK_BYTES];
    input[..8].copy_from_slice(&parent.to_le_bytes());
    input[8..].copy_from_slice(block);
    xxh3_64(&input)
}

/// The hash of the block of these tokens after `parent`, which is a block's hash or a [`root`].
pub(super) fn next(parent: u64, tokens: &[u32; BLOCK_TOKENS]) -> u64 {
    extend(parent, &bytes(tokens))
}

/// A block's hash where it is made of more than its tokens, as of an image: it equals none without.
pub(super) fn marked(hash: u64, mark: u64) -> u64 {
    xxh3_64_with_seed(&mark.to_le_bytes(), hash)
}

fn bytes(tokens: &[u32; BLOCK_TOKENS]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    for (bytes, token) in block.as_chunks_mut::<TOKEN_BYTES>().0.iter_mut().zip(tokens) {
        *bytes = token.to_le_bytes();
    }
    block
}

/// A chain under construction; cheap to clone as far as it has come, to go on from there later.
#[derive(Debug, Clone)]
pub struct Chain {
    root: u64,
    hashes: Vec<u64>,
    open: [u32; BLOCK_TOKENS],
    filled: usize,
    /// The token of text that is not whole yet; zero beyond `pending`.
    bytes: [u8; TOKEN_BYTES],
    pending: usize,
}

impl PartialEq for Chain {
    fn eq(&self, other: &Self) -> bool {
        let state = |chain: &Self| (chain.root, chain.pending, chain.bytes);
        state(self) == state(other) && self.open() == other.open() && self.hashes == other.hashes
    }
}

impl Eq for Chain {}

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

    /// Adds tokens. A started token of text before them is closed first, as if zeros filled it.
    pub fn push(&mut self, tokens: &[u32]) {
        self.close();
        let mut rest = tokens;
        if self.filled > 0 {
            let (first, later) = rest.split_at(rest.len().min(BLOCK_TOKENS - self.filled));
            self.open[self.filled..self.filled + first.len()].copy_from_slice(first);
            self.filled += first.len();
            if self.filled < BLOCK_TOKENS {
                return;
            }
            self.block(&bytes(&self.open));
            self.filled = 0;
            rest = later;
        }
        let (blocks, rest) = rest.as_chunks::<BLOCK_TOKENS>();
        self.hashes.reserve(blocks.len());
        let mut parent = self.parent();
        self.hashes.extend(blocks.iter().map(|block| {
            parent = extend(parent, &bytes(block));
            parent
        }));
        self.open[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// Adds text, [`TOKEN_BYTES`] a token. In however many pieces a text is added, the chain is the same.
    pub fn push_text(&mut self, text: &[u8]) {
        let mut rest = text;
        if self.pending > 0 {
            let (first, later) = rest.split_at(rest.len().min(TOKEN_BYTES - self.pending));
            self.bytes[self.pending..self.pending + first.len()].copy_from_slice(first);
            self.pending += first.len();
            if self.pending < TOKEN_BYTES {
                return;
            }
            self.close();
            rest = later;
        }
        if self.filled > 0 {
            let (first, later) = rest.split_at(rest.len().min((BLOCK_TOKENS - self.filled) * TOKEN_BYTES));
            self.push_tokens_of(first);
            if later.is_empty() {
                return;
            }
            rest = later;
        }
        // Text's tokens are its bytes, so whole blocks are hashed as they stand.
        let (blocks, rest) = rest.as_chunks::<BLOCK_BYTES>();
        self.hashes.reserve(blocks.len());
        let mut parent = self.parent();
        self.hashes.extend(blocks.iter().map(|block| {
            parent = extend(parent, block);
            parent
        }));
        self.push_tokens_of(rest);
    }

    /// Adds something that is neither tokens nor text, such as an image: two tokens made of its id. What comes before
    /// it is shared by prompts with another one in its place.
    pub fn push_mark(&mut self, id: &[u8]) {
        // How far the text before it had come into its last token, since closing that makes "a" and "a\0" equal.
        let hash = xxh3_64_with_seed(id, self.pending as u64);
        self.push(&[hash as u32, (hash >> 32) as u32]);
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

    fn parent(&self) -> u64 {
        self.hashes.last().copied().unwrap_or(self.root)
    }

    fn block(&mut self, block: &[u8; BLOCK_BYTES]) {
        self.hashes.push(extend(self.parent(), block));
    }

    /// Ends a started token of text.
    fn close(&mut self) {
        if self.pending > 0 {
            self.pending = 0;
            let token = u32::from_le_bytes(std::mem::take(&mut self.bytes));
            self.push(&[token]);
        }
    }

    /// Adds text that at most fills the open block; the last bytes may be less than a token.
    fn push_tokens_of(&mut self, text: &[u8]) {
        let (tokens, started) = text.as_chunks::<TOKEN_BYTES>();
        for token in tokens {
            self.push(&[u32::from_le_bytes(*token)]);
        }
        self.bytes[..started.len()].copy_from_slice(started);
        self.pending = started.len();
    }
}
