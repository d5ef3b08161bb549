//! The operator's listener: loopback by default, a token beyond, and what it shows.
use std::time::Duration;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_bind_without_a_token_is_refused_with_the_reason() {
    for listen in ["0.0.0.0:0", "\"[::]:0\""] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.yaml");
        let config = Config::new(Pool::model("m").replica("{ url: \"http://127.0.0.1:9\" }"))
            .with(&format!("admin: {{ listen: {listen} }}"));
        std::fs::write(&path, config.yaml()).unwrap();
        for command in [vec!["serve", "--config", path.to_str().unwrap()], vec!["check", path.to_str().unwrap()]] {
            let mut process = Process::start(&command, &[]);
            let reason = process.line("reason", |line| line.contains("token").then(|| line.to_string()));
            assert!(!process.wait(PATIENCE).success(), "{command:?} started: {reason}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_guards_all_but_liveness_and_readiness() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let config = Config::new(Pool::model("m").at(upstream.address()))
        .with("admin: { listen: 127.0.0.1:0, token: \"${ADMIN_TOKEN}\" }");
    let proxy = Proxy::start_with(&config, &[("ADMIN_TOKEN", "right-token")]);
    wait_until("ready", PATIENCE, || async { proxy.admin_get("/readyz").await.status() == 200 }).await;
    assert_eq!(proxy.admin_get("/livez").await.status(), 200);
    for page in ["/metrics", "/config", "/replicas"] {
        assert_eq!(proxy.admin_get(page).await.status(), 401, "{page}");
        for (token, status) in [("Bearer wrong-token", 401), ("right-token", 401), ("Bearer right-token", 200)] {
            let answer = exchange(proxy.admin(), &Request::get(page).header("Authorization", token)).await;
            assert_eq!(answer.status(), status, "{page} with {token}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_lists_each_once_with_its_state() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let shared = format!("{{ id: shared, url: \"{}\" }}", upstream.url());
    let config = Config::new(Pool::model("m").replica(&shared)).pool(Pool::model("n").replica(&shared));
    let proxy = Proxy::start(&config).await;
    let rows = proxy.replicas().await;
    assert_eq!(rows.len(), 1, "one replica of two pools is one row: {rows:?}");
    assert_eq!(rows[0]["id"], "shared");
    assert_eq!(rows[0]["state"], "ready");
    assert_eq!(rows[0]["in_flight"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_path_shows_nothing_of_the_operators() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    for page in ["/metrics", "/config", "/replicas", "/livez", "/readyz"] {
        assert_eq!(proxy.exchange(&Request::get(page)).await.status(), 404, "{page}");
    }
    assert_eq!(proxy.admin_get("/v1/models").await.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_dies_is_found_and_comes_back() {
    let mut mock = Mock::fast();
    let other = Mock::fast();
    let pool = Pool::model("m").at(mock.address()).at(other.address()).with("policy: { type: round_robin }");
    let proxy = Proxy::start(&Config::new(pool)).await;
    let state = || async { proxy.replicas().await[0]["state"].as_str().unwrap_or("").to_string() };
    mock.process.kill();
    wait_until("down", PATIENCE, || async { state().await == "down" }).await;
    assert_eq!(proxy.admin_get("/readyz").await.status(), 200, "one of two is up");
    for _ in 0..6 {
        assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 200);
    }
    let address = mock.address().to_string();
    let _again = Process::start(&["mock", "--listen", &address, "--model", "m"], &[]);
    wait_until("up again", PATIENCE, || async { ["ready", "warming"].contains(&state().await.as_str()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_open_streams_end_and_takes_no_new_ones() {
    let mock = Mock::slow();
    let mut proxy = Proxy::start(&Config::new(Pool::model("m").at(mock.address()))).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 40)).await;
    client.head().await;
    client.until(b"data:").await;
    proxy.process.terminate();
    let body = client.rest().await;
    assert_eq!(sse_events(&body).last().map(|event| event.data.clone()), Some("[DONE]".into()));
    drop(client);
    assert!(proxy.process.wait(Duration::from_secs(20)).success());
}

// Sixteen bodies that never came kept /livez from being answered, and the process from living.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_come_keep_nobody_from_readiness_or_for_long() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let mut withheld = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(proxy.admin()).await;
        client.send_raw(b"POST /log-level HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
        withheld.push(client);
    }
    for page in ["/livez", "/readyz"] {
        assert_eq!(within(page, PATIENCE, proxy.admin_get(page)).await.status(), 200);
    }
    for client in &mut withheld {
        let head = within("a refusal", 2 * PATIENCE, client.head()).await;
        assert_eq!(head.status(), 400);
    }
    assert_eq!(within("/replicas", PATIENCE, proxy.admin_get("/replicas")).await.status(), 200);
}

// They needed no token, had no bound and no end, and the data path could accept nobody for want of file descriptors.
#[tokio::test(flavor = "multi_thread")]
async fn the_operators_listener_holds_few_connections_whoever_opens_them() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", proxy.process.pid())).unwrap().count();
    let before = descriptors();
    let mut idle = Vec::new();
    for _ in 0..600 {
        idle.push(Client::connect(proxy.admin()).await);
    }
    wait_until("some are accepted", PATIENCE, || async { descriptors() >= before + 200 }).await;
    // The data path's own connections come after them all.
    assert_eq!(proxy.exchange(&Request::get("/v1/models")).await.status(), 200);
    assert!(descriptors() < before + 300, "{} of them at {before} before", descriptors());
    drop(idle);
    assert_eq!(within("an answer when they have gone", PATIENCE, proxy.admin_get("/livez")).await.status(), 200);
}

// DNS rebinding: a page on the web whose name suddenly means 127.0.0.1 is of one origin with what it reads there.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_only_a_local_host_is_answered() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let pool = || Pool::model("m").at(upstream.address());
    let proxy = Proxy::start(&Config::new(pool())).await;
    for (host, status) in
        [("evil.test", 421), ("evil.test:9090", 421), ("localhost:9090", 200), ("[::1]:9090", 200), ("10.0.0.1", 200)]
    {
        let request = Request::get("/config").header("Host", host);
        assert_eq!(exchange(proxy.admin(), &request).await.status(), status, "{host}");
    }
    let probe = Request::get("/livez").header("Host", "router.internal");
    assert_eq!(exchange(proxy.admin(), &probe).await.status(), 200, "probes may use any name");
    let guarded = Proxy::start(&Config::new(pool()).with("admin: { listen: 127.0.0.1:0, token: right }")).await;
    let request = Request::get("/config").header("Host", "router.internal").header("Authorization", "Bearer right");
    assert_eq!(exchange(guarded.admin(), &request).await.status(), 200, "with a token, names are fine");
}
