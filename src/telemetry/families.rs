//! Metric families: the one table that gives the registry ([`Metrics`](super::Metrics)) and
//! [`reference`](super::reference()).

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
        $(pub(super) const $constant: Family = Family { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
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
    PARITY = "warmroute_token_parity_total" Counter ["pool", "result"]
        "Prompts that were tokenized and whose answers reported the prompt's tokens: the engine counted the `same`, or `other` ones. Where more than a quarter differ, the endpoint's prompts are cut as text (fallback `parity`) until they agree.";
    PROMPT_TOKENS = "warmroute_prompt_tokens_total" Counter ["pool", "replica"]
        "Tokens of the prompts sent to the replica (estimated as 4 bytes a token where they are not tokenized).";
    MATCHED_TOKENS = "warmroute_matched_tokens_total" Counter ["pool", "replica"]
        "Of these, the leading ones that the replica was expected to hold.";
    REPORTS = "warmroute_usage_reports_total" Counter ["pool", "replica", "report"]
        "Whole 2xx answers of endpoints that generate, by what they reported: `cached_tokens`, `prompt_tokens` (and not how many of them were cached), or `none`.";
    REPORTED_PROMPT = "warmroute_reported_prompt_tokens_total" Counter ["pool", "replica"]
        "Prompt tokens, as the engine counts them, of requests whose answers reported cached tokens.";
    REPORTED_CACHED = "warmroute_reported_cached_tokens_total" Counter ["pool", "replica"]
        "Of these, the tokens that the engine found in its cache.";
    PREDICTED_CACHED = "warmroute_predicted_cached_tokens_total" Counter ["pool", "replica"]
        "Tokens that the replica was expected to hold, of requests of one sequence whose prompt was read and whose answers reported cached tokens.";
    PREDICTION_ERROR = "warmroute_prediction_error_tokens_total" Counter ["pool", "replica", "direction"]
        "Tokens by which these predictions were `over` what the engine reported, or `under` it.";
    PREDICTIONS = "warmroute_predictions_total" Counter ["pool", "replica", "result"]
        "These predictions: `right` within two blocks (32 tokens), `over` what the engine reported, or `under` it.";
    INDEX_PAIRS = "warmroute_index_blocks" Gauge ["pool", "replica"]
        "Blocks of prompts that the prefix index knows, or expects, on the replica.";
    INDEX_CAPACITY = "warmroute_index_capacity_blocks" Gauge ["pool", "replica"]
        "Blocks that the replica is assumed to keep: its `cache_tokens`, or less where its reports speak against it.";
    INDEX_BYTES = "warmroute_index_bytes" Gauge ["pool"] "Memory of the prefix index; bounded by `index.size`, and by as much again where KV events are followed.";
    INDEX_EVICTED = "warmroute_index_evicted_blocks_total" Counter ["pool"]
        "Blocks that the prefix index gave back, to keep within `index.size` and the replicas' `cache_tokens`.";
    KV_EVENTS = "warmroute_kv_events_total" Counter ["replica", "event"]
        "KV events taken from the replica: `stored`, `removed`, `cleared`.";
    KV_SKIPPED = "warmroute_kv_events_skipped_total" Counter ["replica", "reason"]
        "KV events that could not be read, or do not concern the index, and blocks of events that it could not place (orphan: what comes before them is not known), by reason.";
    KV_LOSSES = "warmroute_kv_event_losses_total" Counter ["replica", "kind"]
        "Times that KV events were not whole any more: the socket closed (disconnected), the engine works and publishes nothing (silent), messages were missed that could not be sent again (late: before anyone listened; missed: no `replay`; replay_failed; replay_truncated), or could not be read (unreadable); and times that all was to come anew (restarted).";
    KV_MESSAGES = "warmroute_kv_event_messages_total" Counter ["replica", "kind"]
        "Messages with KV events, of one publisher: taken in their turn (`applied`), come again (`repeated`), lost for good (`lost`, also those from before anyone listened); and what their numbers showed: `gap`s, `restart`s, `replay`s asked for, and those of them that failed (`failed_replay`).";
    KV_STATE = "warmroute_kv_events_state" Gauge ["replica", "state"]
        "How well the replica's KV events are followed: `live` (the index is what the engine holds), `syncing`, `degraded` (messages were lost for good), `suspect` (the connection is down, or it may be another process), `off`. In all but the first, predictions count beside what is known. 1 for the present one.";
    BOUNDARY_BYTES = "warmroute_boundary_cache_bytes" Gauge ["pool"]
        "Memory of the tokenizer's boundary cache; bounded by `tokens.cache`.";
    BOUNDARY_ENTRIES = "warmroute_boundary_cache_entries" Gauge ["pool"] "Entries of the tokenizer's boundary cache.";
    BOUNDARY_LOOKUPS = "warmroute_boundary_cache_lookups_total" Counter ["pool", "result"]
        "Prompts of which the boundary cache knew at least a head (`hit`), or nothing (`miss`).";
    ENGINE_SCRAPES = "warmroute_engine_scrapes_total" Counter ["replica", "result"]
        "Questions to the engine for what it says of itself: `ok`; `absent`, it answers and has nothing to say; `failed`.";
    ENGINE_RUNNING = "warmroute_engine_running_requests" Gauge ["replica"]
        "Requests that the engine computes, as it last said; no series where it does not say, here and in the four below.";
    ENGINE_WAITING = "warmroute_engine_waiting_requests" Gauge ["replica"]
        "Requests that wait in the engine, as it last said.";
    ENGINE_CACHE_USE = "warmroute_engine_cache_usage_ratio" Gauge ["replica"]
        "The share of its KV cache that requests use, as the engine last said.";
    ENGINE_CACHE = "warmroute_engine_cache_tokens" Gauge ["replica"]
        "Tokens that its KV cache holds, as the engine last said.";
    ENGINE_AGE = "warmroute_engine_report_age_seconds" Gauge ["replica"]
        "Time since the engine last said anything of itself; older than three times `engine_metrics.interval` it counts for nothing.";
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
