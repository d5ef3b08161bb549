//! The configuration as the rest of the house reads it: resolved, validated, immutable.
//!
//! No `Option` stands here for "the operator left it out": defaults are filled in. `None` always means a thing that
//! is switched off.
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;

use super::tls::ListenTls;

pub use super::engine::{CACHE_TOKENS, Engine, EngineMetrics, StreamUsage};
pub use super::events::{EventSource, KvEvents, PoolEvents, TcpEndpoint};
pub use super::prefix::{CacheAware, LeastCost, LoadUnit, Prefill, Stay};
pub use super::replica::{Discover, DiscoverFrom, Dns, DnsRecords, PoolDefaults, Rank, Replica, ReplicaUrl};
pub use super::resilience::{Breaker, Health, Queue, Retry, RetryOn};
pub use super::sources::Sources;

/// One whole, valid configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where clients connect (`listen`). At least one.
    pub listen: Vec<Listen>,
    /// Peers whose X-Forwarded-* headers are believed. Default none.
    pub trusted_proxies: Vec<IpNet>,
    /// The operator's listener; `None` when `admin: off`.
    pub admin: Option<Admin>,
    /// One pool a model; at least one. Names (labels) are unique.
    pub pools: Vec<Pool>,
    /// Timers of the data path.
    pub timeouts: Timeouts,
    /// Bounds on what one client can make the proxy hold.
    pub limits: Limits,
    /// What is logged, and how.
    pub logging: Logging,
    /// Peers whose answers say which replica gave them, why it was chosen and what of the prompt it held. Default none.
    pub expose: Vec<IpNet>,
    /// Where each value was written.
    pub sources: Sources,
}

/// One address where clients connect.
#[derive(Debug, Clone, PartialEq)]
pub struct Listen {
    /// It.
    pub address: SocketAddr,
    /// TLS; `None` = plain text.
    pub tls: Option<ListenTls>,
    /// Peers that must begin with a PROXY protocol header; from all others it is no valid request. Default none.
    pub proxy_protocol: Vec<IpNet>,
    /// Whether another process may listen on the same address (SO_REUSEPORT), to take over. Default false.
    pub reuse_port: bool,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// The operator's listener.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Default 127.0.0.1:9090. A wildcard or routable address without a token is refused.
    pub listen: SocketAddr,
    /// `Authorization: Bearer` secret that every path but `/livez` and `/readyz` then asks for.
    pub token: Option<Secret>,
}

/// A value that never appears in logs, dumps or error messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a secret value.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }
    /// The value itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The replicas that serve one model.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Label in metrics and logs: the model's name, or `any`.
    pub name: Arc<str>,
    /// Which requests belong here.
    pub models: Models,
    /// What the replicas are; `None` = find out.
    pub engine: Option<Engine>,
    /// Folder with `tokenizer.json` and the chat template; `None` = text blocks. In a pool for any model: that of the one
    /// model behind it, whatever it is asked for as.
    pub tokenizer: Option<PathBuf>,
    /// How a replica is chosen.
    pub policy: Policy,
    /// How a session is recognised and remembered.
    pub session: Session,
    /// At least one, unless there is `discover`; ids are unique within the pool, and one id means one URL everywhere.
    pub replicas: Vec<Replica>,
    /// Where further replicas come from.
    pub discover: Option<Discover>,
    /// Further exact paths that are forwarded to this pool (`paths`); everything unknown is a 404.
    pub paths: Vec<Arc<str>>,
    /// What is done with a compressed request body.
    pub request_encoding: RequestEncoding,
    /// How streams come to report their usage.
    pub stream_usage: StreamUsage,
    /// How its replicas are watched.
    pub health: Health,
    /// Whether a request that failed is sent to another replica.
    pub retry: Retry,
    /// Where requests wait for a place.
    pub queue: Queue,
    /// A policy that decides beside `policy`, metered and never acting.
    pub shadow: Option<Policy>,
    /// What of KV cache a replica can keep, in tokens, where the replica has no figure of its own; `None` = as its engine
    /// says, or [`CACHE_TOKENS`].
    pub cache_tokens: Option<u64>,
    /// What is asked of engines beside requests.
    pub engine_metrics: EngineMetrics,
    /// Bytes of the prefix index. Default 24 MiB.
    pub index_bytes: usize,
    /// Bytes of the tokenizer's boundary cache. Default 32 MiB.
    pub tokens_bytes: usize,
    /// Longest time that a prompt is tokenized for; then its text is cut instead. Default 1 s.
    pub tokens_budget: Duration,
    /// Whether prompts are cut as text while engines count their tokens otherwise. Default true.
    pub tokens_parity: bool,
    /// How long a prefill takes.
    pub prefill: Prefill,
    /// Where its replicas publish KV events, if they do not say so themselves.
    pub kv_events: PoolEvents,
    /// LoRA adapters: further names that clients may use, and that the engine is sent as they are. Never with
    /// [`Models::Any`].
    pub adapters: Vec<Arc<str>>,
}

impl Pool {
    /// Whether a session's key is of use: to the policy, or to the one in its shadow.
    pub fn uses_sessions(&self) -> bool {
        [Some(&self.policy), self.shadow.as_ref()]
            .iter()
            .flatten()
            .any(|p| matches!(p, Policy::SessionSticky(_)) || p.uses_prompts())
    }

    /// Whether prompts are of use: to the policy, or to the shadow (whose estimate of what is recomputed needs them).
    pub fn uses_prompts(&self) -> bool {
        self.policy.uses_prompts() || self.shadow.is_some()
    }

    /// The header whose hash decides: for the policy, or for the one in its shadow (the check has them agree).
    pub fn hashed_header(&self) -> Option<&HeaderName> {
        [Some(&self.policy), self.shadow.as_ref()].into_iter().flatten().find_map(|policy| match policy {
            Policy::HeaderHash { header, .. } => Some(header),
            _ => None,
        })
    }
}

/// Which model names a pool answers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Models {
    /// `models: any`: every request, and the body is not parsed for it. Such a pool is the only one.
    Any,
    /// `model:` and its `aliases:`; an alias is replaced by `model` in the bytes sent to the engine.
    Named {
        /// The name the engine knows.
        model: Arc<str>,
        /// Other names clients may use.
        aliases: Vec<Arc<str>>,
    },
}

/// How a replica is chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// In turn, by weight.
    RoundRobin,
    /// Uniformly at random, by weight.
    Random,
    /// The lowest load for its weight.
    LeastLoad,
    /// The less loaded of two drawn at random.
    PowerOfTwo,
    /// The replica a session is bound to; a new session by rendezvous hashing.
    SessionSticky(Affinity),
    /// Rendezvous hashing on one header's value.
    HeaderHash {
        /// The header to hash.
        header: HeaderName,
        /// Bounds and fallback.
        affinity: Affinity,
    },
    /// The replica that holds the longest prefix, unless it is too busy.
    CacheAware(CacheAware),
    /// The replica where the request costs least, in seconds of prefill and waiting.
    LeastCost(LeastCost),
}

/// What sticky policies share.
#[derive(Debug, Clone, PartialEq)]
pub struct Affinity {
    /// Where a request without a key goes. Default [`LoadPolicy::PowerOfTwo`].
    pub fallback: LoadPolicy,
    /// An unbound key leaves its first choice when that replica's load is over this multiple of the mean (default 1.25)…
    pub max_load_ratio: f64,
    /// …and at least this many requests above the mean (default 8).
    pub min_load_gap: u32,
}

impl Default for Affinity {
    fn default() -> Self {
        Self { fallback: LoadPolicy::PowerOfTwo, max_load_ratio: 1.25, min_load_gap: 8 }
    }
}

/// Policies that look at load alone; usable as fallbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadPolicy {
    /// See [`Policy::RoundRobin`].
    RoundRobin,
    /// See [`Policy::Random`].
    Random,
    /// See [`Policy::LeastLoad`].
    LeastLoad,
    /// See [`Policy::PowerOfTwo`].
    PowerOfTwo,
}

/// How a session is recognised and remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Looked at first, in order, before the default chain. Default: none.
    pub keys: Vec<SessionKeySource>,
    /// A binding unused for this long is forgotten. Default 30 min.
    pub ttl: Duration,
    /// Most bindings kept for the pool; the least recently used goes first. Default 100,000.
    pub max_bindings: usize,
    /// Who shares a name space of keys. Default [`SessionScope::Credential`].
    pub scope: SessionScope,
    /// Whether the hash of the API key serves as a key when nothing else does. Default false.
    pub api_key: bool,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            ttl: Duration::from_secs(30 * 60),
            max_bindings: 100_000,
            scope: SessionScope::Credential,
            api_key: false,
        }
    }
}

/// Where a session key is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKeySource {
    /// `header:NAME`.
    Header(HeaderName),
    /// `body:/json/pointer` (RFC 6901).
    Body(Arc<str>),
}

/// Who shares a name space of session keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionScope {
    /// All clients.
    None,
    /// Clients with the same API key (`Authorization` or `x-api-key`).
    Credential,
    /// Clients with the same value of this header (`scope: tenant`, `tenant_header: NAME`).
    Tenant(HeaderName),
}

/// What is done with a request body that has a `Content-Encoding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEncoding {
    /// gzip and zstd are decoded, and the engine gets the plain body (default).
    Decode,
    /// The bytes pass as they are and are not parsed.
    Pass,
}

/// Timers of the data path. There is no total timeout.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeouts {
    /// To open a connection to a replica. Default 2 s.
    pub connect: Duration,
    /// For a client to send a whole request head. Default 10 s.
    pub head: Duration,
    /// Longest silence while a client sends a body. Default 30 s.
    pub body: Duration,
    /// From the request sent to the replica's response head. Default none.
    pub first_byte: Option<Duration>,
    /// Longest silence between bytes of a response, and of a client that reads none of it. Default 300 s.
    pub idle: Duration,
    /// How long a client's connection may wait for its next request. Default 75 s.
    pub keep_alive: Duration,
    /// How long a connection to a replica is kept for reuse. Default 2 s: engines close theirs after
    /// 5 s, and one whose event loop stands still then closes it with a request on it.
    pub upstream_idle: Duration,
    /// How long connections are still accepted after SIGTERM, while `/readyz` already says no. Default 0.
    pub drain_delay: Duration,
    /// How long open requests may then take to end. Default 10 min.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            connect: s(2),
            head: s(10),
            body: s(30),
            first_byte: None,
            idle: s(300),
            keep_alive: s(75),
            upstream_idle: s(2),
            drain_delay: s(0),
            drain: s(600),
        }
    }
}

/// Bounds on what one client can make the proxy hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Bytes of a request body, before and after decoding. Default 64 MiB. Over it: 413.
    pub body: usize,
    /// Most a compressed body may grow by, as a multiple. Default 200.
    pub decode_ratio: u32,
    /// Bytes of a request head. Default 64 KiB. Over it: 431.
    pub head: usize,
    /// Header fields of a request. Default 100. Over it: 431.
    pub headers: usize,
    /// Bytes of a request target. Default 16 KiB. Over it: 414.
    pub uri: usize,
    /// Client connections held at once. Default 16,384; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Requests open at once on one HTTP/2 connection. Default 256; a client is told, and waits.
    pub streams: u32,
    /// Stored-response ids (`/v1/responses`) whose replica is remembered. Default 100,000.
    pub stored_responses: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 64 << 20,
            decode_ratio: 200,
            head: 64 << 10,
            headers: 100,
            uri: 16 << 10,
            connections: 16_384,
            streams: 256,
            stored_responses: 100_000,
        }
    }
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// A level (`error` … `trace`) or a filter in tracing's syntax (`info,warmroute::proxy=debug`). Default `info`.
    pub level: Arc<str>,
    /// Form of log and access log. Default text.
    pub format: LogFormat,
    /// Whether a line is written for each request when it ends. Default true.
    pub access: bool,
}

impl Default for Logging {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Text, access: true }
    }
}

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `key=value`, for eyes.
    Text,
    /// One JSON object a line.
    Json,
}
