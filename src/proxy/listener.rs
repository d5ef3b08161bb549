//! Listeners: accepting, what comes before HTTP (PROXY protocol, TLS, which HTTP it is), and closing without a loss.
//!
//! What comes before HTTP is bounded by `timeouts.head`, and happens in the connection's own task: a slow client holds
//! up nobody.
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::HeaderValue;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;

use super::proxy_protocol::{self, Parsed};
use super::socket::ClientSocket;
use super::stream::{Rewind, Stream, Transport};
use super::tls::{self, Certificate};
use super::{Inherited, Proxy, Stage, http2, server};
use crate::config::Listen;
use crate::telemetry::Metrics;

/// How a client with prior knowledge of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a handshake with the kernel may take that had begun when we stopped to listen.
const HANDSHAKE: Duration = Duration::from_millis(250);
/// What emptying a queue may take that is not filled any more…
const LAST_LOOK: Duration = Duration::from_secs(2);
/// …and one that is: who comes after that finds the port closed.
const LAST_GLANCE: Duration = Duration::from_millis(10);

/// Who is at the other end.
#[derive(Debug)]
pub struct Client {
    /// Its address: the peer's, or what a trusted peer's PROXY protocol header says.
    pub address: SocketAddr,
    /// Whether it came by TLS.
    pub tls: bool,
    /// The address, as logs have it: written once a connection, not once a request.
    pub name: Arc<str>,
    /// The address without the port, as `X-Forwarded-For` has it.
    pub ip: HeaderValue,
}

impl Client {
    /// The one at that address.
    pub fn new(address: SocketAddr, tls: bool) -> Arc<Self> {
        let ip = HeaderValue::from_str(&address.ip().to_string()).unwrap_or(HeaderValue::from_static("unknown"));
        Arc::new(Self { address, tls, name: address.to_string().into(), ip })
    }
}

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    inherited: bool,
    settings: Arc<Settings>,
    certificate: Option<Certificate>,
}

/// What its connections need.
struct Settings {
    listen: Listen,
    tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.listen.fmt(f)
    }
}

impl Listener {
    /// Opens the socket, or takes the inherited one; port 0 takes any.
    pub fn open(listen: &Listen, inherited: &mut Inherited, metrics: &Metrics) -> io::Result<Self> {
        let (tls, certificate) = match &listen.tls {
            None => (None, None),
            Some(settings) => {
                let (acceptor, certificate) = tls::acceptor(settings, listen.address.to_string(), metrics)?;
                (Some(acceptor), Some(certificate))
            }
        };
        let (socket, inherited) = inherited.listen(listen.address, listen.reuse_port)?;
        let socket = TcpListener::from_std(socket)?;
        let address = socket.local_addr()?;
        let settings = Arc::new(Settings { listen: listen.clone(), tls });
        Ok(Self { socket, address, inherited, settings, certificate })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and serves until the proxy drains and every connection has ended. `places` are all listeners' together.
    pub async fn serve(mut self, proxy: Arc<Proxy>, places: Arc<Semaphore>) {
        let mut stage = proxy.stage.subscribe();
        let mut connections = JoinSet::new();
        let certificate = self.certificate.take();
        let metrics = proxy.metrics.clone();
        let follow = async move {
            match certificate {
                Some(certificate) => certificate.follow(&metrics).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(follow);
        loop {
            let accepted = tokio::select! {
                _ = stage.wait_for(|stage| *stage >= Stage::Draining) => break,
                Some(_) = connections.join_next() => continue,
                () = &mut follow => continue,
                accepted = self.accept(&places) => accepted,
            };
            match accepted {
                Ok(accepted) => self.spawn(&mut connections, &proxy, accepted),
                Err(error) => {
                    // Out of file descriptors, most likely: the ones that end make room.
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        self.empty_queue(&mut connections, &places, &proxy).await;
        drop(self.socket);
        while connections.join_next().await.is_some() {}
    }

    async fn accept(&self, places: &Arc<Semaphore>) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (stream, client) = self.socket.accept().await?;
        Ok((stream, client, place))
    }

    fn spawn(
        &self,
        connections: &mut JoinSet<()>,
        proxy: &Arc<Proxy>,
        (stream, peer, place): (TcpStream, SocketAddr, OwnedSemaphorePermit),
    ) {
        let (proxy, settings) = (proxy.clone(), self.settings.clone());
        connections.spawn(async move {
            proxy.metrics.accepted.inc();
            proxy.metrics.connections.inc();
            serve(&proxy, &settings, stream, peer).await;
            proxy.metrics.connections.dec();
            drop(place);
        });
    }

    /// Takes what the kernel has accepted for us: closing the socket would reset it. A socket that others hold too
    /// (systemd) keeps its queue for the next process.
    async fn empty_queue(&self, connections: &mut JoinSet<()>, places: &Arc<Semaphore>, proxy: &Arc<Proxy>) {
        if self.inherited {
            return;
        }
        let (mut patience, mut most) = (LAST_GLANCE, LAST_GLANCE);
        if self.settings.listen.reuse_port {
            // From here on new connections find the other process; those that are being opened still end up here.
            match refuse_new(&self.socket) {
                Ok(()) => (patience, most) = (HANDSHAKE, LAST_LOOK),
                Err(error) => tracing::warn!(%error, "new connections can't be kept off while the listener closes"),
            }
        }
        let end = Instant::now() + most;
        while let Ok(accepted) = timeout_at(end.min(Instant::now() + patience), self.accept(places)).await {
            match accepted {
                Ok(accepted) => self.spawn(connections, proxy, accepted),
                Err(_) => break,
            }
        }
    }
}

/// Makes the kernel drop what opens a connection (SYN without ACK) on this listener. The client's kernel sends it again
/// a second later, and by then only the other process listens.
#[cfg(target_os = "linux")]
fn refuse_new(socket: &TcpListener) -> io::Result<()> {
    use socket2::SockFilter;
    // Classic BPF over the TCP header: byte 13 holds the flags.
    SockRef::from(socket).attach_filter(&[
        SockFilter::new(0x30, 0, 0, 13),          // load it
        SockFilter::new(0x54, 0, 0, 0x12),        // keep SYN and ACK
        SockFilter::new(0x15, 0, 1, 0x02),        // SYN alone?
        SockFilter::new(0x06, 0, 0, 0),           // drop
        SockFilter::new(0x06, 0, 0, 0xffff_ffff), // take
    ])
}

#[cfg(not(target_os = "linux"))]
fn refuse_new(_socket: &TcpListener) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// What a client speaks.
enum Speaks {
    Http1,
    Http2,
}

async fn serve(proxy: &Arc<Proxy>, settings: &Settings, stream: TcpStream, peer: SocketAddr) {
    // The configuration alone: a borrow from the snapshot would keep its fleet for as long as the connection lives.
    let config = proxy.snapshot().config.clone();
    let timeouts = &config.timeouts;
    let deadline = Instant::now() + timeouts.head;
    let _ = stream.set_nodelay(true);
    // A client that takes none of its answer is ended by the kernel.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(timeouts.idle));
    let failed = |kind: &str| proxy.metrics.handshakes_failed.with_label_values(&[kind]).inc();
    let too_late = || proxy.metrics.client_timeouts.with_label_values(&["head"]).inc();

    let socket = ClientSocket::new(stream);
    let mut stream = Rewind::new(socket.clone());
    let mut address = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    if settings.listen.proxy_protocol.iter().any(|network| network.contains(&address.ip())) {
        match timeout_at(deadline, announced(&mut stream)).await {
            Ok(Ok(Some(announced))) => address = announced,
            Ok(Ok(None)) => {}
            Ok(Err(problem)) => {
                tracing::debug!(%peer, problem, "no PROXY protocol header");
                return failed("proxy_protocol");
            }
            Err(_) => return too_late(),
        }
    }

    let mut alpn = None;
    let transport = match &settings.tls {
        None => Transport::Left(stream),
        Some(acceptor) => match timeout_at(deadline, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                alpn = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                Transport::Right(Box::new(stream))
            }
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "the TLS handshake failed");
                return failed("tls");
            }
            Err(_) => return too_late(),
        },
    };
    let client = Client::new(address, settings.tls.is_some());
    let mut stream = Rewind::new(transport);
    let speaks = match alpn.as_deref() {
        Some(tls::H2) => Speaks::Http2,
        _ => match first_bytes(proxy, &mut stream, &client, deadline).await {
            Some(speaks) => speaks,
            None => {
                too_late();
                return server::linger(stream).await;
            }
        },
    };
    match speaks {
        Speaks::Http1 => server::serve_connection(proxy, stream, socket, client).await,
        Speaks::Http2 => http2::serve_connection(proxy, stream, client).await,
    }
}

/// The client that the peer's PROXY protocol header names, if it names one.
async fn announced(stream: &mut Rewind<ClientSocket>) -> Result<Option<SocketAddr>, String> {
    let mut seen = BytesMut::with_capacity(256);
    let decided = |seen: &[u8]| !seen.is_empty() && proxy_protocol::parse(seen) != Parsed::Incomplete;
    stream.look(&mut seen, decided).await.map_err(|error| error.to_string())?;
    match proxy_protocol::parse(&seen) {
        Parsed::Header(length, client) => {
            let _ = seen.split_to(length);
            stream.put_back(seen.freeze());
            Ok(client.map(|client| SocketAddr::new(client.ip().to_canonical(), client.port())))
        }
        Parsed::Incomplete => Err("the connection ended within it".into()),
        Parsed::Invalid => Err("it is missing or malformed".into()),
    }
}

/// HTTP/2 if the client begins with its preface; `None` when too little comes in time.
async fn first_bytes(
    proxy: &Arc<Proxy>,
    stream: &mut Stream,
    client: &Arc<Client>,
    mut deadline: Instant,
) -> Option<Speaks> {
    let mut seen = BytesMut::with_capacity(256);
    let mut stage = proxy.stage.subscribe();
    let mut drained = false;
    let decided = |seen: &[u8]| !seen.is_empty() && (seen.len() >= PREFACE.len() || !PREFACE.starts_with(seen));
    let looked = loop {
        tokio::select! {
            looked = timeout_at(deadline, stream.look(&mut seen, decided)) => break looked,
            // A connection that was opened and never used ends soon, but not under a request that is on its way.
            _ = stage.wait_for(|stage| *stage >= Stage::Draining), if !drained => {
                drained = true;
                deadline = deadline.min(Instant::now() + server::LINGER);
            }
        }
    };
    if looked.is_err() && !seen.is_empty() {
        let problem = server::too_slow(proxy.snapshot().config.timeouts.head);
        server::refuse(proxy, stream, client, &problem).await;
    }
    looked.ok()?.ok()?;
    let speaks = if seen.starts_with(PREFACE) { Speaks::Http2 } else { Speaks::Http1 };
    stream.put_back(seen.freeze());
    Some(speaks)
}
