//! Replicas that come and go: by a watched file, and by a DNS server whose every byte is made here.
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::sessions::{named, who};
use crate::support::*;

pub async fn ids(proxy: &Proxy) -> BTreeSet<String> {
    proxy.replicas().await.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

pub async fn wait_ids(proxy: &Proxy, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
    wait_until(&format!("the replicas are {expected:?}"), PATIENCE, || async { ids(proxy).await == expected }).await;
}

fn rows(engines: &[Upstream], picked: &[usize]) -> String {
    picked.iter().map(|&n| format!("- {{ id: e{n}, url: \"{}\" }}\n", engines[n].url())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_file_adds_removes_and_replaces() {
    let engines = named(3).await;
    let folder = tempfile::TempDir::new().unwrap();
    let (config, list) = (folder.path().join("warmroute.yaml"), folder.path().join("replicas.yaml"));
    let yaml = Config::new(
        Pool::model("m").with("policy: { type: round_robin }").with("discover: { file: replicas.yaml, interval: 1h }"),
    );
    std::fs::write(&config, yaml.yaml()).unwrap();
    // It starts without the file, and without any replica.
    let proxy = Proxy::serving(folder, config, &[]);
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 503);
    assert_eq!(proxy.admin_get("/readyz").await.status(), 503);
    let failed = "warmroute_discovery_lookups_total{pool=\"m\",result=\"failed\"}";
    wait_until("a failed look is counted", PATIENCE, || async { proxy.metric(failed).await >= 1.0 }).await;

    replace(&list, &rows(&engines, &[0, 1]));
    wait_ids(&proxy, &["e0", "e1"]).await;
    wait_until("ready", PATIENCE, || async { proxy.admin_get("/readyz").await.status() == 200 }).await;
    replace(&list, &rows(&engines, &[1, 2]));
    wait_ids(&proxy, &["e1", "e2"]).await;
    for _ in 0..6 {
        assert_ne!(who(&proxy, &chat(false, 1)).await, "e0");
    }
    wait_until("no series of e0", PATIENCE, || async { !proxy.metrics().await.contains("replica=\"e0\"") }).await;

    // Broken, or caught half-written: the last list stays.
    for bad in ["- { url: nonsense }\n", ""] {
        let before = proxy.metric(failed).await;
        replace(&list, bad);
        wait_until("another failed look", PATIENCE, || async { proxy.metric(failed).await > before }).await;
        wait_ids(&proxy, &["e1", "e2"]).await;
    }

    // Another engine behind the same address.
    let life = |row: serde_json::Value| row["life"].as_u64().unwrap();
    let before = life(proxy.replica("e1").await.unwrap());
    replace(&list, &rows(&engines, &[1, 2]).replacen(" }", ", incarnation: 1 }", 1));
    wait_until("e1 is a new life", PATIENCE, || async { life(proxy.replica("e1").await.unwrap()) > before }).await;

    // None is a list, too.
    replace(&list, "[]\n");
    wait_ids(&proxy, &[]).await;
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 503);
    replace(&list, &rows(&engines, &[0]));
    wait_ids(&proxy, &["e0"]).await;
    assert_eq!(who(&proxy, &chat(false, 1)).await, "e0");
    proxy.load_is_zero().await;
}

/// A DNS server that gives every name the same A records and, where there is a service, one SRV record (RFC 1035,
/// section 4; RFC 2782); everything else it answers with no data.
pub struct Dns {
    pub address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    asked: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Zone {
    /// SERVFAIL is 2.
    code: u8,
    addresses: Vec<Ipv4Addr>,
    /// The port of the SRV record, whose target is `one.test`.
    service: Option<u16>,
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Dns {
    pub async fn start(addresses: &[Ipv4Addr]) -> Self {
        Self::with(addresses, None).await
    }

    pub async fn with(addresses: &[Ipv4Addr], service: Option<u16>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let zone = Arc::new(Mutex::new(Zone { code: 0, addresses: addresses.to_vec(), service }));
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let (says, hears) = (zone.clone(), asked.clone());
        let task = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let zone = says.lock().unwrap().clone();
                hears.lock().unwrap().insert(name(&buffer[12..length]));
                let _ = socket.send_to(&answer(&buffer[..length], &zone), from).await;
            }
        });
        Self { address, zone, asked, task }
    }

    /// The names that it was asked for.
    pub fn asked(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap().clone()
    }

    pub fn says(&self, code: u8, addresses: &[Ipv4Addr]) {
        let mut zone = self.zone.lock().unwrap();
        (zone.code, zone.addresses) = (code, addresses.to_vec());
    }
}

/// The name that a question is for; whoever asks may write its letters in any case.
fn name(mut labels: &[u8]) -> String {
    let mut name = Vec::new();
    while let [length, rest @ ..] = labels
        && *length > 0
    {
        let (label, rest) = rest.split_at(usize::from(*length));
        name.push(String::from_utf8_lossy(label).to_lowercase());
        labels = rest;
    }
    name.join(".")
}

fn answer(query: &[u8], zone: &Zone) -> Vec<u8> {
    // The question: labels to the empty one, then type and class.
    let mut end = 12;
    while query[end] != 0 {
        end += 1 + usize::from(query[end]);
    }
    end += 5;
    // An address by four bytes; a service by priority, weight, port and target.
    let data: Vec<Vec<u8>> = match query[end - 4..end - 2] {
        [0, 1] if zone.code == 0 => zone.addresses.iter().map(|address| address.octets().to_vec()).collect(),
        [0, 33] if zone.code == 0 => {
            let service = |port: &u16| [&[0, 0, 0, 1], &port.to_be_bytes()[..], b"\x03one\x04test\0"].concat();
            zone.service.iter().map(service).collect()
        }
        _ => Vec::new(),
    };
    let mut out = query[..2].to_vec();
    out.extend([0x84, zone.code, 0, 1, 0, data.len() as u8, 0, 0, 0, 0]);
    out.extend(&query[12..end]);
    for data in data {
        // Name by pointer to the question, its type, IN, a time to live of an hour.
        out.extend([0xc0, 12, 0, query[end - 3], 0, 1, 0, 0, 0x0e, 0x10, 0, data.len() as u8]);
        out.extend(data);
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn every_address_of_a_name_is_a_replica_and_nothing_stale_outlives_an_interval() {
    let reply = |name: &'static str| {
        move |_: Seen, mut wire: Wire| async move {
            wire.reply(200, &[], name.as_bytes()).await.ok()?;
            Some(wire)
        }
    };
    let ip = |n| Ipv4Addr::new(127, 0, 0, n);
    let first = Upstream::start_at((ip(1), 0).into(), reply("1")).await;
    let port = first.address().port();
    let second = Upstream::start_at((ip(2), port).into(), reply("2")).await;
    let third = Upstream::start_at((ip(3), port).into(), reply("3")).await;
    let id = |n: u8| format!("127.0.0.{n}:{port}");

    let dns = Dns::start(&[ip(1), ip(2)]).await;
    let pool = Pool::model("m").with("policy: { type: session_sticky }").with(&format!(
        "discover: {{ dns: engines.test, port: {port}, interval: 100ms, nameserver: \"{}\" }}",
        dns.address
    ));
    let proxy = Proxy::start(&Config::new(pool)).await;
    wait_ids(&proxy, &[&id(1), &id(2)]).await;
    let of_session = |n: usize| chat(false, 1).header("x-session-id", &format!("a-session-of-{n:04}"));
    let mut homes = Vec::new();
    for n in 0..30 {
        homes.push(who(&proxy, &of_session(n)).await);
    }

    // One joins: the interval counts, not the hour that the records may live.
    dns.says(0, &[ip(3), ip(1), ip(2)]);
    wait_ids(&proxy, &[&id(1), &id(2), &id(3)]).await;
    for (n, home) in homes.iter().enumerate() {
        assert_eq!(who(&proxy, &of_session(n)).await, *home, "session {n} has moved");
    }
    // One leaves: only its own sessions move.
    dns.says(0, &[ip(3), ip(1)]);
    wait_ids(&proxy, &[&id(1), &id(3)]).await;
    for (n, home) in homes.iter().enumerate() {
        let now = who(&proxy, &of_session(n)).await;
        assert!(now != "2" && (home == "2" || now == *home), "session {n}: {home}, then {now}");
    }
    wait_until("no series of it", PATIENCE, || async { !proxy.metrics().await.contains(&id(2)) }).await;

    // A server out of order empties nothing, and is counted.
    let failed = "warmroute_discovery_lookups_total{pool=\"m\",result=\"failed\"}";
    let unchanged = "warmroute_discovery_lookups_total{pool=\"m\",result=\"unchanged\"}";
    let (before, looked) = (proxy.metric(failed).await, proxy.metric(unchanged).await);
    dns.says(2, &[]);
    wait_until("looks while the server is out of order", PATIENCE, || async {
        proxy.metric(failed).await + proxy.metric(unchanged).await > before + looked + 2.0
    })
    .await;
    assert_eq!(ids(&proxy).await.len(), 2);

    // Away for a look and back: another life.
    let life = |row: serde_json::Value| row["life"].as_u64().unwrap();
    let lived = life(proxy.replica(&id(1)).await.unwrap());
    dns.says(0, &[ip(3)]);
    wait_ids(&proxy, &[&id(3)]).await;
    dns.says(0, &[ip(3), ip(1)]);
    wait_ids(&proxy, &[&id(1), &id(3)]).await;
    assert!(life(proxy.replica(&id(1)).await.unwrap()) > lived);

    // An answer of no addresses is believed.
    dns.says(0, &[]);
    wait_ids(&proxy, &[]).await;
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 503);
    drop((second, third));
}
