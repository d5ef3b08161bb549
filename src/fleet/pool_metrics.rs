//! A pool's metric handles, resolved once for each generation of it.
use std::collections::HashMap;
use std::sync::Arc;

use prometheus::{Histogram, IntCounter};

use super::Replica;
use super::shadow::ShadowMetrics;
use crate::telemetry::{Metrics, TokenMetrics};

/// A pool's metric handles.
#[derive(Debug)]
pub struct PoolMetrics {
    /// Bytes of request bodies.
    pub bytes_in: IntCounter,
    /// Bytes of response bodies.
    pub bytes_out: IntCounter,
    /// Phase durations.
    pub phases: Phases,
    /// Decisions for which replicas that are down were let in, because too few are up.
    pub panics: IntCounter,
    /// Replays that the budget did not allow.
    pub over_budget: IntCounter,
    /// Waits that ended in a place.
    pub queue_wait: Histogram,
    /// The shadow's.
    pub(super) shadow: ShadowMetrics,
    /// What became of prompts.
    pub prompts: Prompts,
    /// Prompts whose tokens the engine counted as the pool did, or not.
    pub parity: [IntCounter; 2],
    /// Tokens of prompts, by replica.
    tokens: HashMap<Arc<str>, TokenMetrics>,
}

/// What blocks of prompts are made of.
const BASES: [&str; 3] = ["tokens", "text", "none"];
/// Counters of what became of prompts.
#[derive(Debug)]
pub struct Prompts([IntCounter; BASES.len()]);

impl Prompts {
    /// Counts one, by what its blocks are made of.
    pub fn count(&self, basis: &str) {
        if let Some(at) = BASES.iter().position(|known| *known == basis) {
            self.0[at].inc();
        }
    }
}

/// Histograms of the phases that take time.
#[derive(Debug)]
pub struct Phases {
    /// Reading the request body.
    pub read: Histogram,
    /// Making blocks of the prompt.
    pub tokens: Histogram,
    /// Choosing a replica.
    pub decide: Histogram,
    /// Opening a connection.
    pub connect: Histogram,
    /// Sent until the first body byte.
    pub first_byte: Histogram,
    /// First body byte until the end.
    pub relay: Histogram,
}

impl PoolMetrics {
    /// Handles of the pool of that name.
    pub(super) fn new(name: &str, replicas: &[Arc<Replica>], metrics: &Metrics) -> Self {
        let phase = |phase| metrics.phase(name, phase);
        let tokens = |replica: &Arc<Replica>| (replica.id().clone(), metrics.tokens(name, replica.id()));
        Self {
            bytes_in: metrics.bytes_in.with_label_values(&[name]),
            bytes_out: metrics.bytes_out.with_label_values(&[name]),
            phases: Phases {
                read: phase("read"),
                tokens: phase("tokens"),
                decide: phase("decide"),
                connect: phase("connect"),
                first_byte: phase("first_byte"),
                relay: phase("relay"),
            },
            panics: metrics.panics.with_label_values(&[name]),
            over_budget: metrics.over_budget.with_label_values(&[name]),
            queue_wait: metrics.queue_wait(name),
            shadow: ShadowMetrics::new(name, metrics),
            parity: ["same", "other"].map(|result| metrics.parity(name, result)),
            prompts: Prompts(BASES.map(|basis| metrics.prompts(name, basis))),
            tokens: replicas.iter().map(tokens).collect(),
        }
    }

    /// Tokens of prompts on a replica; `None` for one that joined after this generation of the pool was made.
    pub fn tokens_on(&self, replica: &str) -> Option<&TokenMetrics> {
        self.tokens.get(replica)
    }
}
