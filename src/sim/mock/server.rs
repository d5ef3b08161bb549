//! Connections and routes. Hyper's service is used bare: faults need the connection in their hands.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

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
use super::call::Call;
use super::control::{Command, Plan};
use super::errors::Reply;
use super::state::Mock;
use super::{anthropic, info, metrics, native, openai, responses};

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

    /// Returns when the connection has served and has since been idle for as long as `close_idle_after_ms` says.
    async fn expired(&self, mut limit: watch::Receiver<Option<Duration>>) {
        loop {
            let after = *limit.borrow_and_update();
            let Some(after) = after.filter(|_| !self.busy.load(Relaxed) && self.served.load(Relaxed) > 0) else {
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
    let watching = matches!(path, "/health" | "/health_generate" | "/ping" | "/metrics");
    let counted = !watching && !path.starts_with("/__");
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
        ("POST", "/v1/responses") => responses::create(call).await,
        ("POST", "/v1/messages") => anthropic::messages(call).await.map_err(Reply::into_anthropic),
        ("POST", "/v1/messages/count_tokens") => anthropic::count_tokens(&call).map_err(Reply::into_anthropic),
        ("POST", "/v1/embeddings") => native::embeddings(call).await,
        ("POST", "/v1/rerank" | "/rerank" | "/v2/rerank") => native::rerank(call).await,
        ("POST", "/v1/score" | "/score") => native::score(call).await,
        ("POST", "/v1/audio/transcriptions") => native::transcriptions(call).await,
        ("POST", "/generate") => native::generate(call).await,
        ("POST", "/tokenize" | "/v1/tokenize") => native::tokenize(&call),
        ("POST", "/detokenize" | "/v1/detokenize") => native::detokenize(&call),
        ("GET", "/v1/models") => Ok(openai::models(mock)),
        ("GET", "/health" | "/health_generate" | "/ping") => Ok(Reply::empty(mock.faults.health())),
        ("GET", "/metrics") => Ok(metrics::page(mock)),
        ("GET", "/get_model_info" | "/model_info") => Ok(info::model_info(mock)),
        ("GET", "/get_server_info" | "/server_info") => Ok(info::server_info(mock)),
        ("GET", "/v1/loads") => Ok(info::v1_loads(mock)),
        ("GET", "/get_load") => Ok(info::get_load(mock)),
        ("GET", "/load") => Ok(info::server_load(mock)),
        ("GET", "/version") => Ok(info::version(mock)),
        ("POST", "/flush_cache" | "/reset_prefix_cache") => Ok(info::flush(mock)),
        ("GET", "/__stats") => Ok(Reply::json(&mock.stats())),
        ("POST", "/__stats/reset") => {
            mock.reset_stats();
            Ok(Reply::json(&json!({"ok": true})))
        }
        ("POST", "/__control") => Ok(control(mock, &call.body)),
        (method, path) => match path.strip_prefix("/v1/responses/") {
            Some(rest) => stored_response(mock, method, rest),
            None if GENERATING.contains(&path) => Err(Reply::detail(405, "Method Not Allowed")),
            None => Err(Reply::detail(404, "Not Found")),
        },
    }
}

/// Paths that exist for another method, to tell 405 from 404 where clients may try.
const GENERATING: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"];

/// `/v1/responses/{id}` and `/v1/responses/{id}/cancel`.
fn stored_response(mock: &Mock, method: &str, rest: &str) -> Result<Reply, Reply> {
    match (method, rest.split_once('/')) {
        ("GET", None) => responses::get(mock, rest),
        ("DELETE", None) => responses::delete(mock, rest),
        ("POST", Some((id, "cancel"))) => responses::cancel(mock, id),
        _ => Err(Reply::detail(405, "Method Not Allowed")),
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
        mock.restarts.fetch_add(1, Relaxed);
    }
    Reply::json(&json!({"ok": true}))
}
