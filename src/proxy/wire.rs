//! A client's HTTP/1.1 connection as bytes: requests read from it, answers written to it.
//!
//! It holds what was read and is not used yet, and nothing else: a connection that waits takes no room for what may come.
//! Nothing is read ahead of need, so a client that sends more than is taken is held up by its own kernel.
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use http::{Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::answer::AnswerBody;
use super::stream::Stream;
use crate::http1::{Body, Bounds, Head, Request, Violation, read, write};

/// Room for most answers' heads.
const HEAD: usize = 512;

/// Why no head came.
#[derive(Debug)]
pub enum NoHead {
    /// The client is gone.
    Gone,
    /// What it sent is no request.
    Malformed(Violation),
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// It is not framed as it must be.
    #[error("{0}")]
    Malformed(Violation),
    /// Its client has closed its side.
    #[error("the client closed the connection")]
    Gone,
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// How an answer has to be written.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Its request was HEAD: it has no body.
    pub headless: bool,
    /// Its client speaks HTTP/1.0, and knows no chunks.
    pub old: bool,
    /// The connection may serve another request.
    pub keep_alive: bool,
}

/// How an answer's body is delimited.
enum Framing {
    Absent,
    Length(u64),
    Chunks,
    ToEnd,
}

/// The connection.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    bounds: Bounds,
    /// Read, and not used yet.
    held: Bytes,
    head: Head,
    body: Body,
    /// The client waits with its body until it is told to continue; how much of that it has been told.
    expects: Option<usize>,
    violation: Option<Violation>,
}

impl Wire {
    /// A new connection.
    pub fn new(stream: Stream, bounds: Bounds) -> Self {
        let (held, head) = (Bytes::new(), Head::default());
        Self { stream, bounds, held, head, body: Body::NONE, expects: None, violation: None }
    }

    /// The connection without what was read of it.
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// What was wrong with what the client sent.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Whether a head has begun, and is not whole yet.
    pub fn in_head(&self) -> bool {
        self.head.begun()
    }

    /// Whether the request's body has been read to its end.
    pub fn body_is_over(&self) -> bool {
        self.body.is_over()
    }

    /// Bytes of the body that are still to come, where its head told.
    pub fn body_left(&self) -> Option<u64> {
        self.body.left()
    }

    /// The head of the next request, once it is whole.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Request, NoHead>> {
        loop {
            match self.take_head() {
                Ok(Some(request)) => return Poll::Ready(Ok(request)),
                Ok(None) => {}
                Err(violation) => {
                    self.violation = Some(violation);
                    return Poll::Ready(Err(NoHead::Malformed(violation)));
                }
            }
            let Ok(more) = ready!(read::poll_read(Pin::new(&mut self.stream), cx, 0)) else {
                return Poll::Ready(Err(NoHead::Gone));
            };
            if more.is_empty() {
                return Poll::Ready(Err(NoHead::Gone));
            }
            self.hold(more);
        }
    }

    fn take_head(&mut self) -> Result<Option<Request>, Violation> {
        if self.held.is_empty() {
            return Ok(None);
        }
        let Some(length) = self.head.feed(&self.held, &self.bounds)? else { return Ok(None) };
        let mut request = std::mem::take(&mut self.head).finish(&self.held)?;
        // What is left of it when nothing is would keep all that was read.
        self.held = if length < self.held.len() { self.held.slice(length..) } else { Bytes::new() };
        self.body = std::mem::replace(&mut request.body, Body::NONE);
        // HTTP/1.0 has no interim answers. What else may be expected is refused later.
        let waits = request.head.version == http::Version::HTTP_11 && request.head.headers.contains_key(header::EXPECT);
        self.expects = (waits && !self.body.is_over()).then_some(0);
        Ok(Some(request))
    }

    fn hold(&mut self, more: Bytes) {
        self.held = if self.held.is_empty() {
            more
        } else {
            let mut held = BytesMut::from(std::mem::take(&mut self.held));
            held.extend_from_slice(&more);
            held.freeze()
        };
    }

    /// The next bytes of the request's body; `None` at its end.
    pub fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            if self.body.is_over() {
                return Poll::Ready(None);
            }
            if !self.held.is_empty() {
                match self.body.take(&mut self.held, self.bounds.fields) {
                    (data, None) if data.is_empty() => continue,
                    (data, None) => return Poll::Ready(Some(Ok(data))),
                    (_, Some(violation)) => {
                        self.violation = Some(violation);
                        return Poll::Ready(Some(Err(Broken::Malformed(violation))));
                    }
                }
            }
            let more = match ready!(self.poll_more(cx)) {
                Ok(more) if more.is_empty() => return Poll::Ready(Some(Err(Broken::Gone))),
                Ok(more) => more,
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            };
            self.held = more;
        }
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        while let Some(told) = self.expects {
            let rest = &write::CONTINUE[told..];
            if rest.is_empty() {
                ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
                self.expects = None;
            } else {
                self.expects = Some(told + ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?);
            }
        }
        read::poll_read(Pin::new(&mut self.stream), cx, self.body.left().unwrap_or(0))
    }

    /// Writes an answer, piece by piece as it comes. Returns whether the connection may serve another request.
    ///
    /// # Errors
    /// When the client can't be written to, or the answer broke off and its framing can't say so.
    pub async fn answer(&mut self, answer: Response<AnswerBody>, manner: Manner) -> io::Result<bool> {
        let (head, mut body) = answer.into_parts();
        let framing = match (manner, body.size_hint().exact()) {
            _ if matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => Framing::Absent,
            (Manner { headless: true, .. }, _) => Framing::Absent,
            (_, Some(length)) => Framing::Length(length),
            (Manner { old: true, .. }, None) => Framing::ToEnd,
            (_, None) => Framing::Chunks,
        };
        let closes = head.headers.get(header::CONNECTION).is_some_and(|value| value == "close");
        let keep_alive = manner.keep_alive && !closes && self.body.is_over() && !matches!(framing, Framing::ToEnd);

        let mut out = Vec::with_capacity(HEAD);
        write::status_line(&mut out, head.status, head.extensions.get());
        write::fields(&mut out, &head.headers);
        match framing {
            Framing::Length(length) => write::length(&mut out, length),
            Framing::Chunks => write::chunked(&mut out),
            Framing::Absent | Framing::ToEnd => {}
        }
        if !keep_alive && !closes {
            write::field(&mut out, "connection", b"close");
        } else if keep_alive && manner.old {
            write::field(&mut out, "connection", b"keep-alive");
        }
        if !head.headers.contains_key(header::DATE) {
            date(&mut out);
        }
        out.extend_from_slice(write::END);
        drop(head);

        let mut left = match framing {
            Framing::Absent | Framing::Length(0) => {
                self.write(&out, &[], &[]).await?;
                return Ok(keep_alive);
            }
            Framing::Length(length) => length,
            Framing::Chunks | Framing::ToEnd => u64::MAX,
        };
        // Most answers come whole with their head, and go out in one piece.
        let mut next = body.frame().now_or_never();
        if next.is_none() {
            self.write(&out, &[], &[]).await?;
            out = Vec::new();
        }
        let chunked = matches!(framing, Framing::Chunks);
        loop {
            let frame = match next.take() {
                Some(frame) => frame,
                None => body.frame().await,
            };
            let (data, ended) = match frame {
                Some(Ok(frame)) => (frame.into_data().unwrap_or_default(), body.is_end_stream()),
                None => (Bytes::new(), true),
                Some(Err(error)) => {
                    self.write(&out, &[], &[]).await?;
                    return Err(io::Error::other(error));
                }
            };
            left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
            let mut tail: &[u8] = if chunked && ended { write::LAST_CHUNK } else { b"" };
            if chunked && !data.is_empty() {
                write::chunk_size(&mut out, data.len());
                tail = if ended { b"\r\n0\r\n\r\n" } else { write::END };
            }
            self.write(&out, &data, tail).await?;
            out.clear();
            if ended {
                break;
            }
        }
        if matches!(framing, Framing::Length(_)) && left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(keep_alive)
    }

    /// Writes three pieces as one.
    async fn write(&mut self, head: &[u8], data: &[u8], tail: &[u8]) -> io::Result<()> {
        self.stream.write_all_buf(&mut Buf::chain(head, data).chain(tail)).await?;
        self.stream.flush().await
    }
}

thread_local! {
    /// The second that was written last, and how.
    static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// Appends the `Date` field: an engine's answer has its own, most often.
fn date(out: &mut Vec<u8>) {
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    DATE.with_borrow_mut(|(then, text)| {
        if *then != second {
            (*then, *text) = (second, httpdate::fmt_http_date(now));
        }
        write::field(out, "date", text.as_bytes());
    });
}
