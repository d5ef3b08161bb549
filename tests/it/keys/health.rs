//! `pools[].health`: when a replica counts as down or up.
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

checks! {
    path: "pools[].health", "pools[].health.path";
    interval: "pools[].health.interval";
    timeout: "pools[].health.timeout";
    unhealthy_after: "pools[].health.unhealthy_after";
    healthy_after: "pools[].health.healthy_after";
}

/// The path that these engines are probed on: `/health` is answered by every fake engine.
const PROBE: &str = "/probe";

fn config(engine: &Upstream, health: &str) -> Config {
    Config::new(Pool::model("m").at(engine.address()).with(&format!("health: {{ {health} }}")))
}

async fn state(proxy: &Proxy) -> String {
    proxy.replicas().await[0]["state"].as_str().unwrap_or("none").to_string()
}

async fn down(proxy: &Proxy) {
    wait_until("the replica is down", PATIENCE, || async { state(proxy).await == "down" }).await;
}

/// An engine that answers its probes with these statuses, one each, and none after.
async fn probed(statuses: &'static [u16]) -> Upstream {
    let probes = AtomicUsize::new(0);
    Upstream::start(move |_, mut wire| {
        let status = statuses.get(probes.fetch_add(1, Ordering::SeqCst));
        async move {
            match status {
                Some(&status) => wire.reply(status, &[], b"").await.ok()?,
                None => wire.gone().await,
            }
            Some(wire)
        }
    })
    .await
}

/// What a replica's state is after exactly these probes.
async fn state_after(statuses: &'static [u16], threshold: &str) -> String {
    let engine = probed(statuses).await;
    let proxy =
        Proxy::start_unready(&config(&engine, &format!("path: {PROBE}, interval: 20ms, timeout: 1h{threshold}")));
    // The next has been sent, so the last has been judged.
    wait_until("all probes", PATIENCE, || async { engine.seen(PROBE).len() > statuses.len() }).await;
    state(&proxy).await
}

pub async fn path() {
    let engine = Upstream::fixed(500, &[], "").await;
    let with = Proxy::start_unready(&config(&engine, "path: /healthz"));
    down(&with).await;
    assert!(!engine.seen("/healthz").is_empty());
    let without = Proxy::start(&config(&engine, "")).await;
    assert_eq!(state(&without).await, "ready");
}

pub async fn interval() {
    let engines = [Upstream::fixed(200, &[], "").await, Upstream::fixed(200, &[], "").await];
    let _with = Proxy::start_unready(&config(&engines[0], &format!("path: {PROBE}, interval: 20ms")));
    let _without = Proxy::start_unready(&config(&engines[1], &format!("path: {PROBE}")));
    let ten = async |engine: &Upstream| {
        wait_until("ten probes", PATIENCE, || async { engine.seen(PROBE).len() >= 10 }).await;
    };
    sooner("ten probes", ten(&engines[0]), ten(&engines[1])).await;
}

pub async fn timeout() {
    let engine = probed(&[]).await;
    let with = Proxy::start_unready(&config(&engine, &format!("path: {PROBE}, timeout: 100ms")));
    let without = Proxy::start_unready(&config(&engine, &format!("path: {PROBE}")));
    sooner("a probe that is not answered", down(&with), down(&without)).await;
}

pub async fn unhealthy_after() {
    assert_eq!(state_after(&[200, 500], ", unhealthy_after: 1").await, "down");
    assert_eq!(state_after(&[200, 500], "").await, "ready");
}

pub async fn healthy_after() {
    assert_eq!(state_after(&[500, 200], ", healthy_after: 2").await, "down");
    assert_eq!(state_after(&[500, 200], "").await, "ready");
}
