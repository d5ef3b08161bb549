//! A JSON text that comes in pieces, of which only the end matters.
//!
//! Engines report usage, and that they failed, at the top of an answer or of an event, and late in it. Of a text up to [`MOST`] bytes all is
//! kept and read; of a longer one the last [`KEEP`], and there a key is believed only where what follows it closes the
//! text exactly: nothing that a client wrote and an engine echoes (tools, schemas, metadata) stands so far out.
use std::sync::LazyLock;

use memchr::memmem::{Finder, FinderRev};
use serde::Deserialize;

use super::failure::Failure;

/// Longest text that is read whole, and most that is ever kept of one.
pub(super) const MOST: usize = 64 * 1024;
/// What is kept of a longer one.
const KEEP: usize = MOST / 2;
/// Keys of a longer text that are looked at, from its end.
const LOOKS: usize = 4;

/// The keys under which usage is reported, and errors. (In a string that a model wrote, quotes are escaped.) Each is
/// searched for by itself: an automaton for all four stops at every quote, which JSON is full of.
static KEYS: LazyLock<[Finder<'static>; 4]> =
    LazyLock::new(|| [&b"\"usage\""[..], b"\"meta_info\"", b"\"timings\"", b"\"error\""].map(Finder::new));
static LAST_USAGE: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new(b"\"usage\""));

/// Whether a text may report usage: whatever else is in it is not worth parsing.
pub(super) fn may_report(text: &[u8]) -> bool {
    KEYS.iter().any(|key| {
        key.find_iter(text).any(|at| {
            let value = text.get(at + key.needle().len()..).unwrap_or_default().trim_ascii_start();
            // SGLang writes `"usage":null` into every event of a completion.
            let object = |value: &[u8]| matches!(value.trim_ascii_start().first(), Some(b'{' | b'"'));
            value.strip_prefix(b":").is_some_and(object)
        })
    })
}

/// The end of a text.
#[derive(Debug, Default)]
pub(super) struct Document {
    bytes: Vec<u8>,
    length: usize,
}

impl Document {
    /// The next piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.length = self.length.saturating_add(piece.len());
        let mut piece = piece;
        if self.bytes.len() + piece.len() > MOST {
            piece = last(piece);
            let surplus = (self.bytes.len() + piece.len()).saturating_sub(KEEP).min(self.bytes.len());
            self.bytes.drain(..surplus);
        }
        let wanted = self.bytes.len() + piece.len();
        if wanted > self.bytes.capacity() {
            // As a vector grows by itself, but never beyond what may be kept.
            self.bytes.reserve_exact(wanted.next_power_of_two().min(MOST) - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
    }

    /// Whether anything has come.
    pub fn has_begun(&self) -> bool {
        self.length > 0
    }

    /// What it reports; the next one begins.
    pub fn read(&mut self) -> Option<Report> {
        if !self.has_begun() {
            return None;
        }
        let length = std::mem::take(&mut self.length);
        let report = read(&self.bytes, length);
        self.bytes.clear();
        report
    }

    /// Bytes that it takes up.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

/// The last bytes of a text: those that are looked at of one that is not read whole.
fn last(text: &[u8]) -> &[u8] {
    text.get(text.len().saturating_sub(KEEP)..).unwrap_or_default()
}

/// What a text of so many bytes reports, of which `end` is at least what matters.
pub(super) fn read(end: &[u8], length: usize) -> Option<Report> {
    if length <= MOST {
        // Most often it is in the last key of that name, and what stands before that need not be read.
        let last = LAST_USAGE.rfind(end).and_then(|at| from_usage_on(end.get(at..)?));
        if last.as_ref().is_some_and(Report::has_usage) {
            return last;
        }
        return may_report(end).then(|| serde_json::from_slice(json_of(end)).ok()).flatten();
    }
    let end = last(end).trim_ascii_end();
    let keys = LAST_USAGE.rfind_iter(end).take(LOOKS);
    // At the top of an answer; in the `response` of an event.
    let read_at = |at| ["{", "{\"response\":{"].iter().find_map(|opening| as_the_rest_of(opening, end.get(at..)?));
    keys.filter_map(read_at).next()
}

/// The rest of an answer, from the key `usage` at its top on. Its value is read where it stands.
fn from_usage_on(rest: &[u8]) -> Option<Report> {
    let value = rest.get(LAST_USAGE.needle().len()..)?.trim_ascii_start().strip_prefix(b":")?;
    // Checked once: not each key by itself.
    let value = str::from_utf8(value).ok()?;
    let mut values = serde_json::Deserializer::from_str(value).into_iter();
    let usage = values.next()?.ok()?;
    let others = value.get(values.byte_offset()..)?.trim_ascii();
    let report = match others.strip_prefix(',') {
        None if others == "}" => Report::default(),
        None => return None,
        Some(others) => as_the_rest_of("{", others.as_bytes())?,
    };
    Some(Report { usage, ..report })
}

fn as_the_rest_of(opening: &str, rest: &[u8]) -> Option<Report> {
    serde_json::from_slice(&[opening.as_bytes(), rest].concat()).ok()
}

/// A text that may be the line of an event.
fn json_of(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"data:").unwrap_or(text)
}

/// An answer, or an event of one, as far as usage is concerned.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Report {
    usage: Option<Counts>,
    /// The Responses API's events.
    response: Option<Inner>,
    /// Anthropic's `message_start`.
    message: Option<Inner>,
    /// SGLang's `/generate`.
    meta_info: Option<Counts>,
    timings: Option<Timings>,
    error: Option<Failure>,
}

#[derive(Debug, Deserialize)]
struct Inner {
    usage: Option<Counts>,
    /// Of a response that failed.
    error: Option<Failure>,
}

/// Counts under all the names that they have.
#[derive(Debug, Default, Deserialize)]
struct Counts {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
    input_tokens: Option<u32>,
    output_tokens: Option<u32>,
    input_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<u32>,
    cache_creation_input_tokens: Option<u32>,
    cached_tokens: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// llama.cpp's, in the last event of a stream whether usage is asked for or not.
#[derive(Debug, Deserialize)]
struct Timings {
    cache_n: Option<u32>,
    prompt_n: Option<u32>,
    predicted_n: Option<u32>,
}

/// What is known of an answer so far.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Known {
    /// The engine has said that it failed.
    pub failed: bool,
    pub prompt: Option<u32>,
    pub cached: Option<u32>,
    pub completion: Option<u32>,
}

impl Report {
    fn has_usage(&self) -> bool {
        self.usage.is_some()
    }

    /// Adds what it says to what is known: the later word stands, and what it leaves out stays.
    pub fn onto(self, known: &mut Known) {
        let inner = self.response.as_ref().and_then(|inner| inner.error.as_ref());
        known.failed |= [self.error.as_ref(), inner].into_iter().flatten().any(Failure::is_the_engines);
        let inner = |inner: Option<Inner>| inner.and_then(|inner| inner.usage);
        let counts = self.usage.or(inner(self.response)).or(inner(self.message)).or(self.meta_info);
        let new = match (counts, self.timings) {
            (Some(counts), _) => counts.known(),
            (None, Some(Timings { cache_n, prompt_n, predicted_n })) => Known {
                prompt: cache_n.zip(prompt_n).map(|(cached, computed)| cached.saturating_add(computed)),
                cached: cache_n,
                completion: predicted_n,
                failed: false,
            },
            (None, None) => return,
        };
        known.prompt = new.prompt.or(known.prompt);
        known.cached = new.cached.or(known.cached);
        known.completion = new.completion.or(known.completion);
    }
}

impl Counts {
    fn known(self) -> Known {
        let of = |details: Option<Details>| details.and_then(|details| details.cached_tokens);
        // Anthropic leaves what its cache fields count out of `input_tokens`; so do llama.cpp and, since vllm#40912, vLLM,
        // which leave the fields out where they don't know.
        let beside = self
            .cache_read_input_tokens
            .map_or(0, |read| read.saturating_add(self.cache_creation_input_tokens.unwrap_or(0)));
        let input = self.input_tokens.map(|tokens| tokens.saturating_add(beside));
        Known {
            prompt: self.prompt_tokens.or(input),
            cached: of(self.prompt_tokens_details)
                .or_else(|| of(self.input_tokens_details))
                .or(self.cache_read_input_tokens)
                .or(self.cached_tokens),
            completion: self.completion_tokens.or(self.output_tokens),
            failed: false,
        }
    }
}
