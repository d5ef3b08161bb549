//! `POST /explain?path=…`: what would become of a request; and `GET /index`: what the prefix index holds.
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get, routing::post};
use serde_json::{Value, json};

use crate::api::Phase;
use crate::proxy::{Problem, Proxy};

/// For a body to come: it keeps one of the few places while it does.
const PATIENCE: Duration = Duration::from_secs(30);
/// Runs of an index that are shown unless the operator asks for another number…
const RUNS: usize = 100;
/// …which is this at most: the core decides nothing while it is written down.
const MOST_RUNS: usize = 10_000;
/// The `Authorization` of the request that is explained: the header of that name is the operator's own.
const AUTHORIZATION: HeaderName = HeaderName::from_static("x-explain-authorization");

/// `?path=/v1/chat/completions`
#[derive(serde::Deserialize)]
struct ExplainQuery {
    path: Option<String>,
}

/// `?pool=NAME&limit=N`
#[derive(serde::Deserialize)]
struct IndexQuery {
    pool: Option<String>,
    limit: Option<usize>,
}

pub(super) fn routes() -> Router<Arc<Proxy>> {
    Router::new().route("/explain", post(explain)).route("/index", get(index))
}

/// The request's body and headers are those of the request that is asked about.
async fn explain(
    State(proxy): State<Arc<Proxy>>,
    Query(query): Query<ExplainQuery>,
    mut headers: HeaderMap,
    request: Request,
) -> Response {
    headers.remove(header::AUTHORIZATION);
    if let Some(own) = headers.remove(AUTHORIZATION) {
        headers.insert(header::AUTHORIZATION, own);
    }
    let most = proxy.snapshot().config.limits.body;
    let body = match tokio::time::timeout(PATIENCE, read(request.into_body(), most)).await {
        Ok(Ok(body)) => body,
        Ok(Err(message)) => return error(StatusCode::PAYLOAD_TOO_LARGE, &message),
        Err(_) => return error(StatusCode::REQUEST_TIMEOUT, "the body must come whole within 30 s"),
    };
    let path = query.path.as_deref().unwrap_or("/v1/chat/completions");
    match proxy.explain(path, &headers, body).await {
        Ok(explained) => Json(explained).into_response(),
        Err(Problem { cause, phase, message }) => {
            let body = json!({ "error": { "message": message, "code": cause.as_str(), "phase": phase.as_str() } });
            (cause.status(), Json(body)).into_response()
        }
    }
}

async fn read(body: Body, most: usize) -> Result<axum::body::Bytes, String> {
    axum::body::to_bytes(body, most)
        .await
        .map_err(|error| format!("the body could not be read, in at most {most} bytes (limits.body): {error}"))
}

async fn index(State(proxy): State<Arc<Proxy>>, Query(query): Query<IndexQuery>) -> Response {
    let snapshot = proxy.snapshot();
    let pools = snapshot.fleet.pools();
    let names = || pools.iter().map(|pool| format!("`{}`", pool.name())).collect::<Vec<_>>().join(", ");
    let pool = match (&query.pool, pools) {
        (Some(name), _) => pools.iter().find(|pool| **pool.name() == **name),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    let Some(pool) = pool else {
        return error(StatusCode::NOT_FOUND, &format!("write ?pool=NAME, with one of {}", names()));
    };
    let limit = query.limit.unwrap_or(RUNS).min(MOST_RUNS);
    match pool.index_dump(limit) {
        Some(dump) => Json(json!({ "pool": &**pool.name(), "index": dump })).into_response(),
        None => error(StatusCode::NOT_FOUND, &format!("pool `{}` keeps no prefix index", pool.name())),
    }
}

fn error(status: StatusCode, message: &str) -> Response {
    let body: Value = json!({ "error": { "message": message, "phase": Phase::Read.as_str() } });
    (status, Json(body)).into_response()
}
