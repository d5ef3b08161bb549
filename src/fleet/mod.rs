//! Replicas and pools: who is there, how they are reached, and whether they are well.
//!
//! A [`Replica`] is one engine endpoint, shared by every pool it serves, so that its load is counted once. A [`Pool`]
//! joins the replicas of one model with their routing core.
mod breaker;
mod budget;
mod clock;
mod connection;
mod connections;
pub mod discovery;
mod encoders;
mod expected;
mod fetch;
mod health;
mod heard;
mod leaving;
mod panic;
mod parity;
mod payload;
mod place;
mod pool;
mod pool_metrics;
mod probe;
mod queue;
mod replica;
mod request;
mod shadow;
#[cfg(test)]
mod tests;
mod upstream_tls;
mod window;

use std::collections::HashMap;
use std::sync::Arc;

pub use breaker::BreakerState;
pub use clock::Clock;
pub use connection::{Broken, Connection, Received, SendFailure};
pub use connections::{ConnectError, Connections};
pub use encoders::Encoders;
pub use expected::Expected;
pub use fetch::Fetched;
pub use health::{Condition, is_fault, watch};
pub use heard::EngineSays;
pub use leaving::Leaving;
pub use parity::{Parity, Verdict};
pub use payload::{Gathering, Payload};
pub use place::Place;
pub use pool::{Decided, Pool, Waiting};
pub use queue::Ticket;
pub use replica::Replica;
pub use request::Request;

use replica::Arrival;
use tokio::runtime::Handle;

use crate::config::{self, Config, Models, Rank, ReplicaUrl};
use crate::telemetry::Metrics;

/// Replicas that discovery found, by pool.
pub type Found = HashMap<Arc<str>, Vec<config::Replica>>;

/// Every pool and replica of one configuration, and of what discovery found for it.
#[derive(Debug, Default)]
pub struct Fleet {
    pools: Vec<Arc<Pool>>,
    replicas: Vec<Arc<Replica>>,
    by_model: HashMap<Arc<str>, usize>,
    by_id: HashMap<Arc<str>, usize>,
    by_url: HashMap<(ReplicaUrl, Option<Rank>), usize>,
    /// How many fleets came before it; the life of what is new in it.
    generation: u64,
    conflicts: Vec<String>,
}

impl Fleet {
    /// Builds pools and replicas; nothing is connected yet.
    pub fn new(config: &Config, encoders: &Encoders, metrics: &Metrics) -> Self {
        Self::default().next(config, &Found::new(), encoders, metrics)
    }

    /// The fleet that follows this one: what is in both stays the same object (replicas with their load, health and
    /// connections; pools with their bindings and placements), with its new settings. Replicas that are not in it are
    /// retired by [`Leaving::follow`].
    pub fn next(&self, config: &Config, found: &Found, encoders: &Encoders, metrics: &Metrics) -> Self {
        let mut next = Self { generation: self.generation + 1, ..Self::default() };
        // What is written goes before what is found, in every pool.
        for settings in &config.pools {
            let joins = self.pool_named(&settings.name).is_some_and(|pool| !pool.replicas().is_empty());
            for replica in &settings.replicas {
                next.take(self, replica, settings, joins, config, metrics);
            }
        }
        for (index, settings) in config.pools.iter().enumerate() {
            let before = self.pool_named(&settings.name);
            let joins = before.is_some_and(|pool| !pool.replicas().is_empty());
            let mut members: Vec<Arc<Replica>> =
                settings.replicas.iter().filter_map(|replica| next.replica(&replica.id).cloned()).collect();
            let discovered = settings.discover.as_ref().and_then(|_| found.get(&settings.name));
            for replica in discovered.into_iter().flatten() {
                if let Some(member) = next.take(self, replica, settings, joins, config, metrics)
                    && !members.iter().any(|known| known.id() == member.id())
                {
                    members.push(member);
                }
            }
            if let Models::Named { model, aliases } = &settings.models {
                for name in std::iter::once(model).chain(aliases).chain(&settings.adapters) {
                    next.by_model.insert(name.clone(), index);
                }
            }
            let (encoder, before) = (encoders.of(settings), before.map(|pool| &**pool));
            next.pools.push(Arc::new(Pool::new(settings.clone(), members, encoder, before, metrics)));
        }
        next
    }

    /// The replica that `wanted` describes: of this fleet, of the one before, or new. `None` when id or address are
    /// another replica's.
    fn take(
        &mut self,
        before: &Self,
        wanted: &config::Replica,
        pool: &config::Pool,
        joined: bool,
        config: &Config,
        metrics: &Metrics,
    ) -> Option<Arc<Replica>> {
        let twin = self.by_id.get(&wanted.id).or_else(|| self.by_url.get(&(wanted.url.clone(), wanted.rank)));
        if let Some(known) = twin.and_then(|at| self.replicas.get(*at)) {
            if known.id() == &wanted.id && *known.url() == wanted.url && known.rank() == wanted.rank {
                let known = known.clone();
                // One load, one limit: `check` refuses this where both are written.
                if (known.weight(), known.max_in_flight()) != (wanted.weight, wanted.max_in_flight) {
                    self.conflicts.push(format!(
                        "pool {}: replica {} keeps the weight and max_in_flight of where it was listed first",
                        pool.name, wanted.id
                    ));
                }
                return Some(known);
            }
            self.conflicts.push(format!(
                "pool {}: replica {} at {} is left out, because replica {} is at {}",
                pool.name,
                wanted.id,
                wanted.url,
                known.id(),
                known.url()
            ));
            return None;
        }
        let old = before.replica(&wanted.id);
        let replica = match old.filter(|old| old.is(wanted)) {
            Some(same) => {
                same.update(wanted, pool, &config.timeouts);
                same.clone()
            }
            None => {
                let drained = old.is_some_and(|old| old.drained());
                let arrival = Arrival { life: before.generation, joined, drained };
                Arc::new(Replica::new(wanted, pool, &config.timeouts, metrics, arrival))
            }
        };
        self.by_id.insert(wanted.id.clone(), self.replicas.len());
        self.by_url.insert((wanted.url.clone(), wanted.rank), self.replicas.len());
        self.replicas.push(replica.clone());
        Some(replica)
    }

    fn pool_named(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| &**pool.name() == name)
    }

    /// The replica of that id.
    pub fn replica(&self, id: &str) -> Option<&Arc<Replica>> {
        self.by_id.get(id).and_then(|at| self.replicas.get(*at))
    }

    /// What discovery found and this fleet could not take, in words.
    pub fn conflicts(&self) -> &[String] {
        &self.conflicts
    }

    /// Probes every replica from now on.
    pub fn start_probes(&self, runtime: &Handle) {
        self.replicas.iter().for_each(|replica| replica.start_probes(runtime));
    }

    /// Probes none any more.
    pub fn stop_probes(&self) {
        self.replicas.iter().for_each(|replica| replica.stop_probes());
    }

    /// All pools, in the configuration's order.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// All replicas, each once.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The pool that answers to a model's name or alias.
    pub fn pool_of(&self, model: &str) -> Option<&Arc<Pool>> {
        self.by_model.get(model).and_then(|index| self.pools.get(*index))
    }

    /// The pool, when there is one only.
    pub fn only_pool(&self) -> Option<&Arc<Pool>> {
        match self.pools.as_slice() {
            [pool] => Some(pool),
            _ => None,
        }
    }

    /// Whether any replica has answered a probe and may take requests.
    pub fn ready(&self) -> bool {
        self.replicas.iter().any(|replica| replica.confirmed() && !replica.drained())
    }
}
