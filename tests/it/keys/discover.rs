//! `pools[].discover`: where replicas are looked for, and what they are then.
use std::net::Ipv4Addr;

use super::*;
use crate::discovery::{Dns, ids, wait_ids};

checks! {
    discover: "pools[].discover";
    file: "pools[].discover.file";
    dns: "pools[].discover.dns";
    kind: "pools[].discover.type";
    port: "pools[].discover.port";
    interval: "pools[].discover.interval";
    nameserver: "pools[].discover.nameserver";
    base_path: "pools[].discover.base_path";
    credential: "pools[].discover.credential";
    max_in_flight: "pools[].discover.max_in_flight";
}

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn found(keys: &str) -> Config {
    Config::new(Pool::model("m").with(&format!("discover: {{ {keys} }}")))
}

/// What a DNS server tells of a name, at an engine's port; with further keys.
fn told(dns: &Dns, engine: &Upstream, keys: &str) -> Config {
    found(&format!("dns: engines.test, port: {}, nameserver: \"{}\"{keys}", engine.address().port(), dns.address))
}

/// A file that lists an engine, under a name.
fn listing(engine: &Upstream, id: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("- {{ id: {id}, url: \"{}\" }}\n", engine.url())).unwrap();
    file
}

pub async fn discover() {
    let engines = two().await;
    let file = listing(&engines[1], "found");
    let key = format!("discover: {{ file: {} }}", file.path().display());
    let (with, without) = pair(&one_pool(&engines[..1], &key), &one_pool(&engines[..1], "")).await;
    wait_ids(&with, &["r0", "found"]).await;
    wait_ids(&without, &["r0"]).await;
    assert_eq!(who(&without, &chat(false, 1)).await, "e0");
    wait_until("the one that was found serves", PATIENCE, || async { who(&with, &chat(false, 1)).await == "e1" }).await;
}

pub async fn file() {
    let engines = two().await;
    let files = [listing(&engines[0], "a"), listing(&engines[1], "b")];
    let of = |n: usize| found(&format!("file: {}", files[n].path().display()));
    let (with, without) = pair(&of(0), &of(1)).await;
    assert_eq!((who(&with, &chat(false, 1)).await, who(&without, &chat(false, 1)).await), ("e0".into(), "e1".into()));
}

pub async fn dns() {
    let engine = engine("e0").await;
    let server = Dns::start(&[HERE]).await;
    let with = Proxy::start(&told(&server, &engine, "")).await;
    assert_eq!(who(&with, &chat(false, 1)).await, "e0");
    let names = server.asked();
    assert!(!names.is_empty() && names.iter().all(|name| name == "engines.test"), "{names:?}");
    let other =
        found(&format!("dns: others.test, port: {}, nameserver: \"{}\"", engine.address().port(), server.address));
    let _without = Proxy::start(&other).await;
    assert!(server.asked().iter().any(|name| name == "others.test"));
}

/// The server has both kinds of records.
pub async fn kind() {
    let engine = engine("e0").await;
    let port = engine.address().port();
    let server = Dns::with(&[HERE], Some(port)).await;
    let (with, without) = pair(&told(&server, &engine, ", type: srv"), &told(&server, &engine, "")).await;
    wait_ids(&with, &[&format!("one.test:{port}")]).await;
    wait_ids(&without, &[&format!("{HERE}:{port}")]).await;
}

/// The SRV record has a port of its own.
pub async fn port() {
    let engines = two().await;
    let server = Dns::with(&[HERE], Some(engines[1].address().port())).await;
    let service = |keys: &str| found(&format!("dns: _http._tcp.test, nameserver: \"{}\"{keys}", server.address));
    let key = format!(", port: {}", engines[0].address().port());
    let (with, without) = pair(&service(&key), &service("")).await;
    assert_eq!((who(&with, &chat(false, 1)).await, who(&without, &chat(false, 1)).await), ("e0".into(), "e1".into()));
}

/// The records may live for an hour.
pub async fn interval() {
    let engine = engine("e0").await;
    let server = Dns::start(&[HERE]).await;
    let (with, without) = pair(&told(&server, &engine, ", interval: 50ms"), &told(&server, &engine, "")).await;
    server.says(0, &[]);
    let empty = async |proxy: &Proxy| {
        wait_until("another look", PATIENCE, || async { ids(proxy).await.is_empty() }).await;
    };
    sooner("another look", empty(&with), empty(&without)).await;
}

pub async fn nameserver() {
    let engine = engine("e0").await;
    let servers = [Dns::start(&[HERE]).await, Dns::start(&[HERE]).await];
    for asked in [0, 1] {
        assert!(servers[asked].asked().is_empty(), "only the one that is named is asked");
        let proxy = Proxy::start(&told(&servers[asked], &engine, "")).await;
        assert_eq!(who(&proxy, &chat(false, 1)).await, "e0");
        assert!(!servers[asked].asked().is_empty());
    }
}

pub async fn base_path() {
    let engine = Upstream::fixed(200, &[], "e0").await;
    let server = Dns::start(&[HERE]).await;
    let (with, without) = pair(&told(&server, &engine, ", base_path: /engine"), &told(&server, &engine, "")).await;
    for (proxy, path) in [(with, "/engine/v1/chat/completions"), (without, "/v1/chat/completions")] {
        assert!(engine.seen(path).is_empty());
        who(&proxy, &chat(false, 1)).await;
        assert_eq!(engine.only(path).await.body, chat(false, 1).body);
    }
}

pub async fn credential() {
    let engine = engine("e0").await;
    let server = Dns::start(&[HERE]).await;
    let (with, without) = pair(&told(&server, &engine, ", credential: s3cret"), &told(&server, &engine, "")).await;
    let request = chat(false, 1).header("Authorization", "Bearer the-clients");
    for (proxy, sent) in [(with, "Bearer s3cret"), (without, "Bearer the-clients")] {
        who(&proxy, &request).await;
        let seen = engine.seen("/v1/chat/completions").pop().unwrap();
        assert_eq!(seen.head.all("authorization"), [sent]);
    }
}

pub async fn max_in_flight() {
    let engine = engine("e0").await;
    let server = Dns::start(&[HERE]).await;
    let (with, without) = pair(&told(&server, &engine, ", max_in_flight: 1"), &told(&server, &engine, "")).await;
    for (proxy, status) in [(with, 503), (without, 200)] {
        let (_open, _) = held(&proxy, |request| request).await;
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
        assert_eq!(answer.text().contains("max_in_flight"), status == 503);
    }
}
