//! Messages that have come before their turn, within bounds.
use std::collections::BTreeMap;

/// By sequence number, with the hash of each.
#[derive(Debug)]
pub(super) struct Held<B> {
    messages: BTreeMap<u64, (u64, B)>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
}

impl<B: AsRef<[u8]>> Held<B> {
    pub fn new(most: usize, most_bytes: usize) -> Self {
        Self { messages: BTreeMap::new(), bytes: 0, most, most_bytes }
    }

    /// Keeps a message if there is room. The newest are refused: a replay still has those for longest.
    pub fn hold(&mut self, sequence: u64, hash: u64, message: B) -> bool {
        let length = message.as_ref().len();
        if self.messages.len() >= self.most || self.bytes.saturating_add(length) > self.most_bytes {
            return false;
        }
        self.bytes += length;
        if let Some((_, before)) = self.messages.insert(sequence, (hash, message)) {
            self.bytes -= before.as_ref().len();
        }
        true
    }

    /// The hash of one.
    pub fn hash(&self, sequence: u64) -> Option<u64> {
        self.messages.get(&sequence).map(|(hash, _)| *hash)
    }

    /// Gives one back.
    pub fn take(&mut self, sequence: u64) -> Option<(u64, B)> {
        let taken = self.messages.remove(&sequence)?;
        self.bytes -= taken.1.as_ref().len();
        Some(taken)
    }

    /// The lowest number.
    pub fn first(&self) -> Option<u64> {
        self.messages.first_key_value().map(|(&sequence, _)| sequence)
    }

    pub fn clear(&mut self) {
        self.messages.clear();
        self.bytes = 0;
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
