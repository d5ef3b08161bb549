//! The framing guard: reads along below hyper, and lets through only requests that every HTTP parser reads alike.
//!
//! hyper is lenient where proxies have been split (a length beside a transfer coding, two equal lengths, `gzip, chunked`,
//! several Hosts), and by the time it hands a request over, what was on the wire is gone. So the bytes are followed
//! before it sees them: head, body by length or chunks, next head. A head passes only whole, and only when it is
//! unambiguous; the first violation ends the connection, and nothing of it or after it passes. The verdict does not
//! depend on how the bytes were cut into reads. No I/O here; [`super::watched`] does the reading.
mod chunks;
mod head;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::api::{Cause, Phase};
use crate::config::Limits;
use chunks::Chunks;
use head::{Framing, Head};
pub use head::{is_host, is_target};

/// What a head may come to.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes of a head, request line and empty line included.
    pub head: usize,
    /// Fields of a head, and of a trailer section.
    pub fields: usize,
    /// Bytes of a target.
    pub target: usize,
}

impl From<&Limits> for Bounds {
    fn from(limits: &Limits) -> Self {
        Self { head: limits.head, fields: limits.headers, target: limits.uri }
    }
}

/// What is wrong with a request; a label of `warmroute_malformed_requests_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request line, or the empty lines before it.
    RequestLine,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    Version,
    /// A target over its limit.
    TargetTooLong,
    /// A head, or a trailer section, over its limits.
    HeadTooLarge,
    /// A line that is no header field, or a bare LF.
    Field,
    /// No Host, several, or one that is no host.
    Host,
    /// Not exactly one plain number.
    ContentLength,
    /// A length and a transfer coding.
    BothFramings,
    /// A coding that is not `chunked`, or in HTTP/1.0.
    TransferEncoding,
    /// Codings under `chunked`, which nobody here decodes.
    Codings,
    /// A chunk that is not framed as it must be.
    Chunk,
    /// A trailer field that is none.
    Trailer,
}

impl Kind {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestLine => "request_line",
            Self::Version => "version",
            Self::TargetTooLong => "target_too_long",
            Self::HeadTooLarge => "head_too_large",
            Self::Field => "field",
            Self::Host => "host",
            Self::ContentLength => "content_length",
            Self::BothFramings => "both_framings",
            Self::TransferEncoding => "transfer_encoding",
            Self::Codings => "codings",
            Self::Chunk => "chunk",
            Self::Trailer => "trailer",
        }
    }

    /// What the client is told, and with which status.
    pub fn cause(self) -> Cause {
        match self {
            Self::RequestLine | Self::Field | Self::Host => Cause::BadHead,
            Self::Version => Cause::UnsupportedVersion,
            Self::TargetTooLong => Cause::UriTooLong,
            Self::HeadTooLarge => Cause::HeadTooLarge,
            Self::Codings => Cause::UnsupportedTransferEncoding,
            Self::ContentLength | Self::BothFramings | Self::TransferEncoding | Self::Chunk | Self::Trailer => {
                Cause::BadFraming
            }
        }
    }
}

/// The first thing that is wrong with what a client sent. It travels as an I/O error's cause when a body is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// What, as a label.
    pub kind: Kind,
    /// What, in words.
    pub reason: &'static str,
    /// Whether the head, or the body, is at fault.
    pub phase: Phase,
}

impl Violation {
    const fn head(kind: Kind, reason: &'static str) -> Self {
        Self { kind, reason, phase: Phase::Head }
    }

    const fn body(kind: Kind, reason: &'static str) -> Self {
        Self { kind, reason, phase: Phase::Read }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)
    }
}

impl std::error::Error for Violation {}

#[derive(Debug)]
enum State {
    Head(Head),
    Length(u64),
    Chunks(Chunks),
    Stopped(Violation),
}

/// Follows one connection's bytes.
#[derive(Debug)]
pub struct Guard {
    bounds: Bounds,
    state: State,
    heads: u64,
}

impl Guard {
    /// At a connection's begin.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, state: State::Head(Head::default()), heads: 0 }
    }

    /// Looks on: how many bytes from the start of `bytes` may pass. Those that may not are to be offered again, with
    /// more behind them; they are the begin of a head that is not yet whole, so never more than its limit and what one
    /// read brought. After a violation nothing passes any more.
    pub fn check(&mut self, bytes: &[u8]) -> usize {
        let mut pass = 0;
        loop {
            let rest = &bytes[pass..];
            match &mut self.state {
                State::Head(head) => match head.feed(rest, &self.bounds) {
                    Ok(None) => return pass,
                    Ok(Some((length, framing))) => {
                        pass += length;
                        self.heads += 1;
                        self.state = match framing {
                            Framing::Length(0) => State::Head(Head::default()),
                            Framing::Length(length) => State::Length(length),
                            Framing::Chunked => State::Chunks(Chunks::default()),
                        };
                    }
                    Err(violation) => self.state = State::Stopped(violation),
                },
                State::Length(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    pass += here;
                    *left -= here as u64;
                    if *left > 0 {
                        return pass;
                    }
                    self.state = State::Head(Head::default());
                }
                State::Chunks(chunks) => {
                    let (here, verdict) = chunks.feed(rest, &self.bounds);
                    pass += here;
                    match verdict {
                        Ok(true) => self.state = State::Head(Head::default()),
                        Ok(false) => return pass,
                        Err(violation) => self.state = State::Stopped(violation),
                    }
                }
                State::Stopped(_) => return pass,
            }
        }
    }

    /// What ended it.
    pub fn violation(&self) -> Option<Violation> {
        if let State::Stopped(violation) = self.state { Some(violation) } else { None }
    }

    /// Heads that have passed, whole.
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// Whether a head has begun and is not yet whole; an empty line before one is not its begin.
    pub fn in_head(&self) -> bool {
        matches!(&self.state, State::Head(head) if head.begun())
    }
}
