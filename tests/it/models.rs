//! `/v1/models` is the union over replicas, and a request's model picks its pool.
use serde_json::{Value, json};

use crate::support::*;

async fn lists(models: Value) -> Upstream {
    let body = json!({"object": "list", "data": models}).to_string();
    Upstream::fixed(200, &[("Content-Type", "application/json")], body).await
}

fn ids(answer: &Response) -> Vec<String> {
    let body = answer.json();
    let data = body["data"].as_array().unwrap_or_else(|| panic!("no data in {body}")).clone();
    data.iter().map(|model| model["id"].as_str().unwrap().to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_union_keeps_unknown_fields_and_has_no_doubles() {
    let a = lists(json!([{"id": "m", "object": "model", "max_model_len": 4096, "x_vendor": {"deep": [1, 2]}},
                         {"id": "m-lora", "object": "model", "parent": "m"}]))
    .await;
    let b = lists(json!([{"id": "m", "object": "model", "max_model_len": 4096, "x_vendor": {"deep": [1, 2]}}])).await;
    let c = lists(json!([{"id": "other", "object": "model", "root": "/models/other"}])).await;
    let config = Config::new(Pool::model("m").at(a.address()).at(b.address()))
        .pool(Pool::model("other").replica(&format!("{{ id: c, url: \"http://{}\" }}", c.address())));
    let proxy = Proxy::start(&config).await;
    let first = proxy.exchange(&Request::get("/v1/models")).await;
    assert_eq!(first.status(), 200);
    assert_eq!(first.json()["object"], "list");
    let mut listed = ids(&first);
    assert_eq!(listed.iter().filter(|id| *id == "m").count(), 1);
    let order = listed.clone();
    listed.sort();
    assert_eq!(listed, ["m", "m-lora", "other"]);
    let data = first.json()["data"].as_array().unwrap().clone();
    let m = data.iter().find(|model| model["id"] == "m").unwrap();
    assert_eq!(m["x_vendor"], json!({"deep": [1, 2]}), "unknown fields are kept");
    assert_eq!(m["max_model_len"], 4096);
    for _ in 0..5 {
        assert_eq!(ids(&proxy.exchange(&Request::get("/v1/models")).await), order, "the order is stable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_that_fails_does_not_empty_the_list() {
    let a = lists(json!([{"id": "m", "object": "model"}])).await;
    let b = Upstream::fixed(500, &[], "boom").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(a.address()).at(b.address()))).await;
    assert!(ids(&proxy.exchange(&Request::get("/v1/models")).await).contains(&"m".to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_picks_its_pool() {
    let (a, b) = (Upstream::fixed(200, &[], "\"a\"").await, Upstream::fixed(200, &[], "\"b\"").await);
    let config = Config::new(Pool::model("model-a").replica(&format!("{{ id: a, url: \"{}\" }}", a.url())))
        .pool(Pool::model("org/model-b").with("aliases: [bee]").replica(&format!("{{ id: b, url: \"{}\" }}", b.url())));
    let proxy = Proxy::start(&config).await;
    for endpoint in ENDPOINTS {
        for (model, answer) in [("model-a", "\"a\""), ("org/model-b", "\"b\""), ("bee", "\"b\"")] {
            let got = proxy.exchange(&Request::post(endpoint.path, &endpoint.body(model, false))).await;
            assert_eq!((got.status(), got.text()), (200, answer.to_string()), "{} {model}", endpoint.path);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_takes_every_body() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::any().at(upstream.address()))).await;
    for body in ["{\"model\":\"whatever\"}", "{\"no\":\"model\"}", "[1,2]", "not json at all", ""] {
        let answer = proxy.exchange(&Request::new("POST", "/v1/chat/completions").body(body)).await;
        assert_eq!(answer.status(), 200, "{body:?}: {}", answer.text());
        assert_eq!(upstream.seen("/v1/chat/completions").pop().unwrap().body, body.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_model_goes_to_the_only_pool() {
    // vLLM serves such requests; a router must not be the one that refuses.
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for body in ["{\"messages\":[]}", "{\"unknown\":{\"shape\":[1,[2,[3]]]}}"] {
        let answer = proxy.exchange(&Request::new("POST", "/v1/chat/completions").body(body)).await;
        assert_eq!(answer.status(), 200, "{body}: {}", answer.text());
        assert_eq!(upstream.seen("/v1/chat/completions").pop().unwrap().body, body.as_bytes());
    }
}
