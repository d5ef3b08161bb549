//! Discovery against a DNS server in this process: real packets over UDP on loopback.
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

use super::*;
use crate::config::{Dns, DnsRecords, PoolDefaults, PoolEvents};

/// What is answered to one question.
#[derive(Clone)]
enum Says {
    Records(u32, Vec<RData>),
    Code(ResponseCode),
}

type Zone = Arc<Mutex<HashMap<(String, RecordType), Says>>>;

/// A server that answers from its zone: what it does not know is NXDOMAIN, but NODATA when it has another type.
struct Server {
    address: SocketAddr,
    zone: Zone,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let zone = Zone::default();
        let task = tokio::spawn(serve(socket, zone.clone()));
        Self { address, zone, task }
    }

    fn says(&self, name: &str, kind: RecordType, says: Says) {
        self.zone.lock().unwrap().insert((name.to_owned(), kind), says);
    }

    fn addresses(&self, name: &str, v4: &[&str], v6: &[&str]) {
        let v4 = v4.iter().map(|ip| RData::A(A(ip.parse().unwrap()))).collect();
        let v6 = v6.iter().map(|ip| RData::AAAA(AAAA(ip.parse().unwrap()))).collect();
        self.says(name, RecordType::A, Says::Records(5, v4));
        self.says(name, RecordType::AAAA, Says::Records(5, v6));
    }

    fn dns(&self, name: &str) -> Dns {
        Dns {
            name: name.into(),
            records: DnsRecords::Auto,
            port: Some(8000),
            nameserver: Some(self.address),
            base_path: "/v".into(),
            credential: None,
            max_in_flight: Some(7),
            cache_tokens: None,
        }
    }
}

async fn serve(socket: UdpSocket, zone: Zone) {
    let mut buffer = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let Ok(question) = Message::from_vec(&buffer[..length]) else { continue };
        let query = question.queries[0].clone();
        let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
        answer.add_query(query.clone());
        let zone = zone.lock().unwrap().clone();
        let name = query.name().to_ascii();
        match zone.get(&(name.clone(), query.query_type())) {
            Some(Says::Records(ttl, records)) => {
                let of = |data: &RData| Record::from_rdata(query.name().clone(), *ttl, data.clone());
                answer.add_answers(records.iter().map(of));
            }
            Some(Says::Code(code)) => answer.metadata.response_code = *code,
            None if zone.keys().any(|(known, _)| *known == name) => {}
            None => answer.metadata.response_code = ResponseCode::NXDomain,
        }
        let _ = socket.send_to(&answer.to_vec().unwrap(), from).await;
    }
}

fn urls(list: &List) -> Vec<String> {
    list.replicas.iter().map(|replica| replica.url.to_string()).collect()
}

fn srv(priority: u16, weight: u16, port: u16, target: &str) -> RData {
    RData::SRV(SRV::new(priority, weight, port, Name::from_ascii(target).unwrap()))
}

#[tokio::test]
async fn every_address_of_both_families_is_a_replica() {
    let server = Server::start().await;
    server.addresses("e.test.", &["10.0.0.2", "10.0.0.1"], &["fd00::1"]);
    let mut names = dns::Names::new(server.dns("e.test"), PoolEvents::None);
    let list = names.look().await.unwrap();
    let mut found = urls(&list);
    found.sort();
    assert_eq!(found, ["http://10.0.0.1:8000/v", "http://10.0.0.2:8000/v", "http://[fd00::1]:8000/v"]);
    assert!(list.replicas.iter().all(|replica| replica.max_in_flight == Some(7)));
    let holds = list.holds.unwrap();
    assert!(holds > Duration::from_secs(3) && holds <= Duration::from_secs(5), "the time to live is 5 s: {holds:?}");

    // The next look asks again, whatever the time to live: nothing is cached on the way.
    server.addresses("e.test.", &["10.0.0.3"], &[]);
    assert_eq!(urls(&names.look().await.unwrap()), ["http://10.0.0.3:8000/v"]);

    // An IPv4 address dressed as an IPv6 one is the same engine, whose load must be counted once.
    server.addresses("e.test.", &["10.0.0.3"], &["::ffff:10.0.0.3"]);
    assert_eq!(urls(&names.look().await.unwrap()), ["http://10.0.0.3:8000/v"]);
}

#[tokio::test]
async fn a_server_out_of_order_empties_nothing_and_an_answer_does() {
    let server = Server::start().await;
    server.addresses("e.test.", &["10.0.0.1"], &["fd00::1"]);
    let mut names = dns::Names::new(server.dns("e.test"), PoolEvents::None);
    assert_eq!(names.look().await.unwrap().replicas.len(), 2);

    // One family can't be asked for: it stays as it was, and the other counts as answered.
    server.says("e.test.", RecordType::AAAA, Says::Code(ResponseCode::ServFail));
    server.says("e.test.", RecordType::A, Says::Records(5, vec![RData::A(A([10, 0, 0, 9].into()))]));
    assert_eq!(urls(&names.look().await.unwrap()), ["http://10.0.0.9:8000/v", "http://[fd00::1]:8000/v"]);

    // Neither: the look keeps both.
    server.says("e.test.", RecordType::A, Says::Code(ResponseCode::ServFail));
    assert_eq!(names.look().await.unwrap().replicas.len(), 2);
    let mut fresh = dns::Names::new(server.dns("e.test"), PoolEvents::None);
    assert!(fresh.look().await.is_err(), "who knows nothing has no list");

    // No data, and no such name, are answers.
    server.addresses("e.test.", &[], &[]);
    assert_eq!(names.look().await.unwrap().replicas, []);
    assert_eq!(dns::Names::new(server.dns("nowhere.test"), PoolEvents::None).look().await.unwrap().replicas, []);
}

#[tokio::test]
async fn srv_records_give_ports_weights_and_names_that_outlive_addresses() {
    let server = Server::start().await;
    let records = vec![
        srv(1, 3, 9001, "a.test."),
        srv(1, 0, 9002, "b.test."),
        srv(1, 70, 9003, "two.test."),
        srv(2, 1, 9004, "backup.test."),
    ];
    server.says("_http._tcp.e.test.", RecordType::SRV, Says::Records(5, records));
    server.addresses("a.test.", &["10.0.0.1"], &[]);
    server.addresses("b.test.", &[], &["fd00::2"]);
    server.addresses("two.test.", &["10.0.0.3", "10.0.0.4"], &[]);
    server.addresses("backup.test.", &["10.0.0.5"], &[]);
    let mut names = dns::Names::new(Dns { port: None, ..server.dns("_http._tcp.e.test") }, PoolEvents::None);
    let rows = |list: &List| -> Vec<(String, String, u32)> {
        list.replicas.iter().map(|r| (r.id.to_string(), r.url.to_string(), r.weight)).collect()
    };
    let row = |id: &str, url: &str, weight| (id.to_owned(), url.to_owned(), weight);
    assert_eq!(
        rows(&names.look().await.unwrap()),
        [
            row("10.0.0.3:9003/v", "http://10.0.0.3:9003/v", 70),
            row("10.0.0.4:9003/v", "http://10.0.0.4:9003/v", 70),
            row("a.test:9001", "http://10.0.0.1:9001/v", 3),
            row("b.test:9002", "http://[fd00::2]:9002/v", 1),
        ]
    );
    // A target that can't be asked for stays; one that moved has a new address under the same name.
    server.says("a.test.", RecordType::A, Says::Code(ResponseCode::ServFail));
    server.addresses("b.test.", &["10.0.0.8"], &[]);
    let list = rows(&names.look().await.unwrap());
    assert!(list.contains(&row("a.test:9001", "http://10.0.0.1:9001/v", 3)), "{list:?}");
    assert!(list.contains(&row("b.test:9002", "http://10.0.0.8:9002/v", 1)), "{list:?}");
}

#[tokio::test]
async fn a_watched_pool_follows_and_counts() {
    let server = Server::start().await;
    let metrics = Arc::new(Metrics::new().unwrap());
    let (send, mut lists) = tokio::sync::mpsc::channel(8);
    let discover = Discover {
        from: DiscoverFrom::Dns(server.dns("e.test")),
        defaults: PoolDefaults::default(),
        interval: Duration::from_millis(50),
    };
    server.addresses("e.test.", &["10.0.0.1"], &[]);
    let found = move |list: Vec<Replica>| send.try_send(list.len()).unwrap();
    let task = tokio::spawn(watch("p".into(), discover, metrics.clone(), found));
    assert_eq!(lists.recv().await, Some(1));
    server.addresses("e.test.", &["10.0.0.1", "10.0.0.2"], &[]);
    assert_eq!(lists.recv().await, Some(2), "an interval below the time to live goes first");
    let failed = || metrics.discoveries.with_label_values(&["p", "failed"]).get();
    assert_eq!(failed(), 0);
    assert!(metrics.discoveries.with_label_values(&["p", "changed"]).get() == 2);
    assert!(metrics.render().unwrap().contains("warmroute_discovery_replicas{pool=\"p\"} 2"));
    task.abort();
}
