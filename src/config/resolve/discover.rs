//! `discover:` and the lists that its files hold.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Across, Read, or, ranks};
use crate::config::check::Item;
use crate::config::error::Errors;
use crate::config::model::*;

/// The replicas of a file that `discover` names: a checked list.
pub(in crate::config) fn replica_list(items: &[Item], defaults: &PoolDefaults, errors: &mut Errors) -> Vec<Replica> {
    let mut across = Across::new(errors);
    let mut replicas = Vec::new();
    for item in items {
        let replica = across.replica(item, defaults, &replicas);
        replicas.extend(replica.into_iter().flat_map(|replica| ranks(item, replica)));
    }
    replicas
}

impl Across<'_> {
    pub(super) fn discover(&mut self, pool: &Item, defaults: PoolDefaults) -> Option<Discover> {
        let item = pool.get("discover")?;
        let (file, dns) = (item.get("file"), item.get("dns"));
        let from = match (file, dns) {
            (Some(file), Some(dns)) => {
                let problem = format!("`dns` stands beside `file` ({})", file.place);
                self.push(dns, problem, "keep one of the two; a pool has one place where its replicas are listed");
                return None;
            }
            (None, None) => {
                let broken = ["file", "dns"].map(|name| format!("{}.{name}", item.path));
                if !self.errors.iter().any(|e| broken.contains(&e.path)) {
                    let remedy = "write `discover: { file: replicas.yaml }`, or `discover: { dns: NAME, port: 8000 }`";
                    self.push(item, "names no `file` and no `dns`", remedy);
                }
                return None;
            }
            (Some(file), None) => {
                for name in ["type", "port", "nameserver", "base_path", "credential", "max_in_flight", "cache_tokens"] {
                    if let Some(setting) = item.get(name) {
                        let problem = format!("`{name}` goes with `dns`; in a file each replica has its own");
                        self.push(setting, problem, "remove it here, and write it in the file");
                    }
                }
                DiscoverFrom::File(PathBuf::read(&file.value)?)
            }
            (None, Some(name)) => {
                let dns = Dns {
                    name: Read::read(&name.value)?,
                    records: or(Some(item), "type", DnsRecords::Auto),
                    port: or(Some(item), "port", None),
                    nameserver: or(Some(item), "nameserver", None),
                    base_path: or(Some(item), "base_path", Arc::from("")).trim_end_matches('/').into(),
                    credential: or(Some(item), "credential", None),
                    max_in_flight: or(Some(item), "max_in_flight", None),
                    cache_tokens: or(Some(item), "cache_tokens", None),
                };
                let broken = format!("{}.port", item.path);
                if !dns.service() && dns.port.is_none() && !self.errors.iter().any(|e| e.path == broken) {
                    let remedy = "write `port: 8000` beside it; only SRV records carry ports";
                    self.push(name, "addresses have no port", remedy);
                }
                DiscoverFrom::Dns(dns)
            }
        };
        Some(Discover { from, defaults, interval: or(Some(item), "interval", Duration::from_secs(10)) })
    }
}
