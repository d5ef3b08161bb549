//! KV events: what vLLM and SGLang publish of the blocks that they store, remove and clear (ZeroMQ, MessagePack).
//!
//! [`wire`] reads messages of every version, [`groups`] tells which of a hybrid model's cache groups count, [`order`]
//! puts messages into sequence and knows how far they can be trusted. Pure: sockets, clocks and the index are the
//! caller's. A bad event costs itself, a bad batch itself; what was lost is said, never guessed.
mod ask;
pub mod groups;
mod listen;
pub mod order;
mod sink;
pub mod wire;

pub use listen::Listeners;
