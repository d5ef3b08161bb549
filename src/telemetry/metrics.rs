//! The registry of this process's metrics: a collector for each row of the [table](super::FAMILIES).
//!
//! Handles on the request path are resolved once a replica ([`ReplicaMetrics`]); a replica that leaves takes its series
//! along.
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

use super::engine::EngineFamilies;
use super::families::*;
use super::kv_events::KvEventFamilies;
use super::tokens::TokenFamilies;

/// Upper bounds of latency buckets, in seconds: 100 µs to 5 min.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

fn opts(family: Family) -> Opts {
    Opts::new(family.name, family.help)
}

// Names and labels are constants checked by the test below, so a failure to build is a bug in the table alone; an
// unregistered family then stays invisible instead of ending the process.
fn register<C: Collector + Clone + 'static>(building: &Building, collector: &C) {
    if let Err(error) = building.registry.register(Box::new(collector.clone())) {
        tracing::error!(%error, "a metric family could not be registered");
    }
}

/// What the families are registered in while they are built.
#[derive(Default)]
struct Building {
    registry: Registry,
    labelled: RefCell<Vec<Box<dyn Labelled>>>,
}

impl Building {
    fn labelled<T: MetricVecBuilder + 'static>(&self, family: Family, metric: &MetricVec<T>) {
        if family.labels.iter().any(|label| matches!(*label, "pool" | "replica")) {
            self.labelled.borrow_mut().push(Box::new(metric.clone()));
        }
    }
}

/// A family whose series come and go with pools and replicas.
trait Labelled: Send + Sync {
    fn retain(&self, keep: &dyn Fn(Option<&str>, Option<&str>) -> bool);
}

impl<T: MetricVecBuilder> Labelled for MetricVec<T> {
    fn retain(&self, keep: &dyn Fn(Option<&str>, Option<&str>) -> bool) {
        for family in self.collect() {
            for metric in family.get_metric() {
                let labels: HashMap<&str, &str> =
                    metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
                if !keep(labels.get("pool").copied(), labels.get("replica").copied()) {
                    // It may be gone already; what matters is that it is.
                    let _ = self.remove(&labels);
                }
            }
        }
    }
}

macro_rules! build {
    ($registry:expr, $type:ident, $family:expr) => {{
        let metric = $type::new(opts($family), $family.labels)?;
        register($registry, &metric);
        $registry.labelled($family, &metric);
        metric
    }};
    ($registry:expr, single $type:ident, $family:expr) => {{
        let metric = $type::with_opts(opts($family))?;
        register($registry, &metric);
        metric
    }};
    ($registry:expr, histogram $family:expr) => {{
        let options = HistogramOpts::from(opts($family)).buckets(SECONDS.to_vec());
        let metric = HistogramVec::new(options, $family.labels)?;
        register($registry, &metric);
        $registry.labelled($family, &metric);
        metric
    }};
}

/// All families of one process.
pub struct Metrics {
    registry: Registry,
    labelled: Vec<Box<dyn Labelled>>,
    requests: IntCounterVec,
    /// Requests answered by the router itself: pool, cause.
    pub rejected: IntCounterVec,
    in_flight: IntGaugeVec,
    sequences: IntGaugeVec,
    state: IntGaugeVec,
    probes: IntCounterVec,
    connect_failures: IntCounterVec,
    /// Further attempts: pool, cause.
    pub retries: IntCounterVec,
    /// Replays over budget: pool.
    pub over_budget: IntCounterVec,
    breaker: IntGaugeVec,
    breaker_opened: IntCounterVec,
    /// Decisions in panic: pool.
    pub panics: IntCounterVec,
    queue: IntGaugeVec,
    queue_wait: HistogramVec,
    /// Prompt tokens that a shadow saw: pool.
    pub shadow_prompt: IntCounterVec,
    /// Those expected to be computed again: pool, by.
    pub shadow_recomputed: IntCounterVec,
    /// The shadow's decisions: pool, agreement.
    pub shadow: IntCounterVec,
    upstream_idle: IntGaugeVec,
    phase: HistogramVec,
    ttft: HistogramVec,
    duration: HistogramVec,
    /// Bytes of request bodies: pool.
    pub bytes_in: IntCounterVec,
    /// Bytes of response bodies: pool.
    pub bytes_out: IntCounterVec,
    prompts: IntCounterVec,
    prompt_fallbacks: IntCounterVec,
    pub(super) tokens: TokenFamilies,
    pub(super) kv_events: KvEventFamilies,
    pub(super) index_pairs: IntGaugeVec,
    pub(super) index_capacity: IntGaugeVec,
    pub(super) index_bytes: IntGaugeVec,
    pub(super) index_evicted: IntCounterVec,
    pub(super) boundary_bytes: IntGaugeVec,
    pub(super) boundary_entries: IntGaugeVec,
    pub(super) boundary_lookups: IntCounterVec,
    engine_scrapes: IntCounterVec,
    /// What engines say of themselves: replica.
    pub engine: EngineFamilies,
    queued_seconds: GaugeVec,
    /// Session keys: pool, source.
    pub session_keys: IntCounterVec,
    bindings: IntGaugeVec,
    stored: IntGauge,
    /// Bodies not understood: pool, cause.
    pub unparsed: IntCounterVec,
    /// Client connections open.
    pub connections: IntGauge,
    /// Client connections accepted.
    pub accepted: IntCounter,
    /// Client connections ended by a timer: timer.
    pub client_timeouts: IntCounterVec,
    /// Connections ended by a malformed request: cause.
    pub malformed: IntCounterVec,
    /// Client connections that ended before HTTP began: kind.
    pub handshakes_failed: IntCounterVec,
    certificate_expiry: IntGaugeVec,
    /// Changed certificate files: listen, result.
    pub certificate_reloads: IntCounterVec,
    /// Access-log lines dropped.
    pub log_dropped: IntCounter,
    /// Reloads of the configuration: result.
    pub reloads: IntCounterVec,
    /// Whether the last one took.
    pub reload_ok: IntGauge,
    /// When one last took.
    pub reload_time: Gauge,
    /// Looks of discovery: pool, result.
    pub discoveries: IntCounterVec,
    discovered: IntGaugeVec,
    discovered_time: GaugeVec,
    _build: GaugeVec,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// All families, registered in a registry of their own.
    ///
    /// # Errors
    /// Only when a row of the table is malformed, which a test rules out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let r = &Building::default();
        let build = build!(r, GaugeVec, BUILD_INFO);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let metrics = Self {
            registry: r.registry.clone(),
            labelled: Vec::new(),
            requests: build!(r, IntCounterVec, REQUESTS),
            rejected: build!(r, IntCounterVec, REJECTED),
            in_flight: build!(r, IntGaugeVec, IN_FLIGHT),
            sequences: build!(r, IntGaugeVec, SEQUENCES),
            state: build!(r, IntGaugeVec, STATE),
            probes: build!(r, IntCounterVec, PROBES),
            connect_failures: build!(r, IntCounterVec, CONNECT_FAILURES),
            retries: build!(r, IntCounterVec, RETRIES),
            over_budget: build!(r, IntCounterVec, OVER_BUDGET),
            breaker: build!(r, IntGaugeVec, BREAKER),
            breaker_opened: build!(r, IntCounterVec, BREAKER_OPENED),
            panics: build!(r, IntCounterVec, PANICS),
            queue: build!(r, IntGaugeVec, QUEUE),
            queue_wait: build!(r, histogram QUEUE_WAIT),
            shadow_prompt: build!(r, IntCounterVec, SHADOW_PROMPT),
            shadow_recomputed: build!(r, IntCounterVec, SHADOW_RECOMPUTED),
            shadow: build!(r, IntCounterVec, SHADOW),
            upstream_idle: build!(r, IntGaugeVec, UPSTREAM_IDLE),
            phase: build!(r, histogram PHASE),
            ttft: build!(r, histogram TTFT),
            duration: build!(r, histogram DURATION),
            bytes_in: build!(r, IntCounterVec, BYTES_IN),
            bytes_out: build!(r, IntCounterVec, BYTES_OUT),
            prompts: build!(r, IntCounterVec, PROMPTS),
            prompt_fallbacks: build!(r, IntCounterVec, PROMPT_FALLBACKS),
            kv_events: KvEventFamilies {
                events: build!(r, IntCounterVec, KV_EVENTS),
                skipped: build!(r, IntCounterVec, KV_SKIPPED),
                losses: build!(r, IntCounterVec, KV_LOSSES),
                messages: build!(r, IntCounterVec, KV_MESSAGES),
                state: build!(r, IntGaugeVec, KV_STATE),
            },
            tokens: TokenFamilies {
                parity: build!(r, IntCounterVec, PARITY),
                sent: build!(r, IntCounterVec, PROMPT_TOKENS),
                matched: build!(r, IntCounterVec, MATCHED_TOKENS),
                reports: build!(r, IntCounterVec, REPORTS),
                prompt: build!(r, IntCounterVec, REPORTED_PROMPT),
                cached: build!(r, IntCounterVec, REPORTED_CACHED),
                predicted: build!(r, IntCounterVec, PREDICTED_CACHED),
                error: build!(r, IntCounterVec, PREDICTION_ERROR),
                predictions: build!(r, IntCounterVec, PREDICTIONS),
            },
            index_pairs: build!(r, IntGaugeVec, INDEX_PAIRS),
            index_capacity: build!(r, IntGaugeVec, INDEX_CAPACITY),
            index_bytes: build!(r, IntGaugeVec, INDEX_BYTES),
            index_evicted: build!(r, IntCounterVec, INDEX_EVICTED),
            boundary_bytes: build!(r, IntGaugeVec, BOUNDARY_BYTES),
            boundary_entries: build!(r, IntGaugeVec, BOUNDARY_ENTRIES),
            boundary_lookups: build!(r, IntCounterVec, BOUNDARY_LOOKUPS),
            engine_scrapes: build!(r, IntCounterVec, ENGINE_SCRAPES),
            engine: EngineFamilies {
                running: build!(r, GaugeVec, ENGINE_RUNNING),
                waiting: build!(r, GaugeVec, ENGINE_WAITING),
                cache_use: build!(r, GaugeVec, ENGINE_CACHE_USE),
                cache_tokens: build!(r, GaugeVec, ENGINE_CACHE),
                age: build!(r, GaugeVec, ENGINE_AGE),
            },
            queued_seconds: build!(r, GaugeVec, QUEUED_SECONDS),
            session_keys: build!(r, IntCounterVec, SESSION_KEYS),
            bindings: build!(r, IntGaugeVec, BINDINGS),
            stored: build!(r, single IntGauge, STORED),
            unparsed: build!(r, IntCounterVec, UNPARSED),
            connections: build!(r, single IntGauge, CONNECTIONS),
            accepted: build!(r, single IntCounter, ACCEPTED),
            client_timeouts: build!(r, IntCounterVec, CLIENT_TIMEOUTS),
            malformed: build!(r, IntCounterVec, MALFORMED),
            handshakes_failed: build!(r, IntCounterVec, HANDSHAKES_FAILED),
            certificate_expiry: build!(r, IntGaugeVec, CERTIFICATE_EXPIRY),
            certificate_reloads: build!(r, IntCounterVec, CERTIFICATE_RELOADS),
            log_dropped: build!(r, single IntCounter, LOG_DROPPED),
            reloads: build!(r, IntCounterVec, RELOADS),
            reload_ok: build!(r, single IntGauge, RELOAD_OK),
            reload_time: build!(r, single Gauge, RELOAD_TIME),
            discoveries: build!(r, IntCounterVec, DISCOVERIES),
            discovered: build!(r, IntGaugeVec, DISCOVERED),
            discovered_time: build!(r, GaugeVec, DISCOVERED_TIME),
            _build: build,
        };
        Ok(Self { labelled: r.labelled.take(), ..metrics })
    }

    /// Removes every series that has a pool or replica among its labels and is not to be kept: `keep(pool, replica)`.
    pub fn retain(&self, keep: impl Fn(Option<&str>, Option<&str>) -> bool) {
        self.labelled.iter().for_each(|family| family.retain(&keep));
    }

    /// A discovery that was answered.
    pub fn discovered(&self, pool: &str, replicas: usize) {
        self.discovered.with_label_values(&[pool]).set(i64::try_from(replicas).unwrap_or(i64::MAX));
        self.discovered_time.with_label_values(&[pool]).set(unix_seconds());
    }

    /// A pool that is no longer discovered.
    pub fn undiscovered(&self, pool: &str) {
        // What was never answered has no series.
        let _ = self.discovered.remove_label_values(&[pool]);
        let _ = self.discovered_time.remove_label_values(&[pool]);
    }

    /// A reload, or the start, that took.
    pub fn reload_took(&self) {
        self.reload_ok.set(1);
        self.reload_time.set(unix_seconds());
    }

    /// Handles for one replica.
    pub fn replica(&self, replica: &str) -> ReplicaMetrics {
        ReplicaMetrics {
            probe_ok: self.probes.with_label_values(&[replica, "ok"]),
            probe_failed: self.probes.with_label_values(&[replica, "failed"]),
            connect_failures: self.connect_failures.with_label_values(&[replica]),
            scrape_ok: self.engine_scrapes.with_label_values(&[replica, "ok"]),
            scrape_absent: self.engine_scrapes.with_label_values(&[replica, "absent"]),
            scrape_failed: self.engine_scrapes.with_label_values(&[replica, "failed"]),
            breaker_opened: self.breaker_opened.with_label_values(&[replica]),
        }
    }

    /// Counts a request's end.
    pub fn request(&self, pool: &str, replica: &str, reason: &str, outcome: &str) -> IntCounter {
        self.requests.with_label_values(&[pool, replica, reason, outcome])
    }

    /// Counters of prompts in one pool, by what their blocks are made of.
    pub fn prompts(&self, pool: &str, basis: &str) -> IntCounter {
        self.prompts.with_label_values(&[pool, basis])
    }

    /// Counter of prompts in one pool that were cut as text, or not at all, for a reason.
    pub fn prompt_fallback(&self, pool: &str, reason: &str) -> IntCounter {
        self.prompt_fallbacks.with_label_values(&[pool, reason])
    }

    /// The histogram of one phase in one pool.
    pub fn phase(&self, pool: &str, phase: &str) -> Histogram {
        self.phase.with_label_values(&[pool, phase])
    }

    /// Time to first token and duration of one replica in one pool.
    pub fn latencies(&self, pool: &str, replica: &str) -> (Histogram, Histogram) {
        (self.ttft.with_label_values(&[pool, replica]), self.duration.with_label_values(&[pool, replica]))
    }

    /// Sets the gauges that are read off at scrape time.
    pub fn set_replica(&self, replica: &str, requests: u32, sequences: u32, state: &str, idle: usize) {
        self.in_flight.with_label_values(&[replica]).set(i64::from(requests));
        self.sequences.with_label_values(&[replica]).set(i64::from(sequences));
        for each in ["ready", "warming", "draining", "down"] {
            self.state.with_label_values(&[replica, each]).set(i64::from(each == state));
        }
        self.upstream_idle.with_label_values(&[replica]).set(i64::try_from(idle).unwrap_or(i64::MAX));
    }

    /// Sets the gauge of a replica's queue of prefills.
    pub fn set_queued_seconds(&self, replica: &str, seconds: f64) {
        self.queued_seconds.with_label_values(&[replica]).set(seconds);
    }

    /// Sets the gauge of a replica's breaker.
    pub fn set_breaker(&self, replica: &str, state: &str) {
        for each in ["closed", "open", "half_open", "probation"] {
            self.breaker.with_label_values(&[replica, each]).set(i64::from(each == state));
        }
    }

    /// Sets a pool's gauge of waiting requests.
    pub fn set_queue(&self, pool: &str, waiting: usize) {
        self.queue.with_label_values(&[pool]).set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// The histogram of waits in one pool.
    pub fn queue_wait(&self, pool: &str) -> Histogram {
        self.queue_wait.with_label_values(&[pool])
    }

    /// Sets a pool's binding gauge.
    pub fn set_bindings(&self, pool: &str, bindings: usize) {
        self.bindings.with_label_values(&[pool]).set(i64::try_from(bindings).unwrap_or(i64::MAX));
    }

    /// Sets when a listener's certificate expires; unknown, the series goes.
    pub fn set_certificate_expiry(&self, listen: &str, expires: Option<u64>) {
        match expires.and_then(|seconds| i64::try_from(seconds).ok()) {
            Some(seconds) => self.certificate_expiry.with_label_values(&[listen]).set(seconds),
            None => drop(self.certificate_expiry.remove_label_values(&[listen])),
        }
    }

    /// Sets the gauge of stored-response ids.
    pub fn set_stored(&self, stored: usize) {
        self.stored.set(i64::try_from(stored).unwrap_or(i64::MAX));
    }

    /// The Prometheus text exposition.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Brings a counter up to a count that is kept elsewhere; one that has begun anew begins anew here, too. Only scrapes do
/// this, and they come one after the other.
pub(super) fn follow(counter: &IntCounter, count: u64) {
    match count.checked_sub(counter.get()) {
        Some(more) => counter.inc_by(more),
        None => {
            counter.reset();
            counter.inc_by(count);
        }
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Handles that belong to one replica whatever the pool.
#[derive(Debug)]
pub struct ReplicaMetrics {
    /// Probes answered in time with 2xx.
    pub probe_ok: IntCounter,
    /// Other probes.
    pub probe_failed: IntCounter,
    /// Connections that could not be opened.
    pub connect_failures: IntCounter,
    /// Questions that its engine answered with what it says of itself.
    pub scrape_ok: IntCounter,
    /// Those to which it had nothing to say.
    pub scrape_absent: IntCounter,
    /// Those that came to nothing.
    pub scrape_failed: IntCounter,
    /// Times its breaker opened.
    pub breaker_opened: IntCounter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_registers_under_its_name_once() {
        let metrics = Metrics::new().unwrap();
        let mut names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
        for family in FAMILIES {
            assert!(family.name.starts_with("warmroute_"));
            assert_eq!(family.kind == Kind::Counter, family.name.ends_with("_total"), "{}", family.name);
        }
        assert!(metrics.render().unwrap().contains("warmroute_build_info"));
    }

    /// Field report D6: dead replicas stay in metrics.
    #[test]
    fn d6_what_left_takes_its_series_along_and_nobody_elses() {
        let metrics = Metrics::new().unwrap();
        for replica in ["a", "b"] {
            let handles = metrics.replica(replica);
            handles.probe_ok.inc();
            metrics.request("p", replica, "random", "ok").inc();
            metrics.latencies("p", replica).0.observe(1.0);
            metrics.tokens("p", replica).reported(Some(2), Some(1));
            metrics.set_replica(replica, 0, 0, "ready", 0);
        }
        metrics.set_bindings("p", 1);
        metrics.retain(|_, replica| replica != Some("b"));
        let text = metrics.render().unwrap();
        assert!(!text.contains("replica=\"b\""), "{text}");
        for name in [
            "requests_total",
            "replica_state",
            "health_probes_total",
            "time_to_first_token_seconds_count",
            "usage_reports_total",
        ] {
            assert!(text.lines().any(|l| l.starts_with(&format!("warmroute_{name}")) && l.contains("replica=\"a\"")));
        }
        metrics.retain(|pool, _| pool != Some("p"));
        let text = metrics.render().unwrap();
        assert!(!text.contains("pool=\"p\"") && text.contains("warmroute_health_probes_total{replica=\"a\""), "{text}");
    }
}
