//! The replicas of one model, their routing core, and the metric handles of the pair.
//!
//! A reload makes a new `Pool` for the same model; both share the [`Core`], so that a request that arrived under the old
//! one decides among the replicas of now, and bindings, placements and turns go on. What must outlive a reload belongs
//! there.
use std::collections::HashMap;
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
    core: Arc<Mutex<Core>>,
    /// Handles resolved once.
    pub metrics: PoolMetrics,
}

/// What all generations of a pool share.
#[derive(Debug)]
struct Core {
    router: Router,
    /// Whom the router's answers name.
    members: HashMap<Arc<str>, Arc<Replica>>,
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
    ///
    /// With a pool `before` it, of the same model, it goes on with that one's core.
    pub fn new(settings: config::Pool, replicas: Vec<Arc<Replica>>, before: Option<&Self>, metrics: &Metrics) -> Self {
        let members = replicas.iter().map(|replica| replica.member()).collect();
        let named = replicas.iter().map(|replica| (replica.id().clone(), replica.clone())).collect();
        let core = match before {
            None => {
                let router = Router::new(&settings.policy, &settings.session, members, fastrand::u64(..));
                Arc::new(Mutex::new(Core { router, members: named }))
            }
            Some(before) => {
                let mut core = before.core.lock();
                if (&settings.policy, &settings.session) != (&before.settings.policy, &before.settings.session) {
                    core.router.reconfigure(&settings.policy, &settings.session);
                }
                core.router.set_members(members);
                core.members = named;
                before.core.clone()
            }
        };
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
        Self { settings, replicas, core, metrics }
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

    /// One decision, and the replica it names: see [`Router::decide`].
    ///
    /// # Errors
    /// [`Refusal`] when no replica can take the request.
    pub fn decide(&self, request: &Request<'_>, now: Tick) -> Result<(Plan, Arc<Replica>), Refusal> {
        let mut core = self.core.lock();
        let plan = core.router.decide(request, now)?;
        // The router has no other members than these; a name that is missing would be a bug there, not a request's.
        let replica = core.members.get(&plan.leg.replica).cloned().ok_or(Refusal::NoneReady)?;
        Ok((plan, replica))
    }

    /// Applies an effect of a decision.
    pub fn apply(&self, effect: &Effect, now: Tick) {
        self.core.lock().router.apply(effect, now);
    }

    /// Session bindings held.
    pub fn bindings(&self) -> usize {
        self.core.lock().router.bindings()
    }
}
