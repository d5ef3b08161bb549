//! A policy that decides beside the real one, never acting, and what both would have the engines compute.
use std::sync::Arc;

use prometheus::IntCounter;

use crate::routing::{Request, Router, Tick};
use crate::telemetry::Metrics;

/// The shadow of one pool.
#[derive(Debug)]
pub(super) struct Shadow {
    /// Decides on the same loads and states, and reserves nothing.
    pub router: Router,
}

impl Shadow {
    /// A router that was made a shadow.
    pub fn new(router: Router) -> Self {
        Self { router }
    }

    /// Whom it would take, and what of the prompt that one would hold.
    pub fn decide(&mut self, request: &Request<'_>, now: Tick) -> Option<(Arc<str>, u32)> {
        let plan = self.router.decide(request, now).ok()?;
        plan.on_success.iter().for_each(|effect| self.router.apply(effect, now));
        if let Some(expectation) = plan.expectation {
            self.router.finish(expectation, now);
        }
        Some((plan.leg.replica, plan.matched))
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

    /// Counts a prompt of so many tokens, of which so many were found under the policy and under the shadow.
    pub fn count(&self, tokens: u32, matched: [u32; 2]) {
        self.prompt.inc_by(tokens.into());
        for (counter, matched) in self.recomputed.iter().zip(matched) {
            counter.inc_by(tokens.saturating_sub(matched).into());
        }
    }
}
