//! Usage: how many tokens an answer's prompt had, and how many of them the engine found in its cache.
//!
//! | API | prompt | cached |
//! | --- | --- | --- |
//! | chat, completions | `usage.prompt_tokens` | `usage.prompt_tokens_details.cached_tokens` |
//! | Responses | `usage.input_tokens` | `usage.input_tokens_details.cached_tokens` |
//! | Messages | `usage.input_tokens` and what is cached | `usage.cache_read_input_tokens` |
//! | SGLang's `/generate` | `meta_info.prompt_tokens` | `meta_info.cached_tokens` |
//! | llama.cpp, without any of these | `timings.cache_n + prompt_n` | `timings.cache_n` |
//!
//! vLLM reports cached tokens with `--enable-prompt-tokens-details`, SGLang with `--enable-cache-report`, and both put
//! them into a stream where the client asked for `stream_options.include_usage`, or the router did (`stream_usage: ask`).
//! What is not reported is unknown, never zero.
use memchr::{memchr2, memrchr2};

use super::document::{self, Document, Known};

/// What an answer reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached or not.
    pub prompt_tokens: u32,
    /// Of these, the ones that were in the engine's cache; `None` where it does not say.
    pub cached_tokens: Option<u32>,
    /// Tokens generated; 0 where it does not say.
    pub completion_tokens: u32,
}

/// Watches one answer's body for its usage, and for an error of the engine's: at most 64 KiB of it are kept, and only what can report is parsed.
#[derive(Debug)]
pub struct Observer {
    stream: bool,
    /// The body; of a stream, the line that has not ended.
    open: Document,
    known: Known,
}

impl Observer {
    /// For a JSON body, or (`stream`) for an event stream.
    pub fn new(stream: bool) -> Self {
        Self { stream, open: Document::default(), known: Known::default() }
    }

    /// Takes the next bytes, however they were cut.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        if !self.stream {
            return self.open.push(bytes);
        }
        if self.open.has_begun() {
            let end = memchr2(b'\n', b'\r', bytes);
            let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.open.push(line);
            if end.is_none() {
                return;
            }
            self.close();
            bytes = rest;
        }
        let (lines, open) = bytes.split_at(memrchr2(b'\n', b'\r', bytes).map_or(0, |end| end + 1));
        // Most pieces are whole events without a word of usage.
        if document::may_report(lines) {
            let reports = lines.split(|byte| matches!(byte, b'\n' | b'\r'));
            reports.filter_map(|line| document::read(line, line.len())).for_each(|report| report.onto(&mut self.known));
        }
        self.open.push(open);
    }

    /// The body is whole: whether the engine says in it that it failed.
    pub fn failed(&mut self) -> bool {
        self.close();
        self.known.failed
    }

    /// The body is whole: what it reported, if it did.
    pub fn finish(mut self) -> Option<Usage> {
        self.close();
        Some(Usage {
            prompt_tokens: self.known.prompt?,
            // More than there is can't have been cached.
            cached_tokens: self.known.cached.map(|cached| cached.min(self.known.prompt.unwrap_or(0))),
            completion_tokens: self.known.completion.unwrap_or(0),
        })
    }

    fn close(&mut self) {
        if let Some(report) = self.open.read() {
            report.onto(&mut self.known);
        }
    }
}

#[cfg(test)]
mod tests;
