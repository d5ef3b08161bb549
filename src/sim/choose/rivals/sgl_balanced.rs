//! `sgl_balanced`: SGLang's router, `--policy cache_aware --affinity-mode balanced`.
//!
//! Source: sgl-router, SGLang's router of 2026 (`experimental/sgl-router`: its document "Routing policies", and
//! `policies_reorg`). With the default options:
//!
//! 1. Owners are the replicas that hold at least 1,024 leading tokens of the prompt. The best, A, has the fewest tokens to
//!    compute, then the least load, then the first name.
//! 2. The alternative, B, is the less loaded of two others drawn at random; of equals the one drawn first.
//! 3. B is taken if `load(A) > 2 · load(B)` and `load(A) − load(B) > 1,024`, where load is the uncached prompt tokens that
//!    wait there and those of this request; else A. Without an owner, the less loaded of any two.
//!
//! Caches are known from the engines' events. Nothing limits admission, as nothing does by default.
//!
//! Simplified: the engines report what waits; here it is booked from the placement to the first token, so it includes the
//! prompt that is being computed, and never lags. Load that ranks is those tokens, then requests in flight, without the
//! engines' estimates in milliseconds.
//!
//! Not meant is the older `cache_aware` of SGLang's model gateway (sglang-router 0.3; vLLM's router has the same):
//! approximate trees of text, the best match if it is more than 0.3 of the prompt and else the smallest tree (in later
//! versions the least loaded), unless the busiest has more than 64 requests over the idlest and more than 1.5 times as many,
//! which sends everybody to the least loaded. `balanced` is sgl-router's word.
use fastrand::Rng;

use super::books::Books;
use crate::routing::Reason;
use crate::sim::call::{Call, mix};
use crate::sim::choose::{Chooser, Holdings, Placed};
use crate::sim::engine::VirtualTime;

/// `--cache-affinity-min-matched-tokens`.
const MIN_MATCHED_TOKENS: u32 = 1_024;
/// `--affinity-load-factor`.
const LOAD_FACTOR: u64 = 2;
/// `--affinity-load-gap`, in tokens.
const LOAD_GAP: u64 = 1_024;

#[derive(Debug)]
pub(super) struct SglBalanced {
    replicas: usize,
    books: Books,
    rng: Rng,
}

impl SglBalanced {
    pub fn new(replicas: usize, seed: u64) -> Self {
        Self { replicas, books: Books::new(replicas), rng: Rng::with_seed(mix(0x0005_917a_9ced, seed)) }
    }

    /// The less loaded of two drawn from all but `but`.
    fn power_of_two(&mut self, but: Option<usize>) -> Option<usize> {
        let mut others: Vec<_> = (0..self.replicas).filter(|replica| Some(*replica) != but).collect();
        self.rng.shuffle(&mut others);
        others.into_iter().take(2).min_by_key(|replica| self.books.of(*replica))
    }

    /// Prompt tokens that would have to be computed before this call's first token, with its own.
    fn load(&self, replica: usize, uncached: u32) -> u64 {
        self.books.of(replica).prefill_tokens + u64::from(uncached)
    }

    #[cfg(test)]
    pub fn at_rest(&self) -> bool {
        self.books.at_rest()
    }
}

impl Chooser for SglBalanced {
    fn choose(
        &mut self,
        call: &Call,
        blocks: &[u64],
        holdings: &dyn Holdings,
        _: VirtualTime,
    ) -> Result<Placed, String> {
        let uncached = |replica| call.prompt_tokens - holdings.held(replica, call, blocks);
        let owners = (0..self.replicas).map(|replica| (uncached(replica), self.books.of(replica), replica));
        let best = owners.filter(|(uncached, ..)| call.prompt_tokens - uncached >= MIN_MATCHED_TOKENS).min();
        let owner = best.map(|(.., replica)| replica);
        let other = self.power_of_two(owner);
        let (replica, reason) = match (owner, other) {
            (Some(owner), Some(other)) => {
                let (here, there) = (self.load(owner, uncached(owner)), self.load(other, uncached(other)));
                if here > LOAD_FACTOR * there && here - there > LOAD_GAP {
                    (other, Reason::PrefixOverflow)
                } else {
                    (owner, Reason::Prefix)
                }
            }
            (Some(owner), None) => (owner, Reason::Prefix),
            (None, Some(other)) => (other, Reason::NoMatch),
            (None, None) => return Err("there is no replica".to_owned()),
        };
        let uncached = uncached(replica);
        let mut placed = Placed { expected: Some(call.prompt_tokens - uncached), ..Placed::plain(replica, reason) };
        self.books.open(&mut placed, uncached);
        Ok(placed)
    }

    fn reads_blocks(&self) -> bool {
        true
    }

    fn first_token(&mut self, placed: &mut Placed, _: VirtualTime) {
        self.books.first_token(placed);
    }

    fn finished(&mut self, mut placed: Placed, _: VirtualTime) {
        self.books.close(&mut placed);
    }

    fn refused(&mut self, mut placed: Placed, _: VirtualTime) {
        self.books.close(&mut placed);
    }
}
