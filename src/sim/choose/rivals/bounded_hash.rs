//! `bounded_hash`: consistent hashing with bounded loads.
//!
//! Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016 (arXiv 1608.01350; SODA 2018), as
//! in HAProxy (`hash-balance-factor`), Envoy (`hash_balance_factor`) and, for LLMs, KubeAI's `PrefixHash`. Replicas stand
//! on a ring at 256 points each (KubeAI's `replication`); a key goes to the first point after its hash whose replica has
//! fewer requests in flight than
//!
//! ```text
//! ⌈1.25 · (requests in flight anywhere + 1) ÷ replicas⌉
//! ```
//!
//! 1.25 is KubeAI's default and the usual choice. As in the paper and in HAProxy the bound is rounded up, so some replica
//! always has room, and while few are in flight one request is all that a replica may have. Envoy lets one more in; KubeAI
//! does not round, and sends a key home where nobody is within the bound.
//!
//! The key is what an operator would hash: the session that the client names; else the header that a balancer could hash;
//! else the prompt's first block that is not common to all calls. KubeAI hashes the first 100 characters by default, which
//! a common system prompt makes one key; whoever has one sets that length beyond it. There are no ties: a key's order of
//! replicas is the ring's.
use super::books::Books;
use crate::prefix::BLOCK_TOKENS;
use crate::routing::Reason;
use crate::sim::call::{Call, mix};
use crate::sim::choose::{Chooser, Holdings, Placed};
use crate::sim::engine::VirtualTime;

/// Most requests of a replica, in means.
const LOAD_FACTOR: f64 = 1.25;
/// Points of a replica on the ring.
const POINTS: u64 = 256;

#[derive(Debug)]
pub(super) struct BoundedHash {
    replicas: usize,
    books: Books,
    /// Points in order, and whose they are.
    ring: Vec<(u64, usize)>,
}

impl BoundedHash {
    pub fn new(replicas: usize) -> Self {
        let point = |replica, number| (mix(mix(0x4149, replica as u64), number), replica);
        let mut ring: Vec<_> =
            (0..replicas).flat_map(|replica| (0..POINTS).map(move |number| point(replica, number))).collect();
        ring.sort_unstable();
        Self { replicas, books: Books::new(replicas), ring }
    }

    #[cfg(test)]
    pub fn at_rest(&self) -> bool {
        self.books.at_rest()
    }
}

/// The hash of what the call is keyed by.
fn key(call: &Call, blocks: &[u64]) -> u64 {
    let (kind, key) = match (call.session, call.header) {
        (Some(session), _) => (1, session),
        (None, Some(header)) => (2, header),
        (None, None) => {
            let own = call.common_tokens as usize / BLOCK_TOKENS;
            (3, blocks.get(own).or(blocks.last()).copied().unwrap_or_default())
        }
    };
    mix(mix(0x006b_6579, kind), key)
}

impl Chooser for BoundedHash {
    fn choose(&mut self, call: &Call, blocks: &[u64], _: &dyn Holdings, _: VirtualTime) -> Result<Placed, String> {
        let open: u64 = self.books.loads().map(|load| load.requests).sum();
        let bound = (LOAD_FACTOR * (open + 1) as f64 / self.replicas as f64).ceil() as u64;
        let hash = key(call, blocks);
        let (before, after) = self.ring.split_at(self.ring.partition_point(|(point, _)| *point < hash));
        let mut way = after.iter().chain(before).map(|(_, replica)| *replica);
        let home = way.next().ok_or("there is no replica")?;
        let has_room = |replica: &usize| self.books.of(*replica).requests < bound;
        let (replica, reason) = match has_room(&home) {
            true => (home, Reason::Hashed),
            false => (way.find(has_room).unwrap_or(home), Reason::HashOverflow),
        };
        let mut placed = Placed::plain(replica, reason);
        self.books.open(&mut placed, 0);
        Ok(placed)
    }

    fn reads_blocks(&self) -> bool {
        true
    }

    fn finished(&mut self, mut placed: Placed, _: VirtualTime) {
        self.books.close(&mut placed);
    }

    fn refused(&mut self, mut placed: Placed, _: VirtualTime) {
        self.books.close(&mut placed);
    }
}
