//! Where a replica says that it publishes its events.
use std::time::Duration;

use http::Method;

use crate::config::{EventSource, TcpEndpoint};
use crate::engine::info;
use crate::fleet::Replica;

const WITHIN: Duration = Duration::from_secs(5);
const MOST: usize = 1 << 20;

/// Asks for vLLM's `/kv_event_sources`, then SGLang's `/server_info`; `None` where neither names a socket.
pub(super) async fn ask(replica: &Replica) -> Option<EventSource> {
    let rank = replica.rank().map_or(0, |rank| rank.at);
    let host = &replica.url().host;
    for (path, read) in [("/kv_event_sources", of_vllm as Read), ("/server_info", of_sglang)] {
        if let Ok(page) = replica.fetch(Method::GET, path, None, MOST, WITHIN).await
            && page.status.is_success()
            && let Some(source) = read(&page.body, rank, host)
        {
            tracing::info!(replica = %replica.id(), endpoint = %source.endpoint, "the engine tells where its KV events are");
            return Some(source);
        }
    }
    tracing::info!(replica = %replica.id(), "the engine tells of no KV events");
    None
}

/// An answer → where the events of a rank are, of an engine at this host.
type Read = fn(&[u8], u32, &str) -> Option<EventSource>;

fn of_vllm(body: &[u8], rank: u32, host: &str) -> Option<EventSource> {
    let source = info::kv_event_sources(body)?.remove(&rank)?;
    let replay = source.replay_endpoint.as_deref().and_then(|bound| TcpEndpoint::of_bound(bound, host));
    Some(EventSource { endpoint: TcpEndpoint::of_bound(&source.endpoint, host)?, replay, topic: source.topic.into() })
}

fn of_sglang(body: &[u8], rank: u32, host: &str) -> Option<EventSource> {
    let events = info::server_info(body)?.kv_events?;
    let at = |port: u16| TcpEndpoint::of_bound(&format!("tcp://{}:{port}", events.endpoint_host), host);
    let replay = events.replay_endpoint_port_base.and_then(at);
    let first = EventSource { endpoint: at(events.endpoint_port_base)?, replay, topic: events.topic.into() };
    Some(first.of_rank(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: Option<EventSource>) -> Option<(String, Option<String>, String)> {
        source.map(|source| {
            (source.endpoint.to_string(), source.replay.map(|replay| replay.to_string()), source.topic.to_string())
        })
    }

    fn of(endpoint: &str, replay: Option<&str>, topic: &str) -> Option<(String, Option<String>, String)> {
        Some((endpoint.into(), replay.map(Into::into), topic.into()))
    }

    #[test]
    fn vllm_names_the_sockets_of_each_rank() {
        let recorded = include_bytes!("../../../tests/fixtures/engine/vllm-0.32.0.kv_event_sources.json");
        let topic = "kv@127.0.0.1:8000@slow-llama";
        let found = of("tcp://127.0.0.1:5557", Some("tcp://127.0.0.1:5558"), topic);
        assert_eq!(shown(of_vllm(recorded, 0, "gpu-1")), found);
        assert_eq!(shown(of_vllm(recorded, 1, "gpu-1")), None, "there is no such rank");
        let two = br#"{"0":null,"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558"}}"#;
        assert_eq!(shown(of_vllm(two, 0, "gpu-1")), None);
        assert_eq!(shown(of_vllm(two, 1, "gpu-1")), of("tcp://gpu-1:5558", None, ""));
        let off = br#"{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}"#;
        assert_eq!(shown(of_vllm(off, 0, "gpu-1")), None);
        assert_eq!(shown(of_vllm(br#"{"detail":"Not Found"}"#, 0, "gpu-1")), None);
    }

    #[test]
    fn sglangs_ports_count_up_from_the_first_ranks() {
        let told = br#"{"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"",
            "block_size":16,"dp_size":2,"replay_endpoint_port_base":6557}}"#;
        assert_eq!(shown(of_sglang(told, 0, "gpu-1")), of("tcp://gpu-1:5557", Some("tcp://gpu-1:6557"), ""));
        assert_eq!(shown(of_sglang(told, 1, "gpu-1")), of("tcp://gpu-1:5558", Some("tcp://gpu-1:6558"), ""));
        assert_eq!(shown(of_sglang(br#"{"version":"0.5.22"}"#, 0, "gpu-1")), None);
    }
}
