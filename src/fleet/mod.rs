//! Replicas and pools: who is there, how they are reached, and whether they are well.
//!
//! A [`Replica`] is one engine endpoint, shared by every pool it serves, so that its load is counted once. A [`Pool`]
//! joins the replicas of one model with their routing core.
mod connections;
mod health;
mod pool;
mod replica;
mod upstream_tls;

use std::collections::HashMap;
use std::sync::Arc;

pub use connections::{ConnectError, Connection, Connections, SendFailure};
pub use health::watch;
pub use pool::Pool;
pub use replica::Replica;

use crate::config::{Config, Models};
use crate::telemetry::Metrics;

/// Every pool and replica of one configuration.
#[derive(Debug)]
pub struct Fleet {
    pools: Vec<Arc<Pool>>,
    replicas: Vec<Arc<Replica>>,
    by_model: HashMap<Arc<str>, usize>,
}

impl Fleet {
    /// Builds pools and replicas; nothing is connected yet.
    pub fn new(config: &Config, metrics: &Metrics) -> Self {
        let mut replicas: Vec<Arc<Replica>> = Vec::new();
        let mut pools = Vec::with_capacity(config.pools.len());
        let mut by_model = HashMap::new();
        for (index, settings) in config.pools.iter().enumerate() {
            let mut members = Vec::with_capacity(settings.replicas.len());
            for replica in &settings.replicas {
                let known = replicas.iter().find(|known| known.id() == &replica.id).cloned();
                members.push(known.unwrap_or_else(|| {
                    let new = Arc::new(Replica::new(replica, settings.health.clone(), &config.timeouts, metrics));
                    replicas.push(new.clone());
                    new
                }));
            }
            if let Models::Named { model, aliases } = &settings.models {
                for name in std::iter::once(model).chain(aliases) {
                    by_model.insert(name.clone(), index);
                }
            }
            pools.push(Arc::new(Pool::new(settings.clone(), members, metrics)));
        }
        Self { pools, replicas, by_model }
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
        self.replicas.iter().any(|replica| replica.confirmed())
    }
}
