//! The configuration as it holds, every default filled in and every secret masked: for `check --print-effective` and
//! the admin listener. It reads back as a configuration (but for the masked secrets).
use serde_json::{Map, Value, json};

use super::model::*;
use super::tls::Authorities;
use super::units::{show_duration, show_seconds, show_size};

const MASK: &str = "***";

impl Config {
    /// The configuration under the names of its keys, with units; secrets are `***`.
    pub fn effective(&self) -> Value {
        let (t, l) = (&self.timeouts, &self.limits);
        let mut admin = Map::new();
        match &self.admin {
            None => insert(&mut admin, "listen", "off"),
            Some(on) => {
                insert(&mut admin, "listen", on.listen.to_string());
                if on.token.is_some() {
                    insert(&mut admin, "token", MASK);
                }
            }
        }
        json!({
            "listen": self.listen.iter().map(listen).collect::<Vec<_>>(),
            "trusted_proxies": networks(&self.trusted_proxies),
            "expose": if self.expose.is_empty() { json!("off") } else { json!(networks(&self.expose)) },
            "admin": admin,
            "pools": self.pools.iter().map(pool).collect::<Vec<_>>(),
            "timeouts": {
                "connect": show_duration(t.connect),
                "head": show_duration(t.head),
                "body": show_duration(t.body),
                "first_byte": t.first_byte.map_or("none".into(), show_duration),
                "idle": show_duration(t.idle),
                "keep_alive": show_duration(t.keep_alive),
                "upstream_idle": show_duration(t.upstream_idle),
                "drain_delay": show_duration(t.drain_delay),
                "drain": show_duration(t.drain),
            },
            "limits": {
                "body": show_size(l.body as u64),
                "decode_ratio": l.decode_ratio,
                "head": show_size(l.head as u64),
                "headers": l.headers,
                "uri": show_size(l.uri as u64),
                "connections": l.connections,
                "streams": l.streams,
                "stored_responses": l.stored_responses,
            },
            "logging": {
                "level": &*self.logging.level,
                "format": self.logging.format.as_str(),
                "access": self.logging.access,
            },
        })
    }

    /// [`Self::effective`] as YAML that [`super::parse`] reads.
    pub fn effective_yaml(&self) -> String {
        let mut out = String::new();
        yaml(&mut out, &self.effective(), 0);
        out
    }
}

fn insert(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    map.insert(key.to_owned(), value.into());
}

fn networks(list: &[ipnet::IpNet]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn listen(listen: &Listen) -> Value {
    let mut map = Map::new();
    insert(&mut map, "address", listen.address.to_string());
    if let Some(tls) = &listen.tls {
        let value = json!({
            "certificate": tls.certificate.display().to_string(),
            "key": tls.key.display().to_string(),
            "client_ca": authorities(tls.client_ca.as_ref()),
            "client_certificates": tls.client_certificates.as_str(),
            "min_version": tls.min_version.as_str(),
        });
        insert(&mut map, "tls", value);
    }
    insert(&mut map, "proxy_protocol", networks(&listen.proxy_protocol));
    insert(&mut map, "reuse_port", listen.reuse_port);
    Value::Object(map)
}

fn authorities(authorities: Option<&Authorities>) -> String {
    authorities.map_or("none".into(), |authorities| authorities.path.display().to_string())
}

fn pool(pool: &Pool) -> Value {
    let mut map = Map::new();
    match &pool.models {
        Models::Any => insert(&mut map, "models", "any"),
        Models::Named { model, aliases } => {
            insert(&mut map, "model", &**model);
            insert(&mut map, "aliases", aliases.iter().map(|a| &**a).collect::<Vec<_>>());
            insert(&mut map, "adapters", pool.adapters.iter().map(|a| &**a).collect::<Vec<_>>());
        }
    }
    insert(&mut map, "engine", pool.engine.map_or("detect", Engine::as_str));
    insert(&mut map, "tokenizer", pool.tokenizer.as_ref().map_or("none".into(), |t| t.display().to_string()));
    insert(&mut map, "policy", policy(&pool.policy));
    insert(&mut map, "session", session(&pool.session));
    if !pool.replicas.is_empty() {
        insert(&mut map, "replicas", replicas(pool));
    }
    if let Some(from) = &pool.discover {
        insert(&mut map, "discover", discover(from));
    }
    insert(&mut map, "paths", pool.paths.iter().map(|p| &**p).collect::<Vec<_>>());
    insert(&mut map, "request_encoding", pool.request_encoding.as_str());
    insert(&mut map, "stream_usage", pool.stream_usage.as_str());
    insert(&mut map, "health", pool.health.effective());
    insert(&mut map, "retry", pool.retry.effective());
    insert(&mut map, "queue", pool.queue.effective());
    insert(&mut map, "engine_metrics", pool.engine_metrics.effective());
    super::prefix::effective(pool, &mut map);
    super::events::effective_pool(&pool.kv_events, &mut map);
    insert(&mut map, "shadow", pool.shadow.as_ref().map_or(json!("none"), policy));
    Value::Object(map)
}

fn policy(policy: &Policy) -> Value {
    let mut map = Map::new();
    insert(&mut map, "type", policy.as_str());
    let affinity = match policy {
        Policy::SessionSticky(affinity) => affinity,
        Policy::HeaderHash { header, affinity } => {
            insert(&mut map, "header", header.as_str());
            affinity
        }
        Policy::CacheAware(settings) => {
            settings.effective(&mut map);
            return Value::Object(map);
        }
        Policy::LeastCost(settings) => {
            insert(&mut map, "request_cost", show_seconds(settings.request_cost));
            return Value::Object(map);
        }
        Policy::RoundRobin | Policy::Random | Policy::LeastLoad | Policy::PowerOfTwo => return Value::Object(map),
    };
    insert(&mut map, "fallback", affinity.fallback.as_str());
    insert(&mut map, "max_load_ratio", affinity.max_load_ratio);
    insert(&mut map, "min_load_gap", affinity.min_load_gap);
    Value::Object(map)
}

fn session(session: &Session) -> Value {
    let keys: Vec<_> = session
        .keys
        .iter()
        .map(|key| match key {
            SessionKeySource::Header(name) => format!("header:{name}"),
            SessionKeySource::Body(pointer) => format!("body:{pointer}"),
        })
        .collect();
    let (scope, tenant) = match &session.scope {
        SessionScope::None => ("none", None),
        SessionScope::Credential => ("credential", None),
        SessionScope::Tenant(header) => ("tenant", Some(header)),
    };
    let mut map = Map::new();
    insert(&mut map, "keys", keys);
    insert(&mut map, "ttl", show_duration(session.ttl));
    insert(&mut map, "max_bindings", session.max_bindings);
    insert(&mut map, "scope", scope);
    if let Some(header) = tenant {
        insert(&mut map, "tenant_header", header.as_str());
    }
    insert(&mut map, "api_key", session.api_key);
    Value::Object(map)
}

/// As they are written: the ranks of one engine are one entry.
fn replicas(pool: &Pool) -> Vec<Value> {
    let first = |replica: &&Replica| replica.rank.is_none_or(|rank| rank.at == 0);
    pool.replicas.iter().filter(first).map(|each| replica(each, &pool.kv_events)).collect()
}

fn replica(replica: &Replica, pool: &PoolEvents) -> Value {
    let mut map = Map::new();
    insert(&mut map, "url", replica.url.to_string());
    insert(&mut map, "id", replica.engine_id());
    insert(&mut map, "weight", replica.weight);
    if replica.credential.is_some() {
        insert(&mut map, "credential", MASK);
    }
    insert(&mut map, "max_in_flight", replica.max_in_flight.map_or(json!("none"), Value::from));
    if let Some(tokens) = replica.cache_tokens {
        insert(&mut map, "cache_tokens", tokens);
    }
    insert(&mut map, "incarnation", replica.incarnation);
    if let Some(rank) = replica.rank {
        insert(&mut map, "ranks", rank.of);
    }
    super::events::effective_replica(&replica.kv_events, &replica.url, pool, &mut map);
    if let Some(tls) = &replica.tls {
        let value = json!({ "ca": authorities(tls.ca.as_ref()), "server_name": &*tls.server_name });
        insert(&mut map, "tls", value);
    }
    Value::Object(map)
}

fn discover(discover: &Discover) -> Value {
    let mut map = Map::new();
    match &discover.from {
        DiscoverFrom::File(path) => insert(&mut map, "file", path.display().to_string()),
        DiscoverFrom::Dns(dns) => {
            insert(&mut map, "dns", &*dns.name);
            insert(&mut map, "type", dns.records.as_str());
            if let Some(port) = dns.port {
                insert(&mut map, "port", port);
            }
            if let Some(nameserver) = dns.nameserver {
                insert(&mut map, "nameserver", nameserver.to_string());
            }
            if !dns.base_path.is_empty() {
                insert(&mut map, "base_path", &*dns.base_path);
            }
            if dns.credential.is_some() {
                insert(&mut map, "credential", MASK);
            }
            insert(&mut map, "max_in_flight", dns.max_in_flight.map_or(json!("none"), Value::from));
            if let Some(tokens) = dns.cache_tokens {
                insert(&mut map, "cache_tokens", tokens);
            }
        }
    }
    insert(&mut map, "interval", show_duration(discover.interval));
    Value::Object(map)
}

/// Block style for maps and lists of maps, one line for the rest.
fn yaml(out: &mut String, value: &Value, indent: usize) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) => {
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 || !out.ends_with("- ") {
                    out.push_str(&pad);
                }
                out.push_str(key);
                match value {
                    Value::Object(_) => {
                        out.push_str(":\n");
                        yaml(out, value, indent + 2);
                    }
                    Value::Array(items) if items.iter().any(Value::is_object) => {
                        out.push_str(":\n");
                        for item in items {
                            out.push_str(&format!("{pad}  - "));
                            yaml(out, item, indent + 4);
                        }
                    }
                    Value::Array(items) => {
                        let items: Vec<_> = items.iter().map(scalar).collect();
                        out.push_str(&format!(": [{}]\n", items.join(", ")));
                    }
                    value => out.push_str(&format!(": {}\n", scalar(value))),
                }
            }
        }
        other => out.push_str(&format!("{}\n", scalar(other))),
    }
}

/// A scalar, quoted unless it is plainly itself; JSON's quotes and escapes are YAML's.
fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let plain = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:=+".contains(c))
        && !text.ends_with(':')
        && !text.contains("//:")
        && !matches!(text.as_str(), "true" | "false" | "null");
    if plain { text.clone() } else { Value::String(text.replace('$', "$$")).to_string() }
}
