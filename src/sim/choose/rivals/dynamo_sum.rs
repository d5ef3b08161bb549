//! `dynamo_sum`: the cost by which NVIDIA Dynamo's KV router chooses.
//!
//! Source: the selector of `lib/kv-router` and the page "Routing Concepts" of Dynamo 1.5/1.6 (2026). In blocks:
//!
//! ```text
//! cost = 1.0 · (prefill tokens active there + prompt tokens − cached tokens) ÷ block size
//!      + blocks of the prompts active there, this one among them, each counted once
//! ```
//!
//! The lowest cost wins (router temperature 0); equal ones are drawn at random. A prompt's tokens are active until its
//! first token, its blocks until it has ended. Defaults as shipped: weight 1.0 (`--kv-overlap-score-weight`, later
//! `prefill_load_scale`), no decay of the overlap's credit, no weight for the count of requests, blocks of the output not
//! tracked, caches known from the engines' events and not from its own placements (`router_predicted_ttl_secs` unset).
//!
//! Left out: other cache tiers than the device's, and the router's own queue, which holds requests back once every
//! replica has 16 whole batches of prefill active.
use std::collections::HashMap;

use fastrand::Rng;

use super::books::Books;
use super::reason;
use crate::prefix::BLOCK_TOKENS;
use crate::sim::call::{Call, mix};
use crate::sim::choose::{Chooser, Holdings, Placed};
use crate::sim::engine::VirtualTime;

/// Weight of prefill blocks against decode blocks.
const PREFILL_WEIGHT: f64 = 1.0;

/// Blocks of the prompts that are open on a replica, and how many of them have each.
#[derive(Debug, Default)]
struct Active(HashMap<u64, u32>);

impl Active {
    /// How many there are with this chain among them. What has a block has all before it: one search finds the first
    /// that is not there.
    fn with(&self, chain: &[u64]) -> usize {
        self.0.len() + chain.len() - chain.partition_point(|block| self.0.contains_key(block))
    }

    fn add(&mut self, chain: &[u64]) {
        for block in chain {
            *self.0.entry(*block).or_default() += 1;
        }
    }

    fn remove(&mut self, chain: &[u64]) {
        for block in chain {
            if let Some(count) = self.0.get_mut(block) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(block);
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct DynamoSum {
    books: Books,
    active: Vec<Active>,
    rng: Rng,
}

impl DynamoSum {
    pub fn new(replicas: usize, seed: u64) -> Self {
        let active = (0..replicas).map(|_| Active::default()).collect();
        Self { books: Books::new(replicas), active, rng: Rng::with_seed(mix(0x00d1_4a30, seed)) }
    }

    fn cost(&self, replica: usize, chain: &[u64], uncached: u32) -> f64 {
        let prefill = self.books.of(replica).prefill_tokens + u64::from(uncached);
        PREFILL_WEIGHT * prefill as f64 / BLOCK_TOKENS as f64 + self.active[replica].with(chain) as f64
    }

    fn close(&mut self, mut placed: Placed) {
        self.books.close(&mut placed);
        self.active[placed.replica].remove(&placed.booked.blocks);
    }

    #[cfg(test)]
    pub fn at_rest(&self) -> bool {
        self.books.at_rest() && self.active.iter().all(|active| active.0.is_empty())
    }
}

impl Chooser for DynamoSum {
    fn choose(
        &mut self,
        call: &Call,
        blocks: &[u64],
        holdings: &dyn Holdings,
        _: VirtualTime,
    ) -> Result<Placed, String> {
        let chain = &blocks[..call.prompt_blocks().min(blocks.len())];
        let scored: Vec<_> = (0..self.active.len())
            .map(|replica| {
                let held = holdings.held(replica, call, blocks);
                (self.cost(replica, chain, call.prompt_tokens - held), replica, held)
            })
            .collect();
        let lowest = scored.iter().map(|(cost, ..)| *cost).fold(f64::INFINITY, f64::min);
        let tied: Vec<_> = scored.into_iter().filter(|(cost, ..)| *cost == lowest).collect();
        let (_, replica, held) = self.rng.choice(tied).ok_or("there is no replica")?;
        let mut placed = Placed { expected: Some(held), ..Placed::plain(replica, reason(held)) };
        self.books.open(&mut placed, call.prompt_tokens - held);
        self.active[replica].add(chain);
        placed.booked.blocks = chain.to_vec();
        Ok(placed)
    }

    fn reads_blocks(&self) -> bool {
        true
    }

    fn first_token(&mut self, placed: &mut Placed, _: VirtualTime) {
        self.books.first_token(placed);
    }

    fn finished(&mut self, placed: Placed, _: VirtualTime) {
        self.close(placed);
    }

    fn refused(&mut self, placed: Placed, _: VirtualTime) {
        self.close(placed);
    }
}
