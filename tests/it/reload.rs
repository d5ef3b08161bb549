//! Guarantee 7: a bad configuration never replaces a good one; a reload drops no request and keeps what was learned.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::sessions::{named, who};
use crate::support::*;

/// A pool over some of the engines, `e0`, `e1`, …
fn of(engines: &[Upstream], picked: &[usize], policy: &str) -> Config {
    Config::new(pool_of(engines, picked, policy))
}

fn pool_of(engines: &[Upstream], picked: &[usize], policy: &str) -> Pool {
    let pool = Pool::model("m").with(&format!("policy: {policy}"));
    let row = |&n: &usize| format!("{{ id: e{n}, url: \"{}\" }}", engines[n].url());
    picked.iter().map(row).fold(pool, |pool, row| pool.replica(&row))
}

fn of_session(id: usize) -> Request {
    chat(false, 1).header("x-session-id", &format!("a-session-of-{id:04}"))
}

async fn gauge(proxy: &Proxy, value: f64) {
    wait_until(&format!("last_reload_successful is {value}"), PATIENCE, || async {
        proxy.metric("warmroute_config_last_reload_successful").await == value
    })
    .await;
}

/// Whether a replica's name stands in any series.
async fn has_series(proxy: &Proxy, id: &str) -> bool {
    proxy.metrics().await.contains(&format!("replica=\"{id}\""))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_lost_in_a_thousand_reloads_under_load() {
    const RELOADS: usize = 1_000;
    let engines = named(4).await;
    let mock = Mock::start(&["--model", "s", "--prefill-tps", "1000000", "--decode-tps", "100000"]);
    let streams = format!("{{ id: s, url: \"http://{}\" }}", mock.address());
    let quiet = "logging: { access: false }";
    let configs: Vec<Config> = [
        (vec![0, 1], "{ type: round_robin }"),
        (vec![1, 2, 3], "{ type: session_sticky }"),
        (vec![3], "{ type: least_load }"),
        (vec![0, 1, 2, 3], "{ type: session_sticky, max_load_ratio: 2 }"),
    ]
    .iter()
    .enumerate()
    .map(|(n, (picked, policy))| {
        let weight = format!("limits: {{ body: {}MiB }}", n + 1);
        of(&engines, picked, policy).pool(Pool::model("s").replica(&streams)).with(&weight).with(quiet)
    })
    .collect();
    let proxy = Proxy::start(&configs[0]).await;

    let (address, stop) = (proxy.address(), Arc::new(AtomicBool::new(false)));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let stop = stop.clone();
        workers.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = if worker < 2 {
                    let body = chat_body("s", true, 40);
                    let answer = client.exchange(&Request::post("/v1/chat/completions", &body)).await;
                    assert_eq!(sse_events(&answer.body).last().map(|e| e.data.clone()), Some("[DONE]".into()));
                    answer
                } else {
                    client.exchange(&of_session(done * 8 + worker)).await
                };
                assert_eq!(answer.status(), 200, "{}", answer.text());
                assert!(answer.complete, "an answer was cut");
                done += 1;
            }
            done
        });
    }
    let started = Instant::now();
    let mut admin = Client::connect(proxy.admin()).await;
    for n in 1..=RELOADS {
        proxy.replace_config(&configs[n % configs.len()].yaml());
        let answer = admin.exchange(&Request::new("POST", "/reload")).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    stop.store(true, Ordering::Relaxed);
    let mut requests = 0;
    while let Some(done) = workers.join_next().await {
        requests += done.expect("a worker found an error");
    }
    println!("{RELOADS} reloads in {:?}, {requests} requests, none lost", started.elapsed());
    assert!(requests > RELOADS / 4, "{requests} requests are no load");
    assert!(proxy.metric("warmroute_config_reloads_total{result=\"ok\"}").await >= RELOADS as f64);
    assert_eq!(proxy.metric("warmroute_config_reloads_total{result=\"failed\"}").await, 0.0);
    proxy.load_is_zero().await;
    assert_eq!(proxy.metric("warmroute_requests_rejected_total").await, 0.0);

    // What the last configuration does not name has left no series behind.
    proxy.reload(&configs[2]).await;
    for gone in ["e0", "e1", "e2"] {
        wait_until(gone, PATIENCE, || async { !has_series(&proxy, gone).await }).await;
    }
    assert!(has_series(&proxy, "e3").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_load_health_and_connections_survive() {
    let engines = named(3).await;
    let slow = Mock::start(&["--model", "s", "--prefill-tps", "1000000", "--decode-tps", "20"]);
    let streams = format!("{{ id: s, url: \"http://{}\" }}", slow.address());
    // Idle connections live long and one probe is enough, so that every new connection would be a reload's doing.
    let long = "timeouts: { upstream_idle: 1h }";
    let config = |picked: &[usize], more: &str| {
        Config::new(
            pool_of(&engines, picked, &format!("{{ type: session_sticky{more} }}")).with("health: { interval: 1h }"),
        )
        .pool(Pool::model("s").replica(&streams))
        .with(long)
    };
    let proxy = Proxy::start(&config(&[0, 1], "")).await;
    let mut homes = Vec::new();
    for id in 0..30 {
        homes.push(who(&proxy, &of_session(id)).await);
    }
    let mut stream = proxy.client().await;
    stream.send(&Request::post("/v1/chat/completions", &chat_body("s", true, 100_000))).await;
    assert_eq!(stream.head().await.status(), 200);
    proxy.wait_in_flight(1, PATIENCE).await;
    let connections = [engines[0].connections(), engines[1].connections()];

    for round in 0..10 {
        proxy.reload(&config(&[2, 1, 0], &format!(", min_load_gap: {round}"))).await;
        assert_eq!(proxy.in_flight().await, 1, "the open stream is still booked");
        let rows = proxy.replicas().await;
        for id in ["e0", "e1", "s"] {
            let row = rows.iter().find(|row| row["id"] == id).expect("it is still there");
            assert_eq!((row["state"].as_str(), row["confirmed"].as_bool()), (Some("ready"), Some(true)), "{row}");
        }
        for (id, home) in homes.iter().enumerate() {
            assert_eq!(who(&proxy, &of_session(id)).await, *home, "session {id} has moved");
        }
    }
    assert_eq!(proxy.metric("warmroute_session_bindings{pool=\"m\"}").await, 30.0);
    assert_eq!([engines[0].connections(), engines[1].connections()], connections, "idle connections were kept");
    assert!(stream.next().await.is_some(), "the stream goes on");
    drop(stream);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_keeps_the_old_one_and_says_why_once() {
    let engines = named(1).await;
    let good = of(&engines, &[0], "{ type: least_load }");
    let proxy = Proxy::start(&good).await;
    gauge(&proxy, 1.0).await;
    let since = proxy.metric("warmroute_config_last_reload_success_timestamp_seconds").await;
    assert!(since > 1.7e9, "{since}");

    // Nobody asks: the file's folder is watched.
    proxy.replace_config(&good.yaml().replace("least_load", "least_laod"));
    gauge(&proxy, 0.0).await;
    assert_eq!(who(&proxy, &chat(false, 1)).await, "e0");
    // Other files in the folder make it look again, and find the same content.
    for n in 0..5 {
        std::fs::write(proxy.folder().join(format!("other-{n}")), "x").unwrap();
    }
    let refused = proxy.admin_post("/reload").await;
    assert_eq!(refused.status(), 422);
    let error = refused.json()["errors"][0].clone();
    assert_eq!(error["key"], "pools[0].policy.type", "{error}");
    assert!(error["at"].as_str().unwrap().contains("warmroute.yaml:"), "{error}");

    proxy.replace_config(&good.yaml());
    gauge(&proxy, 1.0).await;
    assert!(proxy.metric("warmroute_config_last_reload_success_timestamp_seconds").await > since);
    let failed = proxy.metric("warmroute_config_reloads_total{result=\"failed\"}").await;
    assert_eq!(failed, 2.0, "once seen, once asked for");
    let told = || proxy.process.output().into_iter().filter(|line| line.contains("least_laod")).collect::<Vec<_>>();
    wait_until("a line each time it was read", PATIENCE, || async { told().len() >= 2 }).await;
    let lines = told();
    assert_eq!(lines.len(), 2, "a line each time it was read: {lines:?}");
    assert!(lines[0].contains("did you mean `least_load`"), "{}", lines[0]);
    assert!(lines[0].contains("warmroute.yaml:") && lines[0].contains("pools[0].policy.type"), "{}", lines[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swapped_link_is_followed_as_kubernetes_swaps_it() {
    let engines = named(2).await;
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, engine) in [("v1", 0), ("v2", 1)] {
        std::fs::create_dir(at(version)).unwrap();
        let config = of(&engines, &[engine], "{ type: least_load }");
        std::fs::write(at(version).join("warmroute.yaml"), config.yaml()).unwrap();
    }
    std::os::unix::fs::symlink("v1", at("..data")).unwrap();
    std::os::unix::fs::symlink("..data/warmroute.yaml", at("warmroute.yaml")).unwrap();
    let (swapped, temporary, link) = (at("..data"), at("..tmp"), at("warmroute.yaml"));
    let proxy = Proxy::serving(folder, link, &[]);
    wait_until("e0", PATIENCE, || async { proxy.replica("e0").await.is_some() }).await;
    std::os::unix::fs::symlink("v2", &temporary).unwrap();
    std::fs::rename(temporary, swapped).unwrap();
    let took = wait_until("e1", PATIENCE, || async { proxy.replica("e1").await.is_some() }).await;
    assert!(took < Duration::from_secs(5), "{took:?}: it was seen, not found by looking");
    assert!(proxy.replica("e0").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reloads_and_ends_nothing() {
    let engines = named(1).await;
    let proxy = Proxy::start(&of(&engines, &[0], "{ type: least_load }")).await;
    let reloads = || proxy.metric("warmroute_config_reloads_total{result=\"ok\"}");
    assert_eq!(reloads().await, 0.0);
    proxy.process.signal("-HUP");
    wait_until("a reload", PATIENCE, || async { reloads().await == 1.0 }).await;
    assert_eq!(who(&proxy, &chat(false, 1)).await, "e0");

    // From flags there is no file, and SIGHUP must not end the process either.
    let replica = engines[0].url();
    let flags = ["serve", "--listen", "127.0.0.1:0", "--admin", "off", "--replica", &replica];
    let mut process = Process::start(&flags, &[]);
    process.line("address", |line| line.contains("role=\"proxy\"").then_some(()));
    process.signal("-HUP");
    process.line("reason", |line| line.contains("started from flags").then_some(()));
    process.terminate();
    assert!(process.wait(PATIENCE).success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_replica_drains_and_takes_its_series_along() {
    let engines = named(1).await;
    let slow = Mock::slow();
    let row = format!("{{ id: slow, url: \"http://{}\" }}", slow.address());
    let without = of(&engines, &[0], "{ type: round_robin }");
    let with = Config::new(
        Pool::model("m")
            .with("policy: { type: round_robin }")
            .replica(&row)
            .replica(&format!("{{ id: e0, url: \"{}\" }}", engines[0].url())),
    );
    let proxy = Proxy::start(&with).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut client = proxy.client().await;
        client.send(&chat(true, 40)).await;
        assert_eq!(client.head().await.status(), 200);
        streams.push(client);
    }
    assert_eq!(slow.stat("inflight").await, 1, "one of the two is open there");
    proxy.reload(&without).await;
    assert!(proxy.replica("slow").await.is_none());
    for _ in 0..4 {
        assert_eq!(who(&proxy, &chat(false, 1)).await, "e0");
    }
    let open = "warmroute_replica_in_flight_requests{replica=\"slow\"}";
    assert_eq!(proxy.metric(open).await, 1.0, "it is shown while it drains");
    assert_eq!(proxy.metric("warmroute_replica_state{replica=\"slow\",state=\"draining\"}").await, 1.0);
    let mut whole = 0;
    for mut stream in streams {
        let body = stream.rest().await;
        assert!(!stream.was_cut());
        whole += usize::from(sse_events(&body).last().is_some_and(|event| event.data == "[DONE]"));
    }
    assert_eq!(whole, 1, "the stream there ended as streams do");
    wait_until("its series go (D6)", PATIENCE, || async { !has_series(&proxy, "slow").await }).await;
    assert_eq!(slow.stat("disconnects").await, 0);
}

// Each connection kept the whole fleet of the moment it was opened, with pools, replicas and series, until it closed.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_keeps_nothing_of_what_left() {
    let engines = named(1).await;
    let pool =
        |name: &str| Config::new(Pool::model(name).replica(&format!("{{ id: e0, url: \"{}\" }}", engines[0].url())));
    let proxy = Proxy::start(&pool("old")).await;
    let mut idle = proxy.client().await;
    assert_eq!(idle.exchange(&Request::get("/v1/models")).await.status(), 200);
    proxy.reload(&pool("new")).await;
    let gone = || async { !proxy.metrics().await.contains("pool=\"old\"") };
    wait_until("the pool's series go", PATIENCE, gone).await;
    assert_eq!(idle.exchange(&Request::get("/v1/models")).await.status(), 200, "the connection is still the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_change_live_is_said_by_the_reload_and_by_check() {
    let engines = named(1).await;
    let old = of(&engines, &[0], "{ type: least_load }");
    let new = old.clone().with("listen: 127.0.0.1:1").with("limits: { connections: 7, body: 1MiB }");
    let proxy = Proxy::start(&old).await;
    proxy.replace_config(&new.yaml());
    let answer = proxy.admin_post("/reload").await;
    assert_eq!(answer.status(), 200);
    let keys = ["listen", "limits.connections"];
    assert_eq!(answer.json()["needs_restart"], serde_json::json!(keys));
    let shown = proxy.admin_get("/config").await.json();
    assert_eq!((&shown["listen"][0]["address"], &shown["limits"]["body"]), (&"127.0.0.1:0".into(), &"1MiB".into()));
    assert_eq!(shown["limits"]["connections"], 16_384, "what is shown is what is in force");
    let warned = |line: &str| line.contains("WARN") && line.contains("listen, limits.connections");
    proxy.process.says("a warning that names the keys", warned).await;

    let before = proxy.folder().join("before.yaml");
    std::fs::write(&before, old.yaml()).unwrap();
    let now = proxy.folder().join("warmroute.yaml");
    let arguments = ["check", now.to_str().unwrap(), "--against", before.to_str().unwrap()];
    let mut check = Process::start(&arguments, &[]);
    check.line("keys", |line| line.contains("take a restart: listen, limits.connections").then_some(()));
    assert!(check.wait(PATIENCE).success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sources_and_the_log_level() {
    let engines = named(1).await;
    let proxy = Proxy::start(&of(&engines, &[0], "{ type: least_load }")).await;
    let rows = proxy.admin_get("/config?sources=1").await.json();
    let source = |path: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["path"] == path);
        row.unwrap_or_else(|| panic!("no {path} in {rows}"))["source"].as_str().unwrap().to_owned()
    };
    assert_eq!(source("timeouts.idle"), "default");
    assert!(source("pools[0].replicas[0].url").contains("warmroute.yaml:"), "{}", source("pools[0].replicas[0].url"));

    let admin = proxy.admin();
    let level = async |body: &str| exchange(admin, &Request::new("POST", "/log-level").body(body)).await.status();
    assert_eq!(level("debug").await, 400);
    assert_eq!(level("{\"level\": \"info,a=b=c\"}").await, 400);
    assert_eq!(level("{\"level\": \"error\"}").await, 200);
    let lines = proxy.process.output().len();
    proxy.reload(&of(&engines, &[0], "{ type: round_robin }")).await;
    assert!(!proxy.process.output()[lines..].iter().any(|line| line.contains("configuration reloaded")));
    assert_eq!(level("{\"level\": \"debug\"}").await, 200);
    proxy.reload(&of(&engines, &[0], "{ type: least_load }")).await;
    proxy.process.says("that it reloads", |line| line.contains("configuration reloaded")).await;
}
