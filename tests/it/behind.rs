//! Behind another proxy: who the client is, by PROXY protocol and X-Forwarded-*; and IPv6 on both sides.
use std::net::SocketAddr;

use crate::support::*;

async fn forwarded(client: &mut Client, upstream: &Upstream, request: &Request) -> [String; 3] {
    let before = upstream.seen("/v1/chat/completions").len();
    assert_eq!(client.exchange(request).await.status(), 200);
    let seen = upstream.seen("/v1/chat/completions").remove(before);
    ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"].map(|name| seen.head.all(name).join(" | "))
}

fn claims() -> Request {
    chat(false, 1)
        .header("host", "router.example")
        .header("x-forwarded-for", "203.0.113.9")
        .header("x-forwarded-proto", "https")
        .header("x-forwarded-host", "public.example")
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_trusted_peer_says_who_the_client_is() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").at(upstream.address());
    let proxy = Proxy::start(&Config::new(pool.clone())).await;
    let seen = forwarded(&mut proxy.client().await, &upstream, &claims()).await;
    assert_eq!(seen, ["127.0.0.1", "http", "router.example"]);
    let proxy = Proxy::start(&Config::new(pool).with("trusted_proxies: [127.0.0.0/8]")).await;
    let seen = forwarded(&mut proxy.client().await, &upstream, &claims()).await;
    assert_eq!(seen, ["203.0.113.9, 127.0.0.1", "https", "public.example"]);
}

/// Version 2, PROXY, TCP over IPv6.
fn version_2(source: SocketAddr) -> Vec<u8> {
    let SocketAddr::V6(source) = source else { panic!("IPv6") };
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\x00\x24".to_vec();
    bytes.extend(source.ip().octets());
    bytes.extend([0; 16]);
    bytes.extend(source.port().to_be_bytes());
    bytes.extend([0, 80]);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_peer_announces_the_client() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address()))
        .with("listen: [{ address: 127.0.0.1:0, proxy_protocol: [127.0.0.1] }]");
    let proxy = Proxy::start(&config).await;
    for (header, client) in [
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 4000 80\r\n".to_vec(), "192.0.2.7"),
        (version_2("[2001:db8::7]:4000".parse().unwrap()), "2001:db8::7"),
        (version_2("[::ffff:192.0.2.8]:4000".parse().unwrap()), "192.0.2.8"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
    ] {
        // Also in pieces: what was read too early is not lost.
        for cut in [header.len(), 1, header.len() - 1] {
            let mut connection = proxy.client().await;
            connection.send_raw(&header[..cut]).await.unwrap();
            connection.send_raw(&header[cut..]).await.unwrap();
            let seen = forwarded(&mut connection, &upstream, &claims()).await;
            assert_eq!(seen, [client, "http", "router.example"]);
        }
    }
    proxy.process.says("the announced address in the access log", |line| line.contains("192.0.2.7:4000")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_peer_that_announces_nobody_is_not_served() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address()))
        .with("listen: [{ address: 127.0.0.1:0, proxy_protocol: [127.0.0.1] }]");
    let proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    let _ = client.try_send(&chat(false, 1)).await;
    assert!(client.closed().await, "not a byte is answered");
    assert_eq!(proxy.metric("warmroute_client_handshakes_failed_total{kind=\"proxy_protocol\"}").await, 1.0);
    assert!(upstream.seen("/v1/chat/completions").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn from_others_an_announcement_is_a_bad_request() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address()))
        .with("listen: [{ address: 127.0.0.1:0, proxy_protocol: [10.0.0.0/8] }]");
    let proxy = Proxy::start(&config).await;
    for header in [b"PROXY TCP4 192.0.2.7 10.0.0.1 4000 80\r\n".to_vec(), version_2("[2001:db8::7]:1".parse().unwrap())]
    {
        let mut client = proxy.client().await;
        let _ = client.send_raw(&[header, chat(false, 1).bytes(proxy.address())].concat()).await;
        assert_eq!(within("an answer", PATIENCE, client.try_head()).await.map(|head| head.status()), Some(400));
        client.rest().await;
        client.closed().await;
    }
    assert!(upstream.seen("/v1/chat/completions").is_empty());
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_on_both_sides() {
    let mock = Mock::start(&["--model", "m", "--listen", "[::1]:0", "--decode-tps", "100000"]);
    let config = Config::new(Pool::model("m").at(mock.address())).with("listen: \"[::1]:0\"");
    let proxy = Proxy::start(&config).await;
    assert!(proxy.address().is_ipv6() && mock.address().is_ipv6());
    let answer = proxy.exchange(&chat(true, 5)).await;
    assert_eq!(sse_events(&answer.body).last().unwrap().data, "[DONE]");
    let seen = mock.stats().await["last_headers"].to_string();
    assert!(seen.contains("::1"), "{seen}");
}
