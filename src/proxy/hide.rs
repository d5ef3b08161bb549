//! Keeps from a client what its stream holds only because the router asked for it (`stream_usage: ask`): the event that
//! reports usage, which has no choices. Every other byte passes as it came, and at once; only an event that has not ended
//! is held back, since it may be that one: up to [`MOST`], beyond which it passes as it is.
//!
//! An event that has both choices and usage is the engine's own and passes; so does one that says that it failed.
use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memmem::Finder;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::api::Scanner;

/// Most that is held back of an event.
const MOST: usize = 64 * 1024;

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));

/// Follows one stream.
#[derive(Debug, Default)]
pub struct UsageHider {
    scanner: Scanner,
    /// The beginning of the event that has not ended.
    held: BytesMut,
    /// The present event was too long to be held: what is left of it passes.
    passing: bool,
    /// A hidden event ended in a CR: a LF that follows goes with it.
    hidden_cr: bool,
}

impl UsageHider {
    /// Takes the next bytes, however they were cut; returns what may pass.
    pub fn feed(&mut self, mut piece: Bytes) -> Bytes {
        if !piece.is_empty() && std::mem::take(&mut self.hidden_cr) && piece.first() == Some(&b'\n') {
            self.scanner.feed(b"\n");
            piece.advance(1);
        }
        let mut end = self.scanner.event(&piece);
        if end.is_none() && !self.held.is_empty() && self.held.len() + piece.len() <= MOST {
            self.held.extend_from_slice(&piece);
            return Bytes::new();
        }
        let mut at = self.held.len();
        let bytes = joined(self.rest(), piece);
        // What passes is that, then what stands from `from` on, up to what is held.
        let mut passed = BytesMut::new();
        let (mut from, mut event) = (0, 0);
        while let Some(length) = end {
            at += length;
            let begins = event + blank(bytes.get(event..at));
            if !std::mem::take(&mut self.passing) && bytes.get(begins..at).is_some_and(is_unasked) {
                passed.extend_from_slice(bytes.get(from..begins).unwrap_or_default());
                from = at;
                if bytes.get(at - 1) == Some(&b'\r') {
                    from += usize::from(bytes.get(at) == Some(&b'\n'));
                    self.hidden_cr = at == bytes.len();
                }
            }
            event = at;
            end = self.scanner.event(bytes.get(at..).unwrap_or_default());
        }
        let begins = (event + blank(bytes.get(event..))).max(from);
        self.passing |= self.scanner.open_event() && bytes.len() - begins > MOST;
        let to = if self.passing { bytes.len() } else { begins };
        self.held.extend_from_slice(bytes.get(to..).unwrap_or_default());
        if passed.is_empty() {
            return bytes.slice(from..to);
        }
        passed.extend_from_slice(bytes.get(from..to).unwrap_or_default());
        passed.freeze()
    }

    /// What is held back: no more will come.
    pub fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }
}

/// One behind the other.
pub fn joined(one: Bytes, other: Bytes) -> Bytes {
    match (one.is_empty(), other.is_empty()) {
        (true, _) => other,
        (_, true) => one,
        _ => [one, other].concat().into(),
    }
}

/// How many line ends stand in front.
fn blank(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(0, |bytes| bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count())
}

/// Whether an event is one that only `include_usage` brings about.
fn is_unasked(event: &[u8]) -> bool {
    // Most events have no word of it, or (SGLang's completions) no more than a `null`.
    let reports = USAGE.find_iter(event).any(|at| {
        let value = event.get(at + USAGE.needle().len()..).unwrap_or_default().trim_ascii_start();
        !value.strip_prefix(b":").is_some_and(|value| value.trim_ascii_start().starts_with(b"null"))
    });
    if !reports {
        return false;
    }
    let data = data_of(event);
    let chunk = data.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice::<Chunk<'_>>(&data).ok());
    chunk.flatten().is_some_and(|chunk| {
        let reports = chunk.usage.is_some_and(|usage| usage.get().starts_with('{'));
        reports && chunk.choices.is_some_and(|choices| choices.is_empty()) && chunk.error.is_none()
    })
}

/// An event's data: its lines of that name, joined by LF (WHATWG HTML, section 9.2.6).
fn data_of(event: &[u8]) -> Cow<'_, [u8]> {
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r')).filter_map(|line| line.strip_prefix(b"data:"));
    let mut lines = lines.map(|line| line.strip_prefix(b" ").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    lines.fold(Cow::Borrowed(first), |mut data, line| {
        data.to_mut().push(b'\n');
        data.to_mut().extend_from_slice(line);
        data
    })
}

#[derive(Deserialize)]
struct Chunk<'a> {
    choices: Option<Vec<IgnoredAny>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    error: Option<IgnoredAny>,
}

#[cfg(test)]
mod tests;
