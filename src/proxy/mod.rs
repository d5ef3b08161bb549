//! A request's way through HTTP.
//!
//! `listener` accepts; `server` (HTTP/1.1, whose bytes `wire` reads and writes) and `http2` watch connections; `service` walks a request through its phases; `forward` finds a replica that answers; `relay`
//! passes the answer on, byte for byte. One data path serves every endpoint, so that leaving clients, errors and
//! accounting behave alike on all of them.
mod activity;
mod admit;
mod answer;
mod body;
mod exchange;
mod explain;
mod forward;
mod head;
mod hide;
mod http2;
mod inherit;
mod listener;
mod models;
mod problem;
mod prompt;
mod proxy_protocol;
mod relay;
mod reload;
mod server;
mod service;
mod socket;
mod stored;
mod stream;
mod tls;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, watch};

use crate::config::{Config, LogFormat};
use crate::fleet::{Clock, Encoders, Fleet, Replica};
use crate::telemetry::{AccessLog, EngineGauges, Metrics};

pub use explain::{Candidate, Decision, Explained};
pub use inherit::Inherited;
pub use problem::Problem;
pub use reload::{Reload, Trigger};

use listener::Listener;
use prompt::Bench;
use reload::Changes;
use stored::StoredResponses;

/// How long the process's end waits for the access log.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What is in force at one moment: a configuration, and the fleet it describes.
#[derive(Debug)]
pub struct Snapshot {
    /// The configuration.
    pub config: Arc<Config>,
    /// Pools and replicas.
    pub fleet: Fleet,
}

/// A running router: what is in force, and what it has learned.
#[derive(Debug)]
pub struct Proxy {
    snapshot: ArcSwap<Snapshot>,
    changes: Changes,
    clock: Clock,
    /// Where long prompts are encoded.
    bench: Bench,
    metrics: Arc<Metrics>,
    access_log: AccessLog,
    stored: StoredResponses,
    stage: watch::Sender<Stage>,
    /// The same as [`Stage::Cutting`], for those that look often.
    cutting: AtomicBool,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stage {
    Serving,
    /// Not ready any more, and says so; connections are still accepted.
    Leaving,
    /// No new requests; open ones may end.
    Draining,
    /// Open ones are ended.
    Cutting,
}

impl Proxy {
    /// Builds the router, with the encoders that `config` needs; nothing listens yet.
    ///
    /// # Errors
    /// When metrics or the access log can't be set up.
    pub fn new(
        config: Config,
        encoders: Encoders,
        access_log_out: Option<Box<dyn io::Write + Send>>,
    ) -> io::Result<Arc<Self>> {
        let metrics = Arc::new(Metrics::new().map_err(io::Error::other)?);
        let json = config.logging.format == LogFormat::Json;
        metrics.reload_took();
        let config = Arc::new(config);
        // Whether a line is written is for each request's configuration to say.
        let access_log = match access_log_out {
            Some(out) => AccessLog::start(json, metrics.log_dropped.clone(), out)?,
            None => AccessLog::off(),
        };
        Ok(Arc::new(Self {
            stored: StoredResponses::new(config.limits.stored_responses),
            snapshot: ArcSwap::from_pointee(Snapshot {
                fleet: Fleet::new(&config, &encoders, &metrics),
                config: config.clone(),
            }),
            changes: Changes::new(config, encoders),
            clock: Clock::start(),
            bench: Bench::default(),
            metrics,
            access_log,
            stage: watch::Sender::new(Stage::Serving),
            cutting: AtomicBool::new(false),
        }))
    }

    /// What is in force now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The routing core's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Metric families, with the gauges that are read off at scrape time brought up to date.
    ///
    /// # Errors
    /// When the text can't be encoded.
    pub fn render_metrics(&self) -> Result<String, prometheus::Error> {
        let fleet = &self.snapshot().fleet;
        self.settle_metrics(fleet);
        for replica in fleet.replicas() {
            let load = replica.load();
            let state = replica.state().as_str();
            let idle = replica.connections().idle();
            self.metrics.set_breaker(replica.id(), replica.condition().breaker.as_str());
            self.metrics.set_replica(replica.id(), load.requests(), load.sequences(), state, idle);
            self.metrics.set_queued_seconds(replica.id(), load.queued_seconds(self.clock.now()));
            self.metrics.engine.set(replica.id(), &self.says(replica));
        }
        for pool in fleet.pools() {
            self.metrics.set_bindings(pool.name(), pool.bindings());
            self.metrics.set_queue(pool.name(), pool.waiting());
            if let Some(index) = pool.index_stats() {
                self.metrics.set_index(pool.name(), index.bytes, index.evicted);
                for replica in pool.replicas() {
                    let (held, capacity) = pool.index_blocks(replica.id());
                    self.metrics.set_index_blocks(pool.name(), replica.id(), held, capacity);
                }
            }
            if pool.settings().tokenizer.is_some() && pool.settings().uses_prompts() {
                let cache = pool.encoder().cache_stats();
                let lookups = [cache.hits, cache.misses];
                self.metrics.set_boundary_cache(pool.name(), cache.bytes, cache.entries, lookups);
            }
        }
        self.metrics.set_stored(self.stored.len());
        self.metrics.render()
    }

    /// What a replica's engine last said of itself.
    fn says(&self, replica: &Replica) -> EngineGauges {
        let Some((says, at)) = replica.says() else { return EngineGauges::default() };
        EngineGauges {
            running: says.running,
            waiting: says.waiting,
            cache_use: says.cache_use,
            cache_tokens: says.cache_tokens,
            age: Some(self.clock.now().0.saturating_sub(at.0) as f64 / 1e6),
        }
    }

    /// Whether it takes requests: some replica has answered a probe, and it isn't shutting down.
    pub fn ready(&self) -> bool {
        !self.draining() && self.snapshot().fleet.ready()
    }

    /// Whether it is shutting down.
    pub fn draining(&self) -> bool {
        *self.stage.borrow() >= Stage::Leaving
    }

    /// Whether another process may listen beside this one, to take over (`listen[].reuse_port`).
    pub fn shares_ports(&self) -> bool {
        self.snapshot().config.listen.iter().any(|listen| listen.reuse_port)
    }

    /// Is ready no more, and answers tell clients to go elsewhere; connections are still accepted.
    pub fn leave(&self) {
        self.stage.send_replace(Stage::Leaving);
    }

    /// Waits for the access log's last lines; call it when no request is open any more.
    pub fn flush_access_log(&self) {
        self.access_log.flush(LAST_LINES);
    }

    /// Stops accepting, closes idle connections, and lets open requests end.
    pub fn drain(&self) {
        self.stage.send_replace(Stage::Draining);
    }

    /// Ends what is still open: an event stream by an error event, a request without an answer by 503, all else by its
    /// connection. Each does so when its connection is looked at next, which this brings about.
    pub fn cut(&self) {
        self.cutting.store(true, Ordering::Release);
        self.stage.send_replace(Stage::Cutting);
    }

    /// Whether what is open is to end.
    fn cutting(&self) -> bool {
        self.cutting.load(Ordering::Acquire)
    }
}

/// A proxy that listens.
#[derive(Debug)]
pub struct Running {
    /// The proxy.
    pub proxy: Arc<Proxy>,
    /// Where it listens, in the configuration's order.
    pub addresses: Vec<SocketAddr>,
    listeners: Vec<tokio::task::JoinHandle<()>>,
    follow: Option<tokio::task::AbortHandle>,
}

impl Running {
    /// Waits until every connection has ended; call [`Proxy::drain`] first, or it never does.
    pub async fn ended(&mut self) {
        // One that has ended must not be asked again when this is cancelled and called once more.
        while let Some(listener) = self.listeners.last_mut() {
            let _ = listener.await;
            self.listeners.pop();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.listeners.iter().for_each(tokio::task::JoinHandle::abort);
        if let Some(follow) = &self.follow {
            follow.abort();
        }
        self.proxy.stop_background();
    }
}

/// Opens every listener (or takes it from `inherited`) and starts to serve, to probe the replicas and look for more, and
/// to follow the file that [`Proxy::set_config_file`] named.
///
/// # Errors
/// When an address can't be bound or its certificate can't be read; the message names it.
pub fn start(proxy: Arc<Proxy>, inherited: &mut Inherited) -> io::Result<Running> {
    let mut bound = Vec::new();
    let snapshot = proxy.snapshot();
    for settings in &snapshot.config.listen {
        let listener = Listener::open(settings, inherited, &proxy.metrics)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {settings}: {error}")))?;
        bound.push(listener);
    }
    let addresses = bound.iter().map(Listener::address).collect();
    let places = Arc::new(Semaphore::new(snapshot.config.limits.connections));
    let serve = |listener: Listener| tokio::spawn(listener.serve(proxy.clone(), places.clone()));
    let listeners = bound.into_iter().map(serve).collect();
    let follow = proxy.start_background();
    Ok(Running { proxy, addresses, listeners, follow })
}
