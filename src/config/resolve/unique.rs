//! What must be unique, or agree, across pools: names, paths, and how one replica stands in several of them.
use std::sync::Arc;

use super::{Across, Read as _};
use crate::config::built_in::is_built_in;
use crate::config::check::Item;
use crate::config::error::Error;
use crate::config::model::*;

impl Across<'_> {
    pub(super) fn unique_name(&mut self, item: &Item, name: &Arc<str>) {
        match self.names.get(name) {
            Some((path, place)) => {
                let problem = format!("`{}` is already {path} ({place})", item.shown);
                let remedy = "each name leads to one pool: put the replicas together in one, or rename one of the two";
                self.push(item, problem, remedy);
            }
            None => {
                self.names.insert(name.clone(), (item.path.clone(), item.place));
            }
        }
    }

    pub(super) fn unique_paths(&mut self, pool: &Item) -> Vec<Arc<str>> {
        let mut paths = Vec::new();
        for item in pool.items("paths") {
            let Some(path) = Arc::<str>::read(&item.value) else { continue };
            if let Some((first, place)) = self.paths.get(&path) {
                let problem = format!("`{}` is already {first} ({place})", item.shown);
                self.push(item, problem, "a further path leads to one pool: keep it in one of the two");
            }
            if is_built_in(&path) {
                let problem = format!("`{}` is served in any case, and never by this entry", item.shown);
                let remedy = "leave it out: the router knows this path and answers it or finds the pool by itself; \
                              `paths` are for those it does not know, such as `/pooling`";
                self.push(item, problem, remedy);
            }
            self.paths.insert(path.clone(), (item.path.clone(), item.place));
            paths.push(path);
        }
        paths
    }

    /// LoRA adapters; their names lead to the pool as the model's do.
    pub(super) fn adapters(&mut self, pool: &Item, models: &Models) -> Vec<Arc<str>> {
        let mut adapters = Vec::new();
        for item in pool.items("adapters") {
            let Some(adapter) = Arc::<str>::read(&item.value) else { continue };
            if *models == Models::Any {
                let problem = "a pool that takes any model passes every name on, an adapter's too";
                self.push(item, problem, "remove it, or write `model: NAME` in place of `models: any`");
                continue;
            }
            self.unique_name(item, &adapter);
            adapters.push(adapter);
        }
        adapters
    }

    /// Events do not name the model whose token ids they hold.
    pub(super) fn uses_events(&mut self, pool: &Item) {
        let own = |replica: &&Item| replica.get("kv_events").is_some_and(|item| item.get("endpoint").is_some());
        let of_replica = || pool.items("replicas").iter().find(own).and_then(|replica| replica.get("kv_events"));
        let Some(item) = pool.get("kv_events").or_else(of_replica) else { return };
        if pool.get("models").is_some() {
            let problem = "events do not tell the model, and this pool takes any";
            self.push(item, problem, "write `model: NAME` in place of `models: any`");
        }
    }

    /// A replica of several pools has one KV cache.
    pub(super) fn one_capacity(&mut self, item: &Item, replica: &Replica, pool: Option<u64>) {
        let here = replica.cache_tokens.or(pool);
        match self.capacities.get(&replica.id) {
            Some((there, path, place)) if *there != here => {
                let there = there.map_or("detect".to_owned(), |tokens| tokens.to_string());
                let problem = format!("this replica is also {path} ({place}), where its `cache_tokens` are {there}");
                let remedy = "a replica has one cache: write the same `cache_tokens` for it in all its pools";
                let at = item.get("cache_tokens").unwrap_or(item);
                self.errors.push(Error::new(at.place, &format!("{}.cache_tokens", item.path), problem, remedy));
            }
            Some(_) => {}
            None => {
                self.capacities.insert(replica.id.clone(), (here, item.path.clone(), item.place));
            }
        }
    }

    /// Replicas of several pools have one `health` in all of them: the other would be without effect.
    pub(super) fn one_probe(&mut self, pool: &Item, replicas: &[Replica], health: &Health) {
        let at = pool.get("health").unwrap_or(pool);
        for replica in replicas {
            match self.probes.get(&replica.id) {
                Some((first, path, place)) if !first.watches_alike(health) => {
                    let problem =
                        format!("replica `{}` also stands in {path} ({place}), with another `health`", replica.id);
                    let remedy = "a replica is probed in one way: write the same `health` in both pools";
                    self.errors.push(Error::new(at.place, &format!("{}.health", pool.path), problem, remedy));
                    return;
                }
                Some(_) => {}
                None => {
                    self.probes.insert(replica.id.clone(), (health.clone(), pool.path.clone(), at.place));
                }
            }
        }
    }
}
