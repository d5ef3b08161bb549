//! A client's connection that speaks HTTP/1.1: one request after the other, the timers that end silent clients, draining.
//!
//! The timers tell three silences apart: a client that never began a head, one that stopped within it (408), and one that
//! is merely between two requests. While a request is answered, its engine is the one to wait for; only the client's
//! leaving is looked for then.
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::answer;
use super::body::Incoming;
use super::exchange::Exchange;
use super::listener::Client;
use super::problem::Problem;
use super::socket::ClientSocket;
use super::stream::Stream;
use super::wire::{Manner, NoHead, Wire};
use super::{Proxy, Stage, head, service};
use crate::api::{Cause, Family, Phase};
use crate::http1::{Bounds, write};

/// How long a closed connection is read on, so that the client sees our last answer instead of a reset.
pub const LINGER: Duration = Duration::from_secs(1);
/// Pause between two looks at a connection's timers, at least: one of a millisecond must not keep a core busy.
const LOOK: Duration = Duration::from_millis(50);

/// Serves a client that speaks HTTP/1.1, until either side is done. `socket` is what carries `stream`.
pub async fn serve_connection(proxy: &Arc<Proxy>, stream: Stream, socket: ClientSocket, client: Arc<Client>) {
    let config = proxy.snapshot().config.clone();
    let timeouts = &config.timeouts;
    let mut wire = Wire::new(stream, Bounds::from(&config.limits));
    let draining = AtomicBool::new(false);
    let mut turns = pin!(turns(proxy.stage.subscribe(), &draining));
    // The client's end is seen without a read: what it sent ahead lies before it, and is not read while it waits.
    let mut left = pin!(socket.left());
    // Looked at as often as the shorter timer, so that neither is missed; not set anew with each request.
    let look = timeouts.head.min(timeouts.keep_alive).max(LOOK);
    let mut timer = pin!(tokio::time::sleep_until(Instant::now() + look));
    let (mut new, mut in_head, mut since) = (true, false, Instant::now());

    let problem = loop {
        let request = poll_fn(|cx| {
            match wire.poll_head(cx) {
                Poll::Ready(Ok(request)) => return Poll::Ready(Ok(request)),
                Poll::Ready(Err(NoHead::Gone)) => return Poll::Ready(Err(None)),
                Poll::Ready(Err(NoHead::Malformed(violation))) => {
                    let problem = Problem::new(violation.kind.cause(), Phase::Head, violation.reason);
                    return Poll::Ready(Err(Some(problem)));
                }
                Poll::Pending => {}
            }
            if wire.in_head() && !in_head {
                (in_head, since) = (true, Instant::now());
            }
            // A request that has begun to arrive is answered; so is one on a connection that was opened for it.
            let _ = turns.as_mut().poll(cx);
            if draining.load(Ordering::Relaxed) && !in_head && !new {
                return Poll::Ready(Err(None));
            }
            while timer.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                let most = if in_head || new { timeouts.head } else { timeouts.keep_alive };
                let deadline = since.checked_add(most).unwrap_or(now + look);
                if now >= deadline {
                    let label = if in_head || new { "head" } else { "keep_alive" };
                    proxy.metrics.client_timeouts.with_label_values(&[label]).inc();
                    return Poll::Ready(Err(in_head.then(|| too_slow(timeouts.head))));
                }
                timer.as_mut().reset(deadline.min(now + look));
            }
            Poll::Pending
        });
        let request = match request.await {
            Ok(request) => request,
            Err(problem) => break problem,
        };
        let manner = Manner {
            headless: request.head.method == Method::HEAD,
            old: request.head.version == http::Version::HTTP_10,
            keep_alive: request.keep_alive,
        };
        let more = {
            let mut answering = pin!(async {
                let handling = service::handle(proxy.clone(), client.clone(), request.head, Incoming::Http1(&mut wire));
                let mut answer = Box::pin(handling).await;
                if proxy.draining() {
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                wire.answer(answer, manner).await.unwrap_or(false)
            });
            poll_fn(|cx| {
                if let Poll::Ready(more) = answering.as_mut().poll(cx) {
                    return Poll::Ready(more);
                }
                // At the cut, the look that comes with it is all: what is open sees it and ends.
                let _ = turns.as_mut().poll(cx);
                left.as_mut().poll(cx).map(|()| false)
            })
            .await
        };
        if !more {
            break None;
        }
        (new, in_head, since) = (false, false, Instant::now());
    };
    if let Some(violation) = wire.violation() {
        let cause = violation.kind.as_str();
        proxy.metrics.malformed.with_label_values(&[cause]).inc();
        tracing::debug!(client = %client.name, cause, reason = violation.reason, "malformed request");
    }
    let mut stream = wire.into_stream();
    if let Some(problem) = problem {
        refuse(proxy, &mut stream, &client, &problem).await;
    }
    linger(stream).await;
}

/// Notes that the router drains, and has the connection look again then and at the cut; never ends.
async fn turns(mut stage: watch::Receiver<Stage>, draining: &AtomicBool) {
    for next in [Stage::Draining, Stage::Cutting] {
        if stage.wait_for(|stage| *stage >= next).await.is_err() {
            break;
        }
        draining.store(true, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
    std::future::pending().await
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
    let mut bytes = Vec::new();
    write::status_line(&mut bytes, response.status(), None);
    write::fields(&mut bytes, response.headers());
    write::field(&mut bytes, head::X_REQUEST_ID.as_str(), id.as_bytes());
    write::field(&mut bytes, "connection", b"close");
    write::length(&mut bytes, response.body().len() as u64);
    bytes.extend_from_slice(write::END);
    bytes.extend_from_slice(response.body());
    bytes
}

/// Says goodbye, then reads on for a moment: closing with unread bytes would reset the connection under the answer.
pub async fn linger(mut stream: Stream) {
    if !matches!(tokio::time::timeout(LINGER, stream.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    let drain = async {
        let mut scrap = vec![0; 16 * 1024];
        while stream.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
    };
    let _ = tokio::time::timeout(LINGER, drain).await;
}
