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
async fn the_union_has_each_askable_name_once_with_the_engines_fields() {
    let deep = json!({"deep": [1, 2]});
    let m = json!({"id": "m", "object": "model", "max_model_len": 4096, "x_vendor": deep});
    // Field report D7: internal names and doubles in the list. A name that no pool answers to is not offered.
    let a = lists(json!([{"id": "internal-name", "object": "model"}, m])).await;
    let b = lists(json!([m])).await;
    let c = lists(json!([{"id": "other", "object": "model", "root": "/models/other"}])).await;
    let config = Config::new(Pool::model("m").with("aliases: [short]").at(a.address()).at(b.address()))
        .pool(Pool::model("other").replica(&format!("{{ id: c, url: \"{}\" }}", c.url())));
    let proxy = Proxy::start(&config).await;
    let first = proxy.exchange(&Request::get("/v1/models")).await;
    assert_eq!(first.status(), 200);
    assert_eq!(first.json()["object"], "list");
    assert_eq!(ids(&first), ["m", "short", "other"]);
    for entry in &first.json()["data"].as_array().unwrap()[..2] {
        assert_eq!(entry["x_vendor"], deep, "unknown fields are kept: {entry}");
        assert_eq!(entry["max_model_len"], 4096);
    }
    for _ in 0..5 {
        assert_eq!(proxy.exchange(&Request::get("/v1/models")).await.text(), first.text(), "the order is stable");
    }
    let one = proxy.exchange(&Request::get("/v1/models/other")).await;
    assert_eq!((one.status(), one.json()["root"].as_str()), (200, Some("/models/other")));
    assert_eq!(proxy.exchange(&Request::get("/v1/models/internal-name")).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_takes_any_model_lists_all_of_them() {
    let a = lists(json!([{"id": "m", "object": "model"}, {"id": "m-lora", "object": "model", "parent": "m"}])).await;
    let b = lists(json!([{"id": "m", "object": "model"}, {"id": "n", "object": "model"}])).await;
    let proxy = Proxy::start(&Config::new(Pool::any().at(a.address()).at(b.address()))).await;
    let listed = proxy.exchange(&Request::get("/v1/models")).await;
    assert_eq!(ids(&listed), ["m", "m-lora", "n"]);
    assert_eq!(listed.json()["data"][1]["parent"], "m");
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
