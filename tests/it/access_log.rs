//! One access-log line a request, at its end, with the fields of `docs/access-log.md` in their order, however it ends.
use serde_json::Value;

use crate::support::*;

/// Field names of the reference, in its order.
fn documented() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/access-log.md");
    let text = std::fs::read_to_string(path).expect("docs/access-log.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| {
        row.split('|').nth(1).unwrap_or("").split(',').map(|name| name.trim().trim_matches('`').to_string())
    })
    .collect()
}

/// The access-log lines so far, as field names in order and a lookup.
fn lines(proxy: &Proxy, json: bool) -> Vec<(Vec<String>, Value)> {
    let mut found = Vec::new();
    for line in proxy.process.output() {
        if json {
            if let Ok(value) = serde_json::from_str::<Value>(&line)
                && value.get("duration_ms").is_some()
            {
                found.push((value.as_object().unwrap().keys().cloned().collect(), value));
            }
        } else if line.starts_with("time=") {
            // Values that hold a space are quoted, and no test here makes one but the last field's.
            let fields = line.split(' ').filter_map(|field| field.split_once('='));
            let names = fields.clone().map(|(name, _)| name.to_string()).collect();
            let value = fields.map(|(name, value)| (name.to_string(), Value::from(value))).collect();
            found.push((names, Value::Object(value)));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_leaves_one_line_with_the_documented_fields() {
    let documented = documented();
    assert!(documented.len() > 15, "{documented:?}");
    for json in [true, false] {
        let mock = Mock::slow();
        let dying = Upstream::start(|_, mut wire| async move {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            wire.send(head).await.ok()?;
            wire.send("a\r\ndata: {}\n\n\r\n").await.ok()?;
            None
        })
        .await;
        let config = Config::new(Pool::model("m").at(mock.address()))
            .pool(Pool::model("dying").replica(&format!("{{ id: d, url: \"{}\" }}", dying.url())))
            .with(&format!("logging: {{ format: {} }}", if json { "json" } else { "text" }));
        let proxy = Proxy::start(&config).await;
        let named = |request: Request, id: &str| request.header("x-request-id", id);
        proxy.exchange(&named(chat(false, 2), "line-ok")).await;
        proxy.exchange(&named(chat(true, 2).header("x-session-id", "a-session"), "line-stream")).await;
        let nope = Request::post("/v1/chat/completions", &chat_body("nope", false, 1));
        proxy.exchange(&named(nope, "line-rejected")).await;
        proxy.exchange(&named(Request::post("/v1/chat/completions", &chat_body("dying", true, 1)), "line-cut")).await;
        proxy.exchange(&named(Request::get("/nowhere"), "line-nowhere")).await;
        let mut client = proxy.client().await;
        client.send(&named(chat(true, 1_000), "line-gone")).await;
        client.head().await;
        drop(client);

        let expected = [
            ("line-ok", "ok"),
            ("line-stream", "ok"),
            ("line-rejected", "rejected"),
            ("line-cut", "upstream_reset_midstream"),
            ("line-nowhere", "rejected"),
            ("line-gone", "client_gone"),
        ];
        wait_until("six lines", PATIENCE, || async { lines(&proxy, json).len() >= expected.len() }).await;
        let lines = lines(&proxy, json);
        assert_eq!(lines.len(), expected.len(), "one line each");
        for (id, outcome) in expected {
            let of: Vec<_> = lines.iter().filter(|(_, value)| value["request_id"] == id).collect();
            assert_eq!(of.len(), 1, "{id}");
            let (names, value) = of[0];
            assert_eq!(value["outcome"], outcome, "{value}");
            let places = names.iter().filter(|name| json || documented.contains(name)).map(|name| {
                documented.iter().position(|known| known == name).unwrap_or_else(|| panic!("{name} is not documented"))
            });
            assert!(places.collect::<Vec<_>>().is_sorted(), "{id}: {names:?} are not in the documented order");
        }
    }
}
