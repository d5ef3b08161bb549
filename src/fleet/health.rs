//! Whether a replica is well: an active probe, and connections that could not be opened.
//!
//! Both write one streak and, through it, the replica's [`State`]; neither can touch its load. A replica starts as
//! ready, so that the first requests need not wait for a probe, and a first probe that fails takes it down at once.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full, Limited};

use super::Replica;
use crate::routing::State;

/// How long a replica that came back ramps up.
const WARM_UP: Duration = Duration::from_secs(30);

/// Largest probe answer that is read, so that the connection can be used again.
const PROBE_BODY: usize = 64 * 1024;

/// Successes and failures in a row.
#[derive(Debug, Default)]
pub(super) struct Streak {
    successes: u32,
    failures: u32,
    warming_since: Option<Instant>,
}

impl Replica {
    /// A probe was answered as it should.
    pub(super) fn succeeded(&self) {
        let mut streak = self.streak.lock();
        streak.failures = 0;
        streak.successes = streak.successes.saturating_add(1);
        let first = !self.confirmed.swap(true, Ordering::AcqRel);
        match self.state() {
            State::Down if streak.successes >= self.health.healthy_after => {
                // At the very start there is no warmer replica to compare it with.
                let state = if first { State::Ready } else { State::Warming };
                streak.warming_since = (!first).then(Instant::now);
                self.set_state(state);
                tracing::info!(replica = %self.id(), state = state.as_str(), "replica is up");
            }
            State::Warming if streak.warming_since.is_none_or(|since| since.elapsed() >= WARM_UP) => {
                streak.warming_since = None;
                self.set_state(State::Ready);
            }
            _ => {}
        }
    }

    /// A probe failed, or a connection could not be opened.
    pub(super) fn failed(&self, cause: &str) {
        let mut streak = self.streak.lock();
        streak.successes = 0;
        streak.failures = streak.failures.saturating_add(1);
        let enough = streak.failures >= self.health.unhealthy_after || !self.confirmed.load(Ordering::Acquire);
        if enough && self.state() != State::Down {
            self.set_state(State::Down);
            tracing::warn!(replica = %self.id(), failures = streak.failures, cause, "replica is down");
        }
    }

    /// A request could not reach the replica: counts like a failed probe, and brings the next one forward.
    pub fn unreachable(&self, cause: &str) {
        self.metrics().connect_failures.inc();
        self.failed(cause);
        self.probe_now.notify_one();
    }

    /// One probe.
    async fn probe(&self) -> Result<(), String> {
        let path = format!("{}{}", self.url().base_path, self.health.path);
        let mut request = Request::get(path).header(header::HOST, self.authority());
        if let Some(authorization) = self.authorization() {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(Bytes::new())).map_err(|error| error.to_string())?;
        let (response, connection) = self.connections().ask(request).await?;
        let status = response.status();
        if Limited::new(response.into_body(), PROBE_BODY).collect().await.is_ok() {
            self.connections().give_back(connection);
        }
        if status.is_success() { Ok(()) } else { Err(format!("{} answered {status}", self.health.path)) }
    }
}

/// Probes a replica for as long as it is polled, and sweeps its idle connections.
pub async fn watch(replica: Arc<Replica>) {
    loop {
        let result = tokio::time::timeout(replica.health.timeout, replica.probe()).await;
        match result.unwrap_or_else(|_| Err("no answer in time".into())) {
            Ok(()) => {
                replica.metrics().probe_ok.inc();
                replica.succeeded();
            }
            Err(cause) => {
                replica.metrics().probe_failed.inc();
                replica.failed(&cause);
            }
        }
        replica.connections().sweep();
        // A tenth of jitter, so that a fleet of routers does not probe in step.
        let jitter = 0.9 + 0.2 * fastrand::f64();
        let pause = tokio::time::sleep(replica.health.interval.mul_f64(jitter));
        tokio::select! {
            () = pause => {}
            () = replica.probe_now.notified() => {}
        }
    }
}
