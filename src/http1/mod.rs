//! HTTP/1.1 on the wire, without I/O of its own: heads and bodies, read strictly and written plainly.
//!
//! `head` reads a client's head, and takes only what every HTTP parser reads alike: proxies have been split by a length
//! beside a transfer coding, two equal lengths, `gzip, chunked`, several Hosts. `answer` reads an engine's head, `body`
//! follows the bytes of either's body, `write` writes heads and chunks, `read` is how either's socket is read. What is
//! made of bytes never depends on how they were cut into reads. The sockets are elsewhere: a client's in [`crate::proxy`], an
//! engine's in [`crate::fleet`].
pub mod answer;
mod body;
mod chunks;
mod head;
#[cfg(test)]
mod naive;
pub mod read;
#[cfg(test)]
mod tests;
pub mod write;

use std::fmt;

use crate::api::{Cause, Phase};
use crate::config::Limits;

pub use body::Body;
pub use head::{Head, Request, is_host, is_target};

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

/// The first thing that is wrong with what a client sent.
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
