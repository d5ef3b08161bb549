//! Whether a replica is well: probes, connections that could not be opened, and what requests meet there.
//!
//! Probes and connections write one streak of successes and failures, requests write the breaker; what comes of both is
//! the replica's [`State`], and none of it can touch its load. A replica starts as ready, so that the first requests need
//! not wait for a probe, and a first probe that fails takes it down at once. One that comes back ramps up.
//!
//! A request fails a replica when its connection ends before the response head, or with 500, 502, 504, or 503 without
//! `Retry-After`. Nothing else does: not 4xx, nor 429, nor 503 with `Retry-After`, which is push-back of an engine that
//! works; not a slow answer; not a stream that breaks off, which the next connection will tell.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::breaker::{Breaker, BreakerState};
use super::panic::Down;
use super::probe::Fault;
use super::{ConnectError, Replica};
use crate::config;
use crate::routing::State;

/// How long a replica that came back ramps up.
const WARM_UP: Duration = Duration::from_secs(30);
/// The least pause between probes: a breaker that is about to half-open must not make the prober spin.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// What is known of a replica's health.
#[derive(Debug)]
pub(super) struct Judgement {
    successes: u32,
    failures: u32,
    /// By the streak.
    up: bool,
    /// Whether the last connection could be opened.
    reachable: bool,
    breaker: Breaker,
    warming_since: Option<Instant>,
    fault: Option<Box<str>>,
    /// It answers, and says that it is not ready yet.
    starting: bool,
    /// The engine says that it sleeps.
    asleep: bool,
    /// A connection was refused since the last that was not: the process is gone, and its cache with it.
    gone: bool,
}

/// A replica's health, for people.
#[derive(Debug, Clone)]
pub struct Condition {
    /// Whether probes (and connections) find it up.
    pub up: bool,
    /// Whether the last connection could be opened.
    pub reachable: bool,
    /// Good probes in a row.
    pub successes: u32,
    /// Failed probes and connections in a row.
    pub failures: u32,
    /// The last failure, if nothing has succeeded since.
    pub fault: Option<Box<str>>,
    /// Whether the engine says that it sleeps.
    pub asleep: bool,
    /// What requests say.
    pub breaker: BreakerState,
}

impl Judgement {
    /// Of a replica that is taken to be well; one that joins others ramps up.
    pub fn new(breaker: config::Breaker, joins: bool) -> Self {
        Self {
            successes: 0,
            failures: 0,
            up: true,
            reachable: true,
            breaker: Breaker::new(breaker),
            warming_since: joins.then(Instant::now),
            fault: None,
            starting: false,
            asleep: false,
            gone: false,
        }
    }

    /// Takes new settings of the breaker; where it stands stays.
    pub fn set_breaker(&mut self, settings: config::Breaker) {
        self.breaker.set(settings);
    }

    /// Whether probes and connections find it up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    fn state(&self) -> State {
        if !self.up || self.asleep || self.breaker.ejected_since().is_some() {
            State::Down
        } else if self.warming_since.is_some() {
            State::Warming
        } else {
            State::Ready
        }
    }

    fn down(&self) -> Down {
        if self.asleep || self.starting {
            // Nobody wakes it, or makes it faster, by asking.
            return Down::Unreachable;
        }
        match (self.up, self.reachable, self.breaker.ejected_since()) {
            (true, _, Some(since)) => Down::Ejected(since),
            (false, false, _) => Down::Unreachable,
            _ => Down::Sick,
        }
    }
}

impl Replica {
    /// Makes what is known the replica's state, and calls those who wait if it came back.
    fn publish(&self, judgement: &Judgement) {
        let state = judgement.state();
        let before = self.set_state(state);
        // Up again, or down: then others that are down, or it itself, may have to be let in (see `panic`).
        if before == State::Down || state == State::Down {
            self.call_waiters();
        }
    }

    /// A probe was answered as it should.
    pub(super) fn probe_succeeded(&self) {
        let now = Instant::now();
        let mut judgement = self.judgement.lock();
        judgement.failures = 0;
        judgement.fault = None;
        judgement.gone = false;
        let started = std::mem::take(&mut judgement.starting);
        judgement.successes = judgement.successes.saturating_add(1);
        let first = !self.confirmed.swap(true, Ordering::AcqRel) && !self.joined;
        let mut back = false;
        if !judgement.up && judgement.successes >= self.health().healthy_after {
            judgement.up = true;
            if !judgement.reachable || started {
                // Gone and back: a new process, that need not answer for the old one.
                judgement.breaker.reset();
            }
            back = true;
        }
        judgement.reachable = true;
        if judgement.up && judgement.breaker.probed(now) {
            back = true;
        }
        if back {
            // At the very start there is no warmer replica to compare it with.
            judgement.warming_since = (!first).then_some(now);
            let state = judgement.state();
            tracing::info!(replica = %self.id(), state = state.as_str(), "replica is up");
        } else if judgement.warming_since.is_some_and(|since| now.saturating_duration_since(since) >= WARM_UP) {
            judgement.warming_since = None;
        }
        self.publish(&judgement);
    }

    /// A probe failed, or a connection could not be opened.
    pub(super) fn probe_failed(&self, fault: &Fault) {
        let mut judgement = self.judgement.lock();
        judgement.successes = 0;
        judgement.failures = judgement.failures.saturating_add(1);
        judgement.reachable = matches!(fault, Fault::Sick(_) | Fault::Unready { .. });
        if let Fault::Unready { loads, .. } = fault {
            // Of one that was there all the time it is a judgement, and can be wrong; one that has just come is loading.
            let new = *loads || judgement.gone;
            if new && !std::mem::replace(&mut judgement.starting, true) {
                judgement.up = false;
                judgement.breaker.reset();
                tracing::info!(replica = %self.id(), cause = fault.cause(), "replica is not ready yet");
            }
        }
        if matches!(fault, Fault::Refused(_)) && !std::mem::replace(&mut judgement.gone, true) {
            self.lose_cache();
            self.heard.lock().forget_process();
        }
        judgement.fault = Some(fault.cause().into());
        let enough = judgement.failures >= self.health().unhealthy_after || !self.confirmed.load(Ordering::Acquire);
        if enough && std::mem::replace(&mut judgement.up, false) {
            tracing::warn!(replica = %self.id(), failures = judgement.failures, cause = fault.cause(), "replica is down");
        }
        self.publish(&judgement);
    }

    /// A request could not reach the replica: counts like a failed probe, and brings the next one forward.
    pub fn unreachable(&self, error: &ConnectError) {
        self.metrics().connect_failures.inc();
        match Fault::of(error) {
            Fault::Local(_) => {}
            fault => self.probe_failed(&fault),
        }
        self.probe_now.notify_one();
    }

    /// A request got a response head.
    pub fn answered(&self, status: StatusCode, retry_after: bool) {
        if is_fault(status, retry_after) {
            self.failed(status.as_str());
        } else {
            let mut judgement = self.judgement.lock();
            judgement.gone = false;
            judgement.breaker.answered(Instant::now());
        }
    }

    /// A request's connection ended before a response head.
    pub fn cut_off(&self) {
        self.failed("connection ended before the response head");
    }

    /// A request's answer began well, and told in its end that the engine failed. Probes find out soon whether all of it has.
    pub fn failed_in_answer(&self) {
        self.failed("the engine says in its answers that it failed");
        self.probe_now.notify_one();
    }

    fn failed(&self, cause: &str) {
        let mut judgement = self.judgement.lock();
        if judgement.starting {
            // It has said so.
            return;
        }
        let first = judgement.breaker.fails_in_a_row() == 0;
        if judgement.breaker.failed(Instant::now()) {
            self.metrics().breaker_opened.inc();
            self.publish(&judgement);
            let state = judgement.breaker.state(Instant::now());
            let open_for_ms = match state {
                BreakerState::Open(left) => (left.as_secs_f64() * 1000.0).round(),
                _ => 0.0,
            };
            tracing::warn!(replica = %self.id(), cause, open_for_ms, "breaker opened: requests fail there");
            // So that the prober knows when it is needed next.
            self.probe_now.notify_one();
        } else if first {
            // Whether it is gone, or loads its model, a probe tells before many requests have met it.
            self.probe_now.notify_one();
        }
    }

    /// The engine says that it sleeps, or that it is awake.
    pub(super) fn set_asleep(&self, asleep: bool) {
        let mut judgement = self.judgement.lock();
        if std::mem::replace(&mut judgement.asleep, asleep) != asleep {
            judgement.warming_since = (!asleep).then(Instant::now);
            tracing::info!(replica = %self.id(), asleep, "the engine fell asleep, or woke up");
            self.publish(&judgement);
        }
    }

    /// What is known of its health.
    pub fn condition(&self) -> Condition {
        let judgement = self.judgement.lock();
        Condition {
            up: judgement.up,
            reachable: judgement.reachable,
            successes: judgement.successes,
            failures: judgement.failures,
            fault: judgement.fault.clone(),
            asleep: judgement.asleep,
            breaker: judgement.breaker.state(Instant::now()),
        }
    }

    /// Why it is down, if it is.
    pub(super) fn why_down(&self) -> Option<Down> {
        if self.state() != State::Down {
            return None;
        }
        let judgement = self.judgement.lock();
        (judgement.state() == State::Down).then(|| judgement.down())
    }

    /// Until the next probe.
    fn pause(&self) -> Duration {
        let health = self.health();
        let judgement = self.judgement.lock();
        // A tenth of jitter, so that a fleet of routers does not probe in step.
        let jitter = 0.9 + 0.2 * fastrand::f64();
        let pause = match judgement.state() {
            State::Down => health.down_interval.min(health.interval),
            _ => health.interval,
        };
        let pause = pause.mul_f64(jitter);
        match judgement.breaker.state(Instant::now()) {
            BreakerState::Open(left) => pause.min(left).max(LEAST_PAUSE),
            _ => pause,
        }
    }
}

/// Whether an answer tells of a fault of the replica's own.
pub fn is_fault(status: StatusCode, retry_after: bool) -> bool {
    match status.as_u16() {
        500 | 502 | 504 => true,
        503 => !retry_after,
        _ => false,
    }
}

/// Probes a replica for as long as it is polled, and sweeps its idle connections.
pub async fn watch(replica: Arc<Replica>) {
    loop {
        match replica.probe().await {
            Ok(()) => {
                replica.metrics().probe_ok.inc();
                replica.probe_succeeded();
            }
            Err(Fault::Local(cause)) => tracing::warn!(replica = %replica.id(), cause, "a probe could not be sent"),
            Err(fault) => {
                replica.metrics().probe_failed.inc();
                replica.probe_failed(&fault);
            }
        }
        replica.connections().sweep();
        let pause = tokio::time::sleep(replica.pause());
        tokio::select! {
            () = pause => {}
            () = replica.probe_now.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_the_replicas_own() {
        let status = |code| StatusCode::from_u16(code).unwrap();
        for code in [500, 502, 503, 504] {
            assert!(is_fault(status(code), false), "{code}");
            assert_eq!(is_fault(status(code), true), code != 503, "{code}: only 503 is push-back");
        }
        for code in [200, 301, 400, 401, 404, 408, 413, 422, 429, 499, 501, 505, 529] {
            assert!(!is_fault(status(code), false), "{code}");
        }
    }
}
