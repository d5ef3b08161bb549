//! What is not plain HTTP/1.1 is refused, and nothing of it reaches an engine: two parsers that disagree about where a
//! request ends are how requests are smuggled.
use crate::support::*;

/// Sends bytes as they are; gives the status (0: closed without one) and whether the connection was closed after it.
async fn raw(proxy: &Proxy, bytes: &[u8]) -> (u16, bool) {
    let mut client = proxy.client().await;
    let _ = client.send_raw(bytes).await;
    let Some(head) = within("an answer or the end", PATIENCE, client.try_head()).await else { return (0, true) };
    client.rest().await;
    // Whatever follows on a connection that goes on would be answered with 404.
    let _ = client.try_send(&Request::get("/after")).await;
    (head.status(), within("an answer or the end", PATIENCE, client.try_head()).await.is_none())
}

const BODY: &str = r#"{"model":"m","messages":[]}"#;

fn post(fields: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{fields}\r\n{body}").into_bytes()
}

/// Each case is answered with one of its statuses, or not at all, and reaches nobody. After broken framing nothing that
/// follows on the connection may be served.
async fn refused(framing: bool, cases: &[(&str, Vec<u8>, &[u16])]) {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut wrong = Vec::new();
    for (what, bytes, expected) in cases {
        let before = upstream.seen("/v1/chat/completions").len();
        let (status, closed) = raw(&proxy, bytes).await;
        if !expected.contains(&status) {
            wrong.push(format!("{what}: {status}, expected {expected:?}"));
        } else if framing && !closed {
            wrong.push(format!("{what}: {status}, but the connection goes on"));
        }
        if upstream.seen("/v1/chat/completions").len() != before {
            wrong.push(format!("{what}: reached the engine"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lengths_that_contradict_are_refused() {
    let n = BODY.len();
    refused(
        true,
        &[
            ("two lengths", post(&format!("Content-Length: {n}\r\nContent-Length: 1\r\n"), BODY), &[400]),
            ("a list of lengths", post(&format!("Content-Length: {n}, {n}\r\n"), BODY), &[400]),
            ("+n", post(&format!("Content-Length: +{n}\r\n"), BODY), &[400]),
            ("hex", post("Content-Length: 0x1b\r\n", BODY), &[400]),
            ("negative", post("Content-Length: -1\r\n", BODY), &[400]),
            ("empty", post("Content-Length: \r\n", BODY), &[400]),
            ("overflow", post("Content-Length: 99999999999999999999\r\n", BODY), &[400, 413]),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transfer_codings_other_than_chunked_are_refused() {
    let chunked = "1b\r\n{\"model\":\"m\",\"messages\":[]}\r\n0\r\n\r\n";
    refused(
        true,
        &[
            ("xchunked", post("Transfer-Encoding: xchunked\r\n", chunked), &[400, 501]),
            ("space before the colon", post("Transfer-Encoding : chunked\r\n", chunked), &[400]),
            ("a control byte", post("Transfer-Encoding: \x0bchunked\r\n", chunked), &[400, 501]),
            ("chunked, identity", post("Transfer-Encoding: chunked, identity\r\n", chunked), &[400, 501]),
            (
                "on HTTP/1.0",
                format!("POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}")
                    .into(),
                &[400],
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_are_not_plain_are_refused() {
    let te = "Transfer-Encoding: chunked\r\n";
    refused(
        true,
        &[
            ("an overflowing size", post(te, "fffffffffffffffff\r\nx\r\n0\r\n\r\n"), &[400]),
            ("+n", post(te, "+1b\r\n{\"model\":\"m\",\"messages\":[]}\r\n0\r\n\r\n"), &[400]),
            ("0x", post(te, "0x1b\r\n{\"model\":\"m\",\"messages\":[]}\r\n0\r\n\r\n"), &[400]),
            ("bare LF after a size", post(te, "1b\n{\"model\":\"m\",\"messages\":[]}\r\n0\r\n\r\n"), &[400]),
            ("bare LF after a chunk", post(te, "1b\r\n{\"model\":\"m\",\"messages\":[]}\n0\r\n\r\n"), &[400]),
            ("bare LF after an extension", post(te, "1b;a\n{\"model\":\"m\",\"messages\":[]}\r\n0\r\n\r\n"), &[400]),
            ("a chunk longer than said", post(te, "1\r\n{\"model\":\"m\",\"messages\":[]}\r\n0\r\n\r\n"), &[400]),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_not_plain_are_refused() {
    let length = format!("Content-Length: {}\r\n", BODY.len());
    let line = |start: &str, fields: &str| format!("{start}\r\n{fields}{length}\r\n{BODY}").into_bytes();
    let p = "POST /v1/chat/completions HTTP/1.1";
    refused(
        false,
        &[
            ("bare CR in a value", post(&format!("{length}X-A: a\rb\r\n"), BODY), &[400]),
            ("NUL in a value", post(&format!("{length}X-A: a\0b\r\n"), BODY), &[400]),
            ("a folded field", post(&format!("{length}X-A: a\r\n b\r\n"), BODY), &[400]),
            ("a space in a name", post(&format!("{length}X A: a\r\n"), BODY), &[400]),
            ("an empty name", post(&format!("{length}: a\r\n"), BODY), &[400]),
            ("no Host", line(p, ""), &[400]),
            ("two Hosts", line(p, "Host: a\r\nHost: b\r\n"), &[400]),
            ("no version", line("POST /v1/chat/completions", "Host: x\r\n"), &[400]),
            ("HTTP/3.0", line("POST /v1/chat/completions HTTP/3.0", "Host: x\r\n"), &[400, 505]),
            ("not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), &[400]),
        ],
    )
    .await;
}

/// What the HTTP library alone would accept; the guard below it does not.
#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_framing_is_refused() {
    let n = BODY.len();
    let length = format!("Content-Length: {n}\r\n");
    let line = |start: &str, fields: &str| format!("{start}\r\n{fields}{length}\r\n{BODY}").into_bytes();
    let p = "POST /v1/chat/completions HTTP/1.1";
    let chunked = "1b\r\n{\"model\":\"m\",\"messages\":[]}\r\n0\r\n\r\n";
    refused(
        false,
        &[
            ("both", post(&format!("Content-Length: {n}\r\nTransfer-Encoding: chunked\r\n"), chunked), &[400]),
            (
                "both, other order",
                post(&format!("Transfer-Encoding: chunked\r\nContent-Length: {n}\r\n"), chunked),
                &[400],
            ),
            ("two equal lengths", post(&format!("Content-Length: {n}\r\nContent-Length: {n}\r\n"), BODY), &[400]),
            ("gzip, chunked", post("Transfer-Encoding: gzip, chunked\r\n", chunked), &[400, 501]),
            ("chunked, chunked", post("Transfer-Encoding: chunked, chunked\r\n", chunked), &[400, 501]),
            ("user-info in Host", line(p, "Host: user@x\r\n"), &[400]),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expectations() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut client = proxy.client().await;
    let head = format!("Content-Length: {}\r\nExpect: 100-continue\r\n", BODY.len());
    client.send_raw(&post(&head, "")).await.unwrap();
    let go = within("100 Continue", PATIENCE, client.interim()).await;
    assert_eq!(go.status(), 100);
    client.send_raw(BODY.as_bytes()).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(upstream.only("/v1/chat/completions").await.head.get("expect"), None, "never forwarded");
    let other = post(&format!("Content-Length: {}\r\nExpect: a-miracle\r\n", BODY.len()), BODY);
    assert_eq!(raw(&proxy, &other).await.0, 417);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_never_a_tunnel() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    // CVE-2026-2833's shape: a request hidden behind an upgrade.
    let mut client = proxy.client().await;
    let upgrade = "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    client.send_raw(upgrade.as_bytes()).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    client.rest().await;
    assert_eq!(client.head().await.status(), 404, "what follows is a request of its own");
    assert!(upstream.seen("/smuggled").is_empty());
    assert!(upstream.seen("/v1/models").iter().all(|seen| seen.head.get("upgrade").is_none()));
    assert_eq!(raw(&proxy, b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n").await.0, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::start(|request, mut wire| async move {
        wire.reply(200, &[], &request.body).await.ok()?;
        Some(wire)
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut all = Vec::new();
    for turn in 0..5 {
        all.extend(chat(false, turn + 1).bytes(proxy.address()));
    }
    let mut client = proxy.client().await;
    client.send_raw(&all).await.unwrap();
    for turn in 0..5 {
        assert_eq!(client.head().await.status(), 200);
        assert_eq!(client.rest().await, chat(false, turn + 1).body, "answer {turn}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_refusal_does_not_leave_the_body_to_be_read_as_a_request() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address())).with("limits: { body: 1KiB }");
    let proxy = Proxy::start(&config).await;
    let mut client = proxy.client().await;
    let inner = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", inner.len());
    let _ = client.send_raw((head + &inner).as_bytes()).await;
    assert_eq!(client.head().await.status(), 413);
    client.rest().await;
    // Closed, or read past: never answered.
    let _ = client.send_raw(b"GET /after HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let next = within("an answer or the end", PATIENCE, client.try_head()).await;
    assert!(next.is_none_or(|head| head.status() == 404), "part of a refused body was answered");
}
