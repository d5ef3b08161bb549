//! The other direction: answers of engines that could be read in two ways never reach a client, and the connection they
//! came by is not used again.
use super::*;

/// Answers the first request with these bytes, and keeps the connection open; all others rightly.
async fn answers(bytes: &'static [u8]) -> Upstream {
    let first = std::sync::atomic::AtomicBool::new(true);
    Upstream::start(move |_, mut wire| {
        let first = first.swap(false, std::sync::atomic::Ordering::SeqCst);
        async move {
            if first {
                wire.send(bytes).await.ok()?;
            } else {
                wire.reply(200, &[], b"{\"right\":true}").await.ok()?;
            }
            Some(wire)
        }
    })
    .await
}

/// No probes in between, so that connections can be told apart.
async fn proxy(upstream: &Upstream) -> Proxy {
    let pool = Pool::model("m").at(upstream.address()).with("health: { interval: 1h }");
    Proxy::start(&Config::new(pool)).await
}

async fn the_next_is_right(proxy: &Proxy, upstream: &Upstream, name: &str) {
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert_eq!((answer.status(), answer.text().as_str()), (200, "{\"right\":true}"), "{name}");
    let seen = upstream.seen(CHAT);
    assert_eq!(seen.len(), 2, "{name}: each request went to the engine once");
    assert_ne!(seen[0].connection, seen[1].connection, "{name}: the connection is not used again");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ambiguous_answer_is_502() {
    let rows: &[(&str, &[u8])] = &[
        (
            "length and coding",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ),
        (
            "coding and length",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ),
        ("two equal lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}"),
        ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        ("list of lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\n{}"),
        ("plus", b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}"),
        ("negative", b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}"),
        ("gzip, chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        (
            "chunked twice",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("xchunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        ("coding in HTTP/1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        ("NUL in a value", b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 2\r\n\r\n{}"),
        ("space in a name", b"HTTP/1.1 200 OK\r\nX A: 1\r\nContent-Length: 2\r\n\r\n{}"),
        ("space before a colon", b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}"),
        ("folded", b"HTTP/1.1 200 OK\r\nX-A: 1\r\n 2\r\nContent-Length: 2\r\n\r\n{}"),
        ("no status", b"HTTP/1.1 OK\r\nContent-Length: 2\r\n\r\n{}"),
        ("HTTP/2 in the status line", b"HTTP/2 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        ("garbage", b"\x16\x03\x01\x02\x00garbage\r\n\r\n"),
        (
            "switching protocols",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        ),
    ];
    for (name, bytes) in rows {
        let upstream = answers(bytes).await;
        let proxy = proxy(&upstream).await;
        let mut client = proxy.client().await;
        let answer = client.exchange(&chat(false, 1)).await;
        assert_eq!(answer.status(), 502, "{name}: {}", answer.text());
        assert_eq!(answer.json()["error"]["origin"], "replica", "{name}");
        the_next_is_right(&proxy, &upstream, name).await;
        // The client is not to blame: its connection lives on.
        assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_chunk_ends_the_answer_visibly() {
    let rows: &[(&str, &[u8])] = &[
        ("size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n"),
        ("plus", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n+2\r\n{}\r\n0\r\n\r\n"),
        ("overflow", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n10000000000000000\r\n"),
        (
            "bare LF behind the size",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n2\n{}\r\n0\r\n\r\n",
        ),
        (
            "no CRLF behind the data",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n1\r\n{}\r\n0\r\n\r\n",
        ),
    ];
    for (name, bytes) in rows {
        let upstream = answers(bytes).await;
        let proxy = proxy(&upstream).await;
        // Its head may be out when the fault is met; then the client sees that the body is not whole.
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert!(!answer.complete, "{name}: {} {}", answer.status(), answer.text());
        assert!(answer.text().len() <= 3, "{name}: {}", answer.text());
        the_next_is_right(&proxy, &upstream, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_an_answer_is_not_the_next_answer() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"evil\":true}"[..],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!",
        b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n{}",
    ] {
        let upstream = answers(bytes).await;
        let proxy = proxy(&upstream).await;
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert!([200, 204, 304].contains(&answer.status()));
        assert!(["{}", ""].contains(&answer.text().as_str()), "{}", answer.text());
        the_next_is_right(&proxy, &upstream, &String::from_utf8_lossy(bytes)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interim_answers_end_here() {
    let upstream = answers(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n\
          HTTP/1.1 200 OK\r\nConnection: X-Secret\r\nX-Secret: 1\r\nContent-Length: 2\r\n\r\n{}",
    )
    .await;
    let proxy = proxy(&upstream).await;
    let bytes = post("Connection: close\r\nContent-Length: 2\r\n", "{}");
    let mut stream = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, bytes.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("the answer", PATIENCE, tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert!(!answer.to_lowercase().contains("secret") && !answer.contains("Link"), "{answer}");
}
