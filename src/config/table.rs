//! The table of keys. A row here is all it takes for a key to be checked, documented and in the schema; what it does
//! is in `resolve.rs`. Tests see that each row's default is the model's, and that each row changes the result.
use std::time::Duration;

use super::keys::{
    Default::{Required, Value, Words},
    Key, Kind, Scalar,
};
use super::model::{DnsRecords, Engine, LoadPolicy, LoadUnit, LogFormat, RequestEncoding, RetryOn, Stay, StreamUsage};
use super::tls::{ClientCertificates, MinVersion};

const LIVE: bool = true;
const RESTART: bool = false;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const MAP: Kind = Kind::Map;
const NAME: Kind = Kind::Scalar(Scalar::Name);
const ADDRESS: Kind = Kind::Scalar(Scalar::Address);
const BOOL: Kind = Kind::Scalar(Scalar::Bool);
const HEADER: Kind = Kind::Scalar(Scalar::Header);
const TCP: Kind = Kind::Scalar(Scalar::Tcp);
const PATH: Kind = Kind::Scalar(Scalar::Path);
const SECRET: Kind = Kind::Scalar(Scalar::Secret);
const REPLICA: Kind = Kind::MapOr("url");
const RETRY_ON: Kind = one_of(RetryOn::NAMES);
const LISTEN: Kind = Kind::MapOr("address");
const NETWORK: Kind = Kind::Scalar(Scalar::Network);
const PEER: Kind = Kind::Scalar(Scalar::Peer);
const PEM: Kind = Kind::Scalar(Scalar::Pem);
const AUTHORITIES: Kind = Kind::Scalar(Scalar::Authorities);
const SERVER_NAME: Kind = Kind::Scalar(Scalar::ServerName);
const SESSION_KEY: Kind = Kind::Scalar(Scalar::SessionKey);

const fn list(of: &'static Kind, min: usize) -> Kind {
    Kind::List { of, min }
}
const fn count(min: u64, max: u64) -> Kind {
    Kind::Scalar(Scalar::Count(min, max))
}
const fn time(min_ms: u64, max_ms: u64) -> Kind {
    Kind::Scalar(Scalar::Time(Duration::from_millis(min_ms), Duration::from_millis(max_ms)))
}
const fn size(min: u64, max: u64) -> Kind {
    Kind::Scalar(Scalar::Size(min, max))
}
const fn seconds(max: f64) -> Kind {
    Kind::Scalar(Scalar::Seconds(0.0, max))
}
/// Tokens that a KV cache may hold.
const CACHE_TOKENS: Kind = count(1, 1 << 40);
const fn percent(min: u64, max: u64) -> Kind {
    Kind::Scalar(Scalar::Percent(min, max))
}
const fn one_of(words: &'static [&'static str]) -> Kind {
    Kind::Scalar(Scalar::OneOf(words))
}

const fn key(
    path: &'static str,
    kind: Kind,
    default: super::keys::Default,
    live: bool,
    example: &'static str,
    doc: &'static str,
) -> Key {
    Key { path, kind, off: None, default, live, example, doc }
}

impl Key {
    const fn or(mut self, word: &'static str) -> Self {
        self.off = Some(word);
        self
    }
}

/// The names of `policy.type`.
pub(super) const POLICIES: &[&str] = &[
    "round_robin",
    "random",
    "least_load",
    "power_of_two",
    "session_sticky",
    "header_hash",
    "cache_aware",
    "least_cost",
];
const RATIO: Kind = Kind::Scalar(Scalar::Ratio(1.0, 1000.0));
const RATIO_DEFAULT: super::keys::Default = Words("`1.25`; `2` with `cache_aware`");
const ENGINE_METRICS_DEFAULT: super::keys::Default = Words("`1s`; `off` with `engine: openai`");
const GAP_DEFAULT: super::keys::Default = Words("`8`; `16` with `load: placements`");

#[rustfmt::skip]
pub(super) static TABLE: &[Key] = &[
    key("listen", list(&LISTEN, 1), Required, RESTART, "0.0.0.0:8080",
        "Where clients connect: HTTP/1.1, and HTTP/2 by ALPN or prior knowledge."),
    key("listen[].address", ADDRESS, Required, RESTART, "0.0.0.0:8443",
        "The address. A socket that systemd passes for it (`LISTEN_FDS`) is used in place of a new one."),
    key("listen[].tls", MAP, Words("plain text"), RESTART, "{ certificate: ./tls/cert.pem, key: ./tls/key.pem }",
        "TLS. Certificate and key are read again when the files change."),
    key("listen[].tls.certificate", PEM, Words("required"), RESTART, "./tls/cert.pem",
        "PEM file with the certificate, then its intermediates, relative to this file. `none`: plain text.").or("none"),
    key("listen[].tls.key", PEM, Words("required"), RESTART, "./tls/key.pem",
        "PEM file with the certificate's private key.").or("none"),
    key("listen[].tls.client_ca", AUTHORITIES, Value("none"), RESTART, "./tls/ca.pem",
        "Who signs client certificates, which are then asked for. Read at start.").or("none"),
    key("listen[].tls.client_certificates", one_of(ClientCertificates::NAMES), Value("required"), RESTART, "optional",
        "With a `client_ca`: whether a client without a certificate is refused."),
    key("listen[].tls.min_version", one_of(MinVersion::NAMES), Value("\"1.2\""), RESTART, "\"1.3\"",
        "Oldest TLS version spoken."),
    key("listen[].proxy_protocol", list(&NETWORK, 0), Words("none"), RESTART, "[10.0.0.0/8]",
        "Peers that must begin each connection with a PROXY protocol header (v1 or v2), and whose word on the client's address is taken. From others such a header is a bad request."),
    key("listen[].reuse_port", BOOL, Value("false"), RESTART, "true",
        "Whether a second process of this user may listen on the address (SO_REUSEPORT) and take over without a refused connection; holds for the admin listener too."),

    key("trusted_proxies", list(&NETWORK, 0), Words("none"), LIVE, "[10.0.0.0/8, \"::1\"]",
        "Peers whose `X-Forwarded-For` is continued and whose `X-Forwarded-Proto` and `-Host` are kept. From others all three are replaced."),
    key("expose", list(&PEER, 0), Value("off"), LIVE, "[127.0.0.1, 10.0.0.0/8]",
        "Peers whose answers carry `x-warmroute-replica`, `x-warmroute-reason` and `x-warmroute-matched-tokens`; judged as for `trusted_proxies`, and `trusted` stands for those. They tell of other clients' prompts: not for the public.").or("off"),

    key("admin", Kind::MapOr("listen"), Words("its keys' defaults"), RESTART, "off",
        "The operator's listener: readiness, metrics, this configuration, replicas. `off` closes it."),
    key("admin.listen", ADDRESS, Value("127.0.0.1:9090"), RESTART, "127.0.0.1:9100",
        "Where it listens. An address that other machines can reach needs a `token`.").or("off"),
    key("admin.token", SECRET, Words("no token is asked for"), RESTART, "\"${ADMIN_TOKEN}\"",
        "Asked for as `Authorization: Bearer …` on every path but `/livez` and `/readyz`."),

    key("pools", list(&MAP, 1), Required, LIVE, "[{ model: qwen3-8b, replicas: [http://10.0.0.11:8000] }]",
        "One pool for each model that the fleet serves."),
    key("pools[].model", NAME, Words("`models: any` must stand instead"), LIVE, "qwen3-8b",
        "The model's name, as clients send it and as the engine knows it."),
    key("pools[].models", one_of(&["any"]), Words("`model` must stand instead"), LIVE, "any",
        "`any`: every request comes here and no body is parsed for its model. Such a pool is the only one."),
    key("pools[].aliases", list(&NAME, 0), Words("none"), LIVE, "[default, qwen]",
        "Other names clients may use; the engine gets `model` in their place."),
    key("pools[].adapters", list(&NAME, 0), Words("none"), LIVE, "[sql-lora]",
        "LoRA adapters of the model: further names clients may use, passed on as they are. The prompts of each are matched apart from the others'."),
    key("pools[].engine", one_of(Engine::NAMES), Value("detect"), LIVE, "vllm",
        "What the replicas are.").or("detect"),
    key("pools[].tokenizer", Kind::Scalar(Scalar::Tokenizer), Value("none"), LIVE, "./qwen3",
        "Folder with the model's `tokenizer.json` and its `chat_template.jinja` (or `tokenizer_config.json`), relative to this file: `cache_aware` and `least_cost` then compare prompts as the engine's tokens, else as text. Beside `models: any` it says that one model stands behind the pool, whatever name it is asked for by.").or("none"),
    key("pools[].policy", Kind::MapOr("type"), Value("power_of_two"), LIVE, "session_sticky",
        "How a replica is chosen: a policy's name, or its name and settings."),
    key("pools[].policy.type", one_of(POLICIES), Required, LIVE, "least_load",
        "The policy's name."),
    key("pools[].policy.header", HEADER, Words("required by `header_hash`, not allowed elsewhere"), LIVE, "x-user-id",
        "The header that `header_hash` hashes."),
    key("pools[].policy.fallback", one_of(LoadPolicy::NAMES), Value("power_of_two"), LIVE, "least_load",
        "`session_sticky`, `header_hash`, `cache_aware`: where a request goes that has no key, or whose prefix nobody holds."),
    key("pools[].policy.max_load_ratio", RATIO, RATIO_DEFAULT, LIVE, "1.5",
        "`session_sticky`, `header_hash`: a new key leaves its first choice when that replica's load is over this multiple of the mean… `cache_aware`: a request leaves its prefix when the load there is over this multiple of the alternative's…"),
    key("pools[].policy.min_load_gap", count(0, 1_000_000), GAP_DEFAULT, LIVE, "12",
        "…and at least this many requests above it."),
    key("pools[].policy.affinity", one_of(Stay::NAMES), Value("balanced"), LIVE, "prefer",
        "`cache_aware`: whether load may take a request away from its prefix (`balanced`), or only a replica that is full, down or draining (`prefer`)."),
    key("pools[].policy.min_match_tokens", count(0, 10_000_000), Value("1024"), LIVE, "256",
        "`cache_aware`: a shorter match is none. What every replica holds, such as one system prompt for all, counts for none of them."),
    key("pools[].policy.load", one_of(LoadUnit::NAMES), Value("requests"), LIVE, "queued_seconds",
        "`cache_aware`: what counts as load: requests in flight, requests lately placed there (`placements`), or the seconds of prefill that wait there (`queued_seconds`, by `prefill`)."),
    key("pools[].policy.min_queue_gap", time(0, HOUR), Value("2s"), LIVE, "500ms",
        "`cache_aware` with `load: queued_seconds`: takes the place of `min_load_gap`."),
    key("pools[].policy.request_cost", seconds(1.0), Value("0.5ms"), LIVE, "2ms",
        "`least_cost`: what each request in flight adds to a replica's cost, for what those beside it share besides prefills."),
    key("pools[].session", MAP, Words("its keys' defaults"), LIVE, "{ keys: [header:x-session-id], ttl: 1h }",
        "How a session is recognised and remembered."),
    key("pools[].session.keys", list(&SESSION_KEY, 0), Words("none"), LIVE, "[header:x-session-id, body:/metadata/chat]",
        "Where its key is looked for first, in this order: a header, or a string or number in the body (JSON pointer). Then come the usual places. A value of more than 256 bytes, or with a space or anything but ASCII, is passed over, and so is one of fewer than 8 bytes in a usual place: see `warmroute_session_keys_total`."),
    key("pools[].session.ttl", time(1000, 30 * DAY), Value("30m"), LIVE, "1h",
        "A binding unused for this long is forgotten."),
    key("pools[].session.max_bindings", count(1, 100_000_000), Value("100000"), LIVE, "500_000",
        "Most bindings kept for the pool; the least recently used goes first."),
    key("pools[].session.scope", one_of(&["none", "credential", "tenant"]), Value("credential"), LIVE, "none",
        "Who shares a name space of keys: all clients (`none`), those with one API key, or those with one `tenant_header`."),
    key("pools[].session.tenant_header", HEADER, Words("required by `scope: tenant`, not allowed elsewhere"), LIVE, "x-tenant",
        "The header that names the tenant. A trusted proxy in front must set it."),
    key("pools[].session.api_key", BOOL, Value("false"), LIVE, "true",
        "Whether all requests of one API key are one session when nothing else tells sessions apart."),
    key("pools[].replicas", list(&REPLICA, 1), Words("`discover` must stand instead; both may"), LIVE, "[http://10.0.0.11:8000, http://10.0.0.12:8000]",
        "The engines that serve the model. A replica may stand in several pools; its settings must then agree."),
    key("pools[].replicas[].url", Kind::Scalar(Scalar::Url), Required, LIVE, "http://10.0.0.11:8000/base",
        "Its address; may carry a base path, which goes before each request's path."),
    key("pools[].replicas[].id", Kind::Scalar(Scalar::Id), Words("`host:port[/base]` of its URL"), LIVE, "gpu-a",
        "Its name in logs, metrics and bindings. It is hashed to place sessions, so a stable one keeps them where they are."),
    key("pools[].replicas[].weight", count(1, 1000), Value("1"), LIVE, "2",
        "Its share of requests relative to the others."),
    key("pools[].replicas[].credential", SECRET, Words("the client's own passes"), LIVE, "\"${ENGINE_KEY}\"",
        "Sent as `Authorization: Bearer …` in place of what the client sent."),
    key("pools[].replicas[].max_in_flight", count(1, 1_000_000), Value("none"), LIVE, "64",
        "Most requests open there at once.").or("none"),
    key("pools[].replicas[].cache_tokens", CACHE_TOKENS, Words("the pool's `cache_tokens`"), LIVE, "300_000",
        "Tokens of KV cache that it can keep."),
    key("pools[].replicas[].incarnation", count(0, 1 << 53), Value("0"), LIVE, "1",
        "Another number tells that the engine behind this URL is a new one, with nothing of the old one's cache."),
    key("pools[].replicas[].ranks", count(1, 1024), Words("the engine is one replica"), LIVE, "8",
        "How many data-parallel ranks the engine has behind this URL. Each is a replica of its own, `ID@rankN`, chosen by the header `X-data-parallel-rank`."),
    key("pools[].replicas[].kv_events", Kind::MapOr("endpoint"), Words("the pool's `kv_events`"), LIVE, "tcp://10.0.0.11:5557",
        "Where the engine publishes what it keeps in its cache (ZMQ, as vLLM and SGLang do). `none`: nowhere.").or("none"),
    key("pools[].replicas[].kv_events.endpoint", TCP, Required, LIVE, "tcp://10.0.0.11:5557",
        "Its live events; of rank N, on a port that is N higher."),
    key("pools[].replicas[].kv_events.replay", TCP, Value("none"), LIVE, "tcp://10.0.0.11:5558",
        "Where what was missed is sent again. Without it, a lost event leaves the index inexact until the engine restarts or clears its cache.").or("none"),
    key("pools[].replicas[].kv_events.topic", NAME, Words("all topics"), LIVE, "kv-events",
        "The beginning of the topics that are listened to."),
    key("pools[].kv_events", MAP, Words("none"), LIVE, "{ port: 5557, replay_port: 5558 }",
        "Where its replicas publish what they keep in their caches (ZMQ, as vLLM and SGLang do); what a replica says itself goes first. `auto`: where each engine says that it does (vLLM 0.33 at `/kv_event_sources`, SGLang 0.5.23 at `/server_info`). Used by policies that read prompts, in pools with a `model`; without `tokenizer` only prompts of token ids can be found in them.").or("auto"),
    key("pools[].kv_events.port", count(1, 65535), Required, LIVE, "5557",
        "The port of live events at each replica's host; of rank N, one that is N higher."),
    key("pools[].kv_events.replay_port", count(1, 65535), Value("none"), LIVE, "5558",
        "The port at which what was missed is sent again. Without it, a lost event leaves the index inexact until the engine restarts or clears its cache.").or("none"),
    key("pools[].kv_events.topic", NAME, Words("all topics"), LIVE, "kv-events",
        "The beginning of the topics that are listened to."),
    key("pools[].discover", MAP, Words("none"), LIVE, "{ dns: engines.internal, port: 8000 }",
        "Replicas that come and go: a watched `file`, or a `dns` name. They join those of `replicas`."),
    key("pools[].discover.file", Kind::Scalar(Scalar::File), Words("`dns` must stand instead"), LIVE, "replicas.yaml",
        "A YAML or JSON list in the form of `replicas`, read again when it changes. `[]` is no replicas; an empty or broken file keeps the last list."),
    key("pools[].discover.dns", Kind::Scalar(Scalar::DnsName), Words("`file` must stand instead"), LIVE, "engines.internal",
        "A name whose every address is a replica. A failed lookup keeps the last list; an answer of no addresses, or that there is no such name, empties it. They are spoken to in plain text (`http://`); in a `file`, `https://` is one's choice."),
    key("pools[].discover.type", one_of(DnsRecords::NAMES), Value("auto"), LIVE, "a",
        "`a`: A and AAAA records; `srv`: SRV records of the best priority, weights included; `auto`: `srv` when the name begins with `_`."),
    key("pools[].discover.port", count(1, 65535), Words("required by `a`; that of the SRV record"), LIVE, "8000",
        "The port of every address."),
    key("pools[].discover.interval", time(50, HOUR), Value("10s"), LIVE, "30s",
        "Longest time between two looks. A DNS answer with a shorter time to live is asked for again when it ends, after 1s at the earliest."),
    key("pools[].discover.nameserver", ADDRESS, Words("those of the system"), LIVE, "10.0.0.2:53",
        "The DNS server to ask, for the full name (no search list)."),
    key("pools[].discover.base_path", PATH, Words("none"), LIVE, "/engine",
        "The base path of the replicas that DNS finds."),
    key("pools[].discover.credential", SECRET, Words("the client's own passes"), LIVE, "\"${ENGINE_KEY}\"",
        "The `credential` of the replicas that DNS finds."),
    key("pools[].discover.max_in_flight", count(1, 1_000_000), Value("none"), LIVE, "64",
        "The `max_in_flight` of the replicas that DNS finds.").or("none"),
    key("pools[].discover.cache_tokens", CACHE_TOKENS, Words("the pool's `cache_tokens`"), LIVE, "300_000",
        "The `cache_tokens` of the replicas that DNS finds."),
    key("pools[].replicas[].tls", MAP, Words("the pool's `tls`"), LIVE, "{ server_name: engine.internal }",
        "How the certificate of an `https://` replica is judged."),
    key("pools[].replicas[].tls.ca", AUTHORITIES, Words("the pool's"), LIVE, "./tls/ca.pem",
        "As the pool's, for this replica.").or("none"),
    key("pools[].replicas[].tls.server_name", SERVER_NAME, Words("the pool's"), LIVE, "engine.internal",
        "As the pool's, for this replica."),
    key("pools[].tls", MAP, Words("its keys' defaults"), LIVE, "{ ca: ./tls/ca.pem }",
        "How the certificates of `https://` replicas are judged. There is no way not to judge them."),
    key("pools[].tls.ca", AUTHORITIES, Value("none"), LIVE, "./tls/ca.pem",
        "PEM file of the authorities that sign them, read with this file. `none`: the public authorities (Mozilla's list, compiled in).").or("none"),
    key("pools[].tls.server_name", SERVER_NAME, Words("the host of the replica's URL"), LIVE, "engine.internal",
        "The name that they must carry, and that is asked for (SNI)."),
    key("pools[].paths", list(&PATH, 0), Words("none"), LIVE, "[/pooling, /v1/custom]",
        "Further exact paths that are forwarded to this pool. Any other unknown path is a 404."),
    key("pools[].request_encoding", one_of(RequestEncoding::NAMES), Value("decode"), LIVE, "pass",
        "Compressed request bodies: `decode` gzip and zstd for the engine, or `pass` them on as they are, unparsed."),
    key("pools[].stream_usage", one_of(StreamUsage::NAMES), Value("observe"), LIVE, "ask",
        "How the router learns what was cached for a streamed chat or completion: it reads what the client asked for (`observe`), or asks where the client did not and hides the event that answers (`ask`): see docs/prefix-awareness.md. `ask` reads the bodies of `models: any`."),
    key("pools[].health", MAP, Words("its keys' defaults"), LIVE, "{ interval: 5s }",
        "How replicas are watched, by probes and by what becomes of requests: see docs/resilience.md. Pools that share a replica must agree on it, but for `max_ejected`."),
    key("pools[].health.path", PATH, Value("/health"), LIVE, "/healthz",
        "What is asked for (GET), after the replica's base path; any 2xx is healthy."),
    key("pools[].health.interval", time(10, HOUR), Value("2s"), LIVE, "5s",
        "Time between probes, jittered by a tenth."),
    key("pools[].health.down_interval", time(10, HOUR), Value("1s"), LIVE, "500ms",
        "The same while a replica is down or its breaker is open; never longer than `interval`."),
    key("pools[].health.timeout", time(10, HOUR), Value("2s"), LIVE, "1s",
        "A slower answer counts as a failure."),
    key("pools[].health.unhealthy_after", count(1, 1000), Value("3"), LIVE, "5",
        "Failures in a row after which a replica is down."),
    key("pools[].health.healthy_after", count(1, 1000), Value("1"), LIVE, "2",
        "Successes in a row after which it is back."),
    key("pools[].health.model_match", BOOL, Value("false"), LIVE, "true",
        "Whether a probe also wants the pool's `model` to be in the replica's `/v1/models`."),
    key("pools[].health.max_ejected", percent(0, 100), Value("50%"), LIVE, "30%",
        "The share of the pool (at least one replica) that failing probes and open breakers may leave out. When more fail, all that can be reached are used: fail-open, counted as panic. 100%: never."),
    key("pools[].health.breaker", MAP, Words("its keys' defaults"), LIVE, "{ failures: 10 }",
        "When a replica is left out because requests fail on it: a connection that ends before the response head, 500, 502, 504, and 503 without `Retry-After`."),
    key("pools[].health.breaker.failures", count(1, 1_000_000), Value("5"), LIVE, "10",
        "Failures in a row that open the breaker."),
    key("pools[].health.breaker.share", percent(1, 100), Value("50%"), LIVE, "80%",
        "The share of failures within `window` that opens it…"),
    key("pools[].health.breaker.window", time(100, HOUR), Value("10s"), LIVE, "30s",
        "…which reaches so far back…"),
    key("pools[].health.breaker.min_requests", count(1, 1_000_000), Value("20"), LIVE, "50",
        "…once it holds so many requests."),
    key("pools[].health.breaker.open_for", time(10, HOUR), Value("1s"), LIVE, "3s",
        "How long it stays open; then the next good probe closes it, on probation. Doubled each time it opens anew."),
    key("pools[].health.breaker.max_open", time(10, DAY), Value("30s"), LIVE, "1m",
        "The longest it stays open."),
    key("pools[].retry", MAP, Words("its keys' defaults"), LIVE, "{ replay: true }",
        "Whether a request that an engine may have seen is sent to another. What no engine can have seen always is."),
    key("pools[].retry.replay", BOOL, Value("false"), LIVE, "true",
        "Whether it is, as long as no byte of an answer went to the client. The engine may do the work twice."),
    key("pools[].retry.on", list(&RETRY_ON, 1), Value("[reset, 502, 503]"), LIVE, "[reset]",
        "Upon what: the connection ended before the response head, or the engine answered so. Never upon 429, or 503 with `Retry-After`."),
    key("pools[].retry.max", count(1, 10), Value("1"), LIVE, "2",
        "Replays of one request, each on a replica that it has not tried."),
    key("pools[].retry.budget", percent(0, 100), Value("20%"), LIVE, "10%",
        "Most replays in ten seconds, as a share of the requests that were live in them…"),
    key("pools[].retry.floor", count(0, 1_000_000), Value("3"), LIVE, "10",
        "…or so many, if that is more."),
    key("pools[].queue", Kind::MapOr("max"), Value("off"), LIVE, "{ max: 200, timeout: 10s }",
        "Where requests wait, first in, first out, while every ready replica is at its `max_in_flight`. `off`: 503 at once."),
    key("pools[].queue.max", count(1, 1_000_000), Value("100"), LIVE, "200",
        "Most that wait. Over it: 429.").or("off"),
    key("pools[].queue.timeout", time(1, DAY), Value("30s"), LIVE, "10s",
        "Longest wait. Over it: 503."),
    key("pools[].queue.wait_for_ready", BOOL, Value("false"), LIVE, "true",
        "Whether requests also wait while no replica is up."),
    key("pools[].tokens", MAP, Words("its keys' defaults"), LIVE, "{ cache: 128MiB }",
        "What cutting prompts into tokens may take. Without a `tokenizer` it has no effect."),
    key("pools[].tokens.cache", size(MIB, 64 * GIB), Value("32MiB"), LIVE, "128MiB",
        "Memory for token boundaries of prompts seen lately: a longer prompt that begins alike is then tokenized from where they part."),
    key("pools[].tokens.budget", time(1, MINUTE), Value("100ms"), LIVE, "200ms",
        "Longest time that one prompt is tokenized for. Over it the prompt is compared as text, and counted."),
    key("pools[].tokens.parity", BOOL, Value("true"), LIVE, "false",
        "Whether an endpoint's prompts are cut as text while engines count the tokens of more than a quarter of them otherwise than `tokenizer` does: a match in tokens would be an illusion."),
    key("pools[].index", Kind::MapOr("size"), Words("its keys' defaults"), LIVE, "{ size: 256MiB }",
        "Which replica holds which prefix: kept for `cache_aware` and `least_cost`, and for a `shadow` once more."),
    key("pools[].index.size", size(MIB, 64 * GIB), Value("24MiB"), LIVE, "256MiB",
        "Memory for it; prefixes unused for the longest time are forgotten first. A block of 16 tokens takes under 10 bytes for each replica that holds it."),
    key("pools[].cache_tokens", CACHE_TOKENS, Value("detect"), LIVE, "300_000",
        "Tokens of KV cache that each replica can keep, where the replica has no `cache_tokens` of its own: what is over it is taken to be evicted, the least recently used first. `detect`: what the engine says (`engine_metrics`), and 500,000 where it does not.").or("detect"),
    key("pools[].engine_metrics", Kind::MapOr("interval"), Words("its keys' defaults"), LIVE, "5s",
        "What is asked of engines beside requests: their load, the size of their cache, whether they are a new process or asleep. `/metrics` of vLLM, SGLang and llama.cpp, or SGLang's `/v1/loads`; nothing comes of it where there is neither. Of a replica in several pools the first one's holds."),
    key("pools[].engine_metrics.interval", time(100, HOUR), ENGINE_METRICS_DEFAULT, LIVE, "5s",
        "Time between two looks, jittered by a tenth. What is older than three of them counts for nothing.").or("off"),
    key("pools[].engine_metrics.max_waiting", count(1, 1_000_000), Value("16"), LIVE, "64",
        "A replica in which so many requests wait, as it says itself, is not chosen while another can be; nor is one in which any wait while its KV cache is 95% in use.").or("none"),
    key("pools[].prefill", MAP, Value("learned"), LIVE, "{ overhead: 5ms, per_token: 33.1us, per_pair: 0.596ns }",
        "How long a prefill of n tokens lasts of which m are cached, for `least_cost` and `load: queued_seconds`: overhead + per_token × (n − m) + per_pair × (n² − m²). `learned`: from the first tokens of requests that met no queue. The example is Qwen3-8B on an H100.").or("learned"),
    key("pools[].prefill.overhead", seconds(60.0), Value("0s"), LIVE, "5ms",
        "Of each request."),
    key("pools[].prefill.per_token", seconds(1.0), Required, LIVE, "33.1us",
        "Of each token that is not cached: 2 × parameters ÷ (FLOP/s that the GPU reaches)."),
    key("pools[].prefill.per_pair", seconds(0.001), Value("0s"), LIVE, "0.596ns",
        "Of each pair of such a token and one before it (attention): 2 × layers × heads × head size ÷ (FLOP/s that the GPU reaches)."),
    key("pools[].shadow", Kind::MapOr("type"), Value("none"), LIVE, "session_sticky",
        "A policy that decides beside `policy`, to be compared in the metrics. It never acts."),
    key("pools[].shadow.type", one_of(POLICIES), Required, LIVE, "least_load",
        "As under `policy`.").or("none"),
    key("pools[].shadow.header", HEADER, Words("required by `header_hash`, not allowed elsewhere"), LIVE, "x-user-id",
        "As under `policy`."),
    key("pools[].shadow.fallback", one_of(LoadPolicy::NAMES), Value("power_of_two"), LIVE, "least_load",
        "As under `policy`."),
    key("pools[].shadow.max_load_ratio", RATIO, RATIO_DEFAULT, LIVE, "1.5",
        "As under `policy`."),
    key("pools[].shadow.min_load_gap", count(0, 1_000_000), GAP_DEFAULT, LIVE, "12",
        "As under `policy`."),
    key("pools[].shadow.affinity", one_of(Stay::NAMES), Value("balanced"), LIVE, "prefer",
        "As under `policy`."),
    key("pools[].shadow.min_match_tokens", count(0, 10_000_000), Value("1024"), LIVE, "256",
        "As under `policy`."),
    key("pools[].shadow.load", one_of(LoadUnit::NAMES), Value("requests"), LIVE, "queued_seconds",
        "As under `policy`."),
    key("pools[].shadow.min_queue_gap", time(0, HOUR), Value("2s"), LIVE, "500ms",
        "As under `policy`."),
    key("pools[].shadow.request_cost", seconds(1.0), Value("0.5ms"), LIVE, "2ms",
        "As under `policy`."),

    key("timeouts", MAP, Words("its keys' defaults"), LIVE, "{ first_byte: 2m }",
        "Timers of the data path. There is no total timeout: a stream may run for as long as it produces."),
    key("timeouts.connect", time(1, HOUR), Value("2s"), LIVE, "500ms",
        "To open a connection to a replica."),
    key("timeouts.head", time(1, HOUR), Value("10s"), LIVE, "5s",
        "For a client to send a whole request head."),
    key("timeouts.body", time(1, HOUR), Value("30s"), LIVE, "1m",
        "Longest silence while a client sends a body. After twice this, the body must also have come at 1 KiB a second on average."),
    key("timeouts.first_byte", time(1, DAY), Value("none"), LIVE, "2m",
        "From the request sent to the replica's response head.").or("none"),
    key("timeouts.idle", time(1, DAY), Value("5m"), LIVE, "10m",
        "Longest silence between bytes of a response, and of a client that reads none of it."),
    key("timeouts.keep_alive", time(1, DAY), Value("75s"), LIVE, "2m",
        "How long a client's connection may wait for its next request."),
    key("timeouts.upstream_idle", time(1, HOUR), Value("2s"), LIVE, "50s",
        "How long a connection to a replica is kept for reuse. Keep it well under the engine's own limit, 5s in vLLM and SGLang: an engine that stands still for a moment closes it late, with a request on it, which fails."),
    key("timeouts.drain_delay", time(0, HOUR), Value("0ms"), LIVE, "5s",
        "How long connections are still accepted after SIGTERM while `/readyz` already says no: the time a load balancer needs to look. Kubernetes wants about 5s."),
    key("timeouts.drain", time(1, 7 * DAY), Value("10m"), LIVE, "30s",
        "How long open requests may then take to end. After that an event stream ends with an error event, and what has no answer yet with 503."),

    key("limits", MAP, Words("its keys' defaults"), LIVE, "{ body: 16MiB }",
        "Bounds on what one client can make the proxy hold."),
    key("limits.body", size(KIB, 4 * GIB), Value("64MiB"), LIVE, "16MiB",
        "A request body, before and after decoding. Over it: 413."),
    key("limits.decode_ratio", count(1, 1_000_000), Value("200"), LIVE, "50",
        "Most a compressed body may grow by, as a multiple. Over it: 413."),
    key("limits.head", size(8 * KIB, 16 << 20), Value("64KiB"), LIVE, "32KiB",
        "A request head. Over it: 431."),
    key("limits.headers", count(1, 10_000), Value("100"), LIVE, "200",
        "Header fields of a request. Over it: 431."),
    key("limits.uri", size(256, 63 * KIB), Value("16KiB"), LIVE, "8KiB",
        "A request target. Over it: 414."),
    key("limits.connections", count(1, 1_000_000), Value("16384"), RESTART, "4096",
        "Client connections held at once; further ones wait in the kernel's queue."),
    key("limits.streams", count(1, 100_000), Value("256"), LIVE, "64",
        "Requests open at once on one HTTP/2 connection; the client is told, and waits."),
    key("limits.stored_responses", count(1, 100_000_000), Value("100000"), RESTART, "20_000",
        "Stored responses (`/v1/responses`) whose replica is remembered."),

    key("logging", MAP, Words("its keys' defaults"), LIVE, "{ format: json }",
        "What is logged, and how. Prompts never are."),
    key("logging.level", Kind::Scalar(Scalar::Filter), Value("info"), LIVE, "info,warmroute::proxy=debug",
        "A level, or a filter in tracing's syntax."),
    key("logging.format", one_of(LogFormat::NAMES), Value("text"), RESTART, "json",
        "`text` for eyes, `json` for machines: one object a line."),
    key("logging.access", BOOL, Value("true"), LIVE, "false",
        "Whether a line is written for each request when it ends."),
];
