//! One request of a workload, with what its tokens are, before anyone has placed it.
use crate::prefix::BLOCK_TOKENS;

/// A stretch of content: the token at `offset` of one seed is the same wherever the seed stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Names the content.
    pub seed: u64,
    /// Its length.
    pub tokens: u32,
}

/// One request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Call {
    /// Tells it from the workload's other calls: what is drawn for it is the same whoever places it, and when.
    pub number: u64,
    /// What it belongs to: the number of its conversation, document or session.
    pub key: u64,
    /// The session that its client names, if it does.
    pub session: Option<u64>,
    /// A header that a balancer could hash, if there is one.
    pub header: Option<u64>,
    /// Prompt, then output; together as long as both.
    pub segments: Vec<Segment>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Where the last answer in the prompt begins and ends, in tokens.
    pub answer: Option<(u32, u32)>,
    /// Leading tokens that all calls of the workload have in common.
    pub common_tokens: u32,
    /// Leading tokens that the next call of the same key begins with at least.
    pub lasting_tokens: u32,
}

impl Call {
    /// Chained hashes of the whole blocks of prompt and output: equal hashes, equal content up to there.
    #[must_use]
    pub fn blocks(&self) -> Vec<u64> {
        let total = u64::from(self.prompt_tokens) + u64::from(self.output_tokens);
        let count = (total / BLOCK_TOKENS as u64) as usize;
        let mut blocks = Vec::with_capacity(count);
        let (mut parent, mut filled) = (ROOT, 0);
        for segment in &self.segments {
            let mut offset = 0;
            while offset < segment.tokens {
                let taken = (BLOCK_TOKENS as u32 - filled).min(segment.tokens - offset);
                // What stands in the block: so many tokens of this content, from this place on.
                let piece = segment.seed ^ (u64::from(offset) << 8 | u64::from(taken)).wrapping_mul(ODD);
                parent = mix(parent, piece);
                (offset, filled) = (offset + taken, filled + taken);
                if filled == BLOCK_TOKENS as u32 {
                    blocks.push(parent);
                    filled = 0;
                }
            }
        }
        blocks.truncate(count);
        blocks
    }

    /// How many of [`Self::blocks`] are the prompt's.
    #[must_use]
    pub fn prompt_blocks(&self) -> usize {
        self.prompt_tokens as usize / BLOCK_TOKENS
    }

    /// Ids for the prompt's tokens, for an engine that is told them: equal where the content is, below `vocabulary`.
    #[must_use]
    pub fn prompt_ids(&self, vocabulary: u32) -> Vec<u32> {
        let id = |seed, offset: u32| (mix(seed, offset.into()) % u64::from(vocabulary.max(1))) as u32;
        let ids = self.segments.iter().flat_map(|part| (0..part.tokens).map(move |offset| id(part.seed, offset)));
        ids.take(self.prompt_tokens as usize).collect()
    }

    /// Most tokens that can come out of a cache: whole blocks, and the last token is always computed.
    #[must_use]
    pub fn most_cached(&self) -> u32 {
        self.prompt_tokens.saturating_sub(1) / BLOCK_TOKENS as u32 * BLOCK_TOKENS as u32
    }
}

const ROOT: u64 = 0x7761_726d_726f_7574;
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// One number out of two, well spread (the folded multiplication of wyhash).
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ ODD) * u128::from(b ^ 0xd1b5_4a32_d192_ed03);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(segments: &[(u64, u32)], prompt: u32) -> Call {
        let segments: Vec<_> = segments.iter().map(|&(seed, tokens)| Segment { seed, tokens }).collect();
        let total: u32 = segments.iter().map(|segment| segment.tokens).sum();
        Call { segments, prompt_tokens: prompt, output_tokens: total - prompt, ..Call::default() }
    }

    #[test]
    fn blocks_are_equal_as_far_as_the_content_is() {
        let (a, b) = (call(&[(1, 40), (2, 60)], 100).blocks(), call(&[(1, 40), (3, 60)], 100).blocks());
        assert_eq!((a.len(), b.len()), (6, 6));
        assert_eq!(a[..2], b[..2]);
        assert!(a[2..].iter().all(|hash| !b.contains(hash)), "one token apart is another chain from there on");
    }

    #[test]
    fn a_longer_prompt_begins_with_the_blocks_of_a_shorter_one() {
        let (short, long) = (call(&[(1, 40), (2, 30)], 60), call(&[(1, 40), (2, 300)], 200));
        assert!(long.blocks().starts_with(&short.blocks()));
        assert_eq!((short.prompt_blocks(), short.blocks().len(), short.most_cached()), (3, 4, 48));
        assert_eq!(call(&[(1, 64)], 64).most_cached(), 48, "the last token is computed");
    }
}
