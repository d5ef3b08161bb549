//! Stored responses live on one replica: what refers to one goes there.
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
