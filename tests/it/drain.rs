//! A replica drained by the operator: it keeps its sessions and gets no new ones, until it is undrained.
use crate::sessions::{named, who};
use crate::support::*;

fn of_session(id: &str) -> Request {
    chat(false, 1).header("x-session-id", &format!("a-session-of-{id}"))
}

fn config(engines: &[Upstream]) -> Config {
    let pool = Pool::model("m").with("policy: { type: session_sticky }");
    let pool = pool.replica(&format!("{{ id: \"gpu/0:a\", url: \"{}\" }}", engines[0].url()));
    Config::new(pool.replica(&format!("{{ id: e1, url: \"{}\" }}", engines[1].url())))
}

async fn state(proxy: &Proxy, id: &str) -> String {
    proxy.replica(id).await.expect("it is there")["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_replica_keeps_its_sessions_and_gets_no_new_ones() {
    let engines = named(2).await;
    let proxy = Proxy::start(&config(&engines)).await;
    let mut bound = Vec::new();
    for n in 0.. {
        let id = format!("old-{n}");
        if who(&proxy, &of_session(&id)).await == "e0" {
            bound.push(id);
        }
        if bound.len() == 5 {
            break;
        }
    }
    let answer = proxy.admin_post("/replicas/gpu%2F0%3Aa/drain").await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!((&answer.json()["state"], &answer.json()["id"]), (&"draining".into(), &"gpu/0:a".into()));

    let probes = proxy.metric("warmroute_health_probes_total{replica=\"gpu/0:a\",result=\"ok\"}").await;
    for round in 0..3 {
        for n in 0..10 {
            assert_eq!(who(&proxy, &of_session(&format!("new-{round}-{n}"))).await, "e1");
        }
        for id in &bound {
            assert_eq!(who(&proxy, &of_session(id)).await, "e0", "round {round}: session {id} has moved");
        }
        // Neither a reload nor a probe that is answered ends it.
        proxy.reload(&config(&engines).with(&format!("limits: {{ body: {}MiB }}", round + 1))).await;
        let enough = probes + 3.0 * f64::from(round + 1);
        wait_until("three more probes", PATIENCE, || async {
            proxy.metric("warmroute_health_probes_total{replica=\"gpu/0:a\",result=\"ok\"}").await >= enough
        })
        .await;
        assert_eq!(state(&proxy, "gpu/0:a").await, "draining");
    }
    assert_eq!(proxy.admin_post("/replicas/gpu%2F0%3Aa/undrain").await.json()["state"], "ready");
    wait_until("a new session goes there", PATIENCE, || async {
        let id = format!("later-{}", fastrand::u32(..));
        who(&proxy, &of_session(&id)).await == "e0"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_drained_is_not_ready() {
    let engines = named(2).await;
    let proxy = Proxy::start(&config(&engines)).await;
    for id in ["e1", "gpu%2F0:a"] {
        assert_eq!(proxy.admin_get("/readyz").await.status(), 200);
        assert_eq!(proxy.admin_post(&format!("/replicas/{id}/drain")).await.status(), 200);
    }
    assert_eq!(proxy.admin_get("/readyz").await.status(), 503);
    assert_eq!(proxy.exchange(&chat(false, 1)).await.status(), 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_drain() {
    let engines = named(2).await;
    let guarded = config(&engines).with("admin: { listen: 127.0.0.1:0, token: right }");
    let proxy = Proxy::start(&guarded).await;
    let drain = Request::new("POST", "/replicas/e1/drain");
    assert_eq!(exchange(proxy.admin(), &drain).await.status(), 401);
    let token = drain.header("Authorization", "Bearer right");
    // A page in a browser on the operator's machine reaches loopback, too.
    for (name, value) in [("Origin", "http://evil.test"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site")] {
        assert_eq!(exchange(proxy.admin(), &token.clone().header(name, value)).await.status(), 403, "{name}");
    }
    // RFC 9110, section 11.1: the scheme in any case, the token as it is.
    for (given, status) in [("bearer right", 405), ("BEARER  right", 405), ("Bearer RIGHT", 401), ("Basic right", 401)]
    {
        let get = Request::get("/replicas/e1/drain").header("Authorization", given);
        assert_eq!(exchange(proxy.admin(), &get).await.status(), status, "{given}");
    }
    let get = Request::get("/replicas/e1/drain").header("Authorization", "Bearer right");
    assert_eq!(exchange(proxy.admin(), &get).await.status(), 405);
    assert_eq!(exchange(proxy.admin(), &token).await.status(), 200);
    let unknown = Request::new("POST", "/replicas/nobody/drain").header("Authorization", "Bearer right");
    assert_eq!(exchange(proxy.admin(), &unknown).await.status(), 404);
    assert_eq!(proxy.exchange(&Request::new("POST", "/replicas/e1/undrain")).await.status(), 404, "no client may");
}
