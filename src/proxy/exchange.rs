//! One request's record, from its head to its end: timings, counts, and the reservation.
//!
//! It travels with the request and ends up in the answer's body. Whatever happens to it (answered, cut, the client
//! left and the future was dropped) it is closed exactly once: the reservation is released, the metrics count, the
//! access-log line is written.
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::listener::Client;
use super::problem::Problem;
use super::prompt::Known;
use super::{Proxy, Snapshot, head};
use crate::api::{Cause, Phase, Source};
use crate::engine::Usage;
use crate::fleet::{Decided, Expected, Place, Pool, Replica, Verdict};
use crate::routing::{Effect, Reason, Reported, TOLERANCE};
use crate::telemetry::{Record, TokenMetrics};

/// How a request ended; a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The engine's answer arrived whole, 1xx to 3xx.
    Ok,
    /// So did its 4xx.
    ClientError,
    /// So did its 5xx.
    EngineError,
    /// So did its 200, and it says in its body that it failed.
    EngineFailed,
    /// The client left first.
    ClientGone,
    /// The answer broke off after its head.
    ResetMidstream,
    /// Nothing came for `timeouts.idle`.
    IdleTimeout,
    /// The router ended before it did.
    CutAtShutdown,
    /// The router answered itself.
    Rejected,
}

impl Outcome {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::EngineError => "engine_error",
            Self::EngineFailed => "engine_failed",
            Self::ClientGone => "client_gone",
            Self::ResetMidstream => "upstream_reset_midstream",
            Self::IdleTimeout => "idle_timeout",
            Self::CutAtShutdown => "cut_at_shutdown",
            Self::Rejected => "rejected",
        }
    }

    fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            500.. => Self::EngineError,
            400.. => Self::ClientError,
            _ => Self::Ok,
        }
    }
}

/// One request's record.
#[derive(Debug)]
pub struct Exchange {
    proxy: Arc<Proxy>,
    snapshot: Arc<Snapshot>,
    started: Instant,
    phase: Phase,
    phase_started: Instant,
    request_id: HeaderValue,
    client: Arc<Client>,
    method: Method,
    path: &'static str,
    pool: Option<Arc<Pool>>,
    replica: Option<Arc<Replica>>,
    reason: Option<Reason>,
    session: Option<Source>,
    prompt: Option<Known>,
    /// Leading tokens of the prompt that the replica was expected to hold.
    matched: u32,
    /// Sequences that it has the engine generate.
    sequences: u32,
    usage: Option<Usage>,
    place: Option<Place>,
    expected: Option<Expected>,
    attempts: u32,
    status: Option<StatusCode>,
    bytes_in: u64,
    bytes_out: u64,
    first_byte: Option<Duration>,
    stream: bool,
    error: Option<Box<str>>,
    open: bool,
}

impl Exchange {
    /// A request whose head has arrived. Boxed: it goes from hand to hand.
    pub fn begin(proxy: Arc<Proxy>, request_id: HeaderValue, client: Arc<Client>, method: Method) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            snapshot: proxy.snapshot(),
            proxy,
            started: now,
            phase: Phase::Head,
            phase_started: now,
            request_id,
            client,
            method,
            path: "other",
            pool: None,
            replica: None,
            reason: None,
            session: None,
            prompt: None,
            matched: 0,
            sequences: 1,
            usage: None,
            place: None,
            expected: None,
            attempts: 0,
            status: None,
            bytes_in: 0,
            bytes_out: 0,
            first_byte: None,
            stream: false,
            error: None,
            open: true,
        })
    }

    /// The proxy it passes through.
    pub fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// Configuration and fleet as they stood when it arrived; a reload does not change them under it.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The id it goes by.
    pub fn request_id(&self) -> &HeaderValue {
        &self.request_id
    }

    /// Enters a phase; the time spent in the one before is recorded, once the pool is known.
    pub fn enter(&mut self, phase: Phase) {
        let now = Instant::now();
        if let Some(pool) = &self.pool {
            let phases = &pool.metrics.phases;
            let histogram = match self.phase {
                Phase::Read => Some(&phases.read),
                Phase::Decide => Some(&phases.decide),
                Phase::Connect => Some(&phases.connect),
                Phase::FirstByte => Some(&phases.first_byte),
                Phase::Relay => Some(&phases.relay),
                _ => None,
            };
            if let Some(histogram) = histogram {
                histogram.observe(now.duration_since(self.phase_started).as_secs_f64());
            }
        }
        self.phase = phase;
        self.phase_started = now;
    }

    /// The phase it is in.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// It goes to this endpoint.
    pub fn on_path(&mut self, path: &'static str) {
        self.path = path;
    }

    /// The body has been read.
    pub fn received(&mut self, bytes: usize) {
        self.bytes_in = bytes as u64;
    }

    /// It belongs to this pool.
    pub fn in_pool(&mut self, pool: &Arc<Pool>) {
        pool.metrics.bytes_in.inc_by(self.bytes_in);
        self.pool = Some(pool.clone());
    }

    /// Its session key came from there.
    pub fn keyed(&mut self, source: Source) {
        self.session = Some(source);
    }

    /// Its prompt was read, or could not be.
    pub fn prompt(&mut self, known: Known) {
        if let Some(pool) = &self.pool {
            pool.metrics.prompts.count(known.basis);
            pool.metrics.phases.tokens.observe(known.took.as_secs_f64());
            if let Some(reason) = known.fallback {
                self.proxy.metrics.prompt_fallback(pool.name(), reason).inc();
            }
        }
        self.prompt = Some(known);
    }

    /// An attempt on a replica begins; what one before had booked is given back. Returns what is to be applied when this
    /// one succeeds.
    pub fn attempt(&mut self, decided: Decided) -> Option<Effect> {
        let Decided { plan, replica, expected } = decided;
        self.attempts += 1;
        self.reason = Some(plan.reason);
        self.matched = plan.matched;
        self.sequences = plan.leg.reservation.sequences();
        self.expected = expected;
        self.place = Some(replica.hold(plan.leg.reservation));
        self.replica = Some(replica);
        plan.on_success
    }

    /// The attempt came to nothing, although the replica may have seen it.
    pub fn release(&mut self) {
        self.place = None;
        self.expected = None;
    }

    /// The attempt came to nothing, and the replica has computed nothing.
    pub fn withdraw(&mut self) {
        self.place = None;
        self.refused();
    }

    /// The replica computes nothing for it.
    pub fn refused(&mut self) {
        if let Some(expected) = self.expected.take() {
            expected.withdraw();
        }
    }

    /// Attempts so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The response head has arrived.
    pub fn answered(&mut self, status: StatusCode, stream: bool) {
        self.status = Some(status);
        self.stream = stream;
        if let (false, Some(expected)) = (stream, &mut self.expected) {
            expected.comes_whole();
        }
    }

    /// Body bytes go to the client.
    pub fn sent(&mut self, bytes: usize) {
        if self.first_byte.is_none() {
            let elapsed = self.started.elapsed();
            self.first_byte = Some(elapsed);
            self.enter(Phase::Relay);
        }
        self.bytes_out += bytes as u64;
    }

    /// The body tells that the prompt has been computed.
    pub fn prefilled(&mut self) {
        if let Some(expected) = &mut self.expected {
            expected.confirm();
        }
    }

    /// The answer arrived whole, and reported its usage, or none.
    pub fn used(&mut self, usage: Option<Usage>) {
        self.usage = usage;
        let prompt = usage.map(|usage| usage.prompt_tokens);
        let cached = self.cached_tokens();
        self.count_on_replica(|tokens| tokens.reported(prompt, cached));
        if let Some(prompt_tokens) = prompt {
            self.compare(prompt_tokens);
        }
        if let (Some(replica), Some(tokens)) = (&self.replica, self.prompt_tokens()) {
            replica.has_computed(tokens.saturating_sub(cached.unwrap_or(self.matched)));
        }
        // Engines count several sequences together, each in its own way.
        let (Some(prompt_tokens), Some(cached_tokens), 1) = (prompt, cached, self.sequences) else { return };
        if let Some(tokens) = self.prompt_tokens() {
            let reported = Reported { prompt_tokens, cached_tokens };
            let predicted = reported.in_its_tokens(self.matched, tokens);
            self.count_on_replica(|tokens| tokens.predicted(predicted, cached_tokens, TOLERANCE));
            if let Some(expected) = &mut self.expected {
                expected.reported(reported);
            }
        }
    }

    /// Compares the engine's count of the prompt's tokens with the pool's own.
    fn compare(&self, theirs: u32) {
        let exact = |known: &&Known| known.basis == "tokens" && known.fallback.is_none() && self.sequences == 1;
        let known = self.prompt.as_ref().filter(exact).and_then(|known| known.prompt.as_ref());
        let (Some(known), Some(pool)) = (known, &self.pool) else { return };
        let (ours, endpoint, pool_name) = (known.tokens, self.path, pool.name());
        pool.metrics.parity[usize::from(ours != theirs)].inc();
        match pool.parity().compare(endpoint, ours, theirs) {
            Some(Verdict::Distrusted) => tracing::warn!(
                pool = %pool_name, endpoint, request_id = ?self.request_id, ours, theirs,
                "the engine counts other tokens than the pool's tokenizer: prompts are cut as text until they agree"
            ),
            Some(Verdict::Trusted) => {
                tracing::info!(pool = %pool_name, endpoint, "the engine counts tokens as the pool's tokenizer does");
            }
            None => {}
        }
    }

    /// The answer arrived whole.
    pub fn finished(&mut self) {
        let outcome = self.status.map_or(Outcome::Ok, Outcome::of);
        self.close(outcome);
    }

    /// The answer arrived whole, and is that the engine failed.
    pub fn engine_failed(&mut self) {
        self.error = Some("the engine says in its answer that it failed".into());
        self.close(Outcome::EngineFailed);
    }

    /// The answer broke off.
    pub fn broken(&mut self, cause: Cause, message: &str) {
        self.error = Some(message.into());
        self.close(match cause {
            Cause::IdleTimeout => Outcome::IdleTimeout,
            Cause::ShuttingDown => Outcome::CutAtShutdown,
            _ => Outcome::ResetMidstream,
        });
    }

    /// The router answers itself.
    pub fn rejected(&mut self, problem: &Problem) {
        self.status = Some(problem.cause.status());
        self.phase = problem.phase;
        self.error = Some(problem.message.as_str().into());
        let pool = self.pool.as_ref().map_or("none", |pool| pool.name());
        self.proxy.metrics.rejected.with_label_values(&[pool, problem.cause.as_str()]).inc();
        self.close(Outcome::Rejected);
    }

    /// The router answers by itself and nothing is wrong (lists of models).
    pub fn served(&mut self, status: StatusCode, bytes: usize) {
        self.status = Some(status);
        self.bytes_out = bytes as u64;
        self.close(Outcome::of(status));
    }

    /// Tokens of its prompt, where that is known.
    fn prompt_tokens(&self) -> Option<u32> {
        Some(self.prompt.as_ref()?.prompt.as_ref()?.tokens)
    }

    /// Of these, what the replica was expected to hold, once one was decided on.
    fn matched_tokens(&self) -> Option<u32> {
        self.replica.as_ref()?;
        self.prompt_tokens().map(|_| self.matched)
    }

    /// Tokens of the prompt that the engine says it found in its cache.
    fn cached_tokens(&self) -> Option<u32> {
        self.usage.and_then(|usage| usage.cached_tokens)
    }

    /// Says in an answer's head which replica it is of, and why, if its client is one that may know.
    pub fn expose(&self, headers: &mut HeaderMap) {
        // The peer of the socket, or whom a PROXY protocol header names that came from a configured peer; never what a
        // client says in a header.
        let client = self.client.address.ip();
        if !self.snapshot.config.expose.iter().any(|network| network.contains(&client)) {
            return;
        }
        if let (Some(replica), Some(reason)) = (&self.replica, self.reason) {
            head::expose(headers, replica.id(), reason.as_str(), self.matched_tokens());
        }
    }

    fn count_on_replica(&self, count: impl Fn(&TokenMetrics)) {
        let (Some(pool), Some(replica)) = (&self.pool, &self.replica) else { return };
        match pool.metrics.tokens_on(replica.id()) {
            Some(known) => count(known),
            // One that joined after this request came.
            None => count(&self.proxy.metrics.tokens(pool.name(), replica.id())),
        }
    }

    fn close(&mut self, outcome: Outcome) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let ended_in = self.phase;
        if ended_in == Phase::Connect {
            // Nothing was sent.
            self.refused();
        }
        self.release();
        let whole = matches!(outcome, Outcome::Ok | Outcome::ClientError | Outcome::EngineError);
        self.enter(Phase::Finish);
        let duration = self.started.elapsed();
        if let Some(pool) = &self.pool {
            pool.metrics.bytes_out.inc_by(self.bytes_out);
            if let Some(tokens) = self.prompt_tokens() {
                self.count_on_replica(|counters| counters.sent(tokens, self.matched));
            }
            if let (Some(replica), Some(reason)) = (&self.replica, self.reason) {
                let metrics = &self.proxy.metrics;
                metrics.request(pool.name(), replica.id(), reason.as_str(), outcome.as_str()).inc();
                if self.status.is_some_and(|status| status.is_success()) {
                    let (ttft, total) = metrics.latencies(pool.name(), replica.id());
                    if let Some(first_byte) = self.first_byte.filter(|_| self.stream) {
                        ttft.observe(first_byte.as_secs_f64());
                    }
                    if outcome == Outcome::Ok {
                        total.observe(duration.as_secs_f64());
                    }
                }
            }
        }
        if self.snapshot.config.logging.access && self.proxy.access_log.enabled() {
            self.proxy.access_log.send(Record {
                time: SystemTime::now(),
                request_id: self.request_id.clone(),
                client: self.client.name.clone(),
                method: known_method(&self.method),
                path: self.path,
                pool: self.pool.as_ref().map(|pool| pool.name().clone()),
                replica: self.replica.as_ref().map(|replica| replica.id().clone()),
                reason: self.reason.map(Reason::as_str),
                session: self.session.map(Source::as_str),
                prompt_tokens: self.prompt_tokens(),
                matched_tokens: self.matched_tokens(),
                cached_tokens: self.cached_tokens(),
                basis: self.prompt.as_ref().map(|prompt| prompt.basis),
                fallback: self.prompt.as_ref().and_then(|prompt| prompt.fallback),
                attempts: self.attempts,
                status: self.status.map(|status| status.as_u16()),
                outcome: outcome.as_str(),
                phase: if whole { Phase::Finish } else { ended_in }.as_str(),
                bytes_in: self.bytes_in,
                bytes_out: self.bytes_out,
                first_byte: self.first_byte,
                duration,
                error: self.error.take(),
            });
        }
    }
}

/// A method as the log names it: HTTP lets a client make up others, of any length.
fn known_method(method: &Method) -> &'static str {
    [Method::POST, Method::GET, Method::DELETE, Method::HEAD, Method::OPTIONS, Method::PUT, Method::PATCH]
        .iter()
        .zip(["POST", "GET", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"])
        .find_map(|(known, name)| (known == method).then_some(name))
        .unwrap_or("other")
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Nobody closed it: the future or body was dropped, because the client left or the process ends.
        self.close(if self.proxy.cutting() { Outcome::CutAtShutdown } else { Outcome::ClientGone });
    }
}
