//! What a pool does about failing, busy and absent replicas: the probe, the breaker, replays, the queue.
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::Item;
use super::model::Models;
use super::resolve::{Read, or};
use super::units::show_duration;

/// How a pool's replicas are watched, and how many may be left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// `GET` path, after the replica's base path; 2xx is healthy. Default `/health`.
    pub path: Arc<str>,
    /// Time between probes of a replica that is up, jittered by a tenth. Default 2 s.
    pub interval: Duration,
    /// The same while it is down, or its breaker is open. Default 1 s.
    pub down_interval: Duration,
    /// A slower answer counts as a failure. Default 2 s.
    pub timeout: Duration,
    /// Failures in a row after which a replica is down. Default 3.
    pub unhealthy_after: u32,
    /// Successes in a row after which it is back. Default 1.
    pub healthy_after: u32,
    /// The model that `/v1/models` must list (`model_match: true`); `None`: it isn't asked. Default `None`.
    pub model: Option<Arc<str>>,
    /// The share of a pool, 0 to 1, that judgement may leave out. Default 0.5.
    pub max_ejected: f64,
    /// What requests say about a replica.
    pub breaker: Breaker,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            path: "/health".into(),
            interval: Duration::from_secs(2),
            down_interval: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
            unhealthy_after: 3,
            healthy_after: 1,
            model: None,
            max_ejected: 0.5,
            breaker: Breaker::default(),
        }
    }
}

/// When a replica's breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Breaker {
    /// Failed requests in a row that open it. Default 5.
    pub failures: u32,
    /// So does this share of the requests within `window`, 0 to 1 (default 0.5)…
    pub share: f64,
    /// …which reaches so far back (default 10 s)…
    pub window: Duration,
    /// …once it holds so many requests (default 20).
    pub min_requests: u32,
    /// How long it stays open the first time; doubled each time it opens again. Default 1 s.
    pub open_for: Duration,
    /// The longest it stays open. Default 30 s.
    pub max_open: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 5,
            share: 0.5,
            window: Duration::from_secs(10),
            min_requests: 20,
            open_for: Duration::from_secs(1),
            max_open: Duration::from_secs(30),
        }
    }
}

/// Whether a request that a replica failed, or may have seen, is sent to another.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Whether it is at all. Default false: a generation is not started twice.
    pub replay: bool,
    /// Upon what. Default reset, 502, 503.
    pub on: Vec<RetryOn>,
    /// Replays of one request. Default 1.
    pub max: u32,
    /// Replays as a share of the pool's live requests, 0 to 1 (default 0.2)…
    pub budget: f64,
    /// …or so many in ten seconds, if that is more (default 3).
    pub floor: u32,
}

impl Default for Retry {
    fn default() -> Self {
        let on = vec![RetryOn::Reset, RetryOn::BadGateway, RetryOn::Unavailable];
        Self { replay: false, on, max: 1, budget: 0.2, floor: 3 }
    }
}

/// What a request may be replayed upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryOn {
    /// The connection ended before the response head.
    Reset,
    /// The engine answered 500.
    InternalError,
    /// The engine answered 502.
    BadGateway,
    /// The engine answered 503, without `Retry-After`.
    Unavailable,
    /// The engine answered 504.
    GatewayTimeout,
}

/// Where requests wait while every ready replica is at its `max_in_flight`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queue {
    /// Most that wait; one more is answered 429. `None`: none waits, 503 at once. Default `None`; 100 when `queue` is
    /// there without it.
    pub max: Option<usize>,
    /// Longest wait; then 503. Default 30 s.
    pub timeout: Duration,
    /// Whether requests also wait while no replica is up. Default false.
    pub wait_for_ready: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self { max: None, timeout: Duration::from_secs(30), wait_for_ready: false }
    }
}

pub(super) fn health(pool: &Item, models: &Models) -> Health {
    let (item, d) = (pool.get("health"), Health::default());
    let breaker = item.and_then(|item| item.get("breaker"));
    let model = match models {
        Models::Named { model, .. } => Some(model.clone()),
        Models::Any => None,
    };
    Health {
        path: or(item, "path", d.path),
        interval: or(item, "interval", d.interval),
        down_interval: or(item, "down_interval", d.down_interval),
        timeout: or(item, "timeout", d.timeout),
        unhealthy_after: or(item, "unhealthy_after", d.unhealthy_after),
        healthy_after: or(item, "healthy_after", d.healthy_after),
        model: model.filter(|_| or(item, "model_match", false)),
        max_ejected: or(item, "max_ejected", d.max_ejected),
        breaker: Breaker {
            failures: or(breaker, "failures", d.breaker.failures),
            share: or(breaker, "share", d.breaker.share),
            window: or(breaker, "window", d.breaker.window),
            min_requests: or(breaker, "min_requests", d.breaker.min_requests),
            open_for: or(breaker, "open_for", d.breaker.open_for),
            max_open: or(breaker, "max_open", d.breaker.max_open),
        },
    }
}

pub(super) fn retry(pool: &Item) -> Retry {
    let (item, d) = (pool.get("retry"), Retry::default());
    let on = item
        .filter(|item| item.get("on").is_some())
        .map_or(d.on, |item| item.items("on").iter().filter_map(|item| Read::read(&item.value)).collect());
    Retry {
        replay: or(item, "replay", d.replay),
        on,
        max: or(item, "max", d.max),
        budget: or(item, "budget", d.budget),
        floor: or(item, "floor", d.floor),
    }
}

pub(super) fn queue(pool: &Item) -> Queue {
    let (item, d) = (pool.get("queue"), Queue::default());
    Queue {
        max: or(item, "max", item.map(|_| 100)),
        timeout: or(item, "timeout", d.timeout),
        wait_for_ready: or(item, "wait_for_ready", d.wait_for_ready),
    }
}

impl Health {
    /// Whether a replica of two pools is watched alike by both. How many of a pool may be left out is each pool's own; the
    /// model that is looked for is the first pool's.
    pub(super) fn watches_alike(&self, other: &Self) -> bool {
        let comparable = |health: &Self| Self {
            max_ejected: 0.0,
            model: health.model.as_ref().map(|_| Arc::from("")),
            ..health.clone()
        };
        comparable(self) == comparable(other)
    }

    pub(super) fn effective(&self) -> Value {
        let b = &self.breaker;
        json!({
            "path": &*self.path,
            "interval": show_duration(self.interval),
            "down_interval": show_duration(self.down_interval),
            "timeout": show_duration(self.timeout),
            "unhealthy_after": self.unhealthy_after,
            "healthy_after": self.healthy_after,
            "model_match": self.model.is_some(),
            "max_ejected": show_percent(self.max_ejected),
            "breaker": {
                "failures": b.failures,
                "share": show_percent(b.share),
                "window": show_duration(b.window),
                "min_requests": b.min_requests,
                "open_for": show_duration(b.open_for),
                "max_open": show_duration(b.max_open),
            },
        })
    }
}

impl Retry {
    pub(super) fn effective(&self) -> Value {
        json!({
            "replay": self.replay,
            "on": self.on.iter().map(|on| on.as_str()).collect::<Vec<_>>(),
            "max": self.max,
            "budget": show_percent(self.budget),
            "floor": self.floor,
        })
    }
}

impl Queue {
    pub(super) fn effective(&self) -> Value {
        json!({
            "max": self.max.map_or(json!("off"), Value::from),
            "timeout": show_duration(self.timeout),
            "wait_for_ready": self.wait_for_ready,
        })
    }
}

fn show_percent(share: f64) -> String {
    format!("{}%", (share * 100.0).round())
}
