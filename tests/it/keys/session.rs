//! `pools[].session`: which requests belong together, and for how long that is known.
use super::*;

checks! {
    keys: "pools[].session", "pools[].session.keys";
    ttl: "pools[].session.ttl";
    max_bindings: "pools[].session.max_bindings";
    scope: "pools[].session.scope";
    tenant_header: "pools[].session.tenant_header";
    api_key: "pools[].session.api_key";
}

/// Two sticky routers for two engines, the first with this `session`; what has no key is spread by turns.
async fn sticky(engines: &[Upstream], session: &str) -> (Proxy, Proxy) {
    let pool = |pool: Pool| engines.iter().fold(pool, |pool, engine| pool.at(engine.address()));
    let without = pool(Pool::model("m")).with("policy: { type: session_sticky, fallback: round_robin }");
    let with = without.clone().with(&format!("session: {{ {session} }}"));
    pair(&Config::new(with), &Config::new(without)).await
}

const BINDINGS: &str = "warmroute_session_bindings";

fn of_session(id: &str) -> Request {
    chat(false, 1).header("x-session-id", &format!("session-{id}"))
}

pub async fn keys() {
    let engines = two().await;
    let (with, without) = sticky(&engines, "keys: [\"header:x-chat\", \"body:/metadata/chat\"]").await;
    let by_header = plain(8, |_, request| request.header("x-chat", "chat-0000-0001"));
    let mut body = chat_body("m", false, 1);
    body["metadata"]["chat"] = "chat-0000-0001".into();
    let by_body = vec![Request::post("/v1/chat/completions", &body); 8];
    for requests in [by_header, by_body] {
        assert_eq!(shares(&with, requests.clone()).await.len(), 1);
        assert_eq!(shares(&without, requests).await.len(), 2, "by default this is no key");
    }
}

pub async fn ttl() {
    let engines = two().await;
    let (with, without) = sticky(&engines, "ttl: 1s").await;
    for proxy in [&with, &without] {
        who(proxy, &of_session("1")).await;
        assert_eq!(proxy.metric(BINDINGS).await, 1.0);
    }
    // Any decision looks for what has expired.
    let forgotten = async |proxy: &Proxy| {
        wait_until("no binding", PATIENCE, async || {
            who(proxy, &chat(false, 1)).await;
            proxy.metric(BINDINGS).await == 0.0
        })
        .await;
    };
    sooner("forgotten", forgotten(&with), forgotten(&without)).await;
}

pub async fn max_bindings() {
    let engines = two().await;
    let (with, without) = sticky(&engines, "max_bindings: 1").await;
    for (proxy, kept) in [(with, 1.0), (without, 3.0)] {
        for id in ["1", "2", "3"] {
            who(&proxy, &of_session(id)).await;
        }
        assert_eq!(proxy.metric(BINDINGS).await, kept);
    }
}

pub async fn scope() {
    let engines = two().await;
    let (with, without) = sticky(&engines, "scope: none").await;
    let requests: Vec<_> =
        (0..16).map(|n| of_session("1").header("Authorization", &format!("Bearer client-{n}"))).collect();
    assert_eq!(shares(&with, requests.clone()).await.len(), 1, "one session id, one session");
    assert_eq!(shares(&without, requests).await.len(), 2, "by default each credential's own");
}

pub async fn tenant_header() {
    let engines = two().await;
    let (with, without) = sticky(&engines, "scope: tenant, tenant_header: x-tenant").await;
    let (other, _) = sticky(&engines, "scope: tenant, tenant_header: x-other").await;
    let requests: Vec<_> = (0..16).map(|n| of_session("1").header("x-tenant", &format!("tenant-{n}"))).collect();
    assert_eq!(shares(&with, requests.clone()).await.len(), 2, "each tenant's own session");
    assert_eq!(shares(&other, requests.clone()).await.len(), 1, "the tenant stands elsewhere");
    assert_eq!(shares(&without, requests).await.len(), 1, "by default there are no tenants");
}

pub async fn api_key() {
    let engines = two().await;
    let (with, without) = sticky(&engines, "api_key: true").await;
    let requests = plain(8, |_, request| request.header("Authorization", "Bearer one-and-the-same"));
    assert_eq!(shares(&with, requests.clone()).await.len(), 1);
    assert_eq!(shares(&without, requests).await.len(), 2, "by default an API key is no session");
}
