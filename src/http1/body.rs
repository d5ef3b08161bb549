//! A body as it is delimited: which of the bytes at hand are its data, and when it is over.
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::Violation;
use super::chunks::Chunks;

/// A body of which some bytes have been read.
#[derive(Debug)]
pub enum Body {
    /// So many bytes are still to come.
    Length(u64),
    /// Chunks are.
    Chunks(Chunks),
    /// All that comes until the connection ends: an answer's only.
    ToEnd,
}

impl Body {
    /// One that is over before it begins.
    pub const NONE: Self = Self::Length(0);

    /// One in chunks, of which none has come.
    pub fn chunked() -> Self {
        Self::Chunks(Chunks::default())
    }

    /// Whether nothing more belongs to it. One that ends with its connection never knows.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// Bytes that are still to come, where the head told.
    pub fn left(&self) -> Option<u64> {
        if let Self::Length(left) = self { Some(*left) } else { None }
    }

    /// Looks on: how many of `bytes`, from their start, belong to it. Each stretch of data among them is handed to `data`,
    /// as a range of `bytes`. A trailer section has at most `fields` fields.
    ///
    /// # Errors
    /// When a chunk is not framed as it must be; what came before it has been handed on.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        fields: usize,
        mut data: impl FnMut(Range<usize>),
    ) -> Result<usize, Violation> {
        match self {
            Self::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= here as u64;
                if here > 0 {
                    data(0..here);
                }
                Ok(here)
            }
            Self::Chunks(chunks) => {
                let (here, ended) = chunks.feed(bytes, fields, data)?;
                if ended {
                    *self = Self::NONE;
                }
                Ok(here)
            }
            Self::ToEnd => {
                if !bytes.is_empty() {
                    data(0..bytes.len());
                }
                Ok(bytes.len())
            }
        }
    }

    /// Takes what of `held` belongs to it. Its data comes in one piece (chunks of one read are joined), and what is wrong
    /// behind it. What is not its own stays; where nothing does, none of the bytes are kept.
    pub fn take(&mut self, held: &mut Bytes, fields: usize) -> (Bytes, Option<Violation>) {
        let bytes = std::mem::take(held);
        let (mut first, mut joined) = (0..0, BytesMut::new());
        let fed = self.feed(&bytes, fields, |data| {
            if first.is_empty() {
                first = data;
                return;
            }
            if joined.is_empty() {
                joined.reserve(bytes.len() - first.start);
                joined.extend_from_slice(&bytes[first.clone()]);
            }
            joined.extend_from_slice(&bytes[data]);
        });
        let data = if joined.is_empty() { bytes.slice(first) } else { joined.freeze() };
        match fed {
            Ok(read) => {
                if read < bytes.len() {
                    *held = bytes.slice(read..);
                }
                (data, None)
            }
            Err(violation) => (data, Some(violation)),
        }
    }
}
