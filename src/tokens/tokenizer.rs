//! A model's own tokenizer: text → the ids that its engine makes of it.
//!
//! It reads `tokenizer.json` as the `tokenizers` library writes it, and keeps to what Python `transformers` does with
//! such a file: neither truncates nor pads. One instance serves all threads.
use std::borrow::Cow;
use std::path::Path;

use tokenizers::pipeline::{
    Model, PipelineModel, PipelineNormalizer, PipelineToken, PipelineTokenizer, PreTokenizer, PreTokenizerScratch,
    Segment, Span, SpecialSegmentIterator, normalize_all,
};

use super::cuts::CutPoints;
use super::encoder::LoadError;
use super::pool::Pool;

/// Tokens that a buffer may keep room for between two calls (512 KiB).
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
    /// Whether its normalizers are forms of Unicode, and no others.
    forms_only: bool,
    scratches: Pool<Scratch>,
}

/// What encoding works with; the model's part remembers words.
#[derive(Default)]
struct Scratch {
    model: <PipelineModel as Model>::Scratch,
    split: PreTokenizerScratch,
    words: Vec<Span>,
    tokens: Vec<PipelineToken>,
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
        let forms_only = inner.get_normalizers().iter().all(is_form);
        Ok(Self { inner, cuts, prefix, suffix, forms_only, scratches: Pool::default() })
    }

    /// Appends the ids of `text` to `out`; with `add_special_tokens` between [`Tokenizer::prefix`] and
    /// [`Tokenizer::suffix`]. The text of an added token always becomes that token, as engines have it.
    ///
    /// # Errors
    /// When the tokenizer's model can't take the text, such as one without an unknown token that lacks a byte.
    pub fn encode(&self, text: &str, add_special_tokens: bool, out: &mut Vec<u32>) -> Result<(), EncodeError> {
        self.scratches.with(
            || Scratch { model: self.inner.get_model().init_scratch(), ..Scratch::default() },
            |scratch| {
                scratch.tokens.clear();
                self.encode_into(text, scratch).map_err(|e| EncodeError(e.to_string()))?;
                let tokens = &mut scratch.tokens;
                let (prefix, suffix) =
                    if add_special_tokens { (&*self.prefix, &*self.suffix) } else { (&[][..], &[][..]) };
                out.reserve(prefix.len() + tokens.len() + suffix.len());
                out.extend_from_slice(prefix);
                out.extend_from_slice(PipelineToken::cast_slice(tokens));
                out.extend_from_slice(suffix);
                tokens.shrink_to(KEPT);
                Ok(())
            },
        )
    }

    /// What the library's own `encode_into` does, step by step, but for what makes no difference: forms of Unicode are
    /// asked only about what is not ASCII.
    fn encode_into(&self, text: &str, scratch: &mut Scratch) -> tokenizers::Result<()> {
        let (added, normalizers) = (self.inner.get_added_vocabulary(), self.inner.get_normalizers());
        for segment in SpecialSegmentIterator::new(text, added, false, false) {
            let (text, offset) = match segment {
                Segment::SpecialToken(token) => {
                    scratch.tokens.push(token.into());
                    continue;
                }
                Segment::Text { text, input_offset } => (text, input_offset),
            };
            let text = if self.forms_only && has_form(normalizers, text) {
                Cow::Borrowed(text)
            } else {
                normalize_all(normalizers, text, offset)?
            };
            for segment in SpecialSegmentIterator::new(&text, added, true, false) {
                match segment {
                    Segment::SpecialToken(token) => scratch.tokens.push(token.into()),
                    Segment::Text { text, .. } => self.encode_plain(text, scratch)?,
                }
            }
        }
        Ok(())
    }

    /// Encodes a normalized text without added tokens.
    fn encode_plain(&self, text: &str, scratch: &mut Scratch) -> tokenizers::Result<()> {
        if u32::try_from(text.len()).is_err() {
            return Err("the text is too long".into());
        }
        let Scratch { model, split, words, tokens } = scratch;
        words.clear();
        self.inner.get_pre_tokenizer().pre_tokenize(text, split, words)?;
        tokens.reserve(words.len());
        self.inner.get_model().tokenize_spans(text, words, model, tokens)
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

/// Whether a normalizer is a form of Unicode: it leaves ASCII as it is, and what stands on both sides of it apart.
fn is_form(normalizer: &PipelineNormalizer) -> bool {
    use PipelineNormalizer::{NFC, NFD, NFKC, NFKD};
    matches!(normalizer, NFC(_) | NFD(_) | NFKC(_) | NFKD(_))
}

/// Whether forms of Unicode leave a text as it is, for all that can be told without a tour through all of it: they are
/// asked about each run of characters that are not ASCII.
fn has_form(forms: &[PipelineNormalizer], text: &str) -> bool {
    let mut rest = text;
    while let Some(start) = not_ascii(rest.as_bytes()) {
        let run = &rest[start..];
        let (run, after) = run.split_at(run.bytes().position(|byte| byte.is_ascii()).unwrap_or(run.len()));
        if !matches!(normalize_all(forms, run, 0), Ok(Cow::Borrowed(_))) {
            return false;
        }
        rest = after;
    }
    true
}

/// Where the first byte stands that is not ASCII.
fn not_ascii(text: &[u8]) -> Option<usize> {
    const STEP: usize = 64;
    let ascii = text.chunks(STEP).take_while(|step| step.is_ascii()).count() * STEP;
    text.get(ascii..)?.iter().position(|byte| !byte.is_ascii()).map(|at| ascii + at)
}

#[cfg(test)]
mod tests;
