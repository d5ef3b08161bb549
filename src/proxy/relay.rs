//! The engine's answer on its way to the client: byte for byte, as it comes.
//!
//! Nothing is buffered beyond one read: a frame is asked of the engine when the client's side takes one, so a slow
//! reader slows the engine. The relay owns the engine's connection and the request's record; dropped, it closes both,
//! which is how a client that leaves frees the engine.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::exchange::Exchange;
use super::hide::{UsageHider, joined};
use super::stored::Place;
use crate::api::{Cause, Family, IdObserver, Scanner, stream_error};
use crate::engine::Observer;
use crate::fleet::{Pool, Received, Replica};
use crate::routing::Effect;

/// What a client is told whose request the router could not wait for.
pub const CUT: &str = "the router is shutting down and could not wait for the end of this answer (timeouts.drain)";

/// Events with which a Responses stream begins as soon as the request is accepted: `response.created` and
/// `response.in_progress`, in vLLM, SGLang and OpenAI's own.
const BEFORE_OUTPUT: u64 = 2;

/// Why the client's connection is cut: the answer broke off and nothing can be said in its framing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RelayError(String);

/// An answer on its way.
#[derive(Debug)]
pub struct Relay {
    incoming: Option<Received>,
    /// What the next poll tells: by then, what was handed over before is written.
    broken: Option<RelayError>,
    exchange: Box<Exchange>,
    pool: Arc<Pool>,
    replica: Arc<Replica>,
    family: Family,
    stream: Option<Scanner>,
    stored_id: Option<IdObserver>,
    reports: bool,
    usage: Option<Observer>,
    hider: Option<Box<UsageHider>>,
    /// The request's prompt is known to have been computed.
    prefilled: bool,
    on_success: Option<Effect>,
    idle: Duration,
    last_byte: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What a relay is made of.
pub struct Parts {
    /// The engine's body.
    pub incoming: Received,
    /// The request's record.
    pub exchange: Box<Exchange>,
    /// Its pool.
    pub pool: Arc<Pool>,
    /// Its replica.
    pub replica: Arc<Replica>,
    /// The client's API family.
    pub family: Family,
    /// Whether it is a stream of events that can be read.
    pub stream: bool,
    /// Whether it may name a stored response.
    pub stores: bool,
    /// Whether it should report usage.
    pub reports: bool,
    /// Whether the event that reports it is kept from the client.
    pub hides_usage: bool,
    /// Whether it can be read: what is compressed is passed on unread.
    pub plain: bool,
    /// To be applied when the answer begins.
    pub on_success: Option<Effect>,
    /// Longest silence.
    pub idle: Duration,
}

impl Relay {
    /// Takes over an answer whose head has been read.
    pub fn new(parts: Parts) -> Self {
        let mut relay = Self {
            incoming: Some(parts.incoming),
            broken: None,
            exchange: parts.exchange,
            pool: parts.pool,
            replica: parts.replica,
            family: parts.family,
            stream: parts.stream.then(Scanner::default),
            stored_id: parts.stores.then(|| IdObserver::new(parts.stream)),
            reports: parts.reports,
            usage: (parts.reports && parts.plain).then(|| Observer::new(parts.stream)),
            hider: parts.hides_usage.then(Box::default),
            prefilled: false,
            on_success: parts.on_success,
            idle: parts.idle,
            last_byte: Instant::now(),
            timer: None,
        };
        if relay.incoming.as_ref().is_some_and(Body::is_end_stream) {
            relay.finish();
        }
        relay
    }

    /// The answer is whole: the record closes, and the connection may serve again.
    fn finish(&mut self) {
        self.succeeded();
        if let Some(incoming) = self.incoming.take() {
            self.replica.connections().give_back(incoming.into_connection());
        }
        let mut usage = self.usage.take();
        if usage.as_mut().is_some_and(Observer::failed) {
            self.replica.failed_in_answer();
            return self.exchange.engine_failed();
        }
        if std::mem::take(&mut self.reports) {
            self.exchange.used(usage.and_then(Observer::finish));
        }
        self.exchange.finished();
    }

    fn succeeded(&mut self) {
        if let Some(effect) = self.on_success.take() {
            self.pool.apply(&effect, self.exchange.proxy().clock().now());
        }
    }

    /// Whether the answer, of which `data` came last, has told anything that the engine had to compute. Heads it sends
    /// before, some events and comments, too.
    fn has_output(&self, data: &[u8]) -> bool {
        match &self.stream {
            Some(_) if data.starts_with(b":") => false,
            Some(scanner) if self.family == Family::Responses => {
                scanner.events() + u64::from(scanner.open_event()) > BEFORE_OUTPUT
            }
            _ => true,
        }
    }

    fn observe(&mut self, data: &Bytes) {
        // What may have to be hidden is sent once that is known.
        self.exchange.sent(if self.hider.is_some() { 0 } else { data.len() });
        self.succeeded();
        if let Some(scanner) = &mut self.stream {
            scanner.feed(data);
        }
        if let Some(usage) = &mut self.usage {
            usage.feed(data);
        }
        if !self.prefilled && self.has_output(data) {
            self.prefilled = true;
            self.exchange.prefilled();
        }
        if let Some(id) = self.stored_id.as_mut().and_then(|observer| observer.feed(data)) {
            let place = Place { pool: self.pool.name().clone(), replica: self.replica.id().clone() };
            self.exchange.proxy().stored.learn(&id, place);
        }
    }

    /// What the client gets now that `data` has come, and `ended` whether that was the last; `None` where that is nothing.
    fn shown(&mut self, data: Option<Bytes>, ended: bool) -> Option<Bytes> {
        let Some(hider) = &mut self.hider else { return data };
        let mut shown = data.map_or_else(Bytes::new, |data| hider.feed(data));
        if ended {
            shown = joined(shown, hider.rest());
        }
        self.exchange.sent(shown.len());
        (!shown.is_empty()).then_some(shown)
    }

    /// The answer broke off: an event stream ends with one error event, anything else with the connection.
    fn broken(
        &mut self,
        cx: &Context<'_>,
        cause: Cause,
        message: &str,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        self.incoming = None;
        let held = self.shown(None, true);
        self.exchange.broken(cause, message);
        match &self.stream {
            Some(scanner) => {
                let event = stream_error(self.family, cause, message, scanner.events(), scanner.open_event());
                Poll::Ready(Some(Ok(Frame::data(joined(held.unwrap_or_default(), event)))))
            }
            None => {
                self.broken = Some(RelayError(message.to_owned()));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// Whether nothing has come for too long. The timer is set anew only when it fires, not with each frame.
    fn silent(&mut self, cx: &mut Context<'_>) -> bool {
        let idle = self.idle;
        loop {
            let deadline = self.last_byte + idle;
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            if Instant::now() >= deadline {
                return true;
            }
            timer.as_mut().reset(deadline);
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let this = &mut *self;
        loop {
            let Some(incoming) = &mut this.incoming else { return Poll::Ready(this.broken.take().map(Err)) };
            match Pin::new(&mut *incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let ended = incoming.is_end_stream();
                    this.last_byte = Instant::now();
                    // Trailers are dropped: the client's side was not promised any.
                    let data = frame.into_data().ok();
                    if let Some(data) = &data {
                        this.observe(data);
                    }
                    let data = this.shown(data, ended);
                    if ended {
                        this.finish();
                    }
                    if let Some(data) = data {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Poll::Ready(None) => {
                    let held = this.shown(None, true);
                    this.finish();
                    return Poll::Ready(held.map(|held| Ok(Frame::data(held))));
                }
                Poll::Ready(Some(Err(error))) => {
                    let message = format!("replica {} broke off its answer: {error}", this.replica.id());
                    return this.broken(cx, Cause::AnswerCut, &message);
                }
                Poll::Pending => {
                    // Nothing wakes it for this but its connection, which is looked at when the router cuts.
                    if this.exchange.proxy().cutting() {
                        return this.broken(cx, Cause::ShuttingDown, CUT);
                    }
                    if !this.silent(cx) {
                        return Poll::Pending;
                    }
                    let wait = humantime::format_duration(this.idle);
                    let message = format!("replica {} sent nothing for {wait} (timeouts.idle)", this.replica.id());
                    return this.broken(cx, Cause::IdleTimeout, &message);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_none() && self.broken.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.incoming {
            // A stream's length is not promised on, so that an error event always fits its framing.
            Some(incoming) if self.stream.is_none() => incoming.size_hint(),
            Some(_) => SizeHint::default(),
            None => SizeHint::with_exact(0),
        }
    }
}
