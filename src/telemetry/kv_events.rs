//! Counters of the KV events of one replica: what it said, what was lost, and how well they are followed.
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::Metrics;

/// How well a replica's events are followed; labels of [`super::families::KV_STATE`].
const STATES: [&str; 5] = ["off", "syncing", "live", "degraded", "suspect"];

/// The families.
pub(super) struct KvEventFamilies {
    pub events: IntCounterVec,
    pub skipped: IntCounterVec,
    pub losses: IntCounterVec,
    pub messages: IntCounterVec,
    pub state: IntGaugeVec,
}

impl KvEventFamilies {
    pub fn of(&self, replica: &str) -> KvEventMetrics {
        let events = |kind| self.events.with_label_values(&[replica, kind]);
        KvEventMetrics {
            replica: replica.to_owned(),
            stored: events("stored"),
            removed: events("removed"),
            cleared: events("cleared"),
            skipped: self.skipped.clone(),
            losses: self.losses.clone(),
            messages: self.messages.clone(),
            state: self.state.clone(),
        }
    }
}

impl Metrics {
    /// Counters of a replica's KV events.
    pub fn kv_events(&self, replica: &str) -> KvEventMetrics {
        self.kv_events.of(replica)
    }
}

/// Handles for one replica.
#[derive(Debug, Clone)]
pub struct KvEventMetrics {
    replica: String,
    /// Events that told of stored blocks.
    pub stored: IntCounter,
    /// Of removed ones.
    pub removed: IntCounter,
    /// That all are gone.
    pub cleared: IntCounter,
    skipped: IntCounterVec,
    losses: IntCounterVec,
    messages: IntCounterVec,
    state: IntGaugeVec,
}

impl KvEventMetrics {
    /// Events, or blocks of them, that were left out for a reason.
    pub fn skipped(&self, reason: &str, count: usize) {
        if count > 0 {
            self.skipped.with_label_values(&[&*self.replica, reason]).inc_by(count as u64);
        }
    }

    /// Something went missing: a fixed word.
    pub fn lost(&self, what: &str) {
        self.losses.with_label_values(&[&*self.replica, what]).inc();
    }

    /// What became of messages: a fixed word.
    pub fn messages(&self, what: &str, count: u64) {
        if count > 0 {
            self.messages.with_label_values(&[&*self.replica, what]).inc_by(count);
        }
    }

    /// How well they are followed now: one of `off`, `syncing`, `live`, `degraded`, `suspect`.
    pub fn state(&self, state: &str) {
        for each in STATES {
            self.state.with_label_values(&[&*self.replica, each]).set(i64::from(each == state));
        }
    }
}
