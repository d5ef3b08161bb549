//! A client's connection that speaks HTTP/1.1: the timers that end silent clients, and draining.
//!
//! hyper speaks HTTP; the timers are ours, because they must tell three silences apart: a client that never began a
//! head, one that stopped within it (408), and one that is merely between two requests.
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::answer::{self, Never};
use super::exchange::Exchange;
use super::guard::Bounds;
use super::listener::Client;
use super::problem::Problem;
use super::socket::ClientSocket;
use super::stream::Stream;
use super::watched::{Activity, Doing, Watched};
use super::{Proxy, Stage, head, service};
use crate::api::{Cause, Family, Phase};

/// How long a closed connection is read on, so that the client sees our last answer instead of a reset.
pub const LINGER: Duration = Duration::from_secs(1);
/// Pause between two looks at a connection's timers, at least: one of a millisecond must not keep a core busy.
const LOOK: Duration = Duration::from_millis(50);

/// Why a connection's task stopped serving it.
enum End {
    /// hyper is done with it: closed, or broken.
    Done,
    /// A head stopped half-way.
    SlowHead,
    /// Nothing came.
    Silent,
    /// The guard refused a head, and everything before it has been answered.
    Refused(Problem),
}

/// Serves a client that speaks HTTP/1.1, until either side is done. `socket` is what carries `stream`.
pub async fn serve_connection(proxy: &Arc<Proxy>, stream: Stream, socket: ClientSocket, client: Arc<Client>) {
    let config = proxy.snapshot().config.clone();
    let (timeouts, limits) = (&config.timeouts, &config.limits);
    let activity = Activity::new();
    let service = service_fn(|request: Request<Incoming>| {
        let (busy, proxy, client) = (activity.busy(), proxy.clone(), client.clone());
        Box::pin(async move {
            let mut answer = service::handle(proxy.clone(), busy, client, request).await?;
            if proxy.draining() {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Never>(answer)
        })
    });
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_headers(limits.headers)
        // More than any head that passes the guard.
        .max_buf_size(limits.head.max(8 * 1024) + 1)
        .serve_connection(TokioIo::new(Watched::new(stream, activity.clone(), Bounds::from(limits))), service);

    let mut stage = proxy.stage.subscribe();
    let mut seen = Stage::Serving;
    // A head may begin at any time, and an answer end: looking as often as the shorter timer misses neither.
    let look = timeouts.head.min(timeouts.keep_alive).max(LOOK);
    let timer = tokio::time::sleep_until(Instant::now() + look);
    // Without this, a client that leaves behind bytes it sent ahead is not seen to leave.
    let left = socket.left();
    tokio::pin!(timer, left);
    let end = loop {
        tokio::select! {
            biased;
            end = poll_fn(|cx| {
                if connection.poll_without_shutdown(cx).is_ready() {
                    return Poll::Ready(End::Done);
                }
                if activity.state().0 == Doing::Busy && left.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(End::Done);
                }
                let Some(violation) = activity.refused() else { return Poll::Pending };
                Poll::Ready(End::Refused(Problem::new(violation.kind.cause(), Phase::Head, violation.reason)))
            }) => break end,
            () = &mut timer => {
                let now = Instant::now();
                let (state, since) = activity.state();
                let (most, end) = match state {
                    Doing::InHead => (timeouts.head, End::SlowHead),
                    Doing::New => (timeouts.head, End::Silent),
                    Doing::Waiting => (timeouts.keep_alive, End::Silent),
                    Doing::Busy => (Duration::MAX, End::Done),
                };
                let deadline = since.checked_add(most).unwrap_or(now + look);
                if state != Doing::Busy && now >= deadline {
                    let label = if state == Doing::Waiting { "keep_alive" } else { "head" };
                    proxy.metrics.client_timeouts.with_label_values(&[label]).inc();
                    break end;
                }
                timer.as_mut().reset(deadline.min(now + look));
            }
            Ok(now) = async { stage.wait_for(|stage| *stage > seen).await.map(|stage| *stage) } => {
                // A request that has begun to arrive is answered; its answer says that it is the last. At the cut, the
                // look that comes now is all: hyper then polls what is open, which sees it and ends.
                if now >= Stage::Draining
                    && seen < Stage::Draining
                    && matches!(activity.state().0, Doing::Waiting | Doing::Busy)
                {
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                }
                seen = now;
            }
        }
    };
    if let Some(violation) = activity.violation() {
        proxy.metrics.malformed.with_label_values(&[violation.kind.as_str()]).inc();
        tracing::debug!(client = %client.name, cause = violation.kind.as_str(), reason = violation.reason, "malformed request");
    }
    let mut stream = connection.into_parts().io.into_inner().into_inner();
    let problem = match end {
        End::Refused(problem) => Some(problem),
        End::SlowHead => Some(too_slow(timeouts.head)),
        End::Done | End::Silent => None,
    };
    if let Some(problem) = problem {
        refuse(proxy, &mut stream, &client, &problem).await;
    }
    linger(stream).await;
}

/// 408: a head stopped half-way.
pub fn too_slow(head: Duration) -> Problem {
    let wait = humantime::format_duration(head);
    let message = format!("the request head was not whole within {wait} (timeouts.head)");
    Problem::new(Cause::HeadTimeout, Phase::Head, message)
}

/// Answers a request that never became one.
pub async fn refuse(proxy: &Arc<Proxy>, stream: &mut Stream, client: &Arc<Client>, problem: &Problem) {
    let bytes = refusal(proxy, client, problem);
    let answer = async {
        if stream.write_all(&bytes).await.is_ok() {
            let _ = stream.flush().await;
        }
    };
    let _ = tokio::time::timeout(LINGER, answer).await;
}

/// The answer to it: nothing of it is known but what is wrong with it.
fn refusal(proxy: &Arc<Proxy>, client: &Arc<Client>, problem: &Problem) -> Vec<u8> {
    let id = head::request_id(&HeaderMap::new());
    let method = Method::from_bytes(b"-").unwrap_or_default();
    Exchange::begin(proxy.clone(), id.clone(), client.clone(), method).rejected(problem);
    let response = answer::problem(Family::OpenAi, problem, None);
    let mut bytes = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
    let mut field = |name: &str, value: &[u8]| {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
    };
    for (name, value) in response.headers() {
        field(name.as_str(), value.as_bytes());
    }
    field(head::X_REQUEST_ID.as_str(), id.as_bytes());
    field(header::CONNECTION.as_str(), b"close");
    field(header::CONTENT_LENGTH.as_str(), response.body().len().to_string().as_bytes());
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(response.body());
    bytes
}

/// Says goodbye, then reads on for a moment: closing with unread bytes would reset the connection under the answer.
pub async fn linger(mut stream: Stream) {
    if !matches!(tokio::time::timeout(LINGER, stream.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    let drain = async {
        let mut scrap = [0; 16 * 1024];
        while stream.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
    };
    let _ = tokio::time::timeout(LINGER, drain).await;
}
