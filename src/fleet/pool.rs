//! The replicas of one model, their routing core, and the metric handles of the pair.
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{Histogram, IntCounter};

use super::Replica;
use crate::config::{self, Models};
use crate::routing::{Effect, Plan, Refusal, Request, Router, Tick};
use crate::telemetry::Metrics;

/// One pool.
#[derive(Debug)]
pub struct Pool {
    settings: config::Pool,
    replicas: Vec<Arc<Replica>>,
    router: Mutex<Router>,
    /// Handles resolved once.
    pub metrics: PoolMetrics,
}

/// A pool's metric handles.
#[derive(Debug)]
pub struct PoolMetrics {
    /// Bytes of request bodies.
    pub bytes_in: IntCounter,
    /// Bytes of response bodies.
    pub bytes_out: IntCounter,
    /// Phase durations.
    pub phases: Phases,
}

/// Histograms of the phases that take time.
#[derive(Debug)]
pub struct Phases {
    /// Reading the request body.
    pub read: Histogram,
    /// Choosing a replica.
    pub decide: Histogram,
    /// Opening a connection.
    pub connect: Histogram,
    /// Sent until the first body byte.
    pub first_byte: Histogram,
    /// First body byte until the end.
    pub relay: Histogram,
}

impl Pool {
    /// Joins `replicas` under `settings`.
    pub fn new(settings: config::Pool, replicas: Vec<Arc<Replica>>, metrics: &Metrics) -> Self {
        let members = replicas.iter().map(|replica| replica.member()).collect();
        let router = Router::new(&settings.policy, &settings.session, members, fastrand::u64(..));
        let name = &settings.name;
        let phase = |phase| metrics.phase(name, phase);
        let metrics = PoolMetrics {
            bytes_in: metrics.bytes_in.with_label_values(&[name]),
            bytes_out: metrics.bytes_out.with_label_values(&[name]),
            phases: Phases {
                read: phase("read"),
                decide: phase("decide"),
                connect: phase("connect"),
                first_byte: phase("first_byte"),
                relay: phase("relay"),
            },
        };
        Self { settings, replicas, router: Mutex::new(router), metrics }
    }

    /// Its name in labels.
    pub fn name(&self) -> &Arc<str> {
        &self.settings.name
    }

    /// What the operator set.
    pub fn settings(&self) -> &config::Pool {
        &self.settings
    }

    /// Whether it takes requests for any model.
    pub fn any_model(&self) -> bool {
        self.settings.models == Models::Any
    }

    /// The name the engine knows; `None` when it takes any.
    pub fn model(&self) -> Option<&Arc<str>> {
        match &self.settings.models {
            Models::Any => None,
            Models::Named { model, .. } => Some(model),
        }
    }

    /// Its replicas.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The replica of that id.
    pub fn replica(&self, id: &str) -> Option<&Arc<Replica>> {
        self.replicas.iter().find(|replica| &**replica.id() == id)
    }

    /// One decision: see [`Router::decide`].
    ///
    /// # Errors
    /// [`Refusal`] when no replica can take the request.
    pub fn decide(&self, request: &Request<'_>, now: Tick) -> Result<Plan, Refusal> {
        self.router.lock().decide(request, now)
    }

    /// Applies an effect of a decision.
    pub fn apply(&self, effect: &Effect, now: Tick) {
        self.router.lock().apply(effect, now);
    }

    /// Session bindings held.
    pub fn bindings(&self) -> usize {
        self.router.lock().bindings()
    }
}
