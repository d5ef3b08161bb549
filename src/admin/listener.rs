//! The operator's connections: few, and none that says nothing for long. They share file descriptors with the data path,
//! and whoever reaches the listener needs no token to open one.
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Connections at once; more wait in the kernel's queue.
const PLACES: usize = 256;
/// Longest silence of a client, and longest time in which it takes nothing of an answer.
const SILENCE: Duration = Duration::from_secs(30);

/// Accepts them.
pub struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    /// Of a socket that listens.
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(PLACES)) }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Never closed, so never refused.
        let place = self.places.clone().acquire_owned().await.ok();
        // What axum does with a listener's errors: it tells, and goes on.
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(SILENCE));
        (Connection { stream, silence: Box::pin(tokio::time::sleep(SILENCE)), _place: place }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One of them.
pub struct Connection {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_ready() {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
        } else if self.silence.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
