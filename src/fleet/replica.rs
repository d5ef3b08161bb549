//! One engine endpoint, shared by all pools it serves.
//!
//! It outlives reloads: what the operator may change is swapped in ([`Replica::update`]); another address or incarnation
//! is another `Replica`. Its state has two writers, health and the operator's drain; both go through one lock, and
//! [`Status`] shows what comes of them.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::connections::Connections;
use super::health::Judgement;
use super::heard::Heard;
use super::place::Queues;
use crate::config::{self, CACHE_TOKENS, EngineMetrics, Health, KvEvents, Rank, ReplicaUrl, Timeouts};
use crate::routing::{Load, Member, State, Status};
use crate::telemetry::{Metrics, ReplicaMetrics};

/// One engine endpoint.
#[derive(Debug)]
pub struct Replica {
    id: Arc<str>,
    url: ReplicaUrl,
    authority: HeaderValue,
    rank: Option<Rank>,
    incarnation: u64,
    life: u64,
    /// Times that its process was found gone.
    restarts: AtomicU32,
    /// Prompt tokens that it has computed, as far as its answers tell.
    computed: AtomicU64,
    pub(super) joined: bool,
    settings: ArcSwap<Settings>,
    load: Arc<Load>,
    status: Arc<Status>,
    standing: Mutex<Standing>,
    connections: Connections,
    metrics: ReplicaMetrics,
    prober: Mutex<Option<AbortHandle>>,
    follower: Mutex<Option<AbortHandle>>,
    pub(super) heard: Mutex<Heard>,
    /// Tokens of cache that the engine says it has; 0: it does not say.
    pub(super) engine_cache: AtomicU64,
    /// Wakes the one that asks the engine, when how it does has changed.
    ask_anew: Notify,
    pub(super) judgement: Mutex<Judgement>,
    pub(super) queues: Queues,
    /// Wakes the prober before its time.
    pub(super) probe_now: Notify,
    pub(super) confirmed: AtomicBool,
}

/// What a reload may change.
#[derive(Debug, PartialEq)]
struct Settings {
    authorization: Option<HeaderValue>,
    weight: u32,
    max_in_flight: Option<u32>,
    /// As the operator has it.
    cache_tokens: Option<u64>,
    kv_events: KvEvents,
    health: Health,
    engine_metrics: EngineMetrics,
}

impl Settings {
    fn new(replica: &config::Replica, pool: &config::Pool) -> Self {
        let authorization = replica.credential.as_ref().and_then(|secret| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", secret.reveal())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Self {
            authorization,
            weight: replica.weight,
            max_in_flight: replica.max_in_flight,
            cache_tokens: replica.cache_tokens.or(pool.cache_tokens),
            kv_events: replica.kv_events.clone(),
            health: pool.health.clone(),
            engine_metrics: pool.engine_metrics,
        }
    }
}

/// What health and the operator want; the state is what comes of both.
#[derive(Debug, Clone, Copy)]
struct Standing {
    health: State,
    drained: bool,
}

impl Standing {
    fn state(self) -> State {
        if self.drained && self.health != State::Down { State::Draining } else { self.health }
    }
}

/// How a new replica comes into the fleet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrival {
    /// Higher than that of any replica of the same id before it.
    pub life: u64,
    /// It comes to others that serve already, and ramps up.
    pub joined: bool,
    /// The operator has drained this id.
    pub drained: bool,
}

impl Replica {
    /// A replica that is taken to be well until it is known not to be, with what `pool` sets for its replicas.
    pub(super) fn new(
        replica: &config::Replica,
        pool: &config::Pool,
        timeouts: &Timeouts,
        metrics: &Metrics,
        arrival: Arrival,
    ) -> Self {
        let (joined, breaker) = (arrival.joined, pool.health.breaker);
        let health_state = if joined { State::Warming } else { State::Ready };
        let standing = Standing { health: health_state, drained: arrival.drained };
        Self {
            id: replica.id.clone(),
            url: replica.url.clone(),
            authority: HeaderValue::from_str(&replica.url.authority)
                .unwrap_or_else(|_| HeaderValue::from_static("replica")),
            rank: replica.rank,
            incarnation: replica.incarnation,
            life: arrival.life,
            restarts: AtomicU32::new(0),
            computed: AtomicU64::new(0),
            joined,
            settings: ArcSwap::from_pointee(Settings::new(replica, pool)),
            load: Arc::default(),
            status: Arc::new(Status::new(standing.state())),
            standing: Mutex::new(standing),
            connections: Connections::new(
                replica.url.clone(),
                replica.tls.as_ref(),
                timeouts.connect,
                timeouts.upstream_idle,
            ),
            metrics: metrics.replica(&replica.id),
            prober: Mutex::default(),
            follower: Mutex::default(),
            heard: Mutex::default(),
            engine_cache: AtomicU64::new(0),
            ask_anew: Notify::new(),
            judgement: Mutex::new(Judgement::new(breaker, joined)),
            queues: Queues::default(),
            probe_now: Notify::new(),
            confirmed: AtomicBool::new(false),
        }
    }

    /// Whether this is what `replica` describes: settings may differ, the engine does not.
    pub(super) fn is(&self, replica: &config::Replica) -> bool {
        self.id == replica.id
            && self.url == replica.url
            && self.rank == replica.rank
            && self.incarnation == replica.incarnation
    }

    /// Takes new settings.
    pub(super) fn update(&self, replica: &config::Replica, pool: &config::Pool, timeouts: &Timeouts) {
        self.connections.set_timers(timeouts.connect, timeouts.upstream_idle);
        self.connections.set_tls(replica.tls.as_ref());
        let settings = Settings::new(replica, pool);
        let before = self.settings.load_full();
        if *before != settings {
            let health_changed = before.health != settings.health;
            if before.engine_metrics != settings.engine_metrics {
                self.ask_anew.notify_one();
            }
            self.settings.store(Arc::new(settings));
            if health_changed {
                self.judgement.lock().set_breaker(self.health().breaker);
                self.probe_now.notify_one();
            }
        }
    }

    /// Probes it from now on, unless that is done already.
    pub fn start_probes(self: &Arc<Self>, runtime: &Handle) {
        let mut prober = self.prober.lock();
        if prober.is_none() {
            *prober = Some(runtime.spawn(super::watch(self.clone())).abort_handle());
        }
    }

    /// Has its engine asked for what it says of itself, by a task that `start` starts, unless that is done already.
    pub fn follow_engine(&self, start: impl FnOnce() -> AbortHandle) {
        self.follower.lock().get_or_insert_with(start);
    }

    /// Probes it no more, and asks its engine nothing.
    pub fn stop_probes(&self) {
        let tasks = [self.prober.lock().take(), self.follower.lock().take()];
        tasks.into_iter().flatten().for_each(|task| task.abort());
    }

    /// It has left the fleet: open requests end, and nothing is kept for others.
    pub(super) fn retire(&self) {
        self.stop_probes();
        self.connections.close();
    }

    /// Stable name.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Where it is.
    pub fn url(&self) -> &ReplicaUrl {
        &self.url
    }

    /// Which of its engine's data-parallel ranks it is; `None` = the engine has one, or chooses itself.
    pub fn rank(&self) -> Option<Rank> {
        self.rank
    }

    /// Where it publishes what it keeps in its cache.
    pub fn kv_events(&self) -> KvEvents {
        self.settings.load().kv_events.clone()
    }

    /// Its `Host` header.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// What replaces the client's credential, if anything does.
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.settings.load().authorization.clone()
    }

    /// The active probe's settings.
    pub fn health(&self) -> Health {
        self.settings.load().health.clone()
    }

    /// How its engine is asked for what it says of itself.
    pub fn engine_metrics(&self) -> EngineMetrics {
        self.settings.load().engine_metrics
    }

    /// Waits until that is another.
    pub async fn engine_metrics_changed(&self) {
        self.ask_anew.notified().await;
    }

    /// What is open on it.
    pub fn load(&self) -> &Arc<Load> {
        &self.load
    }

    /// Its share relative to others.
    pub fn weight(&self) -> u32 {
        self.settings.load().weight
    }

    /// Most requests open there at once.
    pub fn max_in_flight(&self) -> Option<u32> {
        self.settings.load().max_in_flight
    }

    /// Whether it may be chosen.
    pub fn state(&self) -> State {
        self.status.get()
    }

    /// What health has found; an operator's drain stands above all but `Down`.
    pub(super) fn set_state(&self, state: State) -> State {
        let mut standing = self.standing.lock();
        standing.health = state;
        self.status.set(standing.state())
    }

    /// Takes no new sessions from now on, or takes them again; returns whether that was so before.
    pub fn set_drained(&self, drained: bool) -> bool {
        let mut standing = self.standing.lock();
        let before = std::mem::replace(&mut standing.drained, drained);
        self.status.set(standing.state());
        drop(standing);
        if before != drained {
            // Taking it out may let in others that are down.
            self.call_waiters();
        }
        before
    }

    /// Whether the operator has drained it.
    pub fn drained(&self) -> bool {
        self.standing.lock().drained
    }

    /// A number that no other replica has, and this one in no other life.
    pub fn key(&self) -> u64 {
        xxh3_64_with_seed(self.id.as_bytes(), self.life)
    }

    /// A number that is higher in each new life of the same id.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// A whole answer was given, to a prompt of which so many tokens were computed.
    pub fn has_computed(&self, tokens: u32) {
        self.computed.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    /// Prompt tokens that it has computed so far, as far as its answers tell.
    pub fn computed(&self) -> u64 {
        self.computed.load(Ordering::Relaxed)
    }

    /// Times that its process was found gone, in this life: each time its cache was lost.
    pub fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Acquire)
    }

    /// Its process is gone. Whatever answers next knows nothing of what that one had: to the routing cores it is another
    /// incarnation.
    pub(super) fn lose_cache(&self) {
        self.restarts.fetch_add(1, Ordering::AcqRel);
        self.outdate_pools();
    }

    /// Tokens of KV cache that it is taken to keep: as the operator has it, else as the engine says.
    pub fn cache_tokens(&self) -> u64 {
        let said = Some(self.engine_cache.load(Ordering::Acquire)).filter(|&tokens| tokens > 0);
        self.settings.load().cache_tokens.or(said).unwrap_or(CACHE_TOKENS)
    }

    /// Whether a probe has been answered and none has failed it since.
    pub fn confirmed(&self) -> bool {
        // Not its state: a breaker that is open leaves it out, yet it is there.
        self.confirmed.load(Ordering::Acquire) && self.judgement.lock().is_up()
    }

    /// Its connections.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Its metric handles.
    pub fn metrics(&self) -> &ReplicaMetrics {
        &self.metrics
    }

    /// As the routing core sees it.
    pub fn member(&self) -> Member {
        Member {
            id: self.id.clone(),
            weight: self.weight(),
            max_in_flight: self.max_in_flight(),
            cache_tokens: self.cache_tokens(),
            // Lives are told apart first.
            incarnation: self.life << 32 | u64::from(self.restarts()),
            load: self.load.clone(),
            status: self.status.clone(),
        }
    }
}
