//! A client's socket, shared between whoever reads and writes it, and whoever watches for its end.
//!
//! Nothing is read while a request is answered, and bytes of a next one (or a stray CRLF) may lie before the client's end.
//! The kernel tells of it without a read: see [`ClientSocket::left`].
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A handle on the socket; cheap to clone. One handle reads and writes at a time.
#[derive(Debug, Clone)]
pub struct ClientSocket(Arc<TcpStream>);

impl ClientSocket {
    /// Shares `stream`.
    pub fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Waits until the client has closed its side, or is gone. Nothing is read.
    ///
    /// PRIORITY stands for urgent data, which nobody asked for, and for the end of reading. An end behind more bytes than
    /// the kernel holds unread has not arrived yet, and is not seen.
    pub async fn left(&self) {
        let _ = self.0.ready(Interest::PRIORITY).await;
    }

    fn poll_try(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let room = buf.remaining();
            let mut result = Err(io::ErrorKind::WouldBlock.into());
            // Less than there is room for was all there is: to say so spares the system call that would find nothing.
            // It is the readiness of before the read that is taken back, so what comes meanwhile is not lost.
            let _ = self.0.try_io(Interest::READABLE, || {
                result = self.0.try_read_buf(buf);
                match result {
                    Ok(read) if 0 < read && read < room => Err(io::ErrorKind::WouldBlock.into()),
                    _ => Ok(()),
                }
            });
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for ClientSocket {
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
        match SockRef::from(&*self.0).shutdown(Shutdown::Write) {
            // The client was faster: there is nothing left to end.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}
