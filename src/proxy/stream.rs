//! The client's side of a connection, plain or TLS, with bytes that were read ahead put back in front.
//!
//! Reading ahead tells what a client speaks (a PROXY protocol header, HTTP/2's preface) before anything is decided.
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::socket::ClientSocket;

/// A client's connection, ready for HTTP.
pub type Stream = Rewind<Transport>;

/// A stream with bytes that are read again before its own.
#[derive(Debug)]
pub struct Rewind<S> {
    ahead: Bytes,
    inner: S,
}

/// What carries the bytes: as they are, or in TLS.
pub type Transport = Either<Rewind<ClientSocket>, Box<TlsStream<Rewind<ClientSocket>>>>;

impl<S> Rewind<S> {
    /// Nothing was read ahead yet.
    pub fn new(inner: S) -> Self {
        Self { ahead: Bytes::new(), inner }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Rewind<S> {
    /// Reads ahead into `seen` until `enough` of it, or the end; returns whether it was the end.
    pub async fn look(&mut self, seen: &mut BytesMut, mut enough: impl FnMut(&[u8]) -> bool) -> io::Result<bool> {
        while !enough(seen) {
            if self.read_buf(seen).await? == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Puts bytes back; they are read next.
    pub fn put_back(&mut self, bytes: Bytes) {
        self.ahead = if self.ahead.is_empty() { bytes } else { [&bytes[..], &self.ahead].concat().into() };
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewind<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let take = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..take]);
        self.ahead.advance(take);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewind<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
