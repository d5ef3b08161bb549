//! Metric families: one table gives the registry, and [`reference`](super::reference()).
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

/// What kind of metric a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, sum and count.
    Histogram,
}

/// A metric family's row in the table.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Full name, unit included.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// Label names, in order.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

macro_rules! families {
    ($($constant:ident = $name:literal $kind:ident [$($label:literal),*] $help:literal;)*) => {
        $(const $constant: Family = Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        /// Every family, in the order of the reference.
        pub const FAMILIES: &[Family] = &[$($constant),*];
    };
}

families! {
    BUILD_INFO = "warmroute_build_info" Gauge ["version"] "Always 1; the running version.";
    REQUESTS = "warmroute_requests_total" Counter ["pool", "replica", "reason", "outcome"]
        "Requests that reached a decision, when they end, by replica, the policy's reason and outcome.";
    REJECTED = "warmroute_requests_rejected_total" Counter ["pool", "cause"]
        "Requests answered by the router itself, by cause; pool is `none` before one is known.";
    IN_FLIGHT = "warmroute_replica_in_flight_requests" Gauge ["replica"]
        "Open requests: the sum of reservations on the replica.";
    SEQUENCES = "warmroute_replica_in_flight_sequences" Gauge ["replica"]
        "Open sequences (n × batch summed over open requests).";
    STATE = "warmroute_replica_state" Gauge ["replica", "state"]
        "1 for the state the replica is in (ready, warming, draining, down), else 0.";
    PROBES = "warmroute_health_probes_total" Counter ["replica", "result"] "Active health probes by result.";
    CONNECT_FAILURES = "warmroute_connect_failures_total" Counter ["replica"]
        "Connections to the replica that could not be opened in time.";
    RETRIES = "warmroute_retries_total" Counter ["pool", "cause"]
        "Further attempts: `stale_connection` (same replica, nothing had been sent), `connect_failed` (another replica), `not_found_there` (a stored response sought elsewhere), `replay_reset` and `replay_status` (another replica, although one may have seen it: `retry.replay`).";
    OVER_BUDGET = "warmroute_retry_budget_exhausted_total" Counter ["pool"]
        "Replays that `retry.budget` did not allow; the failure went to the client.";
    BREAKER = "warmroute_breaker_state" Gauge ["replica", "state"]
        "1 for the state the replica's breaker is in (closed, open, half_open, probation), else 0.";
    BREAKER_OPENED = "warmroute_breaker_opened_total" Counter ["replica"] "Times the replica's breaker opened.";
    PANICS = "warmroute_panic_decisions_total" Counter ["pool"]
        "Decisions for which all replicas that can be reached were considered, because too few are well (`health.max_ejected`).";
    QUEUE = "warmroute_queue_requests" Gauge ["pool"] "Requests that wait for a place on a replica.";
    QUEUE_WAIT = "warmroute_queue_wait_seconds" Histogram ["pool"]
        "Time that requests waited which then got a place. Those that got none are `warmroute_requests_rejected_total` with the causes `queue_full` and `queue_timeout`.";
    SHADOW_PROMPT = "warmroute_shadow_prompt_tokens_total" Counter ["pool"]
        "Prompt tokens of requests that a shadow decided on; estimated as 4 bytes a token where they are not tokenized.";
    SHADOW_RECOMPUTED = "warmroute_shadow_recomputed_tokens_total" Counter ["pool", "by"]
        "Of these, the tokens expected to be computed again where the `policy` sent them, and where the `shadow` would have.";
    SHADOW = "warmroute_shadow_decisions_total" Counter ["pool", "agreement"]
        "Decisions of the shadow policy: `same` replica as the policy's, or `other`.";
    UPSTREAM_IDLE = "warmroute_upstream_idle_connections" Gauge ["replica"]
        "Connections to the replica kept for reuse.";
    PHASE = "warmroute_phase_duration_seconds" Histogram ["pool", "phase"]
        "Time a request spent in a phase of its way: read (body from the client), tokens (blocks of the prompt), decide, connect, first_byte (sent until the first body byte), relay.";
    TTFT = "warmroute_time_to_first_token_seconds" Histogram ["pool", "replica"]
        "From the request head's arrival to the first body byte of a 2xx event stream.";
    DURATION = "warmroute_request_duration_seconds" Histogram ["pool", "replica"]
        "From the request head's arrival to the end of the answer, 2xx only.";
    BYTES_IN = "warmroute_request_body_bytes_total" Counter ["pool"] "Bytes of request bodies as received.";
    BYTES_OUT = "warmroute_response_body_bytes_total" Counter ["pool"] "Bytes of response bodies as sent on.";
    PROMPTS = "warmroute_prompts_total" Counter ["pool", "basis"]
        "Requests of a pool that has a use for prompts, by what blocks were made of theirs: `tokens`, `text`, or `none`.";
    PROMPT_FALLBACKS = "warmroute_prompt_fallbacks_total" Counter ["pool", "reason"]
        "Prompts that were cut as text although the pool has a tokenizer (no_template, template_failed, tokenizer_failed, time_budget, media, unknown_shape), or of which no blocks were made (unreadable, encoded, busy: as many long ones as there are processors were in work for all of `tokens.budget`), by reason.";
    PROMPT_TOKENS = "warmroute_prompt_tokens_total" Counter ["pool", "replica"]
        "Tokens of the prompts sent to the replica (estimated as 4 bytes a token where they are not tokenized).";
    MATCHED_TOKENS = "warmroute_matched_tokens_total" Counter ["pool", "replica"]
        "Of these, the leading ones that the replica was expected to hold.";
    INDEX_PAIRS = "warmroute_index_blocks" Gauge ["pool", "replica"]
        "Blocks of prompts that the prefix index knows, or expects, on the replica.";
    INDEX_BYTES = "warmroute_index_bytes" Gauge ["pool"] "Memory of the prefix index; bounded by `index.size`.";
    INDEX_EVICTED = "warmroute_index_evicted_blocks_total" Counter ["pool"]
        "Blocks that the prefix index gave back, to keep within `index.size` and the replicas' `cache_tokens`.";
    BOUNDARY_BYTES = "warmroute_boundary_cache_bytes" Gauge ["pool"]
        "Memory of the tokenizer's boundary cache; bounded by `tokens.cache`.";
    BOUNDARY_ENTRIES = "warmroute_boundary_cache_entries" Gauge ["pool"] "Entries of the tokenizer's boundary cache.";
    BOUNDARY_LOOKUPS = "warmroute_boundary_cache_lookups_total" Counter ["pool", "result"]
        "Prompts of which the boundary cache knew at least a head (`hit`), or nothing (`miss`).";
    QUEUED_SECONDS = "warmroute_replica_queued_seconds" Gauge ["replica"]
        "Seconds of prefill that wait on the replica, as far as one can tell from outside.";
    SESSION_KEYS = "warmroute_session_keys_total" Counter ["pool", "source"]
        "Requests by where their session key came from; `none` had no key, `unusable` a header whose value can't be one.";
    BINDINGS = "warmroute_session_bindings" Gauge ["pool"] "Session bindings held; bounded by `session.max_bindings`.";
    STORED = "warmroute_stored_responses" Gauge []
        "Stored-response ids whose replica is remembered; bounded by `limits.stored_responses`.";
    UNPARSED = "warmroute_unparsed_bodies_total" Counter ["pool", "cause"]
        "Request bodies that were forwarded without being understood, by cause; such requests have no session key of the body.";
    CONNECTIONS = "warmroute_client_connections" Gauge [] "Client connections open.";
    ACCEPTED = "warmroute_client_connections_accepted_total" Counter [] "Client connections accepted.";
    CLIENT_TIMEOUTS = "warmroute_client_timeouts_total" Counter ["timer"]
        "Client connections ended by a timer: head, keep_alive, body; and HTTP/2 answers that their client did not take (stalled).";
    HANDSHAKES_FAILED = "warmroute_client_handshakes_failed_total" Counter ["kind"]
        "Client connections that ended before HTTP began: tls, proxy_protocol (a missing or malformed header).";
    CERTIFICATE_EXPIRY = "warmroute_tls_certificate_expiry_timestamp_seconds" Gauge ["listen"]
        "When the certificate in use on the listener expires, in seconds since 1970.";
    CERTIFICATE_RELOADS = "warmroute_tls_certificate_reloads_total" Counter ["listen", "result"]
        "Changed certificate files taken into use (ok), or found wanting while the one before stays in use (failed).";
    RELOADS = "warmroute_config_reloads_total" Counter ["result"]
        "Reloads of the configuration: `ok`, or `failed` (the configuration before stays in force).";
    RELOAD_OK = "warmroute_config_last_reload_successful" Gauge []
        "1 when the configuration that was last read is in force, 0 when it was refused.";
    RELOAD_TIME = "warmroute_config_last_reload_success_timestamp_seconds" Gauge []
        "When the configuration in force was read, in Unix time.";
    DISCOVERIES = "warmroute_discovery_lookups_total" Counter ["pool", "result"]
        "Looks at where a pool's replicas are listed: `changed`, `unchanged`, or `failed` (the last list stays in force).";
    DISCOVERED = "warmroute_discovery_replicas" Gauge ["pool"] "Replicas in the list that discovery last read.";
    DISCOVERED_TIME = "warmroute_discovery_last_success_timestamp_seconds" Gauge ["pool"]
        "When discovery last read the list, in Unix time.";
    MALFORMED = "warmroute_malformed_requests_total" Counter ["cause"]
        "Client connections ended because of a request that HTTP parsers may read in different ways, or that is over its limits, by cause.";
    LOG_DROPPED = "warmroute_access_log_dropped_total" Counter [] "Access-log lines dropped because the writer was behind.";
}

/// Upper bounds of latency buckets, in seconds: 100 µs to 5 min.
const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

fn opts(family: Family) -> Opts {
    Opts::new(family.name, family.help)
}

// Names and labels are constants checked by the test below, so a failure to build is a bug in this file alone; an
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
    prompt_tokens: IntCounterVec,
    matched_tokens: IntCounterVec,
    index_pairs: IntGaugeVec,
    index_bytes: IntGaugeVec,
    index_evicted: IntCounterVec,
    boundary_bytes: IntGaugeVec,
    boundary_entries: IntGaugeVec,
    boundary_lookups: IntCounterVec,
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
            prompt_tokens: build!(r, IntCounterVec, PROMPT_TOKENS),
            matched_tokens: build!(r, IntCounterVec, MATCHED_TOKENS),
            index_pairs: build!(r, IntGaugeVec, INDEX_PAIRS),
            index_bytes: build!(r, IntGaugeVec, INDEX_BYTES),
            index_evicted: build!(r, IntCounterVec, INDEX_EVICTED),
            boundary_bytes: build!(r, IntGaugeVec, BOUNDARY_BYTES),
            boundary_entries: build!(r, IntGaugeVec, BOUNDARY_ENTRIES),
            boundary_lookups: build!(r, IntCounterVec, BOUNDARY_LOOKUPS),
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

    /// Counters of the prompt tokens that go to one replica in one pool, and of those matched there.
    pub fn prompt_tokens(&self, pool: &str, replica: &str) -> [IntCounter; 2] {
        [&self.prompt_tokens, &self.matched_tokens].map(|family| family.with_label_values(&[pool, replica]))
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

    /// Sets what a pool's prefix index knows of a replica.
    pub fn set_index_blocks(&self, pool: &str, replica: &str, blocks: usize) {
        self.index_pairs.with_label_values(&[pool, replica]).set(i64::try_from(blocks).unwrap_or(i64::MAX));
    }

    /// Sets the figures of a pool's prefix index.
    pub fn set_index(&self, pool: &str, bytes: usize, evicted: u64) {
        self.index_bytes.with_label_values(&[pool]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        follow(&self.index_evicted.with_label_values(&[pool]), evicted);
    }

    /// Sets the figures of a pool's boundary cache.
    pub fn set_boundary_cache(&self, pool: &str, bytes: u64, entries: u64, [hits, misses]: [u64; 2]) {
        self.boundary_bytes.with_label_values(&[pool]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.boundary_entries.with_label_values(&[pool]).set(i64::try_from(entries).unwrap_or(i64::MAX));
        follow(&self.boundary_lookups.with_label_values(&[pool, "hit"]), hits);
        follow(&self.boundary_lookups.with_label_values(&[pool, "miss"]), misses);
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
fn follow(counter: &IntCounter, count: u64) {
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
            metrics.set_replica(replica, 0, 0, "ready", 0);
        }
        metrics.set_bindings("p", 1);
        metrics.retain(|_, replica| replica != Some("b"));
        let text = metrics.render().unwrap();
        assert!(!text.contains("replica=\"b\""), "{text}");
        for name in ["requests_total", "replica_state", "health_probes_total", "time_to_first_token_seconds_count"] {
            assert!(text.lines().any(|l| l.starts_with(&format!("warmroute_{name}")) && l.contains("replica=\"a\"")));
        }
        metrics.retain(|pool, _| pool != Some("p"));
        let text = metrics.render().unwrap();
        assert!(!text.contains("pool=\"p\"") && text.contains("warmroute_health_probes_total{replica=\"a\""), "{text}");
    }
}
