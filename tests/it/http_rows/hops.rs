//! What belongs to one hop stays there: upgrades, Connection and its kin, X-Forwarded-*.
use super::*;

async fn sent(lines: &str) -> Head {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    client.send_raw(post(&format!("{lines}Content-Length: 2\r\n"), "{}").as_bytes()).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.rest().await, b"{}");
    let seen = upstream.only(CHAT).await;
    assert_eq!(seen.body, b"{}");
    seen.head
}

fn lacks(head: &Head, names: &[&str]) {
    for name in names {
        assert_eq!(head.get(name), None, "{name} reached the engine: {head:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_ignored_and_never_a_tunnel() {
    for upgrade in [
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    ] {
        let upstream = Upstream::fixed(200, &[], "{}").await;
        let proxy = Proxy::start(&config(&upstream)).await;
        let mut client = proxy.client().await;
        // What follows an Upgrade is the next request, whatever it was meant to be.
        let first = post(&format!("{upgrade}Content-Length: 2\r\n"), "{}");
        let second = post("X-Second: 1\r\nContent-Length: 2\r\n", "{}");
        client.send_raw(format!("{first}{second}").as_bytes()).await.unwrap();
        for _ in 0..2 {
            let head = client.head().await;
            assert_eq!((head.status(), head.get("upgrade")), (200, None), "{upgrade}");
            client.rest().await;
        }
        let seen = upstream.all();
        assert_eq!(seen.len(), 2, "two requests: {upgrade}");
        lacks(&seen[0].head, &["upgrade", "http2-settings"]);
        assert_eq!(seen[1].head.get("x-second"), Some("1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_one_hop_do_not_pass() {
    let head = sent(
        "Connection: X-Secret, \u{e4}\r\nConnection: X-Other\r\nX-Secret: 1\r\nX-Other: 1\r\nKeep-Alive: timeout=5\r\n\
         Proxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nTrailer: X\r\nX-Kept: 1\r\n",
    )
    .await;
    lacks(&head, &["x-secret", "x-other", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer"]);
    assert_eq!(head.get("x-kept"), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_takes_no_framing_away() {
    let head = sent("Connection: Content-Length, Transfer-Encoding, Host, close\r\n").await;
    assert_eq!(head.all("content-length"), ["2"]);
    assert_eq!(head.all("host").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_underscore_is_not_a_hyphen() {
    let head = sent(
        "Content_Length: 9\r\nTransfer_Encoding: chunked\r\nX_Request_Id: theirs\r\nX_Forwarded_For: 1.2.3.4\r\n\
         x_name: 1\r\nx-name: 2\r\n",
    )
    .await;
    for (name, value) in [
        ("content_length", "9"),
        ("transfer_encoding", "chunked"),
        ("x_request_id", "theirs"),
        ("x_forwarded_for", "1.2.3.4"),
        ("x_name", "1"),
        ("x-name", "2"),
        ("content-length", "2"),
        ("x-forwarded-for", "127.0.0.1"),
    ] {
        assert_eq!(head.all(name), [value], "{name}");
    }
    assert_ne!(head.get("x-request-id"), Some("theirs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_fields_of_a_client_are_replaced() {
    let head = sent(
        "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n\
         Forwarded: for=1.2.3.4\r\n",
    )
    .await;
    assert_eq!(head.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(head.all("x-forwarded-proto"), ["http"]);
    assert_eq!(head.all("x-forwarded-host"), ["router"]);
    lacks(&head, &["forwarded"]);
}
