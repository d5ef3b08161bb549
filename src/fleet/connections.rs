//! Connections to one replica: HTTP/1.1, opened when none is idle, kept for reuse for a few seconds.
//!
//! Only a connection whose answer was read to its end goes back ([`Connections::give_back`]). Reuse ends before the
//! engines' own keep-alive does (5 s for uvicorn), so that a request rarely meets a closing connection.
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::Response;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::connection::{Broken, Connection, Received};
use super::request::Request;
use super::upstream_tls::{UpstreamTls, Wire};
use crate::config::{ReplicaTls, ReplicaUrl};

/// Idle connections kept for one replica; more are closed as they come back.
const MAX_IDLE: usize = 1_024;

/// After so long without use, what the kernel knows of a connection (that the replica closed it) is asked for before it
/// is used again: nobody watches it meanwhile.
const LULL: Duration = Duration::from_millis(20);

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
    /// It could, but no request could be sent on it.
    #[error("{0}")]
    Http(#[from] Broken),
}

impl ConnectError {
    /// Whether nobody listens there: the process that did is gone. (A full queue of connections is not refused but left
    /// unanswered, by Linux.)
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Whether it is this machine that has run out of something: no fault of the replica's.
    pub fn is_local(&self) -> bool {
        // ENOMEM, ENFILE, EMFILE, EADDRNOTAVAIL, ENOBUFS of Linux.
        matches!(self, Self::Io(error) if matches!(error.raw_os_error(), Some(12 | 23 | 24 | 99 | 105)))
    }
}

/// The idle connections of one replica.
#[derive(Debug)]
pub struct Connections {
    url: ReplicaUrl,
    /// `None`: plain text.
    tls: Option<ArcSwap<UpstreamTls>>,
    timers: ArcSwap<Timers>,
    /// The replica left: nothing is kept any more.
    closed: AtomicBool,
    idle: Mutex<Vec<Idle>>,
}

/// What a reload may change.
#[derive(Debug, PartialEq)]
struct Timers {
    connect: Duration,
    keep: Duration,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

impl Connections {
    /// None open yet.
    pub fn new(url: ReplicaUrl, tls: Option<&ReplicaTls>, connect_timeout: Duration, keep: Duration) -> Self {
        let tls = tls.map(|settings| ArcSwap::from_pointee(UpstreamTls::new(settings)));
        let timers = ArcSwap::from_pointee(Timers { connect: connect_timeout, keep });
        Self { url, tls, timers, closed: AtomicBool::new(false), idle: Mutex::new(Vec::new()) }
    }

    /// Takes new timers, for connections opened and kept from now on.
    pub fn set_timers(&self, connect: Duration, keep: Duration) {
        let timers = Timers { connect, keep };
        if **self.timers.load() != timers {
            self.timers.store(Arc::new(timers));
        }
    }

    /// Takes new TLS settings: connections that were judged by the old ones are not used again.
    pub fn set_tls(&self, settings: Option<&ReplicaTls>) {
        // Whether it is TLS at all is in the URL, and another URL is another replica.
        let (Some(tls), Some(settings)) = (&self.tls, settings) else { return };
        if tls.load().is(settings) {
            return;
        }
        let mut idle = self.idle.lock();
        tls.store(Arc::new(UpstreamTls::new(settings)));
        let closing = std::mem::take(&mut *idle);
        drop(idle);
        drop(closing);
    }

    /// Whether it would be opened in the same way now.
    fn is_current(&self, connection: &Connection) -> bool {
        match (&self.tls, &connection.tls) {
            (Some(now), Some(then)) => Arc::ptr_eq(&now.load(), then),
            _ => true,
        }
    }

    /// Closes what is idle, and keeps nothing from now on: the replica has left.
    pub fn close(&self) {
        let mut idle = self.idle.lock();
        self.closed.store(true, Ordering::Release);
        let closing = std::mem::take(&mut *idle);
        drop(idle);
        drop(closing);
    }

    /// The freshest idle connection that is still open.
    pub async fn take_idle(&self) -> Option<Connection> {
        loop {
            let Idle { mut connection, since } = self.idle.lock().pop()?;
            let idle_for = since.elapsed();
            if idle_for >= self.timers.load().keep {
                // The list is in order of age: everything below is older still.
                self.idle.lock().retain(|idle| idle.since > since);
                return None;
            }
            if idle_for >= LULL {
                // The runtime looks at its sockets before it comes back here.
                tokio::task::yield_now().await;
            }
            if connection.is_quiet().await {
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
            let tls = self.tls.as_ref().map(ArcSwap::load_full);
            let wire = match &tls {
                None => Wire::Left(stream),
                Some(tls) => tls.connect(stream).await.map_err(ConnectError::Tls)?,
            };
            Ok(Connection::new(wire, tls))
        };
        let timeout = self.timers.load().connect;
        match tokio::time::timeout(timeout, connect).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Timeout(timeout)),
        }
    }

    /// Sends a request that may be sent twice: on an idle connection first, and on a fresh one if that was closing.
    ///
    /// # Errors
    /// Why there was no answer, for people.
    pub async fn ask(&self, request: Request) -> Result<Response<Received>, String> {
        if let Some(idle) = self.take_idle().await
            && let Ok(response) = idle.send(request.clone()).await
        {
            return Ok(response);
        }
        let fresh = self.open().await.map_err(|error| error.to_string())?;
        fresh.send(request).await.map_err(|failure| failure.to_string())
    }

    /// Takes a connection back, if it can be used again.
    pub fn give_back(&self, connection: Option<Connection>) {
        let Some(connection) = connection else { return };
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE && !self.closed.load(Ordering::Acquire) && self.is_current(&connection) {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    /// Closes what has been idle for too long.
    pub fn sweep(&self) {
        let stale: Vec<Idle> = {
            let mut idle = self.idle.lock();
            let keep = self.timers.load().keep;
            let fresh = idle.partition_point(|idle| idle.since.elapsed() >= keep);
            idle.drain(..fresh).collect()
        };
        drop(stale);
    }

    /// Connections kept for reuse.
    pub fn idle(&self) -> usize {
        self.idle.lock().len()
    }
}
