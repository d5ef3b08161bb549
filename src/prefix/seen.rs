//! Which blocks each replica was sent, as far as a bounded memory goes: what a prompt would find there.
//!
//! An estimate, not an index: every replica is taken to have the same room, least recently used blocks go first whoever's
//! they are, and nothing is learned from the engines.
use std::num::NonZeroUsize;

use lru::LruCache;

/// The memory. A replica is named by a number of the caller's choice, another one in each of its lives.
#[derive(Debug)]
pub struct Seen(LruCache<(u64, u64), ()>);

impl Seen {
    /// Remembers at most `blocks` pairs of replica and block, about 50 bytes each.
    pub fn new(blocks: NonZeroUsize) -> Self {
        Self(LruCache::new(blocks))
    }

    /// How many leading blocks of `chain` the replica has seen; from now on it has seen all of them.
    pub fn visit(&mut self, replica: u64, chain: &[u64]) -> usize {
        let matched = chain.iter().take_while(|block| self.0.contains(&(replica, **block))).count();
        // From the end, so that a block is never older than those that stand on it.
        for block in chain.iter().rev() {
            self.0.put((replica, *block), ());
        }
        matched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_finds_what_its_replica_was_sent() {
        let mut seen = Seen::new(NonZeroUsize::new(8).unwrap());
        assert_eq!(seen.visit(1, &[10, 11]), 0);
        assert_eq!(seen.visit(1, &[10, 11, 12]), 2);
        assert_eq!(seen.visit(2, &[10, 11, 12]), 0, "another replica has not seen it");
        assert_eq!(seen.visit(1, &[10, 99]), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_ends_of_old_chains_go_first() {
        let mut seen = Seen::new(NonZeroUsize::new(4).unwrap());
        seen.visit(1, &[10, 11, 12]);
        seen.visit(1, &[20, 21]);
        assert_eq!(seen.visit(1, &[10, 11, 12]), 2);
        assert_eq!(seen.0.len(), 4);
    }
}
