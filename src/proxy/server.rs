//! Listeners and client connections: accepting, the timers that end silent clients, and draining.
//!
//! hyper speaks HTTP; the timers are ours, because they must tell three silences apart: a client that never began a
//! head, one that stopped within it (408), and one that is merely between two requests.
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, Method, Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answer::{self, Problem, X_REQUEST_ID};
use super::exchange::Exchange;
use super::guard::Bounds;
use super::socket::ClientSocket;
use super::watched::{Activity, Doing, Watched};
use super::{Proxy, Stage, head, service};
use crate::api::{Cause, Family, Phase};

/// Connections the kernel may hold for us before they are accepted.
const BACKLOG: i32 = 4_096;
/// How long a closed connection is read on, so that the client sees our last answer instead of a reset.
const LINGER: Duration = Duration::from_secs(1);
/// Pause between two looks at a connection's timers, at least: one of a millisecond must not keep a core busy.
const LOOK: Duration = Duration::from_millis(50);

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds; port 0 takes any.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and serves until the proxy drains and every connection has ended. `places` are all listeners' together.
    pub async fn serve(self, proxy: Arc<Proxy>, places: Arc<Semaphore>) {
        let mut stage = proxy.stage.subscribe();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                _ = stage.wait_for(|stage| *stage >= Stage::Draining) => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.socket, &places) => accepted,
            };
            match accepted {
                Ok((stream, client, place)) => {
                    let proxy = proxy.clone();
                    connections.spawn(async move {
                        proxy.metrics.accepted.inc();
                        proxy.metrics.connections.inc();
                        serve_connection(&proxy, stream, client).await;
                        proxy.metrics.connections.dec();
                        drop(place);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: the ones that end make room.
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self.socket);
        while connections.join_next().await.is_some() {}
    }
}

async fn accept(
    socket: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, client) = socket.accept().await?;
    Ok((stream, client, place))
}

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

async fn serve_connection(proxy: &Arc<Proxy>, stream: TcpStream, client: SocketAddr) {
    let config = proxy.snapshot().config.clone();
    let (timeouts, limits) = (&config.timeouts, &config.limits);
    let _ = stream.set_nodelay(true);
    // A client that takes none of its answer is ended by the kernel: hyper can't see it while its buffer is full.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(timeouts.idle));
    let socket = ClientSocket::new(stream);
    let activity = Activity::new();
    let service = service_fn(|request: Request<Incoming>| {
        let busy = activity.busy();
        Box::pin(service::handle(proxy.clone(), busy, client, request))
    });
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_headers(limits.headers)
        // More than any head that passes the guard.
        .max_buf_size(limits.head.max(8 * 1024) + 1)
        .serve_connection(TokioIo::new(Watched::new(socket.clone(), activity.clone(), Bounds::from(limits))), service);

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
                // At the cut, the look that comes now is all: hyper then polls what is open, which sees it and ends.
                if seen == Stage::Serving {
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                }
                seen = now;
            }
        }
    };
    if let Some(violation) = activity.violation() {
        proxy.metrics.malformed.with_label_values(&[violation.kind.as_str()]).inc();
        tracing::debug!(%client, cause = violation.kind.as_str(), reason = violation.reason, "malformed request");
    }
    let mut stream = connection.into_parts().io.into_inner().into_inner();
    let problem = match end {
        End::Refused(problem) => Some(problem),
        End::SlowHead => {
            let wait = humantime::format_duration(timeouts.head);
            let message = format!("the request head was not whole within {wait} (timeouts.head)");
            Some(Problem::new(Cause::HeadTimeout, Phase::Head, message))
        }
        End::Done | End::Silent => None,
    };
    if let Some(problem) = problem {
        let _ = tokio::time::timeout(LINGER, stream.write_all(&refusal(proxy, client, &problem))).await;
    }
    linger(stream).await;
}

/// The answer to a request that never became one: nothing of it is known but what is wrong with it.
fn refusal(proxy: &Arc<Proxy>, client: SocketAddr, problem: &Problem) -> Vec<u8> {
    let id = head::request_id(&HeaderMap::new());
    let method = Method::from_bytes(b"-").unwrap_or_default();
    Exchange::begin(proxy.clone(), id.clone(), client, method).rejected(problem);
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
    field(X_REQUEST_ID.as_str(), id.as_bytes());
    field(header::CONNECTION.as_str(), b"close");
    field(header::CONTENT_LENGTH.as_str(), response.body().len().to_string().as_bytes());
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(response.body());
    bytes
}

/// Says goodbye, then reads on for a moment: closing with unread bytes would reset the connection under the answer.
async fn linger(mut stream: ClientSocket) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let drain = async {
        let mut scrap = [0; 16 * 1024];
        while stream.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
    };
    let _ = tokio::time::timeout(LINGER, drain).await;
}
