//! The replicas of one model, their routing core, and the metric handles of the pair.
//!
//! A reload makes a new `Pool` for the same model; both share the [`Core`], so that a request that arrived under the old
//! one decides among the replicas of now, and bindings, placements and turns go on. What must outlive a reload belongs
//! there.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::{Histogram, IntCounter};

use super::Replica;
use super::budget::Budget;
use super::expected::Expected;
use super::queue::{Queue, Ticket};
use super::shadow::{Shadow, ShadowMetrics};
use crate::config::{self, Models};
use crate::routing::{self, Effect, Plan, Refusal, Request, Router, Tick};
use crate::telemetry::Metrics;

/// One pool.
#[derive(Debug)]
pub struct Pool {
    settings: config::Pool,
    replicas: Vec<Arc<Replica>>,
    core: Arc<Mutex<Core>>,
    queue: Arc<Queue>,
    budget: Arc<Mutex<Budget>>,
    /// Handles resolved once.
    pub metrics: PoolMetrics,
}

/// What all generations of a pool share.
#[derive(Debug)]
pub(super) struct Core {
    pub router: Router,
    /// Whom the router's answers name.
    members: HashMap<Arc<str>, Arc<Replica>>,
    /// Decides beside it.
    shadow: Option<Shadow>,
}

impl Core {
    /// Keeps, changes, makes or drops the shadow, as the settings ask.
    fn set_shadow(&mut self, settings: &config::Pool, before: Option<&config::Pool>, replicas: &[Arc<Replica>]) {
        let Some(policy) = &settings.shadow else {
            self.shadow = None;
            return;
        };
        let members = replicas.iter().map(|replica| replica.member()).collect();
        match &mut self.shadow {
            Some(Shadow { router: shadow, .. }) => {
                if before
                    .is_none_or(|before| (&before.shadow, &before.session) != (&settings.shadow, &settings.session))
                {
                    shadow.reconfigure(&core_settings(policy, settings));
                }
                shadow.set_members(members);
            }
            None => {
                let router = Router::new(&core_settings(policy, settings), members, fastrand::u64(..));
                self.shadow = Some(Shadow::new(router.into_shadow()));
            }
        }
    }

    /// Whom the shadow would take, and what of the prompt that one would hold.
    fn decide_beside(&mut self, request: &Request<'_>, now: Tick) -> Option<(Arc<str>, u32)> {
        self.shadow.as_mut()?.decide(request, now)
    }
}

/// What the core of a pool is set by, under a policy of its own or its shadow's.
fn core_settings<'a>(policy: &'a config::Policy, settings: &'a config::Pool) -> routing::Settings<'a> {
    routing::Settings {
        policy,
        session: &settings.session,
        index_bytes: settings.uses_prompts().then_some(settings.index_bytes),
        prefill: &settings.prefill,
    }
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
    /// Decisions for which replicas that are down were let in, because too few are up.
    pub panics: IntCounter,
    /// Replays that the budget did not allow.
    pub over_budget: IntCounter,
    /// Waits that ended in a place.
    pub queue_wait: Histogram,
    /// The shadow's.
    shadow: ShadowMetrics,
}

/// What becomes of a request that would wait.
#[derive(Debug)]
pub enum Waiting {
    /// It stands in the line.
    In(Ticket),
    /// As many wait as may.
    Full,
    /// Nobody waits in this pool, or not for this.
    Never,
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
    /// With a pool `before` it, of the same model, it goes on with that one's core, line and budget.
    pub fn new(settings: config::Pool, replicas: Vec<Arc<Replica>>, before: Option<&Self>, metrics: &Metrics) -> Self {
        let members = replicas.iter().map(|replica| replica.member()).collect();
        let named = replicas.iter().map(|replica| (replica.id().clone(), replica.clone())).collect();
        let (core, queue, budget) = match before {
            None => {
                let router = Router::new(&core_settings(&settings.policy, &settings), members, fastrand::u64(..));
                let core = Core { router, members: named, shadow: None };
                let budget = Budget::new(&settings.retry);
                (Arc::new(Mutex::new(core)), Arc::default(), Arc::new(Mutex::new(budget)))
            }
            Some(before) => {
                let mut core = before.core.lock();
                if (&settings.policy, &settings.session) != (&before.settings.policy, &before.settings.session) {
                    core.router.reconfigure(&core_settings(&settings.policy, &settings));
                }
                core.router.set_members(members);
                core.members = named;
                before.budget.lock().set(&settings.retry);
                (before.core.clone(), before.queue.clone(), before.budget.clone())
            }
        };
        core.lock().set_shadow(&settings, before.map(|before| &before.settings), &replicas);
        queue.set_members(&replicas, settings.health.max_ejected);
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
            panics: metrics.panics.with_label_values(&[name]),
            over_budget: metrics.over_budget.with_label_values(&[name]),
            queue_wait: metrics.queue_wait(name),
            shadow: ShadowMetrics::new(name, metrics),
        };
        Self { settings, replicas, core, queue, budget, metrics }
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

    /// One decision, and the replica it names: see [`Router::decide`]. When too few replicas are up, some that are down
    /// are let in.
    ///
    /// # Errors
    /// [`Refusal`] when no replica can take the request.
    pub fn decide(&self, request: &Request<'_>, now: Tick) -> Result<(Plan, Arc<Replica>), Refusal> {
        // Of the replicas of now, as the decision is.
        let (readmitted, panic) = self.queue.members().readmitted();
        let request = &Request { readmitted: &readmitted, ..request.clone() };
        let mut core = self.core.lock();
        let plan = core.router.decide(request, now)?;
        // The shadow sees first attempts that found a place, and the loads as that decision found them.
        let beside = if request.tried.is_empty() {
            core.decide_beside(&Request { booked: Some(&plan), ..request.clone() }, now)
        } else {
            None
        };
        // The router has no other members than these; a name that is missing would be a bug there, not a request's.
        let replica = core.members.get(&plan.leg.replica).cloned().ok_or(Refusal::NoneReady)?;
        drop(core);
        if let Some((beside, matched)) = beside {
            self.metrics.shadow.agreement[usize::from(beside != plan.leg.replica)].inc();
            if let Some(prompt) = request.prompt {
                self.metrics.shadow.count(prompt.tokens, [plan.matched, matched]);
            }
        }
        if panic {
            self.metrics.panics.inc();
        }
        Ok((plan, replica))
    }

    /// Whether a newcomer must wait behind others.
    pub fn others_wait(&self) -> bool {
        self.settings.queue.max.is_some() && self.queue.len() > 0
    }

    /// Takes a place in the line, where a refusal can be waited out.
    pub fn wait(&self, refusal: Refusal) -> Waiting {
        let queue = &self.settings.queue;
        match queue.max {
            Some(max) if refusal == Refusal::AllFull || queue.wait_for_ready => {
                self.queue.join(max).map_or(Waiting::Full, Waiting::In)
            }
            _ => Waiting::Never,
        }
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// A request has begun: what the budget of replays is a share of.
    pub fn began(&self) {
        if self.settings.retry.replay {
            self.budget.lock().began(Instant::now());
        }
    }

    /// Takes one replay out of the budget; false, and counted, when it is spent.
    pub fn may_replay(&self) -> bool {
        let open = self.replicas.iter().map(|replica| replica.load().requests()).fold(0, u32::saturating_add);
        let may = self.budget.lock().take(open, Instant::now());
        if !may {
            self.metrics.over_budget.inc();
        }
        may
    }

    /// Keeps a decision's expectation until the request ends. `now` is the clock of the ticks that decisions get.
    pub fn expect(&self, plan: &mut Plan, now: fn() -> Tick) -> Option<Expected> {
        Some(Expected::new(self.core.clone(), plan.expectation.take()?, now))
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
