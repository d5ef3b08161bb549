//! One client connection that speaks HTTP/2: the same service, a stream at a time.
//!
//! A stream's request is handed on as HTTP/1.1 would have it (`:authority` becomes `Host`). hyper and h2 bound what a
//! client can do with frames: open streams, resets, header blocks, dead peers. Ours are the timers: a connection
//! without requests, and an answer that its client doesn't take. While a stream's window is closed hyper asks its body
//! for nothing, so this is watched from outside; the engine is freed and the other streams go on.
use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Uri, header, request};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::activity::{Activity, Busy};
use super::answer::AnswerBody;
use super::body;
use super::listener::Client;
use super::problem::Problem;
use super::stream::Stream;
use super::{Proxy, Stage, service};
use crate::api::{Cause, Phase};
use crate::config::Limits;
use crate::http1;

/// Time between two pings, and for the answer to one.
const PING: Duration = Duration::from_secs(20);
/// Streams reset by the client that were not accepted yet (rapid reset), and that we reset for the client's errors
/// (made to reset): more of them end the connection.
const MAX_PENDING_RESETS: usize = 20;
const MAX_ERROR_RESETS: usize = 256;

/// Serves a client that speaks HTTP/2, until either side is done.
pub async fn serve_connection(proxy: &Arc<Proxy>, stream: Stream, client: Arc<Client>) {
    let config = proxy.snapshot().config.clone();
    let (timeouts, limits) = (&config.timeouts, &config.limits);
    let activity = Activity::new();
    let answers = Arc::new(Answers::new());
    let service = service_fn(|request: Request<Incoming>| {
        let (proxy, busy, client, answers) = (proxy.clone(), activity.busy(), client.clone(), answers.clone());
        Box::pin(async move {
            let (head, body) = as_http1(request).into_parts();
            let answer = service::handle(proxy, client, head, body::Incoming::Http2(body)).await;
            Ok::<_, Infallible>(answer.map(|body| answers.watch(body, busy)))
        })
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.head).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);

    let mut stage = proxy.stage.subscribe();
    let mut drained = false;
    // Set once the connection was told to end for idleness: when it is cut.
    let mut cut: Option<Instant> = None;
    let look = (timeouts.keep_alive.min(timeouts.idle).min(timeouts.head) / 4)
        .clamp(Duration::from_millis(10), Duration::from_secs(5));
    let mut looks = tokio::time::interval(look);
    loop {
        tokio::select! {
            biased;
            _ = &mut connection => return,
            now = looks.tick() => {
                let stalled = answers.end_stalled(timeouts.idle);
                proxy.metrics.client_timeouts.with_label_values(&["stalled"]).inc_by(stalled);
                let (most, label) =
                    if activity.is_new() { (timeouts.head, "head") } else { (timeouts.keep_alive, "keep_alive") };
                let idle = activity.idle_since().is_some_and(|since| now.duration_since(since) >= most);
                match cut {
                    Some(cut) if cut <= now && activity.idle_since().is_some() => return,
                    None if idle => {
                        proxy.metrics.client_timeouts.with_label_values(&[label]).inc();
                        cut = Some(now + timeouts.head);
                        connection.as_mut().graceful_shutdown();
                    }
                    _ => {}
                }
            }
            _ = stage.wait_for(|stage| *stage >= Stage::Draining), if !drained => {
                drained = true;
                cut.get_or_insert(Instant::now() + timeouts.head);
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The request as HTTP/1.1 would have brought it.
fn as_http1(request: Request<Incoming>) -> Request<Incoming> {
    let (mut head, body) = request.into_parts();
    if let Some(authority) = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()) {
        // A Host that says something else makes two of them, which is refused like two in HTTP/1.1.
        let agrees = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes());
        if head.headers.get_all(header::HOST).iter().all(agrees) {
            head.headers.insert(header::HOST, authority);
        } else {
            head.headers.append(header::HOST, authority);
        }
    }
    if let Some(target) = head.uri.path_and_query() {
        head.uri = Uri::from(target.clone());
    }
    // Split for compression, one field in HTTP/1.1 (RFC 9113, section 8.2.3).
    let crumbs: Vec<&[u8]> = head.headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(b"; ".as_slice()))
    {
        head.headers.insert(header::COOKIE, cookie);
    }
    Request::from_parts(head, body)
}

/// What HTTP/1.1's parser sees to, for a head that came by HTTP/2 and was made [`as_http1`]. h2 has refused what is
/// malformed, and bounds its bytes.
///
/// # Errors
/// The problem to answer with.
pub fn check(head: &request::Parts, limits: &Limits) -> Result<(), Problem> {
    let problem = |cause, message: String| Err(Problem::new(cause, Phase::Head, message));
    let fields = head.headers.len();
    if fields > limits.headers {
        let message = format!("the request has {fields} header fields; limits.headers allows {}", limits.headers);
        return problem(Cause::HeadTooLarge, message);
    }
    // h2 takes bytes beyond ASCII, which HTTP/1.1's request line must not have.
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    if !target.bytes().all(http1::is_target) {
        return problem(Cause::BadHead, "the request target has a character that must be percent-encoded".into());
    }
    let mut hosts = head.headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if !http1::is_host(host.as_bytes()) => {
            let message = "the authority must be a name or an address, with at most a port and no user-info";
            problem(Cause::BadHead, message.into())
        }
        (Some(_), None) => Ok(()),
        _ => problem(Cause::BadHead, "the request must have one :authority, and no Host that differs".into()),
    }
}

/// The answers being sent on one connection.
struct Answers {
    origin: Instant,
    open: Mutex<Vec<Weak<Answer>>>,
}

/// One of them.
struct Answer {
    origin: Instant,
    /// Gone when it has ended, or was ended.
    body: Mutex<Option<AnswerBody>>,
    /// Milliseconds since `origin` at which a frame was handed to the client's side; 0 while the engine is waited for.
    handed: AtomicU64,
}

/// An answer's body as hyper sees it. It keeps the connection marked as busy until it is dropped.
struct Watched(Arc<Answer>, #[expect(dead_code, reason = "held")] Busy);

impl Answers {
    fn new() -> Self {
        Self { origin: Instant::now(), open: Mutex::new(Vec::new()) }
    }

    fn watch(&self, body: AnswerBody, busy: Busy) -> Watched {
        let answer = Arc::new(Answer { origin: self.origin, body: Mutex::new(Some(body)), handed: AtomicU64::new(0) });
        answer.hand();
        let mut open = self.open.lock();
        // Now and then, so that it takes no more room than is open.
        if open.len() == open.capacity() {
            open.retain(|answer| answer.strong_count() > 0);
        }
        open.push(Arc::downgrade(&answer));
        Watched(answer, busy)
    }

    /// Ends the answers whose client has taken nothing for `idle`; returns how many.
    fn end_stalled(&self, idle: Duration) -> u64 {
        let mut stalled = Vec::new();
        self.open.lock().retain(|answer| match answer.upgrade() {
            Some(answer) => {
                stalled.extend(answer.take_stalled(idle));
                true
            }
            None => false,
        });
        // Dropped here, outside the lock: an exchange closes, an engine's connection ends.
        stalled.len() as u64
    }
}

impl Answer {
    fn hand(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.handed.store(now.max(1), Ordering::Release);
    }

    fn take_stalled(&self, idle: Duration) -> Option<AnswerBody> {
        // One that is being asked for a frame at this moment isn't stalled.
        let mut body = self.body.try_lock()?;
        let handed = self.handed.load(Ordering::Acquire);
        let since = self.origin + Duration::from_millis(handed);
        if handed == 0 || since.elapsed() < idle { None } else { body.take() }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut body = self.0.body.lock();
        let Some(inner) = &mut *body else {
            return Poll::Ready(Some(Err("the client took none of the answer for timeouts.idle".into())));
        };
        let polled = Pin::new(inner).poll_frame(cx);
        match &polled {
            Poll::Ready(_) => self.0.hand(),
            Poll::Pending => self.0.handed.store(0, Ordering::Release),
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.0.body.lock().as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.body.lock().as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
