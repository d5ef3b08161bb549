//! Where a text may be cut so that encoding its pieces one by one gives the ids of the whole.
//!
//! Added tokens are cut out of the text before it is normalized, split and merged. So a text may be cut just before
//! one, unless the token looks at what stands before it (`lstrip`, `single_word`) or is found only after
//! normalization. The tokenizer's own matcher finds them, from the text's start, so a match that overlaps another is
//! decided as it is in encoding.
use std::fmt;

use tokenizers::pipeline::{PipelinePatternMatcher, PipelineTokenizer};
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

/// A tokenizer's added tokens, as places to cut.
pub struct CutPoints {
    added: AddedVocabulary,
    /// Ids before which a text may be cut, ascending.
    before: Vec<u32>,
}

impl CutPoints {
    /// Those of a tokenizer.
    pub(super) fn new(tokenizer: &PipelineTokenizer) -> Self {
        let added = tokenizer.get_added_vocabulary().clone();
        let tokens = added.get_added_tokens_decoder();
        // Such a token is looked for up to the character after it, which a cut would hide.
        let looks_ahead = tokens.values().any(|token| token.single_word);
        let mut before: Vec<u32> = tokens
            .into_iter()
            .filter(|(_, token)| !token.normalized && !token.lstrip && !token.single_word)
            .filter(|(_, token)| {
                !looks_ahead || token.content.starts_with(|c: char| c.is_ascii_punctuation() && c != '_')
            })
            .map(|(id, _)| id)
            .collect();
        before.sort_unstable();
        Self { added, before }
    }

    /// Byte offsets in `text`, ascending, at each of which it may be cut: the ids of the piece before and of the piece
    /// after, both without special tokens around them, are together those of the whole. Neither 0 nor the text's end.
    pub fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let mut from = 0;
        std::iter::from_fn(move || {
            loop {
                let ((start, end), id) = self.added.extract_next(text.as_bytes(), from, false, false)?;
                from = end;
                if start > 0 && self.before.binary_search(&id).is_ok() {
                    return Some(start);
                }
            }
        })
    }

    /// Whether there is none in any text.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty()
    }
}

impl fmt::Debug for CutPoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CutPoints(before {} tokens)", self.before.len())
    }
}
