//! From a decided pool to an answer: reserve a replica, connect, send, and go to another while nothing was sent.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;

use super::answer::Problem;
use super::exchange::Exchange;
use super::head;
use crate::api::{Cause, Phase};
use crate::fleet::{Connection, Pool, Replica, SendFailure};
use crate::routing::{self, Effect, Refusal};

/// A request that is ready to be sent, as often as it takes.
#[derive(Debug)]
pub struct Outgoing {
    /// Method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: Uri,
    /// Headers, but for those that depend on the replica.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// Stored responses: a 404 only means that it is elsewhere.
    pub seek: bool,
}

/// An answer whose head has arrived.
pub struct Answered {
    /// It.
    pub response: Response<Incoming>,
    /// By which connection.
    pub connection: Connection,
    /// From which replica.
    pub replica: Arc<Replica>,
    /// To be applied when the answer begins.
    pub on_success: Option<Effect>,
}

/// Why an attempt got no answer.
enum Failure {
    /// Nothing reached the replica: another may try.
    Unreachable(String),
    /// It may have seen the request: no other may.
    Final(Cause, Phase, String),
}

/// Finds a replica that answers.
///
/// # Errors
/// The problem to answer with, once nothing else may be tried.
pub async fn forward(
    exchange: &mut Exchange,
    pool: &Arc<Pool>,
    outgoing: &Outgoing,
    request: routing::Request<'_>,
) -> Result<Answered, Problem> {
    let mut tried: Vec<Arc<str>> = Vec::new();
    let mut last: Option<String> = None;
    let mut elsewhere: Option<Answered> = None;
    loop {
        exchange.enter(Phase::Decide);
        let now = exchange.proxy().now();
        let plan = match pool.decide(&routing::Request { tried: &tried, ..request.clone() }, now) {
            Ok(plan) => plan,
            Err(refusal) => {
                return elsewhere.ok_or_else(|| refused(pool, refusal, tried.len(), last));
            }
        };
        let Some(replica) = pool.replica(&plan.leg.replica).cloned() else {
            let message = format!("replica {} is no longer in pool {}", plan.leg.replica, pool.name());
            return Err(Problem::new(Cause::Internal, Phase::Decide, message));
        };
        exchange.attempt(&replica, plan.reason, plan.leg.reservation);
        let first_byte = exchange.snapshot().config.timeouts.first_byte;
        match attempt(exchange, pool, &replica, outgoing, first_byte).await {
            Ok((response, connection)) => {
                let success = response.status().is_success();
                let answered =
                    Answered { response, connection, replica, on_success: plan.on_success.filter(|_| success) };
                if !outgoing.seek || answered.response.status() != StatusCode::NOT_FOUND {
                    return Ok(answered);
                }
                count_retry(exchange, pool, "not_found_there");
                tried.push(answered.replica.id().clone());
                elsewhere = Some(answered);
            }
            Err(Failure::Unreachable(cause)) => {
                exchange.release();
                replica.unreachable(&cause);
                count_retry(exchange, pool, "connect_failed");
                last = Some(format!("replica {}: {cause}", replica.id()));
                tried.push(replica.id().clone());
            }
            Err(Failure::Final(cause, phase, message)) => {
                exchange.release();
                return Err(Problem::new(cause, phase, message));
            }
        }
    }
}

fn count_retry(exchange: &Exchange, pool: &Pool, cause: &str) {
    exchange.proxy().metrics.retries.with_label_values(&[pool.name(), cause]).inc();
}

fn refused(pool: &Pool, refusal: Refusal, tried: usize, last: Option<String>) -> Problem {
    let name = pool.name();
    if let Some(last) = last {
        let message = format!("none of {tried} replicas tried in pool {name} could be reached; the last: {last}");
        return Problem::new(Cause::ConnectFailed, Phase::Connect, message);
    }
    match refusal {
        Refusal::NoneReady => {
            let message = format!("no replica of pool {name} is ready; try again later");
            Problem::new(Cause::NoReplicaReady, Phase::Decide, message)
        }
        Refusal::AllFull => {
            let message =
                format!("every ready replica of pool {name} has max_in_flight requests open; try again later");
            Problem::new(Cause::ReplicasFull, Phase::Decide, message)
        }
    }
}

/// One attempt on one replica. An idle connection that turns out to be closed before anything was sent is replaced,
/// unseen, by a fresh one to the same replica.
async fn attempt(
    exchange: &mut Exchange,
    pool: &Pool,
    replica: &Replica,
    outgoing: &Outgoing,
    first_byte: Option<Duration>,
) -> Result<(Response<Incoming>, Connection), Failure> {
    exchange.enter(Phase::Connect);
    let mut reuse = replica.connections().take_idle().await;
    loop {
        let (mut connection, reused) = match reuse.take() {
            Some(connection) => (connection, true),
            None => {
                let opened = replica.connections().open().await;
                (opened.map_err(|error| Failure::Unreachable(error.to_string()))?, false)
            }
        };
        let request = outgoing.request(replica)?;
        exchange.enter(Phase::FirstByte);
        let sent = match first_byte {
            None => connection.send(request).await,
            Some(most) => match tokio::time::timeout(most, connection.send(request)).await {
                Ok(sent) => sent,
                Err(_) => {
                    let wait = humantime::format_duration(most);
                    let message =
                        format!("replica {} did not begin to answer within {wait} (timeouts.first_byte)", replica.id());
                    return Err(Failure::Final(Cause::FirstByteTimeout, Phase::FirstByte, message));
                }
            },
        };
        match sent {
            Ok(response) if response.status().is_informational() => {
                // The other interim answers never get here: this is 101, and no request of ours asks for an upgrade.
                let message =
                    format!("replica {} answered {}, which nobody asked for", replica.id(), response.status());
                return Err(Failure::Final(Cause::NoAnswer, Phase::FirstByte, message));
            }
            Ok(response) => return Ok((response, connection)),
            Err(SendFailure::Unsent(_)) if reused => {
                exchange.enter(Phase::Connect);
                count_retry(exchange, pool, "stale_connection");
            }
            Err(SendFailure::Unsent(error)) => return Err(Failure::Unreachable(error.to_string())),
            Err(SendFailure::Sent(error)) => {
                let message = format!("replica {} closed the connection without an answer: {error}", replica.id());
                return Err(Failure::Final(Cause::NoAnswer, Phase::FirstByte, message));
            }
        }
    }
}

impl Outgoing {
    fn request(&self, replica: &Replica) -> Result<Request<Full<Bytes>>, Failure> {
        let target = self.target.path_and_query().map_or("/", |target| target.as_str());
        let base = &replica.url().base_path;
        let target = if base.is_empty() { Uri::try_from(target) } else { Uri::try_from(format!("{base}{target}")) };
        let target = target.map_err(|error| {
            let message = format!("the target can't be joined with the base path of replica {}: {error}", replica.id());
            Failure::Final(Cause::BadHead, Phase::Send, message)
        })?;
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = target;
        *request.headers_mut() = head::for_replica(self.headers.clone(), replica.authority(), replica.authorization());
        Ok(request)
    }
}
