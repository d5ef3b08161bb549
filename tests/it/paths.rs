//! Only known paths are served: exact, never normalised.
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_are_404_and_reach_nobody() {
    let upstream = Upstream::fixed(200, &[], "{\"leaked\":true}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let before = upstream.connections();
    for target in [
        "/",
        "/v1",
        "/v1/",
        "/v1/unknown",
        "/v1/chat/completions/",
        "/v1/chat/completions/x",
        "/v1//chat/completions",
        "/v1/x/../chat/completions",
        "/V1/chat/completions",
        "/v1/chat%2Fcompletions",
        "/metrics",
        "/reset_prefix_cache",
        "/shutdown",
        "/__stats",
        "/__control",
    ] {
        for method in ["GET", "POST"] {
            let answer = proxy.exchange(&Request::new(method, target).body("{\"model\":\"m\"}")).await;
            assert_eq!(answer.status(), 404, "{method} {target}: {}", answer.text());
            assert!(answer.json()["error"]["message"].is_string(), "{method} {target}");
            assert!(upstream.seen(target).is_empty(), "{method} {target}");
        }
    }
    let _ = before;
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_listed_paths_pass_any_method() {
    let upstream = Upstream::fixed(200, &[], "{\"ok\":1}").await;
    let pool = Pool::model("m").at(upstream.address()).with("paths: [/server_info, /v1/classify]");
    let proxy = Proxy::start(&Config::new(pool)).await;
    for (method, target) in [("GET", "/server_info"), ("POST", "/v1/classify"), ("GET", "/server_info?x=1")] {
        let answer = proxy.exchange(&Request::new(method, target)).await;
        assert_eq!((answer.status(), answer.text()), (200, "{\"ok\":1}".to_string()), "{method} {target}");
    }
    assert_eq!(upstream.seen("/server_info").len(), 2);
    assert_eq!(proxy.exchange(&Request::get("/server_info/x")).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_method_is_405_and_says_which_is_right() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for endpoint in ENDPOINTS {
        let answer = proxy.exchange(&Request::get(endpoint.path)).await;
        assert_eq!(answer.status(), 405, "{}", endpoint.path);
        assert_eq!(answer.header("allow"), Some("POST"), "{}", endpoint.path);
        assert!(upstream.seen(endpoint.path).is_empty());
    }
    assert_eq!(proxy.exchange(&Request::new("POST", "/v1/models").body("{}")).await.status(), 405);
    assert_eq!(proxy.exchange(&Request::new("TRACE", "/v1/models")).await.status(), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_head() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut long = chat(false, 1);
    long.target = format!("/v1/chat/completions?x={}", "a".repeat(17 << 10));
    assert_eq!(proxy.exchange(&long).await.status(), 414);
    let wide = chat(false, 1).header("x-wide", &"a".repeat(65 << 10));
    assert_eq!(proxy.exchange(&wide).await.status(), 431);
    let mut many = chat(false, 1);
    for n in 0..101 {
        many = many.header(&format!("x-{n}"), "a");
    }
    assert_eq!(proxy.exchange(&many).await.status(), 431);
    assert!(upstream.seen("/v1/chat/completions").is_empty());
    // What an agent really sends fits: one field of 20 KiB, 60 fields.
    let mut fair = chat(false, 1).header("x-wide", &"a".repeat(20 << 10));
    for n in 0..60 {
        fair = fair.header(&format!("x-{n}"), "a");
    }
    assert_eq!(proxy.exchange(&fair).await.status(), 200);
}
