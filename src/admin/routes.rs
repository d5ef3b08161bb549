//! What the operator's listener answers.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::config::Secret;
use crate::fleet::BreakerState;
use crate::proxy::Proxy;

/// Requests served at once; more wait. Scrapes are few, and none may starve the process.
const AT_ONCE: usize = 16;
/// How long a client may be told to wait before it looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

const PATHS: &str = "\
paths: /livez /readyz /metrics /config /config?sources=1 /replicas /index?pool=NAME&limit=N
POST:  /explain?path=/v1/chat/completions (body and headers of a request) /reload /log-level /replicas/{id}/drain /replicas/{id}/undrain (`/` in an id is `%2F`)
";

/// `?sources=1`
#[derive(serde::Deserialize)]
struct ConfigQuery {
    sources: Option<String>,
}

/// All routes; with a token, all but liveness and readiness ask for it.
pub fn routes(proxy: Arc<Proxy>, token: Option<Secret>) -> Router {
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/config", get(effective_config))
        .route("/replicas", get(replicas))
        .merge(super::explain::routes())
        .merge(super::operate::routes())
        // Not for liveness and readiness: whoever fills these places must not get the process killed.
        .layer(ServiceBuilder::new().layer(GlobalConcurrencyLimitLayer::new(AT_ONCE)))
        .layer(middleware::from_fn_with_state(token, authorize));
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .merge(guarded)
        .fallback(async || (StatusCode::NOT_FOUND, PATHS))
        .with_state(proxy)
}

async fn authorize(State(token): State<Option<Secret>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    // RFC 9110, section 11.1: the scheme's name is matched without regard to case.
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")).map_or("", |(_, token)| token.trim());
    match token {
        Some(token) if !same(token.reveal().as_bytes(), given.as_bytes()) => {
            let headers = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, headers, "this needs `Authorization: Bearer <admin.token>`\n").into_response()
        }
        None if !names_this_machine(request.headers()) => {
            let why = "without admin.token, Host must be an IP address or localhost: a page on the web could have sent this\n";
            (StatusCode::MISDIRECTED_REQUEST, why).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Whether Host is an address or `localhost`. A name that an attacker's DNS answers with 127.0.0.1 makes a browser let the
/// attacker's page read what we answer; that page can't choose the Host it sends.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

/// Compares without telling by its time how much was right.
fn same(expected: &[u8], given: &[u8]) -> bool {
    expected.len() == given.len() && expected.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

async fn ready(State(proxy): State<Arc<Proxy>>) -> Response {
    let pools: Vec<Value> = proxy
        .snapshot()
        .fleet
        .pools()
        .iter()
        .map(|pool| {
            let ready = pool.replicas().iter().filter(|replica| replica.confirmed() && !replica.drained()).count();
            let drained = pool.replicas().iter().filter(|replica| replica.drained()).count();
            json!({ "pool": &**pool.name(), "ready": ready, "drained": drained, "replicas": pool.replicas().len() })
        })
        .collect();
    let ready = proxy.ready();
    let body = Json(json!({ "ready": ready, "draining": proxy.draining(), "pools": pools }));
    if ready {
        body.into_response()
    } else {
        let after = [(header::RETRY_AFTER, LOOK_AGAIN.as_secs().to_string())];
        (StatusCode::SERVICE_UNAVAILABLE, after, body).into_response()
    }
}

async fn metrics(State(proxy): State<Arc<Proxy>>) -> Response {
    match proxy.render_metrics() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// What is in force; with `?sources=1` each value with its path and where it was written.
async fn effective_config(State(proxy): State<Arc<Proxy>>, Query(query): Query<ConfigQuery>) -> Json<Value> {
    let config = &proxy.snapshot().config;
    Json(if query.sources.is_some_and(|sources| sources != "0") { config.sourced() } else { config.effective() })
}

async fn replicas(State(proxy): State<Arc<Proxy>>) -> Json<Value> {
    let snapshot = proxy.snapshot();
    let fleet = &snapshot.fleet;
    let list: Vec<Value> = fleet
        .replicas()
        .iter()
        .map(|replica| {
            let serves = |pool: &&Arc<crate::fleet::Pool>| pool.replica(replica.id()).is_some();
            let pools: Vec<&str> = fleet.pools().iter().filter(serves).map(|pool| &**pool.name()).collect();
            let health = replica.condition();
            let now = proxy.clock().now();
            let engine = replica.says().map(|(says, at)| {
                json!({
                    "name": says.engine.map(|engine| engine.as_str()),
                    "running": says.running,
                    "waiting": says.waiting,
                    "cache_use": says.cache_use,
                    "cache_tokens": says.cache_tokens,
                    "age_ms": now.0.saturating_sub(at.0) / 1000,
                    "saturated": replica.load().saturated(now),
                    "asleep": health.asleep,
                })
            });
            json!({
                "id": &**replica.id(),
                "url": replica.url().to_string(),
                "pools": pools,
                "state": replica.state().as_str(),
                "confirmed": replica.confirmed(),
                "drained": replica.drained(),
                "life": replica.life(),
                "restarts": replica.restarts(),
                "probe": {
                    "up": health.up,
                    "reachable": health.reachable,
                    "successes": health.successes,
                    "failures": health.failures,
                    "fault": health.fault,
                },
                "breaker": {
                    "state": health.breaker.as_str(),
                    "open_for_ms": match health.breaker {
                        BreakerState::Open(left) => u64::try_from(left.as_millis()).ok(),
                        _ => None,
                    },
                },
                "engine": engine,
                "cache_tokens": replica.cache_tokens(),
                "weight": replica.weight(),
                "max_in_flight": replica.max_in_flight(),
                "in_flight": replica.load().requests(),
                "sequences": replica.load().sequences(),
                "idle_connections": replica.connections().idle(),
            })
        })
        .collect();
    Json(json!({ "replicas": list }))
}
