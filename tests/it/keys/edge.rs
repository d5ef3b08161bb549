//! TLS, HTTP/2 and other proxies: `listen[]`, `trusted_proxies`, `tls` to replicas, and how a process leaves.
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::tls::{client, files, listen};

checks! {
    address: "listen[].address";
    tls: "listen[].tls", "listen[].tls.certificate", "listen[].tls.key";
    min_version: "listen[].tls.min_version";
    client_certificates: "listen[].tls.client_ca", "listen[].tls.client_certificates";
    proxy_protocol: "listen[].proxy_protocol";
    reuse_port: "listen[].reuse_port";
    trusted_proxies: "trusted_proxies";
    pool_tls: "pools[].tls", "pools[].tls.ca", "pools[].tls.server_name";
    replica_tls: "pools[].replicas[].tls", "pools[].replicas[].tls.ca", "pools[].replicas[].tls.server_name";
    drain_delay: "timeouts.drain_delay";
    streams: "limits.streams";
}

pub async fn address() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with("listen: [{ address: \"[::1]:0\" }]"), &without).await;
    assert!(with.address().is_ipv6() && without.address().is_ipv4());
    assert_eq!(who(&with, &chat(false, 1)).await, "e0");
}

pub async fn tls() {
    let engines = [engine("e0").await];
    let (authority, folder) = authority();
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with(&listen(&folder, "")), &without).await;
    let settings = || tls_client(&authority, None, &[]);
    let mut secure = client(&with, settings()).await.expect("TLS with the certificate that was named");
    assert_eq!(secure.exchange(&chat(false, 1)).await.text(), "e0");
    assert!(client(&without, settings()).await.is_err());
    assert_eq!(who(&without, &chat(false, 1)).await, "e0");
}

fn authority() -> (Authority, tempfile::TempDir) {
    let authority = Authority::new();
    let folder = files(&authority);
    (authority, folder)
}

pub async fn min_version() {
    let engines = [engine("e0").await];
    let (authority, folder) = authority();
    let config = |more| one_pool(&engines, "").with(&listen(&folder, more));
    let (with, without) = pair(&config(", min_version: \"1.3\""), &config("")).await;
    assert!(client(&with, tls12_client(&authority)).await.is_err());
    assert!(client(&without, tls12_client(&authority)).await.is_ok());
}

pub async fn client_certificates() {
    let engines = [engine("e0").await];
    let (authority, folder) = authority();
    let ca = format!(", client_ca: {}/ca.pem", folder.path().display());
    for (more, served) in
        [(String::new(), true), (ca.clone(), false), (format!("{ca}, client_certificates: optional"), true)]
    {
        let proxy = Proxy::start(&one_pool(&engines, "").with(&listen(&folder, &more))).await;
        let mut client = client(&proxy, tls_client(&authority, None, &[])).await.expect("TLS 1.3 refuses later");
        let _ = client.try_send(&chat(false, 1)).await;
        let head = within("an answer or an end", PATIENCE, client.try_head()).await;
        assert_eq!(head.is_some(), served, "{more}");
    }
}

pub async fn proxy_protocol() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let listen = "listen: [{ address: 127.0.0.1:0, proxy_protocol: 127.0.0.1 }]";
    let (with, without) = pair(&without.clone().with(listen), &without).await;
    for (proxy, status) in [(with, 200), (without, 400)] {
        let mut client = proxy.client().await;
        let announced = b"PROXY TCP4 192.0.2.7 10.0.0.1 4000 80\r\n".to_vec();
        let _ = client.send_raw(&[announced, chat(false, 1).bytes(proxy.address())].concat()).await;
        assert_eq!(client.head().await.status(), status);
    }
}

pub async fn reuse_port() {
    let engines = [engine("e0").await];
    for (shared, starts) in [(true, true), (false, false)] {
        let listen = |at: &str| format!("listen: [{{ address: \"{at}\", reuse_port: {shared} }}]");
        let first = Proxy::start(&one_pool(&engines, "").with(&listen("127.0.0.1:0"))).await;
        let config = one_pool(&engines, "").with(&listen(&first.address().to_string()));
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("second.yaml");
        std::fs::write(&path, config.yaml()).unwrap();
        let mut second = Process::start(&["serve", "--config", path.to_str().unwrap()], &[]);
        if starts {
            second.line("listener", |line| line.contains("listening").then_some(()));
        } else {
            assert!(!second.wait(PATIENCE).success());
        }
    }
}

pub async fn trusted_proxies() {
    let engine = Upstream::fixed(200, &[], "e0").await;
    let without = Config::new(Pool::model("m").at(engine.address()));
    let (with, without) = pair(&without.clone().with("trusted_proxies: 127.0.0.1"), &without).await;
    let request = chat(false, 1).header("x-forwarded-for", "203.0.113.9");
    for (proxy, seen) in [(with, "203.0.113.9, 127.0.0.1"), (without, "127.0.0.1")] {
        let before = engine.seen("/v1/chat/completions").len();
        assert_eq!(proxy.exchange(&request).await.status(), 200);
        assert_eq!(engine.seen("/v1/chat/completions")[before].head.all("x-forwarded-for"), [seen]);
    }
}

/// Whether an engine behind TLS, with a certificate for `engine.internal`, is reached with these keys.
async fn reached(pool: &str, replica: &str) -> bool {
    let engine = engine("e0").await;
    let (authority, folder) = authority();
    let front = tls_front(engine.address(), &authority.issue("engine.internal")).await;
    let fill = |keys: &str| keys.replace("CA", &format!("{}/ca.pem", folder.path().display()));
    let replica = format!("{{ url: \"https://{}\"{} }}", front.address, fill(replica));
    let mut of = Pool::model("m").replica(&replica);
    if !pool.is_empty() {
        of = of.with(&fill(pool));
    }
    let proxy = Proxy::start_unready(&Config::new(of));
    proxy.exchange(&chat(false, 1)).await.status() == 200
}

pub async fn pool_tls() {
    assert!(reached("tls: { ca: CA, server_name: engine.internal }", "").await);
    assert!(!reached("tls: { ca: CA }", "").await, "the URL's host is not in the certificate");
    assert!(!reached("tls: { server_name: engine.internal }", "").await, "nobody public signed it");
    assert!(!reached("", "").await);
}

pub async fn replica_tls() {
    assert!(reached("", ", tls: { ca: CA, server_name: engine.internal }").await);
    assert!(reached("tls: { ca: CA, server_name: other }", ", tls: { server_name: engine.internal }").await);
    assert!(reached("tls: { server_name: engine.internal }", ", tls: { ca: CA }").await);
    assert!(!reached("tls: { ca: CA, server_name: engine.internal }", ", tls: { ca: none }").await);
}

pub async fn drain_delay() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with("timeouts: { drain_delay: 1h }"), &without).await;
    with.process.terminate();
    without.process.terminate();
    wait_until("unready", PATIENCE, || async { with.admin_get("/readyz").await.status() == 503 }).await;
    let refused = || async { TcpStream::connect(without.address()).await.is_err() };
    wait_until("closed without a delay", PATIENCE, refused).await;
    assert_eq!(who(&with, &chat(false, 1)).await, "e0", "still served");
}

pub async fn streams() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let (with, without) = pair(&without.clone().with("limits: { streams: 7 }"), &without).await;
    for (proxy, most) in [(with, 7u32), (without, 256)] {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(&preface()).await.unwrap();
        // The router's SETTINGS come first: a frame's head, then pairs of id and value; 3 is the limit of streams.
        let mut head = [0; 9];
        within("settings", PATIENCE, stream.read_exact(&mut head)).await.unwrap();
        assert_eq!(head[3], 4);
        let mut settings = vec![0; usize::from(head[2])];
        within("settings", PATIENCE, stream.read_exact(&mut settings)).await.unwrap();
        let limit = settings.chunks(6).find(|setting| setting[..2] == [0, 3]).expect("a limit of streams");
        assert_eq!(limit[2..], most.to_be_bytes());
    }
}
