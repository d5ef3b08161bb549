//! Checked values → the configuration they mean: defaults filled in, and what concerns more than one key checked.
mod discover;
mod policy;
mod unique;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use rustls::pki_types::ServerName;

pub(super) use discover::replica_list;

use super::check::Item;
use super::engine::{engine_metrics, stream_usage};
use super::error::{Error, Errors, Place};
use super::events;
use super::listeners;
use super::model::*;
use super::prefix;
use super::resilience;
use super::scalar::Value;
use super::tls::{Authorities, ClientCertificates, MinVersion, PoolTls, ReplicaTls};

/// `None` only where the check or this has pushed an error.
pub(super) fn resolve(root: &Item, errors: &mut Errors) -> Option<Config> {
    let (timeouts, limits, logging) = (timeouts(root), limits(root), logging(root));
    let (listen, admin) = listeners::resolve(root, errors);
    let pools = pools(root, errors);
    let trusted_proxies = networks(root, "trusted_proxies");
    let expose = expose(root, &trusted_proxies, errors);
    Some(Config {
        listen: listen?,
        trusted_proxies,
        admin: admin?,
        pools: pools?,
        timeouts,
        limits,
        logging,
        expose,
        sources: Sources::of(root),
    })
}

/// How a value of the model is read from a checked one; `None` when it is of another kind.
pub(super) trait Read: Sized {
    fn read(value: &Value) -> Option<Self>;
}

macro_rules! read {
    ($($type:ty: $pattern:pat => $value:expr;)+) => {
        $(impl Read for $type {
            fn read(value: &Value) -> Option<Self> {
                match value { $pattern => $value, _ => None }
            }
        })+
    };
}

read! {
    bool: Value::Bool(b) => Some(*b);
    u32: Value::Count(n) => u32::try_from(*n).ok();
    usize: Value::Count(n) => usize::try_from(*n).ok();
    f64: Value::Ratio(r) => Some(*r);
    Duration: Value::Time(d) => Some(*d);
    Arc<str>: Value::Text(t) => Some(t.clone());
    &'static str: Value::Word(w) => Some(w);
    SocketAddr: Value::Address(a) => Some(*a);
    ReplicaUrl: Value::Url(u) => Some(u.clone());
    TcpEndpoint: Value::Tcp(t) => Some(t.clone());
    HeaderName: Value::Header(h) => Some(h.clone());
    SessionKeySource: Value::SessionKey(k) => Some(k.clone());
    Secret: Value::Secret(s) => Some(s.clone());
    PathBuf: Value::Path(p) => Some(p.clone());
    u16: Value::Count(n) => u16::try_from(*n).ok();
    u64: Value::Count(n) => Some(*n);
    DnsRecords: Value::Word(w) => DnsRecords::named(w);
    Authorities: Value::Authorities(a) => Some(a.clone());
    IpNet: Value::Network(n) => Some(*n);
    ClientCertificates: Value::Word(w) => ClientCertificates::named(w);
    MinVersion: Value::Word(w) => MinVersion::named(w);
    Engine: Value::Word(w) => Engine::named(w);
    LoadPolicy: Value::Word(w) => LoadPolicy::named(w);
    RequestEncoding: Value::Word(w) => RequestEncoding::named(w);
    StreamUsage: Value::Word(w) => StreamUsage::named(w);
    Stay: Value::Word(w) => Stay::named(w);
    LoadUnit: Value::Word(w) => LoadUnit::named(w);
    RetryOn: Value::Word(w) => RetryOn::named(w);
    LogFormat: Value::Word(w) => LogFormat::named(w);
}

impl<T: Read> Read for Option<T> {
    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::Off => Some(None),
            value => T::read(value).map(Some),
        }
    }
}

/// The value of `name` under `item`, or `default`.
pub(super) fn or<T: Read>(item: Option<&Item>, name: &str, default: T) -> T {
    item.and_then(|item| item.get(name)).and_then(|item| T::read(&item.value)).unwrap_or(default)
}

pub(super) fn networks(item: &Item, name: &str) -> Vec<IpNet> {
    item.items(name).iter().filter_map(|item| IpNet::read(&item.value)).collect()
}

/// Who is told of decisions. The word `trusted` stands for the peers of `trusted_proxies`.
fn expose(root: &Item, trusted: &[IpNet], errors: &mut Errors) -> Vec<IpNet> {
    let mut peers = Vec::new();
    for item in root.items("expose") {
        match &item.value {
            Value::Network(network) => peers.push(*network),
            Value::Word(_) => {
                if trusted.is_empty() && root.get("trusted_proxies").is_none() {
                    let problem = "`trusted` stands for the peers of `trusted_proxies`, and none are written";
                    let remedy = "write `trusted_proxies: [10.0.0.0/8]` too, or the networks here in place of the word";
                    errors.push(Error::new(item.place, &item.path, problem, remedy));
                }
                peers.extend(trusted);
            }
            _ => {}
        }
    }
    peers
}

fn timeouts(root: &Item) -> Timeouts {
    let (item, d) = (root.get("timeouts"), Timeouts::default());
    Timeouts {
        connect: or(item, "connect", d.connect),
        head: or(item, "head", d.head),
        body: or(item, "body", d.body),
        first_byte: or(item, "first_byte", d.first_byte),
        idle: or(item, "idle", d.idle),
        keep_alive: or(item, "keep_alive", d.keep_alive),
        upstream_idle: or(item, "upstream_idle", d.upstream_idle),
        drain_delay: or(item, "drain_delay", d.drain_delay),
        drain: or(item, "drain", d.drain),
    }
}

fn limits(root: &Item) -> Limits {
    let (item, d) = (root.get("limits"), Limits::default());
    Limits {
        body: or(item, "body", d.body),
        decode_ratio: or(item, "decode_ratio", d.decode_ratio),
        head: or(item, "head", d.head),
        headers: or(item, "headers", d.headers),
        uri: or(item, "uri", d.uri),
        connections: or(item, "connections", d.connections),
        streams: or(item, "streams", d.streams),
        stored_responses: or(item, "stored_responses", d.stored_responses),
    }
}

fn logging(root: &Item) -> Logging {
    let (item, d) = (root.get("logging"), Logging::default());
    Logging {
        level: or(item, "level", d.level),
        format: or(item, "format", d.format),
        access: or(item, "access", d.access),
    }
}

fn pool_tls(pool: &Item) -> PoolTls {
    let item = pool.get("tls");
    PoolTls { ca: or(item, "ca", None), server_name: or(item, "server_name", None) }
}

fn pools(root: &Item, errors: &mut Errors) -> Option<Vec<Pool>> {
    let items = root.items("pools");
    let mut across = Across::new(errors);
    // All are looked at, also after one that is wrong.
    let pools: Vec<_> = items.iter().map(|item| across.pool(item, items.len())).collect();
    pools.into_iter().collect::<Option<Vec<_>>>().filter(|pools| !pools.is_empty())
}

/// What must be unique or agree across pools, with the place where each was first written.
struct Across<'a> {
    errors: &'a mut Errors,
    names: HashMap<Arc<str>, (String, Place)>,
    paths: HashMap<Arc<str>, (String, Place)>,
    replicas: Vec<(Replica, String, Place)>,
    /// What a replica is taken to keep, itself or by its pool.
    capacities: HashMap<Arc<str>, (Option<u64>, String, Place)>,
    /// How a replica is probed: it is probed once, whichever pools it stands in.
    probes: HashMap<Arc<str>, (Health, String, Place)>,
}

impl<'a> Across<'a> {
    fn new(errors: &'a mut Errors) -> Self {
        Self {
            errors,
            names: HashMap::new(),
            paths: HashMap::new(),
            replicas: Vec::new(),
            capacities: HashMap::new(),
            probes: HashMap::new(),
        }
    }

    fn push(&mut self, item: &Item, problem: impl Into<String>, remedy: &str) {
        self.errors.push(Error::new(item.place, &item.path, problem, remedy));
    }

    fn pool(&mut self, item: &Item, count: usize) -> Option<Pool> {
        let models = self.models(item, count);
        let policy = item.get("policy").map_or(Some(Some(Policy::PowerOfTwo)), |item| self.policy(item));
        let shadow = item.get("shadow").map_or(Some(None), |item| self.policy(item));
        if let (Some(Some(policy)), Some(Some(shadow))) = (&policy, &shadow) {
            self.one_header(item, policy, shadow);
        }
        let session = self.session(item);
        let mut replicas: Vec<Replica> = Vec::new();
        let defaults = PoolDefaults { tls: pool_tls(item), kv_events: events::of_pool(item) };
        let cache_tokens = prefix::cache_tokens(item);
        for item in item.items("replicas") {
            let Some(replica) = self.replica(item, &defaults, &replicas) else { continue };
            self.one_capacity(item, &replica, cache_tokens);
            replicas.extend(ranks(item, replica));
        }
        let kv_events = defaults.kv_events.clone();
        let discover = self.discover(item, defaults);
        self.uses_events(item);
        let paths = self.unique_paths(item);
        let models = models?;
        if let (Models::Any, Some(given)) = (&models, item.get("health").and_then(|item| item.get("model_match")))
            && bool::read(&given.value) == Some(true)
        {
            self.push(given, "a pool that takes any model has none to look for", "write `model: NAME`, or remove it");
        }
        let adapters = self.adapters(item, &models);
        let health = resilience::health(item, &models);
        self.one_probe(item, &replicas, &health);
        let name = match &models {
            Models::Any => "any".into(),
            Models::Named { model, .. } => model.clone(),
        };
        if replicas.is_empty() && discover.is_none() {
            let broken = ["replicas", "discover"].map(|name| format!("{}.{name}", item.path));
            if !self.errors.iter().any(|e| broken.iter().any(|path| e.path.starts_with(path))) {
                let remedy = "write `replicas: [http://10.0.0.11:8000]`, or `discover:` with a `file` or `dns` name";
                self.push(item, "has no replicas", remedy);
            }
            return None;
        }
        Some(Pool {
            name,
            engine: or(Some(item), "engine", None),
            tokenizer: or(Some(item), "tokenizer", None),
            policy: policy??,
            session: session?,
            replicas,
            discover,
            paths,
            request_encoding: or(Some(item), "request_encoding", RequestEncoding::Decode),
            stream_usage: stream_usage(item),
            health,
            retry: resilience::retry(item),
            queue: resilience::queue(item),
            shadow: shadow?,
            cache_tokens,
            engine_metrics: engine_metrics(item),
            index_bytes: prefix::index_bytes(item),
            tokens_bytes: prefix::tokens_bytes(item),
            tokens_budget: prefix::tokens_budget(item),
            tokens_parity: prefix::tokens_parity(item),
            prefill: prefix::prefill(item),
            kv_events,
            adapters,
            models,
        })
    }

    fn models(&mut self, pool: &Item, count: usize) -> Option<Models> {
        match (pool.get("model"), pool.get("models")) {
            (Some(model), Some(models)) => {
                let problem = format!("`models` stands beside `model` ({})", model.place);
                self.push(
                    models,
                    problem,
                    "keep `model: NAME` for one model, or `models: any` for whatever is asked for",
                );
                None
            }
            (None, None) => {
                let broken = ["model", "models"].map(|name| format!("{}.{name}", pool.path));
                if !self.errors.iter().any(|e| broken.contains(&e.path)) {
                    let remedy = "write `model: NAME`, or `models: any` for one pool that takes every request";
                    self.push(pool, "names no model", remedy);
                }
                None
            }
            (None, Some(models)) => {
                if count > 1 {
                    let problem = format!("`models: any` takes every request, yet there are {count} pools");
                    self.push(models, problem, "name each pool's model, or keep this pool alone");
                }
                if let Some(aliases) = pool.get("aliases") {
                    self.push(
                        aliases,
                        "aliases need a model that they stand for",
                        "write `model: NAME` in place of `models: any`",
                    );
                }
                Some(Models::Any)
            }
            (Some(item), None) => {
                let model = Arc::<str>::read(&item.value)?;
                if &*model == "any" {
                    self.push(item, "no engine calls its model `any`", "write `models: any` to take every request");
                }
                self.unique_name(item, &model);
                let mut aliases = Vec::new();
                for item in pool.items("aliases") {
                    let Some(alias) = Arc::<str>::read(&item.value) else { continue };
                    self.unique_name(item, &alias);
                    aliases.push(alias);
                }
                Some(Models::Named { model, aliases })
            }
        }
    }

    fn session(&mut self, pool: &Item) -> Option<Session> {
        let (item, d) = (pool.get("session"), Session::default());
        let Some(session) = item else { return Some(d) };
        let keys = session.items("keys").iter().filter_map(|item| Read::read(&item.value)).collect();
        let scope = or(item, "scope", "credential");
        let header: Option<HeaderName> = or(item, "tenant_header", None);
        if let Some(given) = session.get("tenant_header").filter(|_| scope != "tenant") {
            let problem = format!("the scope is `{scope}`, which looks at no tenant header");
            self.push(given, problem, "write `scope: tenant` beside it, or remove it");
        }
        let scope = match scope {
            "none" => SessionScope::None,
            "tenant" => match header {
                Some(header) => SessionScope::Tenant(header),
                None => {
                    let path = format!("{}.tenant_header", session.path);
                    if !self.errors.iter().any(|e| e.path == path) {
                        let at = session.get("scope").unwrap_or(session);
                        let remedy = "write `tenant_header: x-tenant` beside it, the header that names the tenant";
                        self.push(at, "`scope: tenant` needs a `tenant_header`", remedy);
                    }
                    return None;
                }
            },
            _ => SessionScope::Credential,
        };
        Some(Session {
            keys,
            ttl: or(item, "ttl", d.ttl),
            max_bindings: or(item, "max_bindings", d.max_bindings),
            scope,
            api_key: or(item, "api_key", d.api_key),
        })
    }

    fn replica_tls(&mut self, item: &Item, pool: &PoolTls, at: &Item, url: &ReplicaUrl) -> Option<ReplicaTls> {
        let own = item.get("tls");
        if !url.tls {
            if let Some(own) = own {
                let remedy = "write `https://` in its `url`, or remove `tls`";
                self.push(own, "this replica's URL begins with `http://`: no TLS is spoken to it", remedy);
            }
            return None;
        }
        let ca = or(own, "ca", pool.ca.clone());
        let server_name: Arc<str> =
            or(own, "server_name", pool.server_name.clone().unwrap_or_else(|| url.host.clone()));
        if ServerName::try_from(&*server_name).is_err() {
            self.push(at, "its host is no name that a certificate can carry", "write `tls: { server_name: NAME }`");
            return None;
        }
        Some(ReplicaTls { ca, server_name })
    }

    /// An engine; `pool` is what its pool has before it.
    fn replica(&mut self, item: &Item, defaults: &PoolDefaults, pool: &[Replica]) -> Option<Replica> {
        let url_at = item.get("url")?;
        let url = ReplicaUrl::read(&url_at.value)?;
        let id = or(Some(item), "id", Arc::from(url.default_id()));
        let tls = self.replica_tls(item, &defaults.tls, url_at, &url);
        let replica = Replica {
            id,
            tls,
            rank: None,
            kv_events: events::of_replica(item, &url, &defaults.kv_events),
            url,
            weight: or(Some(item), "weight", 1),
            credential: or(Some(item), "credential", None),
            max_in_flight: or(Some(item), "max_in_flight", None),
            cache_tokens: or(Some(item), "cache_tokens", None),
            incarnation: or(Some(item), "incarnation", 0),
        };
        let at = item.get("id").unwrap_or(url_at);
        let twin = self.replicas.iter().find(|(r, ..)| r.id == replica.id || r.url == replica.url).cloned();
        let Some((first, path, place)) = twin else {
            self.replicas.push((replica.clone(), item.path.clone(), item.place));
            return Some(replica);
        };
        if first.id != replica.id {
            let problem = format!("`{}` is already {path} ({place}), under another id", url_at.shown);
            self.push(url_at, problem, "its load must be counted in one place: give both the same id, or keep one");
        } else if first.url != replica.url {
            let problem = format!("this id already belongs to {path} ({place}), which has another URL");
            self.push(at, problem, "give each replica an id of its own");
        } else if pool.iter().any(|r| *r.engine_id() == *replica.id) {
            let problem = format!("`{}` already stands in this pool, as {path} ({place})", at.shown);
            self.push(at, problem, "keep one of the two; to give it more requests, set its `weight`");
        } else {
            for (name, same) in [
                ("weight", first.weight == replica.weight),
                ("credential", first.credential == replica.credential),
                ("max_in_flight", first.max_in_flight == replica.max_in_flight),
                ("incarnation", first.incarnation == replica.incarnation),
                ("tls", first.tls == replica.tls),
                ("kv_events", first.kv_events == replica.kv_events),
            ] {
                if !same {
                    let at = item.get(name).unwrap_or(item);
                    let problem = format!("this replica is also {path} ({place}), with another `{name}`");
                    let remedy = format!("a replica has one `{name}` in all its pools: write the same in both");
                    self.errors.push(Error::new(at.place, &format!("{}.{name}", item.path), problem, remedy));
                }
            }
        }
        Some(replica)
    }
}

/// The replicas that an engine is.
fn ranks(item: &Item, engine: Replica) -> Vec<Replica> {
    match or(Some(item), "ranks", None) {
        Some(ranks) => engine.into_ranks(ranks).collect(),
        None => vec![engine],
    }
}
