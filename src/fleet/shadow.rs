//! A policy that decides beside the real one, never acting, and what both would have the engines compute.
use std::num::NonZeroUsize;
use std::sync::Arc;

use prometheus::IntCounter;

use crate::prefix::{BLOCK_TOKENS, Seen};
use crate::routing::{Request, Router, Tick};
use crate::telemetry::Metrics;

/// Blocks remembered for each of the two policies: 4M tokens over the pool's replicas, some 4 MB.
const BLOCKS: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();

/// The shadow of one pool.
#[derive(Debug)]
pub(super) struct Shadow {
    /// Decides on the same loads and states, and reserves nothing.
    pub router: Router,
    /// What replicas saw under the policy, and would have seen under the shadow.
    pub seen: [Seen; 2],
}

impl Shadow {
    /// A router that was made a shadow.
    pub fn new(router: Router) -> Self {
        Self { router, seen: [Seen::new(BLOCKS), Seen::new(BLOCKS)] }
    }

    /// Whom it would take.
    pub fn decide(&mut self, request: &Request<'_>, now: Tick) -> Option<Arc<str>> {
        let plan = self.router.decide(request, now).ok()?;
        plan.on_success.iter().for_each(|effect| self.router.apply(effect, now));
        Some(plan.leg.replica)
    }
}

/// A pool's counters of its shadow.
#[derive(Debug)]
pub(super) struct ShadowMetrics {
    /// Decisions on which it agreed, and on which it did not.
    pub agreement: [IntCounter; 2],
    prompt: IntCounter,
    recomputed: [IntCounter; 2],
}

impl ShadowMetrics {
    /// Handles for the pool of that name.
    pub fn new(pool: &str, metrics: &Metrics) -> Self {
        Self {
            agreement: ["same", "other"].map(|agreement| metrics.shadow.with_label_values(&[pool, agreement])),
            prompt: metrics.shadow_prompt.with_label_values(&[pool]),
            recomputed: ["policy", "shadow"].map(|by| metrics.shadow_recomputed.with_label_values(&[pool, by])),
        }
    }

    /// Counts a prompt of so many blocks, of which so many were found under the policy and under the shadow.
    pub fn count(&self, blocks: usize, matched: [usize; 2]) {
        let tokens = |blocks: usize| (blocks * BLOCK_TOKENS) as u64;
        self.prompt.inc_by(tokens(blocks));
        for (counter, matched) in self.recomputed.iter().zip(matched) {
            counter.inc_by(tokens(blocks.saturating_sub(matched)));
        }
    }
}
