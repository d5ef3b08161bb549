//! From a decided pool to an answer: reserve a replica, or wait for a place on one; connect, send, and go to another
//! while nothing was sent, or where replays are allowed. Each attempt sends the same immutable bytes, and one that fails
//! gives its reservation back and drops what it was to change.
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Uri, header};
use tokio::time::{Instant, timeout_at};

use super::exchange::Exchange;
use super::head;
use super::problem::Problem;
use crate::api::{Cause, Phase};
use crate::config::RetryOn;
use crate::engine::orca::Orca;
use crate::fleet::{self, ConnectError, Decided, Payload, Pool, Received, Replica, Request, SendFailure, Waiting};
use crate::routing::{self, Effect, Refusal, State};

/// A request that is ready to be sent, as often as it takes.
#[derive(Debug)]
pub struct Outgoing {
    /// Method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: Uri,
    /// Headers, but for those that depend on the replica.
    pub headers: head::Fields,
    /// Body.
    pub body: Payload,
    /// Which attempt a hop before said this is (`x-warmroute-attempt`); 0 when it said nothing. From 2 on it is a replay,
    /// and is not replayed again: attempts must not multiply from hop to hop. Anyone may say so, it only takes away.
    pub attempt: u32,
    /// Stored responses: a 404 only means that it is elsewhere.
    pub seek: bool,
}

/// An answer whose head has arrived.
pub struct Answered {
    /// It.
    pub response: Response<Received>,
    /// From which replica.
    pub replica: Arc<Replica>,
    /// To be applied when the answer begins.
    pub on_success: Option<Effect>,
}

/// Why an attempt got no answer.
enum Failure {
    /// Nothing reached the replica: another may try.
    Unreachable(ConnectError),
    /// It may have seen the request, and the connection ended before the response head.
    Reset(String),
    /// No other may try.
    Final(Cause, Phase, String),
}

/// What the client gets when nobody else can be tried.
enum Last {
    /// The answer of one that was tried.
    Answer(Box<Answered>),
    /// The word that none came.
    Problem(Problem),
    /// The word that nobody could be reached, with the last cause.
    Unreachable(String),
}

/// Why no replica was decided on.
enum Refused {
    Now(Refusal),
    InLine(Problem),
}

/// Finds a replica that answers.
///
/// A replica that can't be reached is passed over, as many as there are. One that may have seen the request is passed
/// over only where the pool allows replays, within its budget, and for a request that no hop before has replayed.
///
/// # Errors
/// The problem to answer with, once nothing else may be tried.
pub async fn forward(
    exchange: &mut Exchange,
    pool: &Arc<Pool>,
    outgoing: &Outgoing,
    request: routing::Request<'_>,
) -> Result<Answered, Problem> {
    pool.began();
    let mut tried: Vec<Arc<str>> = Vec::new();
    let mut last: Option<Last> = None;
    let mut again: Option<&'static str> = None;
    let mut replays = 0;
    loop {
        // A lookup is not worth waiting for, and an answer in the hand is better than one to be waited for.
        let waits = !outgoing.seek
            && matches!(last, None | Some(Last::Unreachable(_)))
            && (tried.is_empty() || !request.pinned_only);
        let asked = routing::Request { tried: &tried, ..request.clone() };
        let decided = match decide(exchange, pool, &asked, waits).await {
            Ok(decided) => decided,
            Err(Refused::InLine(problem)) => return Err(problem),
            Err(Refused::Now(refusal)) => {
                return match last {
                    Some(Last::Answer(answered)) => Ok(*answered),
                    Some(Last::Problem(problem)) => Err(problem),
                    Some(Last::Unreachable(cause)) => Err(unreachable(pool, tried.len(), &cause)),
                    None => Err(refused(pool, &request, refusal)),
                };
            }
        };
        if let Some(cause) = again.take() {
            count_retry(exchange, pool, cause);
        }
        if !outgoing.seek {
            last = None;
        }
        let replica = decided.replica.clone();
        let on_success = exchange.attempt(decided);
        let first_byte = exchange.snapshot().config.timeouts.first_byte;
        let may_replay = |on: Option<RetryOn>| {
            let retry = &pool.settings().retry;
            retry.replay
                && !request.pinned_only
                && on.is_some_and(|on| retry.on.contains(&on))
                && outgoing.attempt <= 1
                && replays < retry.max
                && tried.len() + 1 < pool.replicas().len()
                && pool.may_replay()
        };
        match attempt(exchange, pool, &replica, outgoing, first_byte).await {
            Ok(response) => {
                let status = response.status();
                let pushed_back = response.headers().contains_key(header::RETRY_AFTER);
                replica.answered(status, pushed_back);
                if let Some(orca) = Orca::of(response.headers()) {
                    replica.heard_queue(orca.waiting(), orca.cache_use, exchange.proxy().clock().now());
                }
                let on_success = on_success.filter(|_| status.is_success());
                if !status.is_success() {
                    exchange.refused();
                }
                let on = RetryOn::named(status.as_str()).filter(|_| fleet::is_fault(status, pushed_back));
                again = if outgoing.seek && status == StatusCode::NOT_FOUND {
                    Some("not_found_there")
                } else if may_replay(on) {
                    replays += 1;
                    Some("replay_status")
                } else {
                    None
                };
                let answered = Answered { response, replica: replica.clone(), on_success };
                if again.is_none() {
                    return Ok(answered);
                }
                last = Some(Last::Answer(Box::new(answered)));
            }
            Err(Failure::Unreachable(error)) => {
                exchange.withdraw();
                replica.unreachable(&error);
                again = Some("connect_failed");
                if !matches!(last, Some(Last::Answer(_))) {
                    last = Some(Last::Unreachable(format!("replica {}: {error}", replica.id())));
                }
            }
            Err(Failure::Reset(message)) => {
                exchange.release();
                replica.cut_off();
                let problem = Problem::new(Cause::NoAnswer, Phase::FirstByte, message);
                if !may_replay(Some(RetryOn::Reset)) {
                    return Err(problem);
                }
                replays += 1;
                again = Some("replay_reset");
                last = Some(Last::Problem(problem));
            }
            Err(Failure::Final(cause, phase, message)) => {
                if phase == Phase::Send {
                    exchange.withdraw()
                } else {
                    exchange.release()
                }
                return Err(Problem::new(cause, phase, message));
            }
        }
        tried.push(replica.id().clone());
    }
}

/// Decides at once, or waits in the pool's line until there is a place and decides then.
async fn decide(
    exchange: &mut Exchange,
    pool: &Arc<Pool>,
    request: &routing::Request<'_>,
    waits: bool,
) -> Result<Decided, Refused> {
    exchange.enter(Phase::Decide);
    // A request that was let in before goes on; a new one stands behind those that wait.
    let refusal = if waits && request.tried.is_empty() && pool.others_wait() {
        Refusal::AllFull
    } else {
        match pool.decide(request, exchange.proxy().clock()) {
            Ok(decided) => return Ok(decided),
            Err(refusal) => refusal,
        }
    };
    let ticket = match if waits { pool.wait(refusal) } else { Waiting::Never } {
        Waiting::In(ticket) => ticket,
        Waiting::Never => return Err(Refused::Now(refusal)),
        Waiting::Full => {
            let message = format!(
                "as many requests as may (queue.max) already wait for a place in pool {}; try again later",
                pool.name()
            );
            return Err(Refused::InLine(Problem::new(Cause::QueueFull, Phase::Admit, message)));
        }
    };
    exchange.enter(Phase::Admit);
    let (began, most) = (Instant::now(), pool.settings().queue.timeout);
    loop {
        if timeout_at(began + most, ticket.called()).await.is_err() {
            let wait = humantime::format_duration(most);
            let message =
                format!("no place came free in pool {} within {wait} (queue.timeout); try again later", pool.name());
            return Err(Refused::InLine(Problem::new(Cause::QueueTimeout, Phase::Admit, message)));
        }
        exchange.enter(Phase::Decide);
        match pool.decide(request, exchange.proxy().clock()) {
            Ok(decided) => {
                pool.metrics.queue_wait.observe(began.elapsed().as_secs_f64());
                return Ok(decided);
            }
            // Another pool took the place, or it is one that this request has tried, or all went down: it stays.
            Err(_) => {
                exchange.enter(Phase::Admit);
                ticket.refused();
            }
        }
    }
}

fn count_retry(exchange: &Exchange, pool: &Pool, cause: &str) {
    exchange.proxy().metrics.retries.with_label_values(&[pool.name(), cause]).inc();
}

fn unreachable(pool: &Pool, tried: usize, last: &str) -> Problem {
    let message =
        format!("no replica tried in pool {} could be reached ({tried} tried); the last: {last}", pool.name());
    Problem::new(Cause::ConnectFailed, Phase::Connect, message)
}

fn refused(pool: &Pool, request: &routing::Request<'_>, refusal: Refusal) -> Problem {
    let name = pool.name();
    let holder = request.pinned.and_then(|id| pool.replica(id));
    let holder = holder.filter(|replica| request.pinned_only || replica.state() != State::Down);
    if let Some(replica) = holder {
        let (cause, why) = match refusal {
            Refusal::NoneReady => (Cause::NoReplicaReady, "is not ready"),
            Refusal::AllFull => (Cause::ReplicasFull, "has max_in_flight requests open"),
        };
        let id = replica.id();
        let message =
            format!("replica {id} of pool {name} holds the response that is asked for, and {why}; try again later");
        return Problem::new(cause, Phase::Decide, message);
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
) -> Result<Response<Received>, Failure> {
    exchange.enter(Phase::Connect);
    let mut reuse = replica.connections().take_idle().await;
    loop {
        let (connection, reused) = match reuse.take() {
            Some(connection) => (connection, true),
            None => {
                let opened = Box::pin(replica.connections().open()).await;
                (opened.map_err(Failure::Unreachable)?, false)
            }
        };
        let request = outgoing.request(replica, exchange.attempts())?;
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
            Ok(response) => return Ok(response),
            Err(SendFailure::Unfit(reason)) => {
                let message = format!("the answer of replica {} can't be passed on: {reason}", replica.id());
                return Err(Failure::Final(Cause::BadAnswer, Phase::FirstByte, message));
            }
            Err(SendFailure::Unsent(_)) if reused => {
                exchange.enter(Phase::Connect);
                count_retry(exchange, pool, "stale_connection");
            }
            Err(SendFailure::Unsent(error)) => return Err(Failure::Unreachable(ConnectError::Http(error))),
            Err(SendFailure::Sent(error)) => {
                let message = format!("replica {} gave no answer that can be read: {error}", replica.id());
                return Err(Failure::Reset(message));
            }
        }
    }
}

impl Outgoing {
    fn request(&self, replica: &Replica, attempts: u32) -> Result<Request, Failure> {
        let base = &replica.url().base_path;
        let joined;
        let target = match self.target.path_and_query() {
            Some(target) if base.is_empty() => target,
            target => {
                let target = format!("{base}{}", target.map_or("/", |target| target.as_str()));
                joined = PathAndQuery::try_from(target).map_err(|error| {
                    let id = replica.id();
                    let message = format!("the target can't be joined with the base path of replica {id}: {error}");
                    Failure::Final(Cause::BadHead, Phase::Send, message)
                })?;
                &joined
            }
        };
        let mut request = Request::new(self.method.clone(), target, replica.authority());
        let rank = replica.rank();
        head::for_replica(&mut request, &self.headers, replica.authorization().as_ref(), rank.is_some());
        if let Some(rank) = rank {
            request.field(&head::X_DATA_PARALLEL_RANK, &rank.at.into());
        }
        let attempt = self.attempt.max(1).saturating_add(attempts.saturating_sub(1));
        if attempt > 1 {
            request.field(&head::X_WARMROUTE_ATTEMPT, &attempt.into());
        }
        Ok(request.body(self.body.clone()))
    }
}
