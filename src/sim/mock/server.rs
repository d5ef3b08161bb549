//! Connections and routes. Hyper's service is used bare: faults need the connection in their hands.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use super::body::{InFlight, MockBody};
use super::control::{Command, Plan};
use super::errors::Reply;
use super::openai;
use super::state::Mock;

/// One client connection, as faults see it.
#[derive(Debug, Default)]
pub(super) struct Connection {
    busy: AtomicBool,
    served: AtomicU64,
    changed: Notify,
    reset: Notify,
}

impl Connection {
    pub(super) fn begin(&self) {
        self.busy.store(true, Relaxed);
        self.served.fetch_add(1, Relaxed);
    }
    pub(super) fn end(&self) {
        self.busy.store(false, Relaxed);
        self.changed.notify_one();
    }

    /// Returns when the connection has been idle for as long as `close_idle_after_ms` says.
    async fn expired(&self, mut limit: watch::Receiver<Option<Duration>>) {
        loop {
            let after = *limit.borrow_and_update();
            let Some(after) = after.filter(|_| !self.busy.load(Relaxed)) else {
                tokio::select! {
                    _ = limit.changed() => {}
                    () = self.changed.notified() => {}
                }
                continue;
            };
            let served = self.served.load(Relaxed);
            tokio::select! {
                () = tokio::time::sleep(after) => {
                    if !self.busy.load(Relaxed) && self.served.load(Relaxed) == served {
                        return;
                    }
                }
                () = self.changed.notified() => {}
                _ = limit.changed() => {}
            }
        }
    }
}

/// Takes connections until told to stop.
pub(super) async fn accept(listener: TcpListener, mock: Arc<Mock>, mut stopped: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    tokio::spawn(serve(stream, Arc::clone(&mock), stopped.clone()));
                }
                // Out of descriptors, most likely: let some close.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            _ = stopped.changed() => return,
        }
    }
}

async fn serve(stream: TcpStream, mock: Arc<Mock>, mut stopped: watch::Receiver<bool>) {
    // Fails only on a socket that is already dead, which the next read will tell.
    let _ = stream.set_nodelay(true);
    mock.counters.connections.fetch_add(1, Relaxed);
    mock.counters.connections_total.fetch_add(1, Relaxed);
    let connection = Arc::new(Connection::default());
    let service = service_fn(|request| answer(Arc::clone(&mock), Arc::clone(&connection), request));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(None).max_headers(256);
    let mut hyper = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // An error here is a client that left, or a cut of our own: both are counted where they happen.
        _ = &mut hyper => {}
        () = connection.expired(mock.faults.close_idle()) => {}
        () = connection.reset.notified() => {
            let stream = hyper.into_parts().io.into_inner();
            // With nothing lingering the close becomes a reset.
            let _ = stream.set_zero_linger();
        }
        _ = stopped.changed() => {}
    }
    mock.counters.connections.fetch_sub(1, Relaxed);
}

async fn answer(
    mock: Arc<Mock>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<MockBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let counted = !(path == "/health" || path == "/metrics" || path.starts_with("/__"));
    let reused = connection.served.load(Relaxed) > 0;
    let mut guard = InFlight::begin(&mock, &connection, counted);
    let plan = if counted { mock.faults.plan(reused) } else { Plan::default() };
    if plan.reset {
        guard.done();
        connection.reset.notify_one();
        return std::future::pending().await;
    }
    let reply = match body.collect().await {
        Err(_) => Reply::detail(400, "There was an error parsing the body"),
        Ok(body) => {
            let body = body.to_bytes();
            let content_type = parts.headers.get(http::header::CONTENT_TYPE).cloned();
            let request_id = parts.headers.get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
            if counted {
                let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
                mock.remember(parts.method.as_str(), path, parts.headers, &body);
            }
            let call = Call { mock: &mock, plan: &plan, body, content_type, request_id };
            respond(&parts.method, path, call).await
        }
    };
    if counted {
        mock.counters.count_status(reply.status.as_u16());
    }
    let mut response = Response::new(MockBody::new(reply.source, guard, plan.cut));
    *response.status_mut() = reply.status;
    response.headers_mut().extend(reply.headers);
    Ok(response)
}

/// A request, read.
pub(super) struct Call<'a> {
    pub mock: &'a Arc<Mock>,
    pub plan: &'a Plan,
    pub body: Bytes,
    pub content_type: Option<http::HeaderValue>,
    pub request_id: Option<String>,
}

async fn respond(method: &Method, path: &str, call: Call<'_>) -> Reply {
    let plan = call.plan;
    if plan.hang {
        return std::future::pending().await;
    }
    if !plan.delay.is_zero() {
        tokio::time::sleep(plan.delay).await;
    }
    if let Some((status, retry_after)) = plan.status {
        let message = "injected by /__control";
        let reply = match path.starts_with("/v1/messages") {
            true => Reply::anthropic_error(status, message),
            false => Reply::error(call.mock, status, "InjectedError", message, None),
        };
        return retry_after.into_iter().fold(reply, Reply::with_retry_after);
    }
    route(method, path, call).await.unwrap_or_else(|error| error)
}

async fn route(method: &Method, path: &str, call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    match (method.as_str(), path) {
        ("POST", "/v1/chat/completions") => openai::chat(call).await,
        ("POST", "/v1/completions") => openai::completions(call).await,
        ("GET", "/v1/models") => Ok(openai::models(mock)),
        ("GET", "/health" | "/health_generate" | "/ping") => Ok(Reply::empty(mock.faults.health())),
        ("GET", "/__stats") => Ok(Reply::json(&mock.stats())),
        ("POST", "/__stats/reset") => {
            mock.reset_stats();
            Ok(Reply::json(&json!({"ok": true})))
        }
        ("POST", "/__control") => Ok(control(mock, &call.body)),
        _ => Err(Reply::detail(404, "Not Found")),
    }
}

fn control(mock: &Mock, body: &[u8]) -> Reply {
    let refused = |message: String| Reply::json(&json!({"error": message})).with_status(400);
    let command: Command = match serde_json::from_slice(body) {
        Ok(command) => command,
        Err(error) => return refused(error.to_string()),
    };
    if command.die {
        std::process::exit(137);
    }
    if let Err(message) = mock.faults.apply(&command) {
        return refused(message);
    }
    if command.restart {
        mock.driver.restart();
    }
    Reply::json(&json!({"ok": true}))
}
