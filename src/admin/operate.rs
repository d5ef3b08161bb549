//! What the operator changes: POSTs. A browser's page must not reach them: it sends `Origin`, and no tool does.
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use serde_json::json;

use crate::config;
use crate::proxy::{Proxy, Reload, Trigger};
use crate::telemetry;

/// For a body to come; it keeps one of the few places while it does.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of one.
const MOST: usize = 64 * 1024;

/// `{"level": "debug"}`, or a filter.
#[derive(serde::Deserialize)]
struct Level {
    level: String,
}

pub(super) fn routes() -> Router<Arc<Proxy>> {
    Router::new()
        .route("/reload", post(reload))
        .route("/log-level", post(log_level))
        .route("/replicas/{id}/drain", post(async |proxy, id| drained(proxy, id, true)))
        .route("/replicas/{id}/undrain", post(async |proxy, id| drained(proxy, id, false)))
        .layer(axum::middleware::from_fn(not_from_a_page))
}

async fn not_from_a_page(request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        return (StatusCode::FORBIDDEN, "pages in a browser may not do this; use curl -X POST\n").into_response();
    }
    next.run(request).await
}

async fn reload(State(proxy): State<Arc<Proxy>>) -> Response {
    let reloaded = tokio::task::spawn_blocking(move || proxy.reload(Trigger::Asked)).await;
    match reloaded {
        Ok(Reload::Took(restart)) => Json(json!({ "reloaded": true, "needs_restart": restart })).into_response(),
        Ok(Reload::Unchanged) => Json(json!({ "reloaded": true, "needs_restart": [] })).into_response(),
        Ok(Reload::Refused(errors)) => {
            let list: Vec<_> = errors
                .iter()
                .map(|error| {
                    let at = errors.place_of(error);
                    json!({ "at": at, "key": error.path, "problem": error.problem, "remedy": error.remedy })
                })
                .collect();
            let body = Json(json!({ "reloaded": false, "errors": list }));
            (StatusCode::UNPROCESSABLE_ENTITY, body).into_response()
        }
        Ok(Reload::NoFile) => {
            let message = "there is no file to reload: the process was started from flags";
            (StatusCode::CONFLICT, Json(json!({ "reloaded": false, "error": message }))).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn log_level(request: Request) -> Response {
    let body = tokio::time::timeout(PATIENCE, axum::body::to_bytes(request.into_body(), MOST)).await;
    let Ok(Ok(body)) = body else {
        return (StatusCode::BAD_REQUEST, "the body must come whole within 5 s, in at most 64 KiB\n").into_response();
    };
    let level = match serde_json::from_slice::<Level>(&body) {
        Ok(Level { level }) => level,
        Err(error) => {
            let message =
                format!("send {{\"level\": \"debug\"}}, or a filter of tracing in place of `debug`: {error}\n");
            return (StatusCode::BAD_REQUEST, message).into_response();
        }
    };
    let checked = config::check_filter(&level).map_err(|problem| format!("this {problem}"));
    match checked.and_then(|()| telemetry::set_log_filter(&level)) {
        Ok(()) => {
            tracing::info!(level, "the log's level was changed");
            Json(json!({ "level": level })).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

fn drained(State(proxy): State<Arc<Proxy>>, Path(id): Path<String>, drained: bool) -> Response {
    let Some(replica) = proxy.snapshot().fleet.replica(&id).cloned() else {
        let message = "no replica has this id; see /replicas, and write `/` in an id as `%2F`";
        return (StatusCode::NOT_FOUND, Json(json!({ "id": id, "error": message }))).into_response();
    };
    if replica.set_drained(drained) != drained {
        tracing::info!(replica = %replica.id(), drained, "the operator changed a replica");
    }
    let state = replica.state().as_str();
    Json(json!({ "id": id, "drained": drained, "state": state, "in_flight": replica.load().requests() }))
        .into_response()
}
