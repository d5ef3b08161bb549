//! The replicas of one model, their routing core, their encoder, and the metric handles of all.
//!
//! A reload makes a new `Pool` for the same model; both share the [`Core`], so that a request that arrived under the old
//! one decides among the replicas of now, and bindings, placements and turns go on. What must outlive a reload belongs
//! there.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use super::budget::Budget;
use super::expected::Expected;
use super::parity::Parity;
use super::pool_metrics::PoolMetrics;
use super::queue::{Queue, Ticket};
use super::shadow::Shadow;
use super::{Clock, Replica};
use crate::config::{self, Models};
use crate::prefix;
use crate::routing::{self, CacheEvent, Effect, Following, Member, Plan, Refusal, Request, Router, Taken, Tick};
use crate::telemetry::Metrics;
use crate::tokens::Encoder;

/// Holdings that [`Pool::sweep`] frees at a time.
const SWEEP: usize = 64;

/// One pool.
#[derive(Debug)]
pub struct Pool {
    settings: config::Pool,
    replicas: Vec<Arc<Replica>>,
    encoder: Arc<Encoder>,
    core: Arc<Mutex<Core>>,
    /// Of its encoder: another one is judged anew.
    parity: Arc<Parity>,
    queue: Arc<Queue>,
    budget: Arc<Mutex<Budget>>,
    /// Handles resolved once.
    pub metrics: PoolMetrics,
}

/// What all generations of a pool share.
#[derive(Debug)]
pub(super) struct Core {
    pub router: Router,
    /// The router's members, in its order…
    replicas: Vec<Arc<Replica>>,
    /// …and by the names that its answers have for them.
    named: HashMap<Arc<str>, Arc<Replica>>,
    /// Decides beside it.
    shadow: Option<Shadow>,
}

impl Core {
    fn new(router: Router, replicas: &[Arc<Replica>]) -> Self {
        let mut core = Self { router, replicas: Vec::new(), named: HashMap::new(), shadow: None };
        core.set_replicas(replicas);
        core
    }

    fn set_replicas(&mut self, replicas: &[Arc<Replica>]) {
        self.replicas = replicas.to_vec();
        self.named = replicas.iter().map(|replica| (replica.id().clone(), replica.clone())).collect();
    }

    /// The members as they are now: some have begun another life.
    fn renew_members(&mut self) {
        self.router.set_members(members(&self.replicas));
        if let Some(shadow) = &mut self.shadow {
            shadow.router.set_members(members(&self.replicas));
        }
    }

    /// Keeps, changes, makes or drops the shadow, as the settings ask.
    fn set_shadow(&mut self, settings: &config::Pool, before: Option<&config::Pool>, replicas: &[Arc<Replica>]) {
        let Some(policy) = &settings.shadow else {
            self.shadow = None;
            return;
        };
        let members = members(replicas);
        match &mut self.shadow {
            Some(Shadow { router: shadow, .. }) => {
                if before.is_none_or(|before| before.shadow != settings.shadow || !same_aids(before, settings)) {
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

fn members(replicas: &[Arc<Replica>]) -> Vec<Member> {
    replicas.iter().map(|replica| replica.member()).collect()
}

/// Whether all that a core is set by beside its policy is the same.
fn same_aids(before: &config::Pool, settings: &config::Pool) -> bool {
    let aids = |pool: &config::Pool| (pool.session.clone(), pool.uses_prompts(), pool.index_bytes, pool.prefill);
    aids(before) == aids(settings)
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

/// A decision, and what hangs on it.
#[derive(Debug)]
pub struct Decided {
    /// The router's plan, without its expectation.
    pub plan: Plan,
    /// The replica that it names.
    pub replica: Arc<Replica>,
    /// What is expected of that one, until the request has ended.
    pub expected: Option<Expected>,
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

impl Pool {
    /// Joins `replicas` under `settings`.
    ///
    /// With a pool `before` it, of the same model, it goes on with that one's core, line and budget.
    pub fn new(
        settings: config::Pool,
        replicas: Vec<Arc<Replica>>,
        encoder: Arc<Encoder>,
        before: Option<&Self>,
        metrics: &Metrics,
    ) -> Self {
        let (core, queue, budget) = match before {
            None => {
                let core_settings = core_settings(&settings.policy, &settings);
                let core = Core::new(Router::new(&core_settings, members(&replicas), fastrand::u64(..)), &replicas);
                let budget = Budget::new(&settings.retry);
                (Arc::new(Mutex::new(core)), Arc::default(), Arc::new(Mutex::new(budget)))
            }
            Some(before) => {
                let mut core = before.core.lock();
                if settings.policy != before.settings.policy || !same_aids(&before.settings, &settings) {
                    core.router.reconfigure(&core_settings(&settings.policy, &settings));
                }
                core.router.set_members(members(&replicas));
                core.set_replicas(&replicas);
                before.budget.lock().set(&settings.retry);
                (before.core.clone(), before.queue.clone(), before.budget.clone())
            }
        };
        core.lock().set_shadow(&settings, before.map(|before| &before.settings), &replicas);
        queue.set_members(&replicas, settings.health.max_ejected);
        let parity = before.filter(|before| Arc::ptr_eq(&before.encoder, &encoder)).map(|before| before.parity.clone());
        let parity = parity.unwrap_or_default();
        let metrics = PoolMetrics::new(&settings.name, &replicas, metrics);
        Self { settings, replicas, encoder, core, parity, queue, budget, metrics }
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

    /// Whether that is the name of one of its LoRA adapters.
    pub fn is_adapter(&self, name: &str) -> bool {
        self.settings.adapters.iter().any(|adapter| **adapter == *name)
    }

    /// What makes blocks of its prompts.
    pub fn encoder(&self) -> &Arc<Encoder> {
        &self.encoder
    }

    /// Whether its engines count tokens as its encoder does.
    pub fn parity(&self) -> &Parity {
        &self.parity
    }

    /// Its replicas.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The replica of that id.
    pub fn replica(&self, id: &str) -> Option<&Arc<Replica>> {
        self.replicas.iter().find(|replica| &**replica.id() == id)
    }

    /// The core, with its members as they are now.
    fn core(&self) -> MutexGuard<'_, Core> {
        // Before the members are looked at: one that changes now is seen the next time.
        let stale = self.queue.take_stale();
        let mut core = self.core.lock();
        if stale {
            core.renew_members();
        }
        core
    }

    /// One decision, and the replica it names: see [`Router::decide`]. When too few replicas are up, some that are down
    /// are let in.
    ///
    /// # Errors
    /// [`Refusal`] when no replica can take the request.
    pub fn decide(&self, request: &Request<'_>, clock: Clock) -> Result<Decided, Refusal> {
        // Of the replicas of now, as the decision is.
        let (readmitted, panic) = self.queue.members().readmitted();
        let request = &Request { readmitted: &readmitted, ..request.clone() };
        let mut core = self.core();
        let now = clock.now();
        let mut plan = core.router.decide(request, now)?;
        // The shadow sees first attempts that found a place, and the loads as that decision found them.
        let beside = if request.tried.is_empty() {
            core.decide_beside(&Request { booked: Some(&plan), ..request.clone() }, now)
        } else {
            None
        };
        let replica = core.named.get(&plan.leg.replica).cloned();
        drop(core);
        // From here on a guard holds it: no way out of this function may leave something pinned.
        let expected = plan.expectation.take().map(|expectation| Expected::new(self.core.clone(), expectation, clock));
        // The router has no other members than these; a name that is missing would be a bug there, not a request's.
        let replica = replica.ok_or(Refusal::NoneReady)?;
        if let Some((beside, matched)) = beside {
            self.metrics.shadow.agreement[usize::from(beside != plan.leg.replica)].inc();
            if let Some(prompt) = request.prompt {
                self.metrics.shadow.count(prompt.tokens, [plan.matched, matched]);
            }
        }
        if panic {
            self.metrics.panics.inc();
        }
        Ok(Decided { plan, replica, expected })
    }

    /// What [`Self::decide`] would do, and why; nothing comes of it.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn preview(&self, request: &Request<'_>, clock: Clock) -> Result<Plan, Refusal> {
        let (readmitted, _) = self.queue.members().readmitted();
        let request = &Request { readmitted: &readmitted, explain: true, ..request.clone() };
        self.core().router.preview(request, clock.now())
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

    /// Applies an effect of a decision.
    pub fn apply(&self, effect: &Effect, now: Tick) {
        self.core.lock().router.apply(effect, now);
    }

    /// From now on a replica's KV events are followed so: see [`Router::follow`].
    pub fn follow(&self, replica: &str, following: Following) {
        self.core().router.follow(replica, following);
    }

    /// Takes what a replica says it holds: see [`Router::cache_events`].
    pub fn cache_events(&self, replica: &str, events: &[CacheEvent<'_>]) -> Option<Taken> {
        self.core().router.cache_events(replica, events)
    }

    /// Whether it goes on with the core of another one: what is told to one of them, both know.
    pub fn shares_core(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Figures of its prefix index; `None` where none is kept.
    pub fn index_stats(&self) -> Option<prefix::Stats> {
        self.core.lock().router.index_stats()
    }

    /// Blocks that its index knows on a replica, and those that it assumes that one to keep.
    pub fn index_blocks(&self, replica: &str) -> (usize, usize) {
        let router = &self.core.lock().router;
        (router.index_held(replica), router.index_capacity(replica))
    }

    /// Its prefix index as it is, at most `limit` runs of it; `None` where none is kept.
    pub fn index_dump(&self, limit: usize) -> Option<prefix::Dump> {
        self.core.lock().router.index_dump(limit)
    }

    /// Frees some of what replicas that left still take up in the index, and the shadow's; whether there is more. It
    /// holds the core for no longer than a few decisions do.
    pub fn sweep(&self) -> bool {
        let mut core = self.core.lock();
        let beside = core.shadow.as_mut().is_some_and(|shadow| shadow.router.sweep(SWEEP));
        core.router.sweep(SWEEP) || beside
    }

    /// Session bindings held.
    pub fn bindings(&self) -> usize {
        self.core.lock().router.bindings()
    }
}
