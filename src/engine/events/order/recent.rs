//! What the last messages held, so that a number that comes again can be told from one that another process gave.

/// Messages that are remembered: 24 KiB of them.
const REMEMBERED: u64 = 1024;

/// Whether a message has come before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It has, of this process or the one before.
    Same,
    /// Another one of this process had its number.
    Other,
    /// Not lately.
    Never,
}

/// Hashes of the last messages, by sequence number.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Each at its number's remainder.
    slots: Vec<Slot>,
    process: u32,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    sequence: u64,
    hash: u64,
    process: u32,
}

impl Recent {
    /// Remembers one, instead of the one [`REMEMBERED`] numbers before.
    pub fn remember(&mut self, sequence: u64, hash: u64) {
        let at = at(sequence);
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Slot { sequence: u64::MAX, hash: 0, process: self.process });
        }
        self.slots[at] = Slot { sequence, hash, process: self.process };
    }

    /// Whether a message has come before.
    pub fn seen(&self, sequence: u64, hash: u64) -> Seen {
        match self.slots.get(at(sequence)) {
            Some(slot) if slot.sequence != sequence => Seen::Never,
            Some(slot) if slot.hash == hash => Seen::Same,
            Some(slot) if slot.process == self.process => Seen::Other,
            _ => Seen::Never,
        }
    }

    /// Numbers begin anew.
    pub fn next_process(&mut self) {
        self.process = self.process.wrapping_add(1);
    }
}

fn at(sequence: u64) -> usize {
    (sequence % REMEMBERED) as usize
}
