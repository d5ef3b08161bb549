//! What passes and what does not: hop-by-hop fields go, in both directions; all others pass, duplicates and all.
use crate::support::*;

const HOP_BY_HOP: &[(&str, &str)] = &[
    ("Connection", "keep-alive, X-Named"),
    ("X-Named", "secret"),
    ("Keep-Alive", "timeout=5"),
    ("Proxy-Authorization", "Basic eHk6eg=="),
    ("Proxy-Connection", "keep-alive"),
    ("TE", "trailers"),
    ("Trailer", "x-checksum"),
    ("Upgrade", "h2c"),
];

fn config(upstream: &Upstream) -> Config {
    Config::new(Pool::model("m").at(upstream.address()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_loses_its_hop_by_hop_fields_only() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut request = chat(false, 1);
    for (name, value) in HOP_BY_HOP {
        request = request.header(name, value);
    }
    request = request
        .header("Authorization", "Bearer abc")
        .header("X-Twice", "one")
        .header("X-Twice", "two")
        .header("x_under_score", "kept")
        .header("Accept-Encoding", "br")
        .header("User-Agent", "test/1")
        .header("Cookie", "a=b");
    assert_eq!(proxy.exchange(&request).await.status(), 200);
    let seen = upstream.only("/v1/chat/completions").await.head;
    for (name, _) in HOP_BY_HOP.iter().filter(|(name, _)| *name != "Connection") {
        assert_eq!(seen.get(name), None, "{name} reached the engine");
    }
    assert!(seen.get("connection").is_none_or(|value| !value.to_lowercase().contains("named")));
    assert_eq!(seen.all("x-twice"), ["one", "two"]);
    for (name, value) in [
        ("authorization", "Bearer abc"),
        ("x_under_score", "kept"),
        ("accept-encoding", "br"),
        ("user-agent", "test/1"),
        ("cookie", "a=b"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(seen.all(name), [value], "{name}");
    }
    assert_eq!(seen.all("host").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_loses_its_hop_by_hop_fields_only() {
    let fields = [
        ("Connection", "X-Internal"),
        ("X-Internal", "secret"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authenticate", "Basic"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("X-Ratelimit-Remaining", "3"),
        ("Openai-Processing-Ms", "12"),
        ("Content-Type", "application/json"),
        ("Date", "Mon, 30 Nov 2026 00:00:00 GMT"),
    ];
    let upstream = Upstream::fixed(200, &fields, "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let head = proxy.exchange(&chat(false, 1)).await.head;
    for name in ["x-internal", "keep-alive", "proxy-authenticate"] {
        assert_eq!(head.get(name), None, "{name} reached the client");
    }
    assert!(head.get("connection").is_none_or(|value| !value.to_lowercase().contains("internal")));
    assert_eq!(head.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(head.get("x-ratelimit-remaining"), Some("3"));
    assert_eq!(head.get("openai-processing-ms"), Some("12"));
    assert_eq!(head.all("date"), ["Mon, 30 Nov 2026 00:00:00 GMT"], "the engine's date, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_cannot_name_framing_fields_away() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let request = chat(false, 1).header("Connection", "Content-Length, Host, Content-Type");
    assert_eq!(proxy.exchange(&request).await.status(), 200);
    let seen = upstream.only("/v1/chat/completions").await;
    assert_eq!(seen.body, request.body);
    assert_eq!(seen.head.all("host").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn framing_is_made_anew() {
    let upstream = Upstream::start(|_, mut wire| async move {
        // No length and no chunks: the body ends with the connection.
        wire.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"until\":\"close\"}").await.ok()?;
        None
    })
    .await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut client = proxy.client().await;
    let answer = client.exchange(&chat(false, 1)).await;
    assert_eq!(answer.text(), "{\"until\":\"close\"}");
    assert!(answer.complete);
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"), "{:?}", answer.head);
    // The client's connection outlives the engine's.
    assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_is_kept_when_it_is_safe_and_made_when_it_is_not() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let long = "a".repeat(129);
    let cases: &[(Option<&str>, bool)] = &[
        (Some("abc-DEF_123.4:5"), true),
        (Some(&long[..128]), true),
        (Some(&long), false),
        (Some("has space"), false),
        (Some("quote\"in"), false),
        (Some("angle<script>"), false),
        (Some(""), false),
        (None, false),
    ];
    for (turn, (given, kept)) in cases.iter().enumerate() {
        let mut request = chat(false, 1);
        if let Some(given) = given {
            request = request.header("X-Request-Id", given);
        }
        let answer = proxy.exchange(&request).await;
        let seen = upstream.seen("/v1/chat/completions").pop().unwrap();
        let sent = seen.head.all("x-request-id");
        assert_eq!(sent.len(), 1, "case {turn}: {:?}", seen.head);
        assert_eq!(answer.head.all("x-request-id"), sent, "case {turn}: client and engine know the same id");
        assert_eq!(*given == Some(sent[0]), *kept, "case {turn}: {given:?} became {}", sent[0]);
        assert!((8..=128).contains(&sent[0].len()), "case {turn}: {}", sent[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn made_request_ids_differ() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..50 {
        ids.insert(proxy.exchange(&chat(false, 1)).await.header("x-request-id").unwrap().to_string());
    }
    assert_eq!(ids.len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_context_passes() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = chat(false, 1).header("traceparent", parent).header("tracestate", "a=1").header("tracestate", "b=2");
    proxy.exchange(&request).await;
    let seen = upstream.only("/v1/chat/completions").await.head;
    assert_eq!(seen.all("traceparent"), [parent]);
    assert_eq!(seen.all("tracestate"), ["a=1", "b=2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replicas_credential_replaces_the_clients() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m")
        .replica(&format!("{{ url: \"http://{}\", credential: \"${{ENGINE_KEY}}\" }}", upstream.address()));
    let proxy = Proxy::start_with(&Config::new(pool), &[("ENGINE_KEY", "engine-secret")]);
    let request =
        chat(false, 1).header("Authorization", "Bearer of-the-client").header("Authorization", "Bearer second");
    assert_eq!(proxy.exchange(&request).await.status(), 200);
    let seen = upstream.only("/v1/chat/completions").await.head;
    assert_eq!(seen.all("authorization"), ["Bearer engine-secret"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_names_an_address() {
    // Guarantee 8: absolute targets and routing-like fields choose nothing.
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let other = Upstream::fixed(200, &[], "{\"stolen\":true}").await;
    let proxy = Proxy::start(&config(&upstream)).await;
    let mut request = chat(false, 1)
        .header("x-prefiller-url", &other.url())
        .header("x-warmroute-replica", &other.url())
        .header("x-forwarded-host", &other.address().to_string());
    request.target = format!("http://{}/v1/chat/completions", other.address());
    let answer = proxy.exchange(&request).await;
    assert_ne!(answer.text(), "{\"stolen\":true}");
    assert_eq!(other.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_path_and_the_query_are_kept() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m")
        .replica(&format!("{{ url: \"http://{}/team/a/\" }}", upstream.address()))
        .with("health: { interval: 1h, unhealthy_after: 1000 }");
    let proxy = Proxy::start_unready(&Config::new(pool));
    let mut request = chat(false, 1);
    request.target = "/v1/chat/completions?api-version=1&x=%2F".into();
    assert_eq!(proxy.exchange(&request).await.status(), 200);
    let seen = upstream.only("/team/a/v1/chat/completions").await;
    assert_eq!(seen.target(), "/team/a/v1/chat/completions?api-version=1&x=%2F");
    assert_eq!(seen.head.get("host"), Some(upstream.address().to_string().as_str()));
}
