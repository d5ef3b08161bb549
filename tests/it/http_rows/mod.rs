//! Every row of `docs/http.md`, byte for byte over a socket: what the client is told, whether the engine saw anything,
//! and whether the connection lives on.
mod bodies;
mod engines;
mod framing;
mod heads;
mod hops;
mod order;
mod property;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// A request as sent, and what must come of it.
struct Row {
    name: String,
    bytes: Vec<u8>,
    status: u16,
    /// The `code` of the error body.
    code: &'static str,
    /// The connection is closed; if not, it serves another request.
    closes: bool,
}

impl Row {
    /// Refused, and the connection closed.
    fn refused(name: &str, bytes: impl Into<Vec<u8>>, status: u16, code: &'static str) -> Self {
        Self { name: name.into(), bytes: bytes.into(), status, code, closes: true }
    }

    /// Served by the engine.
    fn served(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), bytes: bytes.into(), status: 200, code: "", closes: false }
    }

    /// Answered by the router; the connection lives on.
    fn answered(name: &str, bytes: impl Into<Vec<u8>>, status: u16, code: &'static str) -> Self {
        Self { name: name.into(), bytes: bytes.into(), status, code, closes: false }
    }
}

/// A chat request with these header lines (each ending with CRLF) beside Host.
fn post(lines: &str, body: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nHost: router\r\n{lines}\r\n{body}")
}

/// A chat request with a right chunked head, and this on its heels.
fn chunked(body: &str) -> String {
    post("Transfer-Encoding: chunked\r\n", body)
}

/// A request that is right in every way.
fn good() -> String {
    post("Content-Length: 2\r\n", "{}")
}

fn config(upstream: &Upstream) -> Config {
    Config::new(Pool::model("m").at(upstream.address()))
}

/// Sends each row on a connection of its own.
async fn check(rows: Vec<Row>) -> Vec<Seen> {
    let upstream = Upstream::fixed(200, &[], "{\"ok\":true}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut expected = 0;
    for row in rows {
        let name = &row.name;
        let mut client = proxy.client().await;
        // The answer may come, and the connection close, before everything is taken.
        let _ = client.send_raw(&row.bytes).await;
        let head = within(name, PATIENCE, client.try_head()).await.unwrap_or_else(|| panic!("{name}: no answer"));
        let body = client.rest().await;
        let text = String::from_utf8_lossy(&body);
        assert_eq!(head.status(), row.status, "{name}: {text}");
        if !row.code.is_empty() {
            let json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{name}: {text}"));
            assert_eq!(json["error"]["code"], row.code, "{name}");
            assert_eq!(json["error"]["origin"], "client", "{name}");
            assert!(head.get("x-request-id").is_some(), "{name}: an id to ask about");
        }
        expected += usize::from(row.status == 200);
        if row.closes {
            assert_eq!(head.get("connection"), Some("close"), "{name}");
            assert!(client.closed().await, "{name}: nothing follows the answer");
        } else {
            client.send_raw(good().as_bytes()).await.unwrap();
            assert_eq!(client.head().await.status(), 200, "{name}: the connection serves on");
            expected += 1;
        }
        assert_eq!(upstream.all().len(), expected, "{name}: what the engine saw");
    }
    // Had anything been forwarded late, it would stand before this one.
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    let seen = upstream.all();
    assert_eq!(seen.len(), expected + 1, "nothing was forwarded unasked");
    seen
}

#[test]
fn the_table_names_tests_that_exist() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let named = include_str!("../../../docs/http.md").split('`').filter_map(|word| word.split_once("::"));
    let mut count = 0;
    for (module, test) in named.filter(|(module, _)| module.chars().all(|c| c.is_ascii_lowercase() || c == '_')) {
        let places = [format!("{folder}/{module}.rs"), format!("{folder}/http_rows/{module}.rs")];
        let found = places.iter().filter_map(|place| std::fs::read_to_string(place).ok());
        assert!(found.into_iter().any(|text| text.contains(&format!("fn {test}()"))), "{module}::{test}");
        count += 1;
    }
    assert!(count > 40, "{count}");
}
