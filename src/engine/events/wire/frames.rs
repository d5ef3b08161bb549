//! ZeroMQ frames around a payload.
//!
//! | | frames |
//! | --- | --- |
//! | live (SUB) | topic, sequence number, payload |
//! | replay's request (DEALER) | empty, first number wanted |
//! | reply, vLLM to 0.25, SGLang to 0.5.20 | empty, sequence number, payload |
//! | reply, later | empty, topic, sequence number, payload |
//!
//! Numbers have 8 bytes, big end first. In all of them the payload is last and its number stands before it. A reply
//! without payload, or numbered -1, ends a replay.

/// The number of a reply that ends a replay.
const END: u64 = u64::MAX;

/// What a replay's reply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a, F> {
    /// A batch that was published before: its sequence number and payload.
    Batch(u64, &'a F),
    /// There are no more.
    End,
}

/// A live message's sequence number and payload; `None` where it is none.
pub fn live<F: AsRef<[u8]>>(frames: &[F]) -> Option<(u64, &F)> {
    match numbered(frames)? {
        Reply::Batch(sequence, payload) => Some((sequence, payload)),
        Reply::End => None,
    }
}

/// A replay's reply, of either shape; `None` where it is none.
pub fn reply<F: AsRef<[u8]>>(frames: &[F]) -> Option<Reply<'_, F>> {
    numbered(frames)
}

/// The frames that ask for everything from a sequence number on.
pub fn request(from: u64) -> [Vec<u8>; 2] {
    [Vec::new(), from.to_be_bytes().to_vec()]
}

fn numbered<F: AsRef<[u8]>>(frames: &[F]) -> Option<Reply<'_, F>> {
    let [.., number, payload] = frames else { return None };
    let number = u64::from_be_bytes(number.as_ref().try_into().ok()?);
    Some(if number == END || payload.as_ref().is_empty() { Reply::End } else { Reply::Batch(number, payload) })
}
