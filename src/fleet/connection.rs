//! One connection to a replica, and the answer that comes by it: both are driven by whoever waits for the answer, in that
//! one's own task.
//!
//! A [`Connection`] owns its socket, and so does the [`Received`] answer. Dropping either closes the socket at once, which
//! is how an engine learns that nobody waits for its answer any more. What one read brings is handed on in one piece, and
//! no buffer is held while nothing comes.
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::io::AsyncWrite;
use tokio_util::io::{poll_read_buf, poll_write_buf};

use super::request::{Request, Written};
use super::upstream_tls::{UpstreamTls, Wire};
use crate::http1::answer::{self, Answer, FIELDS, Refused};
use crate::http1::read::poll_read;
use crate::http1::{self, Violation};

/// Why an answer did not come, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It was closed before anything was sent.
    #[error("the connection was closed before the request")]
    Closed,
    /// Something came before anything was sent.
    #[error("something came that nobody had asked for")]
    Unasked,
    /// No answer has begun.
    #[error("the connection was closed before any answer")]
    NoAnswer,
    /// Its head is not whole.
    #[error("the connection was closed within the head of the answer")]
    InHead,
    /// Its body is not.
    #[error("the connection was closed before the answer was whole")]
    InBody,
    /// It is not taken as it is.
    #[error("{0}")]
    Head(#[from] Refused),
    /// Its chunks are not framed as they must be.
    #[error("{0}")]
    Chunk(#[from] Violation),
    /// Its body is longer than is read.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
}

/// Why a request got no response head.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub enum SendFailure {
    /// Provably nothing was sent: the request may be sent on another connection.
    Unsent(Broken),
    /// The engine may have seen it.
    Sent(Broken),
    /// It answered, and others might read the answer otherwise.
    Unfit(&'static str),
}

/// One open connection. Dropped, it closes at once.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    /// What its certificate was judged by.
    pub(super) tls: Option<Arc<UpstreamTls>>,
}

impl Connection {
    /// One that has just been opened.
    pub(super) fn new(wire: Wire, tls: Option<Arc<UpstreamTls>>) -> Self {
        Self { wire, tls }
    }

    /// Whether it is open and nothing has come that nobody asked for, as far as the runtime knows.
    pub(super) async fn is_quiet(&mut self) -> bool {
        let look = poll_fn(|_| {
            let mut nobody = Context::from_waker(Waker::noop());
            Poll::Ready(poll_read(Pin::new(&mut self.wire), &mut nobody, 0).is_pending())
        });
        // A task that has used up its turn would be told that there is nothing.
        tokio::task::unconstrained(look).await
    }

    /// Sends a request and waits for the response head, which may come before all of the request is sent.
    ///
    /// # Errors
    /// [`SendFailure`] tells whether the engine may have seen the request.
    pub async fn send(mut self, request: Request) -> Result<Response<Received>, SendFailure> {
        let bodiless = request.is_head();
        let mut sending = Some(Sending { bytes: request.into_bytes(), begun: false, failed: false });
        let mut head = answer::Head::default();
        let (Answer { head, body, reusable }, held) =
            poll_fn(|cx| self.poll_answer(cx, &mut sending, &mut head, bodiless)).await?;
        let sending = sending.map(Box::new);
        Ok(Response::from_parts(head, Received { connection: self, sending, body, held, reusable, refused: None }))
    }

    /// Reads before it writes: what comes before anything was sent shows that the connection is of no use.
    fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut Option<Sending>,
        head: &mut answer::Head,
        bodiless: bool,
    ) -> Poll<Result<(Answer, Bytes), SendFailure>> {
        let unsent = sending.as_ref().is_some_and(|sending| !sending.begun);
        while let Poll::Ready(read) = poll_read(Pin::new(&mut self.wire), cx, 0) {
            let broken = match read {
                Ok(read) if unsent && read.is_empty() => Broken::Closed,
                Ok(_) if unsent => Broken::Unasked,
                Ok(read) if read.is_empty() && head.begun() => Broken::InHead,
                Ok(read) if read.is_empty() => Broken::NoAnswer,
                Ok(read) => match head.feed(read, bodiless) {
                    Ok(Some(answer)) => return Poll::Ready(Ok(answer)),
                    Ok(None) => continue,
                    Err(Refused::Unfit(reason)) => return Poll::Ready(Err(SendFailure::Unfit(reason))),
                    Err(refused) => refused.into(),
                },
                Err(error) => error.into(),
            };
            return Poll::Ready(Err(if unsent { SendFailure::Unsent(broken) } else { SendFailure::Sent(broken) }));
        }
        if let Some(rest) = sending {
            match rest.poll(&mut self.wire, cx) {
                Poll::Ready(Ok(())) => *sending = None,
                Poll::Ready(Err(error)) if !rest.begun => return Poll::Ready(Err(SendFailure::Unsent(error.into()))),
                // It may have answered before it stopped taking the request; if not, reading tells.
                Poll::Ready(Err(_)) | Poll::Pending => {}
            }
        }
        Poll::Pending
    }
}

/// A request that is being sent.
#[derive(Debug)]
struct Sending {
    bytes: Written,
    /// Some of it may have been sent.
    begun: bool,
    /// The rest can't be.
    failed: bool,
}

impl Sending {
    /// Sends as much as is taken.
    fn poll(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.failed {
            return Poll::Pending;
        }
        // TLS takes bytes before it sends them, and does not tell what became of them.
        self.begun |= matches!(wire, Wire::Right(_));
        let sent = self.poll_rest(wire, cx);
        self.failed = matches!(sent, Poll::Ready(Err(_)));
        sent
    }

    fn poll_rest(&mut self, wire: &mut Wire, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.bytes.has_remaining() {
            if ready!(poll_write_buf(Pin::new(wire), cx, &mut self.bytes))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.begun = true;
        }
        Pin::new(wire).poll_flush(cx)
    }
}

/// An answer's body, and the connection it comes by.
#[derive(Debug)]
pub struct Received {
    connection: Connection,
    /// What is left of the request: the answer came early.
    sending: Option<Box<Sending>>,
    body: http1::Body,
    /// Came with what was handed on before.
    held: Bytes,
    reusable: bool,
    /// What is wrong behind the data that was handed on.
    refused: Option<Violation>,
}

impl Received {
    /// The connection, if it can be used again: the answer has been read to its end and the request was taken whole.
    pub fn into_connection(self) -> Option<Connection> {
        let usable = self.reusable && self.is_end_stream() && self.held.is_empty() && self.sending.is_none();
        usable.then_some(self.connection)
    }

    /// What is left of the body, in one piece. Where its length was announced, it is read straight to where it stays.
    ///
    /// # Errors
    /// When it breaks off, or has more than `most` bytes.
    pub async fn whole(&mut self, most: usize) -> Result<Bytes, Broken> {
        let mut whole = BytesMut::new();
        if let Some(left) = self.body.left() {
            let left = usize::try_from(left).ok().filter(|&left| left <= most).ok_or(Broken::TooLong(most))?;
            whole.reserve(left);
            poll_fn(|cx| self.poll_announced(cx, &mut whole)).await?;
        }
        while let Some(frame) = self.frame().await {
            let data = frame?.into_data().unwrap_or_default();
            if data.len() > most - whole.len() {
                return Err(Broken::TooLong(most));
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    }

    fn poll_announced(&mut self, cx: &mut Context<'_>, whole: &mut BytesMut) -> Poll<Result<(), Broken>> {
        self.send_on(cx);
        while let Some(left @ 1..) = self.body.left() {
            if !self.held.is_empty() {
                whole.extend_from_slice(&self.body.take(&mut self.held, FIELDS).0);
                continue;
            }
            let mut rest = whole.limit(usize::try_from(left).unwrap_or(usize::MAX));
            match ready!(poll_read_buf(Pin::new(&mut self.connection.wire), cx, &mut rest)) {
                Ok(0) => return Poll::Ready(Err(self.broken(Broken::InBody))),
                Ok(read) => self.body = http1::Body::Length(left - read as u64),
                Err(error) => return Poll::Ready(Err(self.broken(error))),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends more of what is left of the request.
    fn send_on(&mut self, cx: &mut Context<'_>) {
        if let Some(sending) = &mut self.sending
            && let Poll::Ready(Ok(())) = sending.poll(&mut self.connection.wire, cx)
        {
            self.sending = None;
        }
    }

    fn broken(&mut self, broken: impl Into<Broken>) -> Broken {
        (self.body, self.reusable) = (http1::Body::NONE, false);
        broken.into()
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        this.send_on(cx);
        loop {
            if let Some(violation) = this.refused.take() {
                return Poll::Ready(Some(Err(this.broken(violation))));
            }
            if this.body.is_over() {
                return Poll::Ready(None);
            }
            if this.held.is_empty() {
                let more = this.body.left().unwrap_or(0);
                this.held = match ready!(poll_read(Pin::new(&mut this.connection.wire), cx, more)) {
                    Ok(bytes) => bytes,
                    Err(error) => return Poll::Ready(Some(Err(this.broken(error)))),
                };
                if this.held.is_empty() {
                    if !matches!(this.body, http1::Body::ToEnd) {
                        return Poll::Ready(Some(Err(this.broken(Broken::InBody))));
                    }
                    this.body = http1::Body::NONE;
                    continue;
                }
            }
            let (data, refused) = this.body.take(&mut this.held, FIELDS);
            this.refused = refused;
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_over() && self.refused.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests;
