//! Connections to one replica: HTTP/1.1, opened when none is idle, kept for reuse for a few seconds.
//!
//! A [`Connection`] owns its socket's task. Dropping it closes the socket at once, which is how an engine learns that
//! nobody waits for its answer any more; only a connection whose response was read to its end goes back
//! ([`Connections::give_back`]). Reuse ends before the engines' own keep-alive does (5 s for uvicorn), so that a request
//! rarely meets a closing connection.
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::upstream_tls::{UpstreamTls, Wire};
use crate::config::ReplicaUrl;

/// Idle connections kept for one replica; more are closed as they come back.
const MAX_IDLE: usize = 1_024;

/// Most that is read from a replica at once, and so what a client that does not read makes us hold of its answer (a
/// few of these). Also the largest response head.
const READ: usize = 64 * 1024;

/// Why no connection could be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name did not resolve, or the address refused or was unreachable.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It took longer than `timeouts.connect`.
    #[error("no connection within {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// No TLS connection could be made: most often, its certificate isn't one that is trusted for its name.
    #[error("TLS: {0}")]
    Tls(io::Error),
    /// The HTTP client could not be set up on it.
    #[error("{0}")]
    Http(#[from] hyper::Error),
}

/// Why a request got no response head.
#[derive(Debug)]
pub enum SendFailure {
    /// Provably nothing was sent: the request may be sent on another connection.
    Unsent(hyper::Error),
    /// The engine may have seen it.
    Sent(hyper::Error),
}

/// The idle connections of one replica.
#[derive(Debug)]
pub struct Connections {
    url: ReplicaUrl,
    tls: Option<UpstreamTls>,
    connect_timeout: Duration,
    keep: Duration,
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// One open connection. Dropped, it closes at once.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// Sends a request and waits for the response head.
    ///
    /// # Errors
    /// [`SendFailure`] tells whether the engine may have seen the request.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendFailure> {
        self.sender.try_send_request(request).await.map_err(|mut error| {
            let unsent = error.take_message().is_some();
            let error = error.into_error();
            if unsent { SendFailure::Unsent(error) } else { SendFailure::Sent(error) }
        })
    }
}

impl Connections {
    /// None open yet.
    pub fn new(url: ReplicaUrl, tls: Option<UpstreamTls>, connect_timeout: Duration, keep: Duration) -> Self {
        Self { url, tls, connect_timeout, keep, idle: Mutex::new(Vec::new()) }
    }

    /// The freshest idle connection that is still open and ready for a request.
    pub async fn take_idle(&self) -> Option<Connection> {
        loop {
            let Idle { mut connection, since } = self.idle.lock().pop()?;
            if since.elapsed() >= self.keep {
                // The list is in order of age: everything below is older still.
                self.idle.lock().retain(|idle| idle.since > since);
                return None;
            }
            // Ready at once, but for the moment in which its task has not run since the last response's end.
            if connection.sender.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    /// Opens a connection, trying each address of the host in turn.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn open(&self) -> Result<Connection, ConnectError> {
        let connect = async {
            let stream = TcpStream::connect((&*self.url.host, self.url.port)).await?;
            stream.set_nodelay(true)?;
            let wire = match &self.tls {
                None => Wire::Plain(stream),
                Some(tls) => tls.connect(stream).await.map_err(ConnectError::Tls)?,
            };
            let (sender, connection) = http1::Builder::new().max_buf_size(READ).handshake(TokioIo::new(wire)).await?;
            // Its error reaches whoever waits for a response; nobody else needs it.
            let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
            Ok(Connection { sender, task })
        };
        match tokio::time::timeout(self.connect_timeout, connect).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Timeout(self.connect_timeout)),
        }
    }

    /// Takes a connection back whose response was read to its end.
    pub fn give_back(&self, connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    /// Closes what has been idle for too long.
    pub fn sweep(&self) {
        let stale: Vec<Idle> = {
            let mut idle = self.idle.lock();
            let fresh = idle.partition_point(|idle| idle.since.elapsed() >= self.keep);
            idle.drain(..fresh).collect()
        };
        drop(stale);
    }

    /// Connections kept for reuse.
    pub fn idle(&self) -> usize {
        self.idle.lock().len()
    }
}
