//! TLS on both sides: versions, ALPN, client certificates, certificates that change, and whom a replica must be.
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// A folder with an authority's `ca.pem` and a listener's `cert.pem` and `key.pem`.
pub fn files(authority: &Authority) -> TempDir {
    let folder = TempDir::new().unwrap();
    authority.issue("localhost").write(folder.path());
    std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    folder
}

/// A listener with these files; further keys of `tls` as written.
pub fn listen(folder: &TempDir, more: &str) -> String {
    let at = folder.path().display();
    format!("listen: [{{ address: 127.0.0.1:0, tls: {{ certificate: {at}/cert.pem, key: {at}/key.pem{more} }} }}]")
}

pub async fn client(proxy: &Proxy, config: rustls::ClientConfig) -> std::io::Result<Client> {
    Ok(Client::on(tls_connect(proxy.address(), config).await?, proxy.address()))
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_http_by_alpn() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let authority = Authority::new();
    let folder = files(&authority);
    let config = Config::new(Pool::model("m").at(upstream.address())).with(&listen(&folder, ""));
    let proxy = Proxy::start(&config).await;
    for alpn in [&["http/1.1"][..], &[]] {
        let mut client = client(&proxy, tls_client(&authority, None, alpn)).await.unwrap();
        for _ in 0..2 {
            assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200);
        }
    }
    let stream = tls_connect(proxy.address(), tls_client(&authority, None, &["h2", "http/1.1"])).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let mut http2 = Http2::over(stream, h2::client::Builder::new()).await;
    assert_eq!(http2.exchange(&chat(false, 1)).await.0.status, 200);
    for seen in upstream.seen("/v1/chat/completions") {
        assert_eq!(seen.head.all("x-forwarded-proto"), ["https"]);
    }
    assert_eq!(upstream.seen("/v1/chat/completions").len(), 5);
    assert_eq!(proxy.metric("warmroute_tls_certificate_expiry_timestamp_seconds").await, 4_102_444_800.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_the_engine_by_tls_too() {
    let mock = Mock::slow();
    let authority = Authority::new();
    let folder = files(&authority);
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address())).with(&listen(&folder, ""))).await;
    for stream in [true, false] {
        let mut client = client(&proxy, tls_client(&authority, None, &[])).await.unwrap();
        client.send(&chat(stream, 2_000)).await;
        wait_until("the engine works", PATIENCE, || async { mock.stat("inflight").await == 1 }).await;
        drop(client);
        wait_until("the engine is free", RELEASE, || async { mock.stat("inflight").await == 0 }).await;
        proxy.wait_in_flight(0, RELEASE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_plain_text_and_silence_are_not_served() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let authority = Authority::new();
    let folder = files(&authority);
    let config = Config::new(Pool::model("m").at(upstream.address()))
        .with(&listen(&folder, ", min_version: \"1.3\""))
        .with("timeouts: { head: 400ms }");
    let proxy = Proxy::start(&config).await;
    assert!(client(&proxy, tls12_client(&authority)).await.is_err());
    assert!(client(&proxy, tls_client(&authority, None, &[])).await.is_ok());

    let mut plain = proxy.client().await;
    plain.send_raw(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(within("an answer or an end", PATIENCE, plain.try_head()).await.is_none());
    wait_until("both are counted", PATIENCE, || async {
        proxy.metric("warmroute_client_handshakes_failed_total{kind=\"tls\"}").await == 2.0
    })
    .await;

    // The beginning of a handshake (a TLS record's head), and nothing more.
    let start = Instant::now();
    let mut slow = TcpStream::connect(proxy.address()).await.unwrap();
    slow.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
    let end = within("the close", PATIENCE, slow.read(&mut [0; 16])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert!(start.elapsed() >= Duration::from_millis(380), "after {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificates() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folder = files(&authority);
    let ca = format!(", client_ca: {}/ca.pem", folder.path().display());
    let pool = Pool::model("m").at(upstream.address());
    let required = Proxy::start(&Config::new(pool.clone()).with(&listen(&folder, &ca))).await;
    let optional = format!("{ca}, client_certificates: optional");
    let optional = Proxy::start(&Config::new(pool).with(&listen(&folder, &optional))).await;
    let (known, unknown) = (authority.issue("client"), stranger.issue("client"));
    for (proxy, own, served) in [
        (&required, None, false),
        (&required, Some(&known), true),
        (&required, Some(&unknown), false),
        (&optional, None, true),
        (&optional, Some(&known), true),
        (&optional, Some(&unknown), false),
    ] {
        // In TLS 1.3 the client learns of a refusal only when it reads.
        let answered = match client(proxy, tls_client(&authority, own, &[])).await {
            Ok(mut client) => {
                let _ = client.try_send(&chat(false, 1)).await;
                within("an answer or an end", PATIENCE, client.try_head()).await.is_some()
            }
            Err(_) => false,
        };
        assert_eq!(answered, served);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_follows_its_files_and_a_bad_one_changes_nothing() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let (authority, next) = (Authority::new(), Authority::new());
    let folder = files(&authority);
    let config = Config::new(Pool::model("m").at(upstream.address())).with(&listen(&folder, ""));
    let proxy = Proxy::start(&config).await;
    let mut early = client(&proxy, tls_client(&authority, None, &[])).await.unwrap();
    let reloads = |result: &str| format!("warmroute_tls_certificate_reloads_total{{result=\"{result}\"}}");

    std::fs::write(folder.path().join("cert.pem"), "not a certificate").unwrap();
    wait_until("a bad file is noticed", PATIENCE, || async { proxy.metric(&reloads("failed")).await == 1.0 }).await;
    assert!(client(&proxy, tls_client(&authority, None, &[])).await.is_ok(), "the one before is in use");
    assert_eq!(proxy.metric("warmroute_tls_certificate_expiry_timestamp_seconds").await, 4_102_444_800.0);
    let told = |line: &str| line.contains("ERROR") && line.contains("the one before stays");
    proxy.process.says("that the one before stays", told).await;

    next.issue_until("localhost", 2090).write(folder.path());
    wait_until("the next one is in use", PATIENCE, || async { proxy.metric(&reloads("ok")).await == 1.0 }).await;
    assert!(client(&proxy, tls_client(&next, None, &[])).await.is_ok());
    assert!(client(&proxy, tls_client(&authority, None, &[])).await.is_err());
    assert_eq!(proxy.metric("warmroute_tls_certificate_expiry_timestamp_seconds").await, 3_786_912_000.0);
    assert_eq!(early.exchange(&chat(false, 1)).await.status(), 200, "connections are not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_must_be_who_it_is_said_to_be() {
    let mock = Mock::fast();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folder = TempDir::new().unwrap();
    for (name, content) in [("ca.pem", authority.pem()), ("other.pem", stranger.pem())] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let front = tls_front(mock.address(), &authority.issue("engine.internal")).await;
    let at = folder.path().display();
    let replica = |tls: &str| {
        let replica = format!("{{ url: \"https://{}\", tls: {{ {tls} }} }}", front.address);
        Config::new(Pool::model("m").replica(&replica))
    };
    let proxy = Proxy::start(&replica(&format!("ca: {at}/ca.pem, server_name: engine.internal"))).await;
    for stream in [true, false] {
        assert_eq!(proxy.exchange(&chat(stream, 5)).await.status(), 200);
    }
    assert_eq!(proxy.replicas().await[0]["url"], format!("https://{}", front.address));
    let before = mock.stat("requests").await;
    for tls in [
        format!("ca: {at}/other.pem, server_name: engine.internal"),
        format!("ca: {at}/ca.pem, server_name: other.internal"),
        format!("ca: {at}/ca.pem"),
        "server_name: engine.internal".to_string(),
    ] {
        let config = replica(&tls);
        let proxy = Proxy::start_unready(&config);
        let down = || async { proxy.replicas().await[0]["state"] == "down" };
        wait_until(&format!("{tls}: the probe fails"), PATIENCE, down).await;
        assert!(proxy.exchange(&chat(false, 1)).await.status() >= 500);
        let told = |line: &str| line.contains("TLS: invalid peer certificate");
        proxy.process.says(&format!("{tls}: why it is down"), told).await;
    }
    assert_eq!(mock.stat("requests").await, before, "nothing was asked of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_for_http1_holds_within_tls() {
    let mock = Mock::slow();
    let authority = Authority::new();
    let folder = files(&authority);
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address())).with(&listen(&folder, ""))).await;
    let connect = || client(&proxy, tls_client(&authority, None, &["http/1.1"]));

    // The guard: two framings.
    let mut smuggler = connect().await.unwrap();
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n";
    smuggler.send_raw(head).await.unwrap();
    assert_eq!(smuggler.head().await.status(), 400);
    within("the end", PATIENCE, smuggler.rest()).await;
    assert!(within("the end", PATIENCE, smuggler.try_head()).await.is_none());
    assert_eq!(proxy.metric("warmroute_malformed_requests_total").await, 1.0);

    // A client that leaves behind bytes it sent ahead.
    let mut leaving = connect().await.unwrap();
    leaving.send(&chat(true, 2_000)).await;
    wait_until("the engine works", PATIENCE, || async { mock.stat("inflight").await == 1 }).await;
    leaving.send_raw(&chat(false, 1).bytes(proxy.address()).repeat(100)).await.unwrap();
    drop(leaving);
    wait_until("the engine is free", RELEASE, || async { mock.stat("inflight").await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_takes_another_authority_and_keeps_the_replica() {
    let mock = Mock::fast();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let front = tls_front(mock.address(), &authority.issue("engine.internal")).await;
    let pool = Pool::model("m")
        .replica(&format!("\"https://{}\"", front.address))
        .with(&format!("tls: {{ ca: {}, server_name: engine.internal }}", file.display()));
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut client = proxy.client().await;
    assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200);

    std::fs::write(&file, stranger.pem()).unwrap();
    assert_eq!(proxy.admin_post("/reload").await.status(), 200);
    assert!(client.exchange(&chat(false, 1)).await.status() >= 500, "kept connections are judged anew too");
    wait_until("the probe fails", PATIENCE, || async { proxy.replicas().await[0]["state"] == "down" }).await;

    std::fs::write(&file, authority.pem()).unwrap();
    assert_eq!(proxy.admin_post("/reload").await.status(), 200);
    let served = || async { proxy.exchange(&chat(false, 1)).await.status() == 200 };
    wait_until("it is trusted again", PATIENCE, served).await;
    assert!(!proxy.process.output().iter().any(|line| line.contains("replica joined")), "it is the same one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discovered_list_may_hold_https() {
    let mock = Mock::fast();
    let authority = Authority::new();
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    let front = tls_front(mock.address(), &authority.issue("engine.internal")).await;
    std::fs::write(folder.path().join("list.yaml"), format!("- https://{}\n", front.address)).unwrap();
    let at = folder.path().display();
    let pool = Pool::model("m")
        .with(&format!("discover: {{ file: {at}/list.yaml }}"))
        .with(&format!("tls: {{ ca: {at}/ca.pem, server_name: engine.internal }}"));
    let proxy = Proxy::start(&Config::new(pool)).await;
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
}
