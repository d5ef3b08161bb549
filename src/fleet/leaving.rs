//! What has left the fleet and is not gone yet: open requests end, then their metric series go.
//!
//! Series are reconciled, not removed once: a request that ends late may write one more, so they are looked through at
//! each scrape until nothing holds what left.
use std::sync::{Arc, Weak};

use super::{Fleet, Pool, Replica};
use crate::telemetry::Metrics;

/// Replicas and pools that were in an earlier fleet.
#[derive(Debug, Default)]
pub struct Leaving {
    replicas: Vec<Weak<Replica>>,
    pools: Vec<Weak<Pool>>,
    /// There may be series of something that is gone.
    unsettled: bool,
}

impl Leaving {
    /// Retires what `old` has and `new` has not; returns the ids of the replicas.
    pub fn follow(&mut self, old: &Fleet, new: &Fleet) -> Vec<Arc<str>> {
        self.replicas.retain(|replica| replica.strong_count() > 0);
        self.pools.retain(|pool| pool.strong_count() > 0);
        let mut left = Vec::new();
        for replica in old.replicas() {
            if !new.replica(replica.id()).is_some_and(|same| Arc::ptr_eq(same, replica)) {
                replica.retire();
                self.replicas.push(Arc::downgrade(replica));
                left.push(replica.id().clone());
            }
        }
        for pool in old.pools() {
            let next = new.pool_named(pool.name());
            if !next.is_some_and(|next| pool.replicas().iter().all(|replica| next.replica(replica.id()).is_some())) {
                self.pools.push(Arc::downgrade(pool));
                self.unsettled = true;
            }
        }
        self.unsettled |= !left.is_empty();
        left
    }

    /// Brings the series of what left up to date, and removes those of what is gone.
    pub fn settle(&mut self, fleet: &Fleet, metrics: &Metrics) {
        if !self.unsettled {
            return;
        }
        self.replicas.retain(|replica| replica.strong_count() > 0);
        self.pools.retain(|pool| pool.strong_count() > 0);
        let mut busy: Vec<Arc<Replica>> = self.replicas.iter().filter_map(Weak::upgrade).collect();
        // A new life of the same id has the series now.
        busy.retain(|replica| replica.load().requests() > 0 && fleet.replica(replica.id()).is_none());
        for replica in &busy {
            let load = replica.load();
            metrics.set_replica(replica.id(), load.requests(), load.sequences(), "draining", 0);
        }
        let pools: Vec<Arc<Pool>> = self.pools.iter().filter_map(Weak::upgrade).collect();
        let busy = |id: &str| busy.iter().any(|replica| &**replica.id() == id);
        metrics.retain(|pool, replica| {
            // `none` stands for a request that has no pool yet.
            let in_fleet = |name: &str| name == "none" || fleet.pool_named(name).is_some();
            match (pool, replica) {
                (None, Some(id)) => fleet.replica(id).is_some() || busy(id),
                (Some(name), None) => in_fleet(name) || pools.iter().any(|pool| &**pool.name() == name),
                (Some(name), Some(id)) => {
                    let has = |pool: &Arc<Pool>| &**pool.name() == name && pool.replica(id).is_some();
                    let served = fleet.replica(id).is_some() && pools.iter().any(has);
                    fleet.pool_named(name).is_some_and(has) || busy(id) || served
                }
                (None, None) => true,
            }
        });
        self.unsettled = !(self.replicas.is_empty() && self.pools.is_empty());
    }
}
