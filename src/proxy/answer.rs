//! Answers: an engine's, relayed, or the router's own.
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::{Body, Frame, SizeHint};

use super::problem::Problem;
use super::relay::{Relay, RelayError};
use crate::api::{Family, error_body};

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// The router's own.
    Own(Option<Bytes>),
    /// An engine's.
    Relay(Box<Relay>),
}

impl AnswerBody {
    /// An engine's answer.
    pub fn relay(relay: Relay) -> Self {
        Self::Relay(Box::new(relay))
    }

    /// The router's own.
    pub fn own(bytes: Bytes) -> Self {
        Self::Own((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut *self {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => Pin::new(&mut **relay).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Relay(relay) => relay.size_hint(),
        }
    }
}

/// A JSON answer of the router's own.
pub fn json(status: http::StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A problem as a response, in the client's API family.
pub fn problem(family: Family, problem: &Problem, allow: Option<&'static str>) -> Response<Bytes> {
    let mut response = json(problem.cause.status(), error_body(family, problem.cause, problem.phase, &problem.message));
    if let Some(seconds) = problem.cause.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(methods) = allow {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    response
}
