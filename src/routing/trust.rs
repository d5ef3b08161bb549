//! What engines report against what was expected of them.
use crate::prefix::BLOCK_TOKENS;

/// Tokens by which a prediction may be off and is still right: an engine's own blocks end elsewhere than ours, and it
/// always computes the last token.
pub const TOLERANCE: u32 = 2 * BLOCK_TOKENS as u32;

/// What an engine said of a request's prompt, in its own tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, what it found in its cache.
    pub cached_tokens: u32,
}

impl Reported {
    /// So many of the prompt's `tokens`, by the router's count, in the engine's: where a prompt's text is compared, the
    /// router only estimates.
    pub fn in_its_tokens(&self, matched: u32, tokens: u32) -> u32 {
        if tokens == self.prompt_tokens || tokens == 0 {
            return matched;
        }
        let scaled = u64::from(matched) * u64::from(self.prompt_tokens) / u64::from(tokens);
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }
}
