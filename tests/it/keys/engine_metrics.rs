//! `pools[].engine_metrics`: what is asked of engines beside requests, and when they count as having too much to do.
use super::*;

checks! {
    interval: "pools[].engine_metrics", "pools[].engine_metrics.interval";
    max_waiting: "pools[].engine_metrics.max_waiting";
}

/// An engine in which so many requests wait, as it says itself.
async fn waiting(name: &'static str, waiting: u32) -> Upstream {
    Upstream::start(move |request, mut wire| async move {
        let page = format!("vllm:num_requests_waiting {waiting}");
        let body = if request.target() == "/metrics" { &page } else { name };
        wire.reply(200, &[], body.as_bytes()).await.ok()?;
        Some(wire)
    })
    .await
}

pub async fn interval() {
    let looks = async |engine: &Upstream, count: usize| {
        wait_until("looks", PATIENCE, || async { engine.seen("/metrics").len() >= count }).await;
    };
    let engines = [waiting("e0", 0).await, waiting("e1", 0).await];
    let _with = Proxy::start(&one_pool(&engines[..1], "engine_metrics: 100ms")).await;
    let _without = Proxy::start(&one_pool(&engines[1..], "engine_metrics: { max_waiting: 16 }")).await;
    sooner("ten looks", looks(&engines[0], 10), looks(&engines[1], 10)).await;

    for (key, looks) in [("engine_metrics: { interval: off }", false), ("engine_metrics: { max_waiting: 16 }", true)] {
        let engines = [waiting("e0", 0).await];
        let proxy = Proxy::start(&one_pool(&engines, key)).await;
        if looks {
            wait_until("a look", PATIENCE, || async { !engines[0].seen("/metrics").is_empty() }).await;
        } else {
            assert_eq!(in_force(&proxy, "/pools/0/engine_metrics/interval").await, "off");
            // It is asked for nothing once its probes have been answered, which come at the same time.
            let probed = "warmroute_health_probes_total{replica=\"r0\",result=\"ok\"}";
            wait_until("30 probes", PATIENCE, || async { proxy.metric(probed).await >= 30.0 }).await;
            assert!(engines[0].seen("/metrics").is_empty());
        }
    }
}

pub async fn max_waiting() {
    let engines = [waiting("e0", 3).await, waiting("e1", 0).await];
    for (key, expected) in [(", max_waiting: 2", 1), ("", 2)] {
        let pool = engines.iter().fold(Pool::model("m"), |pool, engine| pool.at(engine.address()));
        let pool = pool.with("policy: round_robin").with(&format!("engine_metrics: {{ interval: 100ms{key} }}"));
        let proxy = Proxy::start(&Config::new(pool)).await;
        let heard = async || proxy.replicas().await.iter().all(|row| row["engine"]["waiting"].is_u64());
        wait_until("both were heard", PATIENCE, heard).await;
        assert_eq!(shares(&proxy, plain(10, |_, request| request)).await.len(), expected, "{key}: the default is 16");
    }
}
