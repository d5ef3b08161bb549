//! A model alias is spliced into the original bytes: nothing else changes.
use crate::support::*;

async fn sent_as(body: &str) -> String {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("real-model").with("aliases: [short, \"quo\\\"ted\"]").at(upstream.address());
    let proxy = Proxy::start(&Config::new(pool)).await;
    let answer = proxy.exchange(&Request::new("POST", "/v1/chat/completions").body(body)).await;
    assert_eq!(answer.status(), 200, "{body}: {}", answer.text());
    String::from_utf8(upstream.only("/v1/chat/completions").await.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_models_bytes_change() {
    // Odd spacing, escapes, number forms and duplicate keys elsewhere must survive, and so must look-alikes.
    let body = |model: &str| {
        format!(
            "{{ \"a\" :1.0e+2,\r\n\t\"x\":{{\"model\":\"short\"}}, \"u\":\"\\u0041\\/short\", \"model\"  :  {model} ,\"messages\":[{{\"role\":\"user\",\"content\":\"model: short \\ud83d\\ude00 é\"}}],\"dup\":1,\"dup\":2 }}\n"
        )
    };
    assert_eq!(sent_as(&body("\"short\"")).await, body("\"real-model\""));
    assert_eq!(sent_as(&body("\"\\u0073hort\"")).await, body("\"real-model\""), "an escaped spelling of the alias");
    assert_eq!(sent_as(&body("\"quo\\\"ted\"")).await, body("\"real-model\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_name_is_never_touched() {
    for body in [
        "{\"model\":\"real-model\"}",
        "{\"model\":\"\\u0072eal-model\" }",
        " {\"model\" :\"real-model\",\"messages\":[]} ",
    ] {
        assert_eq!(sent_as(body).await, body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_takes_aliases() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("real").with("aliases: [short]").at(upstream.address()))).await;
    for endpoint in ENDPOINTS {
        let answer = proxy.exchange(&Request::post(endpoint.path, &endpoint.body("short", false))).await;
        assert_eq!(answer.status(), 200, "{}: {}", endpoint.path, answer.text());
        let sent = upstream.only(endpoint.path).await.body;
        let expected = endpoint.body("real", false).to_string();
        assert_eq!(String::from_utf8_lossy(&sent), expected, "{}", endpoint.path);
    }
}
