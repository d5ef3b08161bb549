//! Heads: lines, Host, targets, limits, methods and versions.
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_are_not_header_fields_are_refused() {
    let bad = |name: &str, lines: &str| {
        Row::refused(name, post(&format!("{lines}Content-Length: 2\r\n"), "{}"), 400, "bad_head")
    };
    check(vec![
        bad("bare LF", "X-A: 1\n"),
        bad("bare CR in a value", "X-A: a\rb\r\n"),
        bad("NUL in a value", "X-A: a\0b\r\n"),
        bad("DEL in a value", "X-A: a\x7fb\r\n"),
        bad("folded", "X-A: a\r\n b\r\n"),
        bad("folded with a tab", "X-A: a\r\n\tb\r\n"),
        bad("space in a name", "X A: 1\r\n"),
        bad("space before the colon", "X-A : 1\r\n"),
        bad("empty name", ": 1\r\n"),
        bad("no colon", "X-A\r\n"),
        bad("letters beyond ASCII in a name", "X-\u{e4}: 1\r\n"),
        Row::refused("LF ends the request line", "GET /v1/models HTTP/1.1\nHost: a\r\n\r\n", 400, "bad_head"),
        Row::refused("a head of LF alone", "GET /v1/models HTTP/1.1\nHost: a\n\n", 400, "bad_head"),
        Row::refused("space before the first field", "GET /v1/models HTTP/1.1\r\n Host: a\r\n\r\n", 400, "bad_head"),
        Row::served("obs-text and tab in a value", post("X-A: a\tb \u{e4}\r\nContent-Length: 2\r\n", "{}")),
        Row::served("one empty line before it", format!("\r\n{}", good())),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_exactly_one_host() {
    let bad = |name: &str, lines: &str| {
        Row::refused(name, format!("POST {CHAT} HTTP/1.1\r\n{lines}Content-Length: 2\r\n\r\n{{}}"), 400, "bad_head")
    };
    check(vec![
        bad("none", ""),
        bad("two", "Host: a\r\nHost: b\r\n"),
        bad("two equal", "Host: a\r\nHost: a\r\n"),
        bad("empty", "Host:\r\n"),
        bad("user-info", "Host: user@a\r\n"),
        bad("user-info and password", "Host: user:pass@a\r\n"),
        bad("list", "Host: a, b\r\n"),
        bad("path", "Host: a/b\r\n"),
        bad("port that is no number", "Host: a:b\r\n"),
        Row::refused(
            "whole URL without Host",
            format!("POST http://a{CHAT} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}"),
            400,
            "bad_head",
        ),
        Row::served(
            "IPv6 and port",
            format!("POST {CHAT} HTTP/1.1\r\nHost: [::1]:8080\r\nContent-Length: 2\r\n\r\n{{}}"),
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_url_stands_above_host_and_names_no_replica() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    let bytes = format!("POST http://target:81{CHAT}?a=b HTTP/1.1\r\nHost: other\r\nContent-Length: 2\r\n\r\n{{}}");
    client.send_raw(bytes.as_bytes()).await.unwrap();
    assert_eq!(client.head().await.status(), 200);
    let seen = upstream.only(CHAT).await;
    assert_eq!(seen.target(), format!("{CHAT}?a=b"), "in origin form");
    assert_eq!(seen.head.all("host"), [upstream.address().to_string()], "the replica's own");
    assert_eq!(seen.head.all("x-forwarded-host"), ["target:81"]);
    for target in ["http://user@target", "ftp://target", "http://", "target:81"] {
        let mut client = proxy.client().await;
        let bytes = format!("POST {target}{CHAT} HTTP/1.1\r\nHost: other\r\nContent-Length: 2\r\n\r\n{{}}");
        client.send_raw(bytes.as_bytes()).await.unwrap();
        assert_eq!(client.head().await.status(), 400, "{target}");
    }
    assert_eq!(upstream.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_targets_have_limits() {
    let header = |length: usize| post(&format!("X-A: {}\r\nContent-Length: 2\r\n", "a".repeat(length)), "{}");
    let fields = |n: usize| post(&format!("{}Content-Length: 2\r\n", "X-A: 1\r\n".repeat(n - 2)), "{}");
    let target = |length: usize| {
        let query = "a".repeat(length - CHAT.len() - 1);
        format!("POST {CHAT}?{query} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}")
    };
    check(vec![
        Row::served("a header of 20 KiB", header(20 << 10)),
        Row::served("a header of 63 KiB", header(63 << 10)),
        Row::refused("a header of 64 KiB", header(64 << 10), 431, "head_too_large"),
        Row::refused("headers of 100 KiB", header(100 << 10), 431, "head_too_large"),
        Row::served("100 headers", fields(100)),
        Row::refused("101 headers", fields(101), 431, "head_too_large"),
        Row::refused("300 headers", fields(300), 431, "head_too_large"),
        Row::served("a target of 16 KiB", target(16 << 10)),
        Row::refused("a target of 16 KiB and one", target((16 << 10) + 1), 414, "uri_too_long"),
        Row::refused("a target of 20 KiB", target(20 << 10), 414, "uri_too_long"),
        Row::refused("a request line without end", "a".repeat(200 << 10), 414, "uri_too_long"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_lines_have_one_shape() {
    let bad = |line: &str| Row::refused(line, format!("{line}\r\nHost: a\r\n\r\n"), 400, "bad_head");
    let version = |version: &str| {
        Row::refused(version, format!("GET /v1/models {version}\r\nHost: a\r\n\r\n"), 505, "unsupported_version")
    };
    check(vec![
        bad("GET /v1/models"),
        bad("GET  /v1/models HTTP/1.1"),
        bad("GET /v1/models  HTTP/1.1"),
        bad("GET /v1/models HTTP/1.1 "),
        bad(" GET /v1/models HTTP/1.1"),
        bad("GET\t/v1/models HTTP/1.1"),
        bad("G{T /v1/models HTTP/1.1"),
        bad("GET /v1/models http/1.1"),
        bad("GET /v1/models HTTP/1.10"),
        bad("GET /v1/models#fragment HTTP/1.1"),
        bad("GET /v1/\u{e4} HTTP/1.1"),
        bad("GET v1/models HTTP/1.1"),
        bad("GET * HTTP/1.1"),
        bad("\r\n\r\nGET /v1/models HTTP/1.1"),
        version("HTTP/0.9"),
        version("HTTP/1.2"),
        version("HTTP/2.0"),
        version("HTTP/3.0"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_and_trace_are_405_and_other_paths_404() {
    let bare = |line: &str| format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
    let missing = |target: &str| Row::answered(target, bare(&format!("POST {target}")), 404, "path_not_found");
    check(vec![
        // What follows a CONNECT might be meant for a tunnel, so it is never read as a request.
        Row::refused("CONNECT", bare("CONNECT a:443"), 405, "method_not_allowed"),
        Row::answered("TRACE", bare(&format!("TRACE {CHAT}")), 405, "method_not_allowed"),
        Row::answered("TRACE elsewhere", bare("TRACE /x"), 405, "method_not_allowed"),
        missing("/v1/x/../../admin"),
        missing("/v1/x/../chat/completions"),
        missing("/v1/./chat/completions"),
        missing("//v1/chat/completions"),
        missing("/v1/chat%2Fcompletions"),
        missing("/v1/%63hat/completions"),
        missing("/v1/chat/completions/"),
        missing("/V1/chat/completions"),
        missing("/v1/chat\\completions"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_0_is_served_and_closed_unless_it_asks_otherwise() {
    let upstream = Upstream::start(|_, mut wire| async move {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        wire.send(head).await.ok()?;
        wire.send("a\r\ndata: {}\n\n\r\n0\r\n\r\n").await.ok()?;
        Some(wire)
    })
    .await;
    let proxy = Proxy::start(&config(&upstream)).await;
    // Without Host, which HTTP/1.0 did not know; a stream ends with the connection, since it did not know chunks.
    let mut client = proxy.client().await;
    client.send_raw(format!("POST {CHAT} HTTP/1.0\r\nContent-Length: 2\r\n\r\n{{}}").as_bytes()).await.unwrap();
    let head = client.head().await;
    assert_eq!((head.status(), head.get("transfer-encoding")), (200, None));
    assert_eq!(client.rest().await, b"data: {}\n\n");
    assert!(client.closed().await);
    assert_eq!(upstream.only(CHAT).await.head.get("x-forwarded-host"), None);

    let mut client = proxy.client().await;
    for _ in 0..2 {
        client.send_raw(b"GET /nowhere HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await.unwrap();
        let head = client.head().await;
        assert_eq!(head.status(), 404);
        client.rest().await;
    }
}
