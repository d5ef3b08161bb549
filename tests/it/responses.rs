//! Stored responses live on one replica: what refers to one goes there.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::*;

/// An engine that keeps what it made: `resp_NAME_N`, streamed or whole.
async fn engine(name: &'static str) -> Upstream {
    let made = Arc::new(AtomicUsize::new(0));
    Upstream::start(move |request, mut wire| {
        let made = made.clone();
        async move {
            if serde_json::from_slice(&request.body).is_ok_and(|body: Value| body["input"] == "wait") {
                wire.gone().await;
                return None;
            }
            let reply = if request.method() == "POST" && request.target() == "/v1/responses" {
                let id = format!("resp_{name}_{}", made.fetch_add(1, Ordering::SeqCst));
                let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                let response = json!({"id": id, "object": "response", "served_by": name});
                if body["stream"] == true {
                    let event = format!(
                        "event: response.created\ndata: {}\n\nevent: response.completed\ndata: {}\n\n",
                        json!({"type": "response.created", "response": response}),
                        json!({"type": "response.completed", "response": response})
                    );
                    respond(200, &[("Content-Type", "text/event-stream")], event.as_bytes())
                } else {
                    respond(200, &[("Content-Type", "application/json")], response.to_string().as_bytes())
                }
            } else if request.target().contains(&format!("resp_{name}_")) {
                let body = json!({"served_by": name, "method": request.method(), "target": request.target()});
                respond(200, &[("Content-Type", "application/json")], body.to_string().as_bytes())
            } else {
                respond(
                    404,
                    &[("Content-Type", "application/json")],
                    b"{\"error\":{\"message\":\"no such response here\"}}",
                )
            };
            wire.send(reply).await.ok()?;
            Some(wire)
        }
    })
    .await
}

async fn three() -> (Vec<Upstream>, Proxy) {
    let engines = vec![engine("a").await, engine("b").await, engine("c").await];
    let mut pool = Pool::model("m").with("policy: { type: round_robin }");
    for engine in &engines {
        pool = pool.at(engine.address());
    }
    let proxy = Proxy::start(&Config::new(pool)).await;
    (engines, proxy)
}

fn create(stream: bool, previous: Option<&str>) -> Request {
    let mut body = json!({"model": "m", "input": "hi", "stream": stream});
    if let Some(id) = previous {
        body["previous_response_id"] = id.into();
    }
    Request::post("/v1/responses", &body)
}

/// The id of an answer and who made it.
fn made(answer: &Response) -> (String, String) {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let response = if answer.header("content-type") == Some("text/event-stream") {
        sse_events(&answer.body)[0].json()["response"].clone()
    } else {
        answer.json()
    };
    (response["id"].as_str().unwrap().into(), response["served_by"].as_str().unwrap().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_stays_where_its_responses_are() {
    let (_engines, proxy) = three().await;
    let mut homes = std::collections::HashSet::new();
    for turn in 0..6 {
        let stream = turn % 2 == 0;
        let (mut id, home) = made(&proxy.exchange(&create(stream, None)).await);
        homes.insert(home.clone());
        for _ in 0..5 {
            let (next, by) = made(&proxy.exchange(&create(stream, Some(&id))).await);
            assert_eq!(by, home, "{id} lives on {home}");
            id = next;
        }
    }
    assert_eq!(homes.len(), 3, "new conversations are spread");
}

#[tokio::test(flavor = "multi_thread")]
async fn get_delete_and_cancel_go_to_the_owner() {
    let (_engines, proxy) = three().await;
    for stream in [false, true, false, true, false, true] {
        let (id, home) = made(&proxy.exchange(&create(stream, None)).await);
        for (method, target) in [
            ("GET", format!("/v1/responses/{id}")),
            ("GET", format!("/v1/responses/{id}?stream=false")),
            ("POST", format!("/v1/responses/{id}/cancel")),
            ("DELETE", format!("/v1/responses/{id}")),
        ] {
            let answer = proxy.exchange(&Request::new(method, &target)).await;
            assert_eq!(answer.status(), 200, "{method} {target}: {}", answer.text());
            let body = answer.json();
            assert_eq!(body["served_by"], home.as_str());
            assert_eq!((body["method"].as_str(), body["target"].as_str()), (Some(method), Some(target.as_str())));
        }
    }
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_it_never_saw_is_asked_for_and_404_passes() {
    // A router that was restarted knows no ids; the engines do.
    let (engines, first) = three().await;
    let (id, home) = made(&first.exchange(&create(false, None)).await);
    let mut pool = Pool::model("m");
    for engine in &engines {
        pool = pool.at(engine.address());
    }
    let second = Proxy::start(&Config::new(pool)).await;
    let answer = second.exchange(&Request::get(&format!("/v1/responses/{id}"))).await;
    assert_eq!(answer.json()["served_by"], home.as_str());
    assert_eq!(second.exchange(&Request::get("/v1/responses/resp_nowhere_0")).await.status(), 404);
    second.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_ids_is_bounded() {
    let (engines, _) = three().await;
    let pool = Pool::model("m").at(engines[0].address());
    let proxy = Proxy::start(&Config::new(pool).with("limits: { stored_responses: 10 }")).await;
    for _ in 0..25 {
        made(&proxy.exchange(&create(false, None)).await);
    }
    assert_eq!(proxy.metric("warmroute_stored_responses").await, 10.0);
}

/// Two engines with one place each (`r0` is `a`), and a router that knows a response of each: home → id.
async fn known(keys: &str) -> (Vec<Upstream>, Proxy, BTreeMap<String, String>) {
    let engines = vec![engine("a").await, engine("b").await];
    let mut pool = Pool::model("m").with("policy: { type: round_robin }");
    if !keys.is_empty() {
        pool = pool.with(keys);
    }
    for (n, engine) in engines.iter().enumerate() {
        pool = pool.replica(&format!("{{ id: r{n}, url: \"{}\", max_in_flight: 1 }}", engine.url()));
    }
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut ids = BTreeMap::new();
    while ids.len() < 2 {
        let (id, home) = made(&proxy.exchange(&create(false, None)).await);
        ids.insert(home, id);
    }
    (engines, proxy, ids)
}

/// Takes the one place of the replica that holds `id`, until dropped: its engine never answers this input.
async fn occupied(proxy: &Proxy, id: &str) -> Client {
    let mut client = proxy.client().await;
    let body = json!({"model": "m", "input": "wait", "previous_response_id": id});
    client.send(&Request::post("/v1/responses", &body)).await;
    proxy.wait_in_flight(1, PATIENCE).await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_replica_is_waited_for_and_no_other_is_asked_for_what_it_holds() {
    let (engines, proxy, ids) = known("").await;
    let id = &ids["a"];
    let before = engines[1].all().len();
    let open = occupied(&proxy, id).await;
    for request in [create(false, Some(id)), Request::get(&format!("/v1/responses/{id}"))] {
        let answer = proxy.exchange(&request).await;
        assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "replicas_full");
        assert!(answer.text().contains("replica r0"), "{}", answer.text());
    }
    assert_eq!(engines[1].all().len(), before);
    assert_eq!(made(&proxy.exchange(&create(false, None)).await).1, "b", "others are served meanwhile");
    drop(open);
    proxy.load_is_zero().await;

    // With a queue it waits for its own replica, and keeps nobody from the other one.
    let (_engines, proxy, ids) = known("queue: 10").await;
    let open = occupied(&proxy, &ids["a"]).await;
    let mut waits = proxy.client().await;
    waits.send(&create(false, Some(&ids["a"]))).await;
    let waiting = "warmroute_queue_requests{pool=\"m\"}";
    wait_until("it waits", PATIENCE, || async { proxy.metric(waiting).await == 1.0 }).await;
    assert_eq!(made(&proxy.exchange(&create(false, None)).await).1, "b");
    assert_eq!(proxy.metric(waiting).await, 1.0);
    drop(open);
    assert_eq!(waits.head().await.status(), 200);
    let body: Value = serde_json::from_slice(&waits.rest().await).unwrap();
    assert_eq!(body["served_by"], "a");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_whose_replica_is_down_is_not_said_to_be_gone() {
    let (mut engines, proxy, ids) = known("").await;
    let (here, there) = (ids["b"].clone(), ids["a"].clone());
    drop(engines.remove(0));
    wait_until("r0 is down", PATIENCE, || async { proxy.replica("r0").await.unwrap()["state"] == "down" }).await;
    let before = engines[0].all().len();
    for method in ["GET", "DELETE"] {
        let answer = proxy.exchange(&Request::new(method, &format!("/v1/responses/{there}"))).await;
        assert_eq!((answer.status(), answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "no_replica_ready");
        assert!(answer.text().contains("replica r0"), "{}", answer.text());
    }
    assert_eq!(engines[0].all().len(), before, "no other was asked");
    assert_eq!(proxy.exchange(&Request::get(&format!("/v1/responses/{here}"))).await.status(), 200);
    // What nobody knows is still sought, and the one that is up says what it knows.
    assert_eq!(proxy.exchange(&Request::get("/v1/responses/resp_nowhere_0")).await.status(), 404);
    proxy.load_is_zero().await;
}
