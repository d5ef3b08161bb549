//! `pools[].replicas`: where requests go, and how.
use super::*;

checks! {
    replicas: "pools[].replicas";
    url: "pools[].replicas[].url";
    id: "pools[].replicas[].id";
    weight: "pools[].replicas[].weight";
    credential: "pools[].replicas[].credential";
    max_in_flight: "pools[].replicas[].max_in_flight";
}

/// One replica at an engine, with further keys.
fn one(engine: &Upstream, keys: &str) -> Config {
    Config::new(Pool::model("m").replica(&format!("{{ url: \"{}\"{keys} }}", engine.url())))
}

pub async fn replicas() {
    let engines = two().await;
    let (with, without) = pair(&one_pool(&engines, ""), &one_pool(&engines[..1], "")).await;
    let both = BTreeMap::from([("e0".into(), 4), ("e1".into(), 4)]);
    assert_eq!(shares(&with, plain(8, |_, request| request)).await, both);
    assert_eq!(shares(&without, plain(8, |_, request| request)).await, BTreeMap::from([("e0".into(), 8)]));
}

pub async fn url() {
    let engine = Upstream::fixed(200, &[], "e0").await;
    let based = Config::new(Pool::model("m").replica(&format!("\"{}/base\"", engine.url())));
    let (with, without) = pair(&based, &one(&engine, "")).await;
    who(&with, &chat(false, 1)).await;
    assert_eq!(engine.only("/base/v1/chat/completions").await.body, chat(false, 1).body);
    assert!(!engine.seen("/base/health").is_empty(), "probes go there too");
    assert!(engine.seen("/v1/chat/completions").is_empty());
    who(&without, &chat(false, 1)).await;
    assert_eq!(engine.only("/v1/chat/completions").await.body, chat(false, 1).body);
}

pub async fn id() {
    let engine = engine("e0").await;
    let (mut with, mut without) = pair(&one(&engine, ", id: gpu-a"), &one(&engine, "")).await;
    for (proxy, id) in [(&mut with, "gpu-a".into()), (&mut without, engine.address().to_string())] {
        who(proxy, &chat(false, 1)).await;
        assert_eq!(proxy.replicas().await[0]["id"], id);
        assert!(proxy.metric(&format!("warmroute_replica_state{{replica=\"{id}\"}}")).await > 0.0);
        proxy.process.line("access-log line", |line| line.contains(&format!(" replica={id} ")).then_some(()));
    }
}

pub async fn weight() {
    let engines = two().await;
    let config = |weight: &str| {
        let pool = Pool::model("m").with("policy: round_robin").at(engines[1].address());
        Config::new(pool.replica(&format!("{{ id: heavy, url: \"{}\"{weight} }}", engines[0].url())))
    };
    let (with, without) = pair(&config(", weight: 3"), &config("")).await;
    let eight = || plain(8, |_, request| request);
    assert_eq!(shares(&with, eight()).await, BTreeMap::from([("e0".into(), 6), ("e1".into(), 2)]));
    assert_eq!(shares(&without, eight()).await, BTreeMap::from([("e0".into(), 4), ("e1".into(), 4)]));
}

pub async fn credential() {
    let engine = engine("e0").await;
    let (with, without) = pair(&one(&engine, ", credential: s3cret"), &one(&engine, "")).await;
    let request = chat(false, 1).header("Authorization", "Bearer the-clients");
    for (proxy, sent) in [(with, "Bearer s3cret"), (without, "Bearer the-clients")] {
        who(&proxy, &request).await;
        let seen = engine.seen("/v1/chat/completions").pop().unwrap();
        assert_eq!(seen.head.all("authorization"), [sent]);
    }
}

pub async fn max_in_flight() {
    let engine = engine("e0").await;
    let (with, without) = pair(&one(&engine, ", max_in_flight: 1"), &one(&engine, "")).await;
    for (proxy, status) in [(with, 503), (without, 200)] {
        let (_open, _) = held(&proxy, |request| request).await;
        let answer = proxy.exchange(&chat(false, 1)).await;
        assert_eq!(answer.status(), status, "{}", answer.text());
        assert_eq!(answer.text().contains("max_in_flight"), status == 503);
    }
}
