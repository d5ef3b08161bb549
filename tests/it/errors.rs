//! Errors of the router itself: in the shape of the API the client speaks, with phase and origin; never half an answer
//! dressed as a whole one.
use std::net::SocketAddr;

use serde_json::Value;

use crate::support::*;

/// An address where nobody listens.
fn nobody() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Checks an error body against what clients of the family parse.
fn check_shape(family: Family, body: &Value, what: &str) {
    let message = match family {
        Family::Openai | Family::Responses => {
            let error = &body["error"];
            assert!(error["type"].is_string(), "{what}: error.type in {body}");
            assert!(
                error.get("code").is_some() && error.get("param").is_some(),
                "{what}: error.code, .param in {body}"
            );
            &error["message"]
        }
        Family::Anthropic => {
            assert_eq!(body["type"], "error", "{what}: {body}");
            assert!(body["error"]["type"].as_str().is_some_and(|kind| kind.ends_with("_error")), "{what}: {body}");
            &body["error"]["message"]
        }
    };
    assert!(message.as_str().is_some_and(|text| text.len() > 10), "{what}: a message that tells something in {body}");
}

/// Checks the last event of a stream that broke off.
fn check_event(family: Family, event: &Event, what: &str) {
    let body = event.json();
    if family == Family::Responses {
        assert_eq!(body["type"], "error", "{what}: {body}");
        assert!(body["message"].is_string() && body["code"].is_string(), "{what}: {body}");
        assert!(body["sequence_number"].is_u64(), "{what}: {body}");
    } else {
        check_shape(family, &body, what);
    }
    let named = family != Family::Openai;
    assert_eq!(event.name.as_deref(), named.then_some("error"), "{what}: the event's name");
}

async fn every_endpoint(proxy: &Proxy, model: &str, status: u16) {
    for endpoint in ENDPOINTS {
        for &stream in endpoint.ways() {
            let what = format!("{} stream={stream}", endpoint.path);
            let answer = proxy.exchange(&Request::post(endpoint.path, &endpoint.body(model, stream))).await;
            assert_eq!(answer.status(), status, "{what}: {}", answer.text());
            assert_eq!(answer.header("content-type").map(|kind| kind.starts_with("application/json")), Some(true));
            check_shape(endpoint.family, &answer.json(), &what);
            assert!(answer.header("x-request-id").is_some(), "{what}: an id to ask about");
        }
    }
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_model_is_404_everywhere_and_reaches_nobody() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    every_endpoint(&proxy, "no-such-model", 404).await;
    for endpoint in ENDPOINTS {
        assert!(upstream.seen(endpoint.path).is_empty(), "{}", endpoint.path);
    }
    let answer = proxy.exchange(&Request::post("/v1/chat/completions", &chat_body("nope", false, 1))).await;
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "model_not_found");
    assert!(error["message"].as_str().unwrap().contains("nope"), "the message names the model: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_replica_up_is_503_with_the_reason() {
    let proxy = Proxy::start_unready(&Config::new(Pool::model("m").at(nobody())));
    wait_until("the replica is down", PATIENCE, || async { proxy.replicas().await[0]["state"] == "down" }).await;
    every_endpoint(&proxy, "m", 503).await;
    assert_eq!(proxy.admin_get("/readyz").await.status(), 503);
    assert_eq!(proxy.admin_get("/livez").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_cannot_be_made_is_an_error_of_the_upstream() {
    let config = Config::new(Pool::model("m").at(nobody()).with("health: { interval: 1h, unhealthy_after: 1000 }"));
    let proxy = Proxy::start_unready(&config);
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert!([502, 503].contains(&answer.status()), "{} {}", answer.status(), answer.text());
    check_shape(Family::Openai, &answer.json(), "refused");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_failure_goes_to_another_replica_unseen() {
    let upstream = Upstream::fixed(200, &[], "{\"ok\":true}").await;
    let pool = Pool::model("m")
        .replica(&format!("{{ id: dead, url: \"http://{}\" }}", nobody()))
        .replica(&format!("{{ id: live, url: \"http://{}\" }}", upstream.address()))
        .with("policy: { type: round_robin }")
        .with("health: { interval: 1h, unhealthy_after: 1000 }");
    let proxy = Proxy::start_unready(&Config::new(pool));
    let body = chat(false, 1).body;
    for turn in 0..10 {
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert_eq!((answer.status(), answer.text()), (200, "{\"ok\":true}".to_string()), "turn {turn}");
    }
    let seen = upstream.seen("/v1/chat/completions");
    assert_eq!(seen.len(), 10);
    assert!(seen.iter().all(|request| request.body == body), "a second attempt sends the same bytes");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_closes_before_its_head_is_502_and_is_asked_once() {
    let upstream = Upstream::start(|_, _wire| async { None }).await;
    let other = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").at(upstream.address()).at(other.address()).with("policy: { type: round_robin }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut refused = 0;
    for turn in 0..8 {
        let stream = turn % 4 < 2;
        let answer = proxy.exchange(&chat(stream, 1)).await;
        if answer.status() == 502 {
            refused += 1;
            check_shape(Family::Openai, &answer.json(), "closed before the head");
        }
    }
    // The engine may have begun to work: a generation is not started twice behind the client's back.
    assert_eq!(upstream.seen("/v1/chat/completions").len(), refused);
    assert_eq!(upstream.seen("/v1/chat/completions").len() + other.seen("/v1/chat/completions").len(), 8);
    assert!(refused >= 1);
    proxy.load_is_zero().await;
}

/// An engine that sends one event and then breaks off.
async fn breaks_off(event: &'static str, reset: bool) -> Upstream {
    Upstream::start(move |_, mut wire| async move {
        wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await
            .ok()?;
        wire.send(format!("{:x}\r\n{event}\r\n", event.len())).await.ok()?;
        if reset {
            wire.reset();
        }
        None
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_off_ends_with_one_error_event_and_no_done() {
    let event = "data: {\"choices\":[]}\n\n";
    for reset in [false, true] {
        let upstream = breaks_off(event, reset).await;
        let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
        for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.streams) {
            let what = format!("{} reset={reset}", endpoint.path);
            let answer = proxy.exchange(&endpoint.request(true)).await;
            assert_eq!(answer.status(), 200);
            let text = answer.text();
            // A reset may overtake the event; what did arrive must stand before the error.
            assert!(reset || text.starts_with(event), "{what}: {text}");
            let events = sse_events(&answer.body);
            let errors: Vec<_> = events.iter().filter(|event| event.data.contains("\"error\"")).collect();
            assert_eq!(errors.len(), 1, "{what}: {text}");
            assert_eq!(errors[0], events.last().unwrap(), "{what}: the error is last");
            assert!(!text.contains("[DONE]"), "{what}: {text}");
            check_event(endpoint.family, errors[0], &what);
        }
        proxy.load_is_zero().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_event_stands_on_its_own_when_the_engine_broke_off_inside_one() {
    let upstream = breaks_off("data: {\"choices\":[{\"delta\":{\"content\":\"hal", false).await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let answer = proxy.exchange(&chat(true, 1)).await;
    let events = sse_events(&answer.body);
    let last = events.last().unwrap_or_else(|| panic!("no event in {}", answer.text()));
    check_event(Family::Openai, last, "after half an event");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_breaks_off_is_seen_to_be_broken() {
    let upstream = Upstream::start(|_, mut wire| async move {
        wire.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"half\":")
            .await
            .ok()?;
        None
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert_eq!(answer.text(), "{\"half\":", "nothing is added to a body that is no event stream");
    assert!(!answer.complete, "the client can tell that it is not whole");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_from_an_engine_is_502() {
    let upstream = Upstream::start(|_, mut wire| async move {
        wire.send("this is not HTTP\r\n\r\n").await.ok()?;
        None
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert_eq!(answer.status(), 502);
    check_shape(Family::Openai, &answer.json(), "garbage");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_their_phase_and_origin() {
    let upstream = Upstream::start(|_, _wire| async { None }).await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for (request, origin) in
        [(chat(false, 1), "replica"), (Request::post("/v1/chat/completions", &chat_body("nope", false, 1)), "client")]
    {
        let answer = proxy.exchange(&request).await;
        let error = &answer.json()["error"];
        assert!(error["phase"].is_string(), "{error}");
        assert_eq!(error["origin"], origin, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_at_its_limit_refuses_and_recovers() {
    let mock = Mock::slow();
    let pool = Pool::model("m").replica(&format!("{{ id: a, url: \"http://{}\", max_in_flight: 2 }}", mock.address()));
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut client = proxy.client().await;
        client.send(&chat(true, 2_000)).await;
        client.head().await;
        open.push(client);
    }
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert!([429, 503].contains(&answer.status()), "{}", answer.status());
    check_shape(Family::Openai, &answer.json(), "full");
    assert!(answer.header("retry-after").is_some(), "it says when to come back");
    open.clear();
    proxy.load_is_zero().await;
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_nobody_asked_for_is_no_answer() {
    let upstream = Upstream::start(|_, mut wire| async move {
        wire.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw")
            .await
            .ok()?;
        wire.gone().await;
        None
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let answer = proxy.exchange(&chat(false, 1).header("Upgrade", "websocket").header("Connection", "Upgrade")).await;
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.json()["error"]["code"], "bad_answer");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_added_to_a_compressed_stream_that_breaks() {
    const PART: &[u8] = b"\x1f\x8b\x08\x00";
    let upstream = Upstream::start(|_, mut wire| async move {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n";
        wire.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n4\r\n")).await.ok()?;
        wire.send(PART).await.ok()?;
        wire.send("\r\n").await.ok()?;
        None
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 1)).await;
    assert_eq!(client.head().await.get("content-encoding"), Some("gzip"));
    let mut body = Vec::new();
    while let Some(piece) = client.next().await {
        body.extend_from_slice(&piece);
    }
    assert_eq!(body, PART);
    assert!(client.was_cut(), "a client must see that the answer is not whole");
    proxy.load_is_zero().await;
}
