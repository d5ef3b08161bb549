//! Listeners and client connections: accepting, the timers that end silent clients, and draining.
//!
//! hyper speaks HTTP; the timers are ours, because they must tell three silences apart: a client that never began a
//! head, one that stopped within it (408), and one that is merely between two requests.
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Proxy, service};

/// Connections the kernel may hold for us before they are accepted.
const BACKLOG: i32 = 4_096;
/// How long a closed connection is read on, so that the client sees our last answer instead of a reset.
const LINGER: Duration = Duration::from_secs(1);

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
        let mut draining = proxy.draining.subscribe();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                _ = draining.wait_for(|draining| *draining) => break,
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

/// What a connection is doing, for its timers: written by its socket and its requests, read by its task.
#[derive(Debug)]
pub struct Activity {
    origin: Instant,
    /// Milliseconds since `origin` × 4 + state.
    word: AtomicU64,
}

const WAITING: u64 = 0;
const IN_HEAD: u64 = 1;
const BUSY: u64 = 2;
/// Waiting, and no request has come yet.
const NEW: u64 = 3;

impl Activity {
    fn new() -> Arc<Self> {
        Arc::new(Self { origin: Instant::now(), word: AtomicU64::new(NEW) })
    }

    fn set(&self, state: u64) {
        let millis = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX >> 2);
        self.word.store(millis << 2 | state, Ordering::Release);
    }

    fn state(&self) -> (u64, Instant) {
        let word = self.word.load(Ordering::Acquire);
        (word & 3, self.origin + Duration::from_millis(word >> 2))
    }

    fn received(&self) {
        if matches!(self.state().0, WAITING | NEW) {
            self.set(IN_HEAD);
        }
    }

    /// A request has begun; it is busy until the returned guard is dropped.
    fn busy(self: &Arc<Self>) -> Busy {
        self.set(BUSY);
        Busy(self.clone())
    }
}

/// Held while a request is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(WAITING);
    }
}

/// The client's socket, which notes when bytes arrive. It is shared, so that its end can be watched while hyper holds it.
struct Watched {
    stream: Arc<TcpStream>,
    activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(read) => {
                    if read > 0 {
                        self.activity.received();
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Watched {
    fn poll_try(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_try(cx, |stream| stream.try_write(buf))
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_try(cx, |stream| stream.try_write_vectored(bufs))
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(std::net::Shutdown::Write))
    }
}

/// Why a connection's task stopped serving it.
enum End {
    /// hyper is done with it: closed, or broken.
    Done,
    /// A head stopped half-way.
    SlowHead,
    /// Nothing came.
    Silent,
}

async fn serve_connection(proxy: &Arc<Proxy>, stream: TcpStream, client: SocketAddr) {
    let config = proxy.snapshot().config.clone();
    let (timeouts, limits) = (&config.timeouts, &config.limits);
    let _ = stream.set_nodelay(true);
    // A client that takes none of its answer is ended by the kernel: hyper can't see it while its buffer is full.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(timeouts.idle));
    let stream = Arc::new(stream);
    let activity = Activity::new();
    let service = service_fn(|request: Request<Incoming>| {
        let busy = activity.busy();
        Box::pin(service::handle(proxy.clone(), busy, client, request))
    });
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_headers(limits.headers)
        .max_buf_size(limits.head.max(8 * 1024))
        .serve_connection(TokioIo::new(Watched { stream: stream.clone(), activity: activity.clone() }), service);

    let mut draining = proxy.draining.subscribe();
    let mut drained = false;
    let timer = tokio::time::sleep_until(Instant::now() + timeouts.head);
    // hyper looks for the client's end by reading on, which it can't while bytes of a next request (or a stray CRLF) lie
    // in its buffer. The socket tells it without being read: PRIORITY stands for urgent data, which nobody asked for, and
    // for the end of reading. (An end behind more than the kernel holds unread has not arrived yet.)
    let left = stream.ready(Interest::PRIORITY);
    tokio::pin!(timer, left);
    let end = loop {
        let served = poll_fn(|cx| {
            let served = connection.poll_without_shutdown(cx).is_ready();
            let left = !served && activity.state().0 == BUSY && left.as_mut().poll(cx).is_ready();
            if served || left { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::select! {
            biased;
            () = served => break End::Done,
            () = &mut timer => {
                let now = Instant::now();
                let (state, since) = activity.state();
                let (most, end) = match state {
                    IN_HEAD => (timeouts.head, End::SlowHead),
                    NEW => (timeouts.head, End::Silent),
                    WAITING => (timeouts.keep_alive, End::Silent),
                    _ => (Duration::MAX, End::Done),
                };
                let deadline = since.checked_add(most).unwrap_or(now + timeouts.head);
                if state != BUSY && now >= deadline {
                    let label = if state == WAITING { "keep_alive" } else { "head" };
                    proxy.metrics.client_timeouts.with_label_values(&[label]).inc();
                    break end;
                }
                // A head may begin at any time, so the next look is never later than the shorter timer.
                timer.as_mut().reset(deadline.min(now + timeouts.head));
            }
            _ = draining.wait_for(|draining| *draining), if !drained => {
                drained = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    if matches!(end, End::SlowHead) {
        let head = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let _ = tokio::time::timeout(LINGER, stream.write_all(head)).await;
    }
    linger(stream).await;
}

/// Says goodbye, then reads on for a moment: closing with unread bytes would reset the connection under the answer.
async fn linger(mut stream: Watched) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let drain = async {
        let mut scrap = [0; 16 * 1024];
        while stream.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
    };
    let _ = tokio::time::timeout(LINGER, drain).await;
}
