//! Listening sockets: opened here, or passed by whoever started this process (systemd's `LISTEN_FDS`).
//!
//! A passed socket outlives this process, so a restart refuses nobody: connections wait in its queue. Sockets are
//! matched to the configuration's listeners by address.
use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use socket2::{Domain, Protocol, Socket, Type};

/// Connections the kernel may hold for us before they are accepted.
const BACKLOG: i32 = 4_096;

/// Sockets that were passed to this process and belong to no listener yet.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(SocketAddr, TcpListener)>);

impl Inherited {
    /// Takes them from the environment, which then no longer names them. To be called before any thread is started.
    pub fn from_env() -> Self {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            match passed.take_tcp_listener(index) {
                Ok(Some(socket)) => match socket.local_addr() {
                    Ok(address) => sockets.push((address, socket)),
                    Err(error) => tracing::warn!(%error, "a passed socket has no address"),
                },
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "a passed socket is no TCP listener"),
            }
        }
        Self(sockets)
    }

    /// The passed socket for `address`, if there is one.
    fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        // [::]:8080 takes IPv4 too, unless it was told not to.
        let serves = |socket: SocketAddr| {
            socket == address
                || socket.port() == address.port() && socket.ip().is_unspecified() && address.ip().is_unspecified()
        };
        let exact = self.0.iter().position(|(socket, _)| *socket == address);
        let index = exact.or_else(|| self.0.iter().position(|(socket, _)| serves(*socket)))?;
        Some(self.0.swap_remove(index).1)
    }

    /// The addresses of those that no listener took.
    pub fn rest(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|(address, _)| *address).collect()
    }

    /// A listening socket for `address`, and whether it was passed; port 0 takes any.
    ///
    /// # Errors
    /// When it can't be bound.
    pub fn listen(&mut self, address: SocketAddr, reuse_port: bool) -> io::Result<(TcpListener, bool)> {
        if let Some(socket) = self.take(address) {
            socket.set_nonblocking(true)?;
            return Ok((socket, true));
        }
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(reuse_port)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok((socket.into(), false))
    }
}
