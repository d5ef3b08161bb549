//! Replicas as they are configured, one by one or by discovery.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::events::{KvEvents, PoolEvents};
use super::model::Secret;
use super::tls::{PoolTls, ReplicaTls};

/// One engine endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    /// Stable name in logs, metrics, hashing and bindings: `id:`, or `host:port[/base]` of the URL.
    pub id: Arc<str>,
    /// Where it is.
    pub url: ReplicaUrl,
    /// Its share of requests relative to others, 1 to 1000. Default 1.
    pub weight: u32,
    /// Sent as `Authorization: Bearer …` in place of what the client sent; `None` = the client's passes.
    pub credential: Option<Secret>,
    /// Most requests open there at once; `None` = no bound.
    pub max_in_flight: Option<u32>,
    /// Tokens of KV cache it can keep; `None` = the pool's `cache_tokens`.
    pub cache_tokens: Option<u64>,
    /// Another number is another engine behind the same address. Default 0.
    pub incarnation: u64,
    /// Which of the engine's data-parallel ranks it is; `None` = the engine has one, or chooses itself.
    pub rank: Option<Rank>,
    /// Where it publishes what it keeps in its cache.
    pub kv_events: KvEvents,
    /// How its certificate is judged; `None` = plain text (`http://`).
    pub tls: Option<ReplicaTls>,
}

/// One of the data-parallel ranks of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rank {
    /// It, from 0.
    pub at: u32,
    /// How many there are.
    pub of: u32,
}

impl Replica {
    /// The id of the engine that it is, or is a rank of.
    pub fn engine_id(&self) -> &str {
        let suffix = self.rank.map(|rank| rank_suffix(rank.at));
        suffix.and_then(|suffix| self.id.strip_suffix(&*suffix)).unwrap_or(&self.id)
    }

    /// The ranks of this engine, each a replica.
    pub(super) fn into_ranks(self, of: u32) -> impl Iterator<Item = Self> {
        (0..of).map(move |at| Self {
            id: format!("{}{}", self.id, rank_suffix(at)).into(),
            rank: Some(Rank { at, of }),
            kv_events: self.kv_events.of_rank(at),
            ..self.clone()
        })
    }
}

fn rank_suffix(at: u32) -> String {
    format!("@rank{at}")
}

/// What replicas take from their pool, where they do not say so themselves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PoolDefaults {
    /// Of those with `https://`.
    pub tls: PoolTls,
    /// Where they publish KV events.
    pub kv_events: PoolEvents,
}

/// Replicas that come and go.
#[derive(Debug, Clone, PartialEq)]
pub struct Discover {
    /// Where they are listed.
    pub from: DiscoverFrom,
    /// What the replicas found take from the pool.
    pub defaults: PoolDefaults,
    /// Longest time between two looks. Default 10 s.
    pub interval: Duration,
}

/// Where replicas are listed.
#[derive(Debug, Clone, PartialEq)]
pub enum DiscoverFrom {
    /// A YAML or JSON list in the form of `replicas`.
    File(PathBuf),
    /// A name of the DNS.
    Dns(Dns),
}

/// Replicas under one name of the DNS.
#[derive(Debug, Clone, PartialEq)]
pub struct Dns {
    /// The name.
    pub name: Arc<str>,
    /// What is asked for, as it was written; see [`Self::service`].
    pub records: DnsRecords,
    /// Port of every address; `None` = that of the SRV record.
    pub port: Option<u16>,
    /// Whom to ask; `None` = the system's servers and search list.
    pub nameserver: Option<SocketAddr>,
    /// Base path of the replicas.
    pub base_path: Arc<str>,
    /// Credential of the replicas.
    pub credential: Option<Secret>,
    /// Bound of each replica.
    pub max_in_flight: Option<u32>,
    /// Tokens of KV cache of each replica; `None` = the pool's `cache_tokens`.
    pub cache_tokens: Option<u64>,
}

impl Dns {
    /// Whether SRV records are asked for.
    pub fn service(&self) -> bool {
        match self.records {
            DnsRecords::Auto => self.name.starts_with('_'),
            DnsRecords::Address => false,
            DnsRecords::Service => true,
        }
    }
}

/// What is asked of the DNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsRecords {
    /// SRV when the name begins with `_`, else addresses.
    Auto,
    /// A and AAAA.
    Address,
    /// SRV, then the addresses of its targets.
    Service,
}

/// A replica's address: `http[s]://host[:port][/base/path]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicaUrl {
    /// Whether it is `https`.
    pub tls: bool,
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: Arc<str>,
    /// Port; 80, or 443 for `https`, when the URL names none.
    pub port: u16,
    /// `host[:port]` as it is written in the Host header (brackets round IPv6, the scheme's own port left out).
    pub authority: Arc<str>,
    /// `""`, or a path that begins with `/` and does not end with it.
    pub base_path: Arc<str>,
}
