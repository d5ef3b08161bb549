//! Where a request ends: whatever could be read in two ways is refused, and nothing of it reaches an engine.
use super::*;

/// What a smuggler would hide behind an ambiguous request.
const HIDDEN: &str = "GET /v1/models HTTP/1.1\r\nHost: hidden\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_is_not_one_plain_number_is_refused() {
    let bad = |name: &str, lines: &str| Row::refused(name, post(lines, &format!("{{}}{HIDDEN}")), 400, "bad_framing");
    check(vec![
        bad("length and coding", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"),
        bad("coding and length", "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n"),
        bad("two equal", "Content-Length: 2\r\nContent-Length: 2\r\n"),
        bad("two equal, apart and in other case", "Content-Length: 2\r\nX: 1\r\ncontent-length: 2\r\n"),
        bad("two different", "Content-Length: 2\r\nContent-Length: 3\r\n"),
        bad("list", "Content-Length: 2, 2\r\n"),
        bad("plus", "Content-Length: +2\r\n"),
        bad("hex", "Content-Length: 0x2\r\n"),
        bad("negative", "Content-Length: -2\r\n"),
        bad("empty", "Content-Length:\r\n"),
        bad("spaced", "Content-Length: 2 2\r\n"),
        bad("over 64 bits", "Content-Length: 18446744073709551618\r\n"),
        bad("over 63 bits", "Content-Length: 9223372036854775808\r\n"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_coding_that_is_not_chunked_is_refused() {
    let body = format!("2\r\n{{}}\r\n0\r\n\r\n{HIDDEN}");
    let bad = |name: &str, lines: &str| Row::refused(name, post(lines, &body), 400, "bad_framing");
    let codings =
        |name: &str, lines: &str| Row::refused(name, post(lines, &body), 501, "unsupported_transfer_encoding");
    check(vec![
        bad("xchunked", "Transfer-Encoding: xchunked\r\n"),
        bad("identity", "Transfer-Encoding: identity\r\n"),
        bad("chunked is not last", "Transfer-Encoding: chunked, gzip\r\n"),
        bad("empty", "Transfer-Encoding:\r\n"),
        bad("empty element", "Transfer-Encoding: , chunked\r\n"),
        bad("parameter", "Transfer-Encoding: chunked;q=1\r\n"),
        Row::refused("space before colon", post("Transfer-Encoding : chunked\r\n", &body), 400, "bad_head"),
        Row::refused("control byte", post("Transfer-Encoding: \x0bchunked\r\n", &body), 400, "bad_head"),
        codings("gzip, chunked", "Transfer-Encoding: gzip, chunked\r\n"),
        codings("chunked, chunked", "Transfer-Encoding: chunked, chunked\r\n"),
        codings("two lines", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        Row::refused(
            "HTTP/1.0",
            format!("POST {CHAT} HTTP/1.0\r\nHost: router\r\nTransfer-Encoding: chunked\r\n\r\n{body}"),
            400,
            "bad_framing",
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_are_not_framed_strictly_are_refused() {
    let bad = |name: &str, body: &str| Row::refused(name, chunked(&format!("{body}{HIDDEN}")), 400, "bad_framing");
    check(vec![
        bad("size over 64 bits", "10000000000000002\r\n{}\r\n0\r\n\r\n"),
        bad("size over 63 bits", "8000000000000000\r\n{}\r\n0\r\n\r\n"),
        bad("plus", "+2\r\n{}\r\n0\r\n\r\n"),
        bad("minus", "-2\r\n{}\r\n0\r\n\r\n"),
        bad("0x", "0x2\r\n{}\r\n0\r\n\r\n"),
        bad("no size", "\r\n{}\r\n0\r\n\r\n"),
        bad("space before size", " 2\r\n{}\r\n0\r\n\r\n"),
        bad("space behind size", "2 \r\n{}\r\n0\r\n\r\n"),
        bad("bare LF behind size", "2\n{}\r\n0\r\n\r\n"),
        bad("bare CR behind size", "2\r{}\r\n0\r\n\r\n"),
        bad("bare LF behind data", "2\r\n{}\n0\r\n\r\n"),
        bad("bare LF behind extension", "2;a=b\n{}\r\n0\r\n\r\n"),
        bad("bare CR in extension", "2;a\rb\r\n{}\r\n0\r\n\r\n"),
        bad("bare LF behind last size", "2\r\n{}\r\n0\n\r\n"),
        bad("bare LF at the end", "2\r\n{}\r\n0\r\n\n"),
        bad("bare LF in trailers", "2\r\n{}\r\n0\r\nA: b\n\r\n"),
        bad("data longer than its size", "2\r\n{}}\r\n0\r\n\r\n"),
        bad("trailer without a colon", "2\r\n{}\r\n0\r\nabc\r\n\r\n"),
        Row::refused("trailers without end", chunked(&format!("0\r\nA: {}", "a".repeat(9_000))), 431, "head_too_large"),
        Row::served("plain", chunked("2\r\n{}\r\n0\r\n\r\n")),
        Row::served(
            "extension, upper case, zeros, trailers",
            chunked("0002;a=\"b c\"\r\n{}\r\n0A\r\n          \r\n00\r\nA: b\r\n\r\n"),
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_does_not_depend_on_how_the_bytes_arrive() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let rows = [
        (post("Content-Length: 2\r\nContent-Length: 2\r\n", "{}"), 400),
        (post("Transfer-Encoding: gzip, chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), 501),
        (chunked("2\r\n{}\n0\r\n\r\n"), 400),
        (chunked("2;x\r\n{}\r\n0\r\n\r\n"), 200),
        (good(), 200),
    ];
    for (bytes, status) in rows {
        let mut client = proxy.client().await;
        for byte in bytes.as_bytes() {
            if client.send_raw(&[*byte]).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(client.head().await.status(), status, "{bytes:?}");
    }
    assert_eq!(upstream.all().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_counted_by_cause_and_logged() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    for (bytes, cause) in [
        (post("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", ""), "both_framings"),
        (chunked("zz\r\n"), "chunk"),
        ("GET / HTTP/1.1\r\n\r\n".into(), "host"),
    ] {
        let mut client = proxy.client().await;
        client.send_raw(bytes.as_bytes()).await.unwrap();
        assert_eq!(client.head().await.status(), 400);
        client.rest().await;
        assert!(client.closed().await);
        let counter = format!("warmroute_malformed_requests_total{{cause=\"{cause}\"}}");
        wait_until(&counter, PATIENCE, || async { proxy.metric(&counter).await == 1.0 }).await;
    }
    assert_eq!(proxy.metric("warmroute_requests_rejected_total{pool=\"none\"}").await, 3.0);
    let logged = |line: &String| line.contains("status=400") && line.contains("phase=head");
    wait_until("a line for a refused head", PATIENCE, || async { proxy.process.output().iter().any(logged) }).await;
}
