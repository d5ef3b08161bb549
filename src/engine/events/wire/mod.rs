//! The wire format: frames → sequence number and payload → [`Batch`].
//!
//! Two encodings, told apart event by event: an array that begins with the event's name (vLLM to 0.23, SGLang to 0.5.18),
//! and a map that has it under `type` (later). Missing trailing fields, unknown ones and nulls are all fine. A hash is an
//! integer, signed or not, or a digest whose last 8 bytes count.
//!
//! An event that can't be used is left out and told by [`Skip`]; only a payload that can't be read to its end is an error.
mod event;
mod extra;
mod fields;
mod frames;
mod reader;
mod unchained;

pub use frames::{Reply, live, reply, request};

use reader::{Reader, Unreadable, Value};

/// What one message tells: all that changed in one step of the engine, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// When it was published: seconds since 1970 on the engine's clock.
    pub at: f64,
    /// The data-parallel rank that published it, where it says (vLLM from 0.10.0, SGLang).
    pub rank: Option<u32>,
    /// What can be used.
    pub events: Vec<Event>,
    /// What can't, in the same order.
    pub skipped: Vec<Skip>,
}

/// A change of the engine's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks are there now.
    Stored(Stored),
    /// Copies of blocks are gone.
    Removed(Removed),
    /// Everything is gone, of this rank.
    Cleared,
}

/// A run of blocks, each the next one's parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The engine's own hashes: names to be matched with `parent` and [`Removed`], nothing else.
    pub hashes: Vec<u64>,
    /// What the first block follows; `None` at the beginning of a prompt.
    pub parent: Option<u64>,
    /// `hashes.len() * block_size` tokens. Empty where the engine only names blocks that it announced before (vLLM's
    /// offloading without `self_describing_kv_events`): they have come to another tier.
    pub tokens: Vec<u32>,
    /// Tokens a block; 0 where there are none.
    pub block_size: u32,
    /// Where they are.
    pub tier: Tier,
    /// Cache group of a hybrid model (vLLM from 0.20.0).
    pub group: Option<u32>,
    /// What kind of attention the group serves (vLLM from 0.22.0).
    pub kind: Option<Kind>,
    /// LoRA adapter that they were computed with.
    pub adapter: Option<Adapter>,
    /// Cache salt. vLLM names it for the first block of a prompt only; blocks that follow inherit it.
    pub salt: Option<String>,
    /// For each block a hash of what else went into it (media and where they stand, embeddings). Empty where no block has
    /// any: then tokens, adapter and salt say everything.
    pub extras: Vec<Option<u64>>,
}

/// Blocks of which one copy each is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Their hashes, in any order.
    pub hashes: Vec<u64>,
    /// Where they were.
    pub tier: Tier,
    /// Cache group of a hybrid model.
    pub group: Option<u32>,
}

/// Where blocks are kept, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The accelerator's memory: what a message means that names none.
    Device,
    /// The host's memory.
    Cpu,
    /// Anything further: files, objects, other hosts, media that have no name yet.
    Disk,
}

/// What a cache group serves (vLLM's `kv_cache_spec_kind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `full_attention`.
    Full,
    /// `mla_attention`.
    Mla,
    /// `sink_full_attention`.
    SinkFull,
    /// Sliding windows, Mamba, chunked, encoder and cross attention, and what is yet to come: a block that is missing
    /// there says nothing about the prompt's prefix.
    Other,
}

/// A LoRA adapter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Adapter {
    /// By name (vLLM from 0.14.0, SGLang from 0.5.22).
    Name(String),
    /// By the engine's own number, before.
    Id(i64),
}

/// An event that was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Skip {
    /// Whether it told a removal: blocks may be believed that are gone.
    pub removal: bool,
    /// Why.
    pub reason: Reason,
}

/// Why an event was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Neither array nor map, or without a name.
    NoEvent,
    /// A name that is not known.
    UnknownEvent,
    /// No hashes, or what is none among them.
    Hashes,
    /// Token ids that are none.
    Tokens,
    /// Token ids in pairs: SGLang with EAGLE.
    TokenPairs,
    /// A block size that is none, or zero for tokens that are there.
    BlockSize,
    /// Not `block_size` tokens for each hash: windows and partial blocks.
    NotDense,
    /// Extra keys of an unknown form, or not one entry a block: what the blocks hold isn't known.
    ExtraKeys,
    /// Another field of the wrong type.
    Field,
    /// The hash is of the block's own tokens only, so its place in a prompt isn't known: SGLang before 0.5.6.
    Unchained,
}

impl Reason {
    /// Its name, as a metric's label has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEvent => "no_event",
            Self::UnknownEvent => "unknown_event",
            Self::Hashes => "hashes",
            Self::Tokens => "tokens",
            Self::TokenPairs => "token_pairs",
            Self::BlockSize => "block_size",
            Self::NotDense => "not_dense",
            Self::ExtraKeys => "extra_keys",
            Self::Field => "field",
            Self::Unchained => "unchained",
        }
    }
}

/// A payload that is no batch, or ends before it should. All of it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a batch of KV events")]
pub struct Malformed;

impl From<Unreadable> for Malformed {
    fn from(_: Unreadable) -> Self {
        Self
    }
}

/// Reads a payload.
///
/// # Errors
/// Where it is no array of time, events and, from vLLM 0.10.0, rank, or is cut short.
pub fn decode(payload: &[u8]) -> Result<Batch, Malformed> {
    let mut reader = Reader::new(payload);
    let (fields, at) = head(&mut reader)?;
    let Value::Array(count) = reader.value()? else { return Err(Malformed) };
    let mut batch = Batch { at, rank: None, events: Vec::new(), skipped: Vec::new() };
    for _ in 0..count {
        match event::read(&mut reader)? {
            Ok(event) => batch.events.push(event),
            Err(skip) => batch.skipped.push(skip),
        }
    }
    if fields > 2 {
        let start = reader;
        match reader.value()? {
            Value::Unsigned(rank) => batch.rank = u32::try_from(rank).ok(),
            _ => {
                reader = start;
                reader.skip()?;
            }
        }
    }
    (3..fields).try_for_each(|_| reader.skip())?;
    Ok(batch)
}

/// A batch's number of fields, and its time.
fn head(reader: &mut Reader<'_>) -> Result<(usize, f64), Malformed> {
    let Value::Array(fields @ 2..) = reader.value()? else { return Err(Malformed) };
    let at = match reader.value()? {
        Value::Float(seconds) if seconds.is_finite() => seconds,
        Value::Unsigned(seconds) => seconds as f64,
        _ => return Err(Malformed),
    };
    Ok((fields, at))
}

#[cfg(test)]
mod tests;
