//! Where engines publish what they keep: `kv_events` of pools and replicas.
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::uri::Authority;
use serde_json::{Map, Value, json};

use super::check::Item;
use super::model::ReplicaUrl;
use super::resolve::{Read as _, or};
use super::scalar;

/// Where a replica publishes its KV events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KvEvents {
    /// Nowhere, or nobody listens (default).
    #[default]
    None,
    /// Where the engine says: vLLM at `/kv_event_sources`, SGLang at `/server_info`.
    Ask,
    /// There.
    At(EventSource),
}

impl KvEvents {
    /// Those of a rank, where these are the first one's.
    pub fn of_rank(&self, rank: u32) -> Self {
        match self {
            Self::At(source) => Self::At(source.of_rank(rank)),
            other => other.clone(),
        }
    }
}

/// The sockets of one publisher. Engines bind one pair for each data-parallel rank, on ports that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSource {
    /// Live events (ZMQ PUB).
    pub endpoint: TcpEndpoint,
    /// What was missed (ZMQ ROUTER); `None` = nothing is sent again.
    pub replay: Option<TcpEndpoint>,
    /// The beginning that topics must have; empty = all.
    pub topic: Arc<str>,
}

impl EventSource {
    /// The sockets of a rank, where these are the first one's. A port beyond 65,535 stays there, where nobody answers.
    pub fn of_rank(&self, rank: u32) -> Self {
        let moved = |at: &TcpEndpoint| TcpEndpoint {
            host: at.host.clone(),
            port: u16::try_from(u32::from(at.port).saturating_add(rank)).unwrap_or(u16::MAX),
        };
        Self { endpoint: moved(&self.endpoint), replay: self.replay.as_ref().map(moved), topic: self.topic.clone() }
    }
}

/// An address that ZMQ connects to: `tcp://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpEndpoint {
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: Arc<str>,
    /// Port.
    pub port: u16,
}

impl TcpEndpoint {
    /// Reads `tcp://host:port`; the error completes "`TEXT` …" and never repeats the text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("tcp://").ok_or("does not begin with `tcp://`")?;
        let authority: Authority = rest.parse().map_err(|_| "has no valid host and port")?;
        let host = authority.host();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if bare.is_empty() || bare == "*" || rest.contains('@') {
            return Err("names no host: write the engine's, not what the engine itself binds".into());
        }
        match authority.port_u16() {
            Some(port) if port > 0 => Ok(Self { host: bare.to_ascii_lowercase().into(), port }),
            _ => Err("names no port".into()),
        }
    }
}

impl TcpEndpoint {
    /// Where to connect to for what an engine says that it binds: a wildcard is `host`, the engine's own.
    pub fn of_bound(bound: &str, host: &str) -> Option<Self> {
        let (bound_host, port) = bound.strip_prefix("tcp://")?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let bare = bound_host.trim_start_matches('[').trim_end_matches(']');
        let address = bare.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let host = match address {
            _ if bare == "*" => host.to_owned(),
            Some(address) if address.is_unspecified() => host.to_owned(),
            Some(address) => address.to_string(),
            None => bare.to_ascii_lowercase(),
        };
        Some(Self { host: host.into(), port })
    }
}

impl fmt::Display for TcpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "tcp://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "tcp://{}:{}", self.host, self.port)
        }
    }
}

/// What a pool sets for those of its replicas that say nothing of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PoolEvents {
    /// They publish none (default).
    #[default]
    None,
    /// Each is asked.
    Ask,
    /// Each publishes on these ports of its host.
    Ports {
        /// Live events.
        port: u16,
        /// What was missed.
        replay_port: Option<u16>,
        /// The beginning that topics must have; empty = all.
        topic: Arc<str>,
    },
}

impl PoolEvents {
    /// Those of a replica at `url`.
    pub fn of(&self, url: &ReplicaUrl) -> KvEvents {
        match self {
            Self::None => KvEvents::None,
            Self::Ask => KvEvents::Ask,
            Self::Ports { port, replay_port, topic } => {
                let at = |port| TcpEndpoint { host: url.host.clone(), port };
                KvEvents::At(EventSource { endpoint: at(*port), replay: replay_port.map(at), topic: topic.clone() })
            }
        }
    }
}

/// `kv_events` of a pool.
pub(super) fn of_pool(pool: &Item) -> PoolEvents {
    let Some(item) = pool.get("kv_events") else { return PoolEvents::None };
    match or(Some(item), "port", None) {
        _ if matches!(item.value, scalar::Value::Off) => PoolEvents::Ask,
        None => PoolEvents::None,
        Some(port) => PoolEvents::Ports {
            port,
            replay_port: or(Some(item), "replay_port", None),
            topic: or(Some(item), "topic", "".into()),
        },
    }
}

/// `kv_events` of a replica; where it has none, what its pool sets.
pub(super) fn of_replica(replica: &Item, url: &ReplicaUrl, pool: &PoolEvents) -> KvEvents {
    let Some(item) = replica.get("kv_events") else { return pool.of(url) };
    let endpoint = item.get("endpoint").and_then(|item| TcpEndpoint::read(&item.value));
    endpoint.map_or(KvEvents::None, |endpoint| {
        KvEvents::At(EventSource {
            endpoint,
            replay: or(Some(item), "replay", None),
            topic: or(Some(item), "topic", "".into()),
        })
    })
}

/// Adds a pool's to its map.
pub(super) fn effective_pool(events: &PoolEvents, map: &mut Map<String, Value>) {
    match events {
        PoolEvents::None => {}
        PoolEvents::Ask => drop(map.insert("kv_events".into(), "auto".into())),
        PoolEvents::Ports { port, replay_port, topic } => {
            let mut value = json!({ "port": port, "replay_port": "none" });
            if let Some(port) = replay_port {
                value["replay_port"] = json!(port);
            }
            if !topic.is_empty() {
                value["topic"] = json!(**topic);
            }
            map.insert("kv_events".into(), value);
        }
    }
}

/// Adds a replica's to its map, where they differ from what its pool sets.
pub(super) fn effective_replica(events: &KvEvents, url: &ReplicaUrl, pool: &PoolEvents, map: &mut Map<String, Value>) {
    if *events == pool.of(url) {
        return;
    }
    let value = match events {
        KvEvents::None => json!("none"),
        // Only a pool says so; its replicas then agree.
        KvEvents::Ask => json!("auto"),
        KvEvents::At(source) => {
            let replay = source.replay.as_ref().map_or("none".into(), ToString::to_string);
            let mut value = json!({ "endpoint": source.endpoint.to_string(), "replay": replay });
            if !source.topic.is_empty() {
                value["topic"] = json!(*source.topic);
            }
            value
        }
    };
    map.insert("kv_events".into(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_those_that_one_connects_to() {
        let shown = |text: &str| TcpEndpoint::parse(text).map(|endpoint| endpoint.to_string());
        assert_eq!(shown("tcp://10.0.0.1:5557").unwrap(), "tcp://10.0.0.1:5557");
        assert_eq!(shown("tcp://Engine.Internal:5557").unwrap(), "tcp://engine.internal:5557");
        assert_eq!(shown("tcp://[::1]:5557").unwrap(), "tcp://[::1]:5557");
        for (text, part) in [
            ("tcp://*:5557", "host"),
            ("ipc:///tmp/kv", "tcp://"),
            ("tcp://a", "no port"),
            ("tcp://a:0", "no port"),
            ("tcp://a:70000", "port"),
            ("tcp://:5557", "host"),
            ("tcp://u@a:5557", "no host"),
        ] {
            let error = shown(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn what_an_engine_binds_is_found_at_its_host() {
        let at = |bound: &str| TcpEndpoint::of_bound(bound, "engine").map(|endpoint| endpoint.to_string());
        for bound in ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"] {
            assert_eq!(at(bound).as_deref(), Some("tcp://engine:5557"), "{bound}");
        }
        assert_eq!(at("tcp://[::ffff:127.0.0.1]:5557").as_deref(), Some("tcp://127.0.0.1:5557"));
        assert_eq!(at("tcp://[fd00::1]:5557").as_deref(), Some("tcp://[fd00::1]:5557"));
        assert_eq!(at("tcp://other:5557").as_deref(), Some("tcp://other:5557"));
        assert_eq!([at("ipc:///tmp/a"), at("tcp://*"), at("tcp://*:0")], [None, None, None]);
    }

    #[test]
    fn ranks_follow_each_other() {
        let at = |port| TcpEndpoint { host: "a".into(), port };
        let first = EventSource { endpoint: at(5557), replay: Some(at(6557)), topic: "kv".into() };
        let third = first.of_rank(2);
        assert_eq!((third.endpoint.port, third.replay.unwrap().port), (5559, 6559));
        assert_eq!(&*third.topic, "kv");
    }
}
