//! Text → chain of block hashes.
use xxhash_rust::xxh3::Xxh3;

/// Bytes of text that count as one token, where no tokenizer tells.
const TOKEN_BYTES: usize = 4;
/// Tokens of a block.
pub const BLOCK_TOKENS: usize = 64;
const BLOCK_BYTES: usize = BLOCK_TOKENS * TOKEN_BYTES;

/// A chain under construction. Texts are joined with a mark between them, so that where one ends makes a difference.
#[derive(Debug, Default)]
pub struct Chain {
    hashes: Vec<u64>,
    open: Vec<u8>,
}

impl Chain {
    /// Begins a chain that only prompts for the same `root` (the model) share.
    pub fn new(root: &str) -> Self {
        let mut chain = Self::default();
        chain.add(root.as_bytes());
        chain.add(&[0]);
        chain
    }

    /// Adds text.
    pub fn add(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let (now, later) = text.split_at(text.len().min(BLOCK_BYTES - self.open.len()));
            self.open.extend_from_slice(now);
            text = later;
            if self.open.len() == BLOCK_BYTES {
                let mut hash = Xxh3::new();
                hash.update(&self.hashes.last().copied().unwrap_or_default().to_le_bytes());
                hash.update(&self.open);
                self.hashes.push(hash.digest());
                self.open.clear();
            }
        }
    }

    /// The whole blocks' hashes; what does not fill a block is left out, as in the engines.
    pub fn finish(self) -> Vec<u64> {
        self.hashes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(parts: &[&[u8]]) -> Vec<u64> {
        let mut chain = Chain::new("m");
        parts.iter().for_each(|part| chain.add(part));
        chain.finish()
    }

    proptest! {
        #[test]
        fn chains_are_equal_as_far_as_the_texts_are(
            common in prop::collection::vec(any::<u8>(), 0..2_000),
            a in prop::collection::vec(any::<u8>(), 0..600),
            b in prop::collection::vec(any::<u8>(), 0..600),
            split in 0usize..2_000,
        ) {
            let (left, right) = common.split_at(split.min(common.len()));
            let (one, two) = (chain(&[left, right, &a]), chain(&[&common, &b]));
            let shared = common.len() + a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            let equal = one.iter().zip(&two).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(equal, ((shared + 2) / BLOCK_BYTES).min(one.len()).min(two.len()));
            // Past the first difference nothing is equal any more.
            prop_assert!(one.iter().zip(&two).skip(equal).all(|(a, b)| a != b));
        }
    }

    #[test]
    fn another_model_shares_nothing() {
        let text = vec![b'x'; 4 * BLOCK_BYTES];
        let mut other = Chain::new("n");
        other.add(&text);
        assert!(chain(&[&text]).iter().zip(other.finish()).all(|(a, b)| *a != b));
    }
}
