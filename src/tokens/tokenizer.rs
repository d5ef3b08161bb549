//! A model's own tokenizer: text → the ids that its engine makes of it.
//!
//! It reads `tokenizer.json` as the `tokenizers` library writes it, and keeps to what Python `transformers` does with
//! such a file: neither truncates nor pads. One instance serves all threads.
use std::cell::RefCell;
use std::path::Path;

use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer};

use super::cuts::CutPoints;
use super::encoder::LoadError;

/// Tokens that a thread's buffer may keep room for between two calls (512 KiB).
const KEPT: usize = 128 * 1024;

/// A text that the tokenizer can't encode; the text says why.
#[derive(Debug, thiserror::Error)]
#[error("the tokenizer failed: {0}")]
pub struct EncodeError(pub String);

/// A loaded `tokenizer.json`.
pub struct Tokenizer {
    inner: PipelineTokenizer,
    cuts: CutPoints,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("cuts", &self.cuts).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` from a folder. A large one takes about a second.
    ///
    /// # Errors
    /// When the file is missing, is not JSON to its end, is not a tokenizer, or asks for a component that isn't
    /// supported; the text names file and cause.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        let file = folder.join("tokenizer.json");
        let named = |cause: String| LoadError(format!("{} {cause}", file.display()));
        let bytes = std::fs::read(&file).map_err(|e| named(format!("cannot be read: {e}")))?;
        let mut json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| {
            named(match e.classify() {
                serde_json::error::Category::Eof => {
                    format!("ends too early, at line {}: is it a whole copy?", e.line())
                }
                _ => format!("is not JSON: {e}"),
            })
        })?;
        drop(bytes);
        tokenizers::canonicalize_value(&mut json).map_err(|e| named(format!("is not a tokenizer: {e}")))?;
        // The tree is many times as large as its text, and what is built from that is large for a moment, too.
        let text = json.to_string();
        drop(json);
        let inner =
            tokenizers::from_json(&text).map_err(|e| named(format!("is not a tokenizer that can be used: {e}")))?;
        let cuts = CutPoints::new(&inner);
        let frame = &inner.get_post_processor().single;
        let ids = |run: &[(PipelineToken, u8)]| run.iter().map(|(token, _)| token.id()).collect();
        let (prefix, suffix) = (ids(&frame.prefix), ids(&frame.suffix));
        Ok(Self { inner, cuts, prefix, suffix })
    }

    /// Appends the ids of `text` to `out`; with `add_special_tokens` between [`Tokenizer::prefix`] and
    /// [`Tokenizer::suffix`]. The text of an added token always becomes that token, as engines have it.
    ///
    /// # Errors
    /// When the tokenizer's model can't take the text, such as one without an unknown token that lacks a byte.
    pub fn encode(&self, text: &str, add_special_tokens: bool, out: &mut Vec<u32>) -> Result<(), EncodeError> {
        thread_local! {
            static TOKENS: RefCell<Vec<PipelineToken>> = const { RefCell::new(Vec::new()) };
        }
        // The frame is added here: the library would go a slower way, which copies the text.
        let options = EncodeOptions {
            add_special_tokens: false,
            encode_special_tokens: false,
            padding: Override::Off,
            truncation: Override::Off,
        };
        TOKENS.with_borrow_mut(|tokens| {
            tokens.clear();
            self.inner.encode_into(text, &options, tokens).map_err(|e| EncodeError(e.to_string()))?;
            let (prefix, suffix) = if add_special_tokens { (&*self.prefix, &*self.suffix) } else { (&[][..], &[][..]) };
            out.reserve(prefix.len() + tokens.len() + suffix.len());
            out.extend_from_slice(prefix);
            out.extend_from_slice(PipelineToken::cast_slice(tokens));
            out.extend_from_slice(suffix);
            tokens.shrink_to(KEPT);
            Ok(())
        })
    }

    /// Ids that `add_special_tokens` puts before a text.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// Ids that `add_special_tokens` puts after a text.
    pub fn suffix(&self) -> &[u32] {
        &self.suffix
    }

    /// Where encoding may be resumed.
    pub fn cut_points(&self) -> &CutPoints {
        &self.cuts
    }
}

#[cfg(test)]
mod tests;
