//! One engine endpoint, shared by all pools it serves.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::connections::Connections;
use super::health::Streak;
use super::upstream_tls::UpstreamTls;
use crate::config::{self, Health, ReplicaUrl, Timeouts};
use crate::routing::{Load, Member, State, Status};
use crate::telemetry::{Metrics, ReplicaMetrics};

/// One engine endpoint.
#[derive(Debug)]
pub struct Replica {
    id: Arc<str>,
    url: ReplicaUrl,
    authority: HeaderValue,
    authorization: Option<HeaderValue>,
    weight: u32,
    max_in_flight: Option<u32>,
    load: Arc<Load>,
    status: Arc<Status>,
    connections: Connections,
    metrics: ReplicaMetrics,
    pub(super) health: Health,
    pub(super) streak: Mutex<Streak>,
    /// Wakes the prober before its time.
    pub(super) probe_now: Notify,
    pub(super) confirmed: AtomicBool,
}

impl Replica {
    /// A replica that is taken to be well until it is known not to be.
    pub fn new(replica: &config::Replica, health: Health, timeouts: &Timeouts, metrics: &Metrics) -> Self {
        let authorization = replica.credential.as_ref().and_then(|secret| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", secret.reveal())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Self {
            id: replica.id.clone(),
            url: replica.url.clone(),
            authority: HeaderValue::from_str(&replica.url.authority)
                .unwrap_or_else(|_| HeaderValue::from_static("replica")),
            authorization,
            weight: replica.weight,
            max_in_flight: replica.max_in_flight,
            load: Arc::default(),
            status: Arc::new(Status::new(State::Ready)),
            connections: Connections::new(
                replica.url.clone(),
                replica.tls.as_ref().map(UpstreamTls::new),
                timeouts.connect,
                timeouts.upstream_idle,
            ),
            metrics: metrics.replica(&replica.id),
            health,
            streak: Mutex::default(),
            probe_now: Notify::new(),
            confirmed: AtomicBool::new(false),
        }
    }

    /// Stable name.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Where it is.
    pub fn url(&self) -> &ReplicaUrl {
        &self.url
    }

    /// Its `Host` header.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// What replaces the client's credential, if anything does.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// What is open on it.
    pub fn load(&self) -> &Arc<Load> {
        &self.load
    }

    /// Its share relative to others.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Most requests open there at once.
    pub fn max_in_flight(&self) -> Option<u32> {
        self.max_in_flight
    }

    /// Whether it may be chosen.
    pub fn state(&self) -> State {
        self.status.get()
    }

    pub(super) fn set_state(&self, state: State) -> State {
        self.status.set(state)
    }

    /// Whether a probe has been answered and none has failed it since.
    pub fn confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire) && self.state() != State::Down
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
            weight: self.weight,
            max_in_flight: self.max_in_flight,
            incarnation: 0,
            load: self.load.clone(),
            status: self.status.clone(),
        }
    }
}
