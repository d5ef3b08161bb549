//! What is known of the members' caches, and what they say of them.
use super::Router;
use crate::prefix;
use crate::routing::{CacheEvent, Following, Taken};

impl Router {
    /// From now on a replica's events are followed so; nothing comes of it without an index, or for one that is no member.
    ///
    /// A replica that begins another life is not followed until this is called again.
    pub fn follow(&mut self, replica: &str, following: Following) {
        if let Some(&member) = self.index.get(replica) {
            self.prefixes.follow(member as usize, following);
        }
    }

    /// Takes what a replica says it holds, in the order in which it said so; `None` when it is not followed.
    pub fn cache_events(&mut self, replica: &str, events: &[CacheEvent<'_>]) -> Option<Taken> {
        self.prefixes.cache_events(*self.index.get(replica)? as usize, events)
    }

    /// Seconds to prefill a prompt of so many tokens, of which so many are cached, as is known so far.
    pub fn prefill_seconds(&self, tokens: u32, matched: u32) -> f64 {
        self.prefixes.prefill_seconds(tokens, matched)
    }

    /// Figures of the prefix index; `None` where none is kept.
    pub fn index_stats(&self) -> Option<prefix::Stats> {
        self.prefixes.stats()
    }

    /// Blocks of prompts that the index knows on a replica; 0 for one that is no member.
    pub fn index_held(&self, replica: &str) -> usize {
        self.index.get(replica).map_or(0, |&member| self.prefixes.held(member as usize))
    }

    /// Blocks that a replica is assumed to keep; 0 for one that is no member, and where no index is kept.
    pub fn index_capacity(&self, replica: &str) -> usize {
        self.index.get(replica).map_or(0, |&member| self.prefixes.capacity(member as usize))
    }

    /// The prefix index as it is, at most `limit` runs of it, for debugging; `None` where none is kept.
    pub fn index_dump(&self, limit: usize) -> Option<prefix::Dump> {
        self.prefixes.dump(limit)
    }
}
