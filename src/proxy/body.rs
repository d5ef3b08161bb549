//! A client's body: read whole, and decoded when it is compressed.
//!
//! It is kept as it came, so that an attempt on another replica sends the same bytes.
use std::future::poll_fn;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, header};
use http_body::Body;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use tokio::time::Instant;

use super::problem::Problem;
use super::wire::{Broken, Wire};
use crate::api::{Cause, Phase};
use crate::config::Limits;
use crate::fleet::{Gathering, Payload};

/// Bytes above which decoding leaves the async threads.
const DECODE_ASIDE: usize = 64 * 1024;
/// Bytes a second that a body must come at on average, once it has had twice the longest silence.
const RATE: u64 = 1024;

/// A client's body as it comes.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// By HTTP/1.1.
    Http1(&'a mut Wire),
    /// By HTTP/2.
    Http2(hyper::body::Incoming),
}

impl Incoming<'_> {
    /// Whether there is none, or none any more.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Http1(wire) => wire.body_is_over(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    /// Bytes that are still to come, at least.
    fn left(&self) -> u64 {
        match self {
            Self::Http1(wire) => wire.body_left().unwrap_or(0),
            Self::Http2(body) => body.size_hint().lower(),
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        match self {
            Self::Http1(wire) => wire.poll_body(cx),
            Self::Http2(body) => loop {
                match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    None => return Poll::Ready(None),
                    Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error).into()))),
                    Some(Ok(frame)) => {
                        // Trailers say nothing that is passed on.
                        if let Ok(data) = frame.into_data() {
                            return Poll::Ready(Some(Ok(data)));
                        }
                    }
                }
            },
        }
    }
}

fn too_large(limits: &Limits) -> Problem {
    let message = format!("the body is larger than limits.body, {} bytes", limits.body);
    Problem::new(Cause::BodyTooLarge, Phase::Read, message)
}

/// Reads a body to its end.
///
/// # Errors
/// When it is too large, stalls for longer than `stall`, drips ([`RATE`]), or breaks off. A length over the limit is
/// refused before anything is read, hence before a waiting client is told to continue.
pub async fn read(mut body: Incoming<'_>, limits: &Limits, stall: Duration) -> Result<Payload, Problem> {
    if body.left() > limits.body as u64 {
        return Err(too_large(limits));
    }
    let mut read = Gathering::default();
    let mut began = None;
    while !body.is_over() {
        let length = read.length();
        let next = match poll_fn(|cx| body.poll_next(cx)).now_or_never() {
            Some(next) => next,
            None => {
                // A byte now and then breaks no silence; without this it would hold its place for ever.
                let earned = Duration::from_millis(length as u64 * 1000 / RATE);
                let left = (stall * 2 + earned).saturating_sub(began.get_or_insert_with(Instant::now).elapsed());
                match tokio::time::timeout(stall.min(left), poll_fn(|cx| body.poll_next(cx))).await {
                    Ok(next) => next,
                    Err(_) => return Err(stalled(length, stall, left)),
                }
            }
        };
        let data = match next {
            Some(Ok(data)) => data,
            None => break,
            Some(Err(Broken::Malformed(violation))) => {
                return Err(Problem::new(violation.kind.cause(), Phase::Read, violation.reason));
            }
            Some(Err(error)) => {
                let message = format!("the body broke off after {length} bytes: {error}");
                return Err(Problem::new(Cause::BodyIncomplete, Phase::Read, message));
            }
        };
        if length + data.len() > limits.body {
            return Err(too_large(limits));
        }
        read.push(data);
    }
    Ok(read.finish())
}

fn stalled(length: usize, stall: Duration, left: Duration) -> Problem {
    let wait = humantime::format_duration(stall);
    let message = if left < stall {
        format!(
            "the body came too slowly: {length} bytes so far; it must come at {RATE} bytes a second on average, after \
             twice {wait} (timeouts.body)"
        )
    } else {
        format!("no byte of the body came for {wait} (timeouts.body), after {length}")
    };
    Problem::new(Cause::BodyTimeout, Phase::Read, message)
}

/// A coding of a request body that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// The coding of a body; `None` when it is plain.
///
/// # Errors
/// When it is one we can't decode.
pub fn coding(headers: &HeaderMap) -> Result<Option<Coding>, Problem> {
    let mut codings = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .flat_map(|value| value.to_str().unwrap_or("?").split(','))
        .map(str::trim)
        .filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity"));
    let found = match codings.next() {
        None => return Ok(None),
        Some(coding) if coding.eq_ignore_ascii_case("gzip") || coding.eq_ignore_ascii_case("x-gzip") => Coding::Gzip,
        Some(coding) if coding.eq_ignore_ascii_case("zstd") => Coding::Zstd,
        Some(_) => return Err(unsupported()),
    };
    if codings.next().is_some() { Err(unsupported()) } else { Ok(Some(found)) }
}

fn unsupported() -> Problem {
    let message = "Content-Encoding must be gzip or zstd, once; or send the body plain";
    Problem::new(Cause::UnsupportedEncoding, Phase::Read, message)
}

/// Decodes a body, within `limits.body` and `limits.decode_ratio`.
///
/// # Errors
/// When it grows beyond them, or is not what it says.
pub async fn decode(body: Bytes, coding: Coding, limits: &Limits) -> Result<Bytes, Problem> {
    // Small bodies may grow freely: a ratio means nothing on a hundred bytes.
    let by_ratio = body.len().saturating_mul(limits.decode_ratio as usize).max(DECODE_ASIDE);
    let most = limits.body.min(by_ratio);
    let work = move || decode_now(&body, coding, most).map(|plain| (body, plain));
    let result = if most > DECODE_ASIDE {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Problem::new(Cause::Internal, Phase::Read, format!("decoding failed: {error}")))?
    } else {
        work()
    };
    let too_large = match &result {
        Ok((_, plain)) => plain.len() > most,
        Err(error) => error.kind() == std::io::ErrorKind::FileTooLarge,
    };
    match result {
        _ if too_large => {
            let message = format!(
                "the decoded body is larger than {most} bytes (limits.body, or limits.decode_ratio × its length)"
            );
            Err(Problem::new(Cause::BodyTooLarge, Phase::Read, message))
        }
        Ok((_, plain)) => Ok(plain.into()),
        Err(error) => {
            let message = format!("the body can't be decoded as its Content-Encoding says: {error}");
            Err(Problem::new(Cause::BadBody, Phase::Read, message))
        }
    }
}

/// Decodes at most `most` bytes and one, so that the caller sees the excess.
fn decode_now(body: &[u8], coding: Coding, most: usize) -> std::io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    let cap = most + 1;
    match coding {
        Coding::Gzip => fill(flate2::read::MultiGzDecoder::new(body), cap, &mut plain)?,
        Coding::Zstd => {
            let mut rest = body;
            // One body may hold several frames.
            while !rest.is_empty() && plain.len() < cap {
                if let Some(after) = after_skippable(rest) {
                    rest = after;
                    continue;
                }
                let (head, window) = small_window(rest, (cap - plain.len()) as u64);
                let mut frame = head.chain(rest.get(head.len()..).unwrap_or_default());
                let decoder = StreamingDecoder::new_with_max_window_size(&mut frame, window);
                fill(decoder.map_err(frame_error)?, cap, &mut plain)?;
                rest = frame.into_inner().1;
            }
        }
    }
    Ok(plain)
}

/// Appends what `reader` gives until `plain` has `cap` bytes. Room doubles, but never beyond `cap`: the last doubling of a
/// body that turns out too large would be the most expensive of all.
fn fill(mut reader: impl Read, cap: usize, plain: &mut Vec<u8>) -> std::io::Result<()> {
    let mut piece = [0; 16 * 1024];
    loop {
        let want = piece.len().min(cap - plain.len());
        let read = reader.read(&mut piece[..want])?;
        if read == 0 {
            return Ok(());
        }
        if plain.capacity() - plain.len() < read {
            let room = (plain.capacity() * 2).clamp(plain.len() + read, cap.max(plain.len() + read));
            plain.reserve_exact(room - plain.len());
        }
        plain.extend_from_slice(&piece[..read]);
    }
}

/// What follows a skippable Zstandard frame (RFC 8878, section 3.1.2), if one stands here.
fn after_skippable(frame: &[u8]) -> Option<&[u8]> {
    let [kind @ 0x50..=0x5F, 0x2A, 0x4D, 0x18, a, b, c, d, rest @ ..] = frame else { return None };
    let _ = kind;
    rest.get(u32::from_le_bytes([*a, *b, *c, *d]) as usize..)
}

/// A frame whose content is its window, and larger than what may come out, is too large; all else is broken.
fn frame_error(error: FrameDecoderError) -> std::io::Error {
    match error {
        FrameDecoderError::WindowSizeTooBig { .. } => std::io::ErrorKind::FileTooLarge.into(),
        error => std::io::Error::other(error),
    }
}

/// The first bytes of a Zstandard frame (RFC 8878, section 3.1.1.1), with a window no larger than it takes to see that
/// more than `most` bytes come out; and that window's size. The decoder gives nothing before it holds a whole window,
/// and the client names its size: left as it is, a body of 4 KiB makes us hold 128 MiB.
fn small_window(frame: &[u8], most: u64) -> ([u8; 6], u64) {
    let mut head = [0; 6];
    for (to, from) in head.iter_mut().zip(frame) {
        *to = *from;
    }
    let [.., descriptor, window] = &mut head;
    let single_segment = *descriptor & 0x20 != 0;
    let enough = most.saturating_add(1).max(1 << 10).next_power_of_two();
    // Five bits of exponent above 10; the mantissa below them is zero.
    if !single_segment && let Ok(byte) = u8::try_from((enough.trailing_zeros() - 10) << 3) {
        *window = (*window).min(byte);
    }
    (head, enough)
}
