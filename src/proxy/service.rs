//! One request, phase by phase: head → read → admit → key → tokens → decide → connect → send → first byte → relay.
//!
//! Each step either goes on or ends in a [`Problem`]; problems become answers in one place.
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header, request};

use super::admit::{self, Admitted, admit, model_not_found};
use super::answer::{self, AnswerBody};
use super::body::{self, Incoming};
use super::exchange::Exchange;
use super::forward::{self, Answered, Outgoing};
use super::head::{self, X_REQUEST_ID, X_WARMROUTE_ATTEMPTS};
use super::listener::Client;
use super::models;
use super::problem::Problem;
use super::relay::{self, Relay};
use super::stored::Place;
use super::{Proxy, Snapshot};
use crate::api::{self, Cause, Endpoint, Family, Phase, Route, Source};
use crate::fleet::{Payload, Pool};
use crate::routing;

/// What a request comes to.
enum Reply {
    /// An engine's answer.
    Engine { answered: Box<Answered>, pool: Arc<Pool>, asked: Asked },
    /// The router's own.
    Own(Response<Bytes>),
}

/// What an answer may hold that the router looks at.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// The id of a stored response.
    stores: bool,
    /// Usage of what it made the engine generate.
    reports: bool,
    /// An event of usage that its client did not ask for.
    hides_usage: bool,
}

/// Answers one request; every failure is an answer.
pub async fn handle(
    proxy: Arc<Proxy>,
    client: Arc<Client>,
    head: request::Parts,
    incoming: Incoming<'_>,
) -> Response<AnswerBody> {
    let request_id = head::request_id(&head.headers);
    let mut exchange = Exchange::begin(proxy.clone(), request_id.clone(), client.clone(), head.method.clone());
    let path = head.uri.path().to_owned();
    let route = api::find(&head.method, &path);
    let family = family_of(&route, &head.headers);
    let allow = if let Route::WrongMethod(methods) = route { Some(methods) } else { None };

    // What is left of a request whose body nobody read must never be taken for the next one.
    let has_body = !incoming.is_over();
    let mut close = head.method == Method::CONNECT;
    let reply = {
        let mut way = pin!(way(&mut exchange, route, head, incoming, &client));
        poll_fn(|cx| match way.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            // As in the relay: its connection looks when the router cuts.
            Poll::Pending if proxy.cutting() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    };
    let reply = reply.unwrap_or_else(|| Err(Problem::new(Cause::ShuttingDown, exchange.phase(), relay::CUT)));
    let mut response = match reply {
        Ok(Reply::Engine { answered, pool, asked }) => {
            return relayed(exchange, *answered, pool, family, asked);
        }
        Ok(Reply::Own(response)) => {
            close |= has_body;
            exchange.served(response.status(), response.body().len());
            response
        }
        Err(problem) => {
            close |= has_body && matches!(problem.phase, Phase::Head | Phase::Read);
            exchange.rejected(&problem);
            answer::problem(family, &problem, allow)
        }
    };
    if exchange.attempts() > 1 {
        response.headers_mut().insert(X_WARMROUTE_ATTEMPTS, exchange.attempts().into());
    }
    exchange.expose(response.headers_mut());
    response.headers_mut().insert(X_REQUEST_ID, request_id);
    if close {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(AnswerBody::own)
}

fn family_of(route: &Route<'_>, headers: &HeaderMap) -> Family {
    match route {
        Route::Endpoint(endpoint) | Route::Stored(endpoint, _) => endpoint.family,
        // Anthropic's clients send this header with everything, also to paths we don't serve.
        _ if headers.contains_key("anthropic-version") => Family::Anthropic,
        _ => Family::OpenAi,
    }
}

/// The way of most requests. What few of them go through is boxed: each request's future has room for all the others.
async fn way(
    exchange: &mut Exchange,
    route: Route<'_>,
    head: request::Parts,
    incoming: Incoming<'_>,
    client: &Client,
) -> Result<Reply, Problem> {
    let snapshot = exchange.snapshot().clone();
    let Snapshot { config, fleet } = &*snapshot;
    head::check(&head, &config.limits)?;
    let mut named_pool = None;
    let (endpoint, stored_id) = match route {
        Route::Endpoint(endpoint) => (endpoint, None),
        Route::Stored(endpoint, id) => (endpoint, Some(id)),
        Route::Models => {
            exchange.on_path("/v1/models");
            let authorization = head.headers.get(header::AUTHORIZATION);
            let list = models::as_list(Box::pin(models::list(fleet, authorization)).await);
            return Ok(Reply::Own(answer::json(http::StatusCode::OK, list.to_string().into())));
        }
        Route::Model(name) => {
            exchange.on_path("/v1/models/{id}");
            let name = percent_decoded(name);
            let entries = Box::pin(models::list(fleet, head.headers.get(header::AUTHORIZATION))).await;
            let entry = entries.iter().find(|entry| models::name(entry) == Some(&*name));
            let entry = entry.ok_or_else(|| model_not_found(fleet, &name))?;
            return Ok(Reply::Own(answer::json(http::StatusCode::OK, entry.to_string().into())));
        }
        Route::WrongMethod(methods) => {
            let message = format!("this method is not allowed here; use {methods}");
            return Err(Problem::new(Cause::MethodNotAllowed, Phase::Head, message));
        }
        Route::Unknown => {
            let path = head.uri.path();
            named_pool = fleet.pools().iter().find(|pool| pool.settings().paths.iter().any(|each| &**each == path));
            if named_pool.is_none() {
                let message = "nothing is served on this path; a pool's `paths` can allow further ones";
                return Err(Problem::new(Cause::PathNotFound, Phase::Head, message));
            }
            (Route::allowed(), None)
        }
    };
    exchange.on_path(endpoint.path);

    exchange.enter(Phase::Read);
    let received = body::read(incoming, &config.limits, config.timeouts.body).await?;
    exchange.received(received.len());

    exchange.enter(Phase::Admit);
    let admitted = match (stored_id, named_pool) {
        (Some(id), _) => return Box::pin(stored_response(exchange, endpoint, id, head, received, client)).await,
        (None, Some(pool)) => Admitted::opaque(pool.clone(), received),
        (None, None) => admit(exchange.proxy(), &snapshot, endpoint, &head.headers, received).await?,
    };
    send(exchange, endpoint, head, admitted, client).await
}

/// Decides, sends, and waits for the answer's head.
async fn send(
    exchange: &mut Exchange,
    endpoint: &'static Endpoint,
    head: request::Parts,
    mut admitted: Admitted,
    client: &Client,
) -> Result<Reply, Problem> {
    let pool = admitted.pool.clone();
    exchange.in_pool(&pool);
    if let Some(cause) = admitted.unparsed.take() {
        exchange.proxy().metrics.unparsed.with_label_values(&[pool.name(), "unreadable"]).inc();
        tracing::debug!(pool = %pool.name(), cause, "a body passes unparsed");
    }
    if admit::keyed(&pool, endpoint) {
        let source = match (&admitted.session, &admitted.pinned) {
            (Some((_, source)), _) => *source,
            (None, Some(_)) => Source::PreviousResponse,
            (None, None) if api::unusable(&pool.settings().session, &head.headers) => Source::Unusable,
            (None, None) => Source::None,
        };
        exchange.keyed(source);
        exchange.proxy().metrics.session_keys.with_label_values(&[pool.name(), source.as_str()]).inc();
    }
    exchange.enter(Phase::Tokens);
    let (proxy, unread) = (exchange.proxy().clone(), std::mem::take(&mut admitted.prompt));
    let known = proxy.bench.read(&pool, endpoint, unread).await;
    let prompt = known.as_ref().and_then(|known| known.prompt.clone());
    known.into_iter().for_each(|known| exchange.prompt(known));
    let request = admitted.request(endpoint, &head.headers, prompt.as_ref());
    let attempt = head::attempt(&head.headers);
    let trusted = &exchange.snapshot().config.trusted_proxies;
    let mut headers = head::to_replica(head.headers, head.uri.authority(), client, trusted, exchange.request_id());
    if admitted.decoded {
        headers.retain(|(name, _)| *name != header::CONTENT_ENCODING);
    }
    let body = admitted.body.clone();
    let outgoing = Outgoing { method: head.method, target: head.uri, headers, body, attempt, seek: false };
    let answered = forward::forward(exchange, &pool, &outgoing, request).await?;
    let asked = Asked {
        stores: endpoint.family == Family::Responses,
        reports: !endpoint.load_only,
        hides_usage: admitted.asks_usage,
    };
    Ok(Reply::Engine { answered: Box::new(answered), pool, asked })
}

/// A stored response: where it is known to be, and nowhere else; or wherever it is found. One that is known to a replica
/// that is down is not gone, so no other replica is asked to say that it does not exist.
async fn stored_response(
    exchange: &mut Exchange,
    endpoint: &'static Endpoint,
    id: &str,
    head: request::Parts,
    body: Payload,
    client: &Client,
) -> Result<Reply, Problem> {
    let snapshot = exchange.snapshot().clone();
    let pools = snapshot.fleet.pools();
    let place: Option<Place> = exchange.proxy().stored.find(id);
    // One whose replica has left the fleet is as good as unknown.
    let home = place.as_ref().and_then(|place| {
        let pool = pools.iter().find(|pool| *pool.name() == place.pool)?;
        pool.replica(&place.replica).is_some().then_some((pool, &*place.replica))
    });
    let (attempt, trusted) = (head::attempt(&head.headers), &snapshot.config.trusted_proxies);
    let headers = head::to_replica(head.headers, head.uri.authority(), client, trusted, exchange.request_id());
    let outgoing = Outgoing { method: head.method, target: head.uri, headers, body, attempt, seek: home.is_none() };
    let request = routing::Request {
        sequences: 1,
        load_only: endpoint.load_only,
        pinned: home.map(|(_, replica)| replica),
        pinned_only: home.is_some(),
        ..Default::default()
    };
    // What it used was reported when it was made.
    let asked = Asked { stores: false, reports: false, hides_usage: false };
    if let Some((pool, _)) = home {
        exchange.in_pool(pool);
        let answered = Box::new(forward::forward(exchange, pool, &outgoing, request).await?);
        return Ok(Reply::Engine { answered, pool: pool.clone(), asked });
    }
    let mut last = Err(Problem::new(Cause::NoReplicaReady, Phase::Decide, "no replica is ready; try again later"));
    for pool in pools {
        exchange.in_pool(pool);
        match forward::forward(exchange, pool, &outgoing, request.clone()).await {
            Ok(answered) => {
                let found = answered.response.status() != http::StatusCode::NOT_FOUND;
                last = Ok(Reply::Engine { answered: Box::new(answered), pool: pool.clone(), asked });
                if found {
                    break;
                }
            }
            Err(problem) if last.is_err() => last = Err(problem),
            Err(_) => {}
        }
    }
    last
}

fn relayed(
    mut exchange: Box<Exchange>,
    answered: Answered,
    pool: Arc<Pool>,
    family: Family,
    asked: Asked,
) -> Response<AnswerBody> {
    let Answered { response, replica, on_success } = answered;
    let (mut head, incoming) = response.into_parts();
    let stream = head::is_event_stream(&head.headers);
    exchange.answered(head.status, stream);
    // What is compressed is passed on unread, and nothing of ours fits into it.
    let plain = !head.headers.contains_key(header::CONTENT_ENCODING);
    head::to_client(&mut head.headers, exchange.request_id());
    exchange.expose(&mut head.headers);
    if exchange.attempts() > 1 {
        head.headers.insert(X_WARMROUTE_ATTEMPTS, exchange.attempts().into());
    }
    head.version = http::Version::HTTP_11;
    let idle = exchange.snapshot().config.timeouts.idle;
    let success = head.status.is_success();
    let relay = Relay::new(relay::Parts {
        incoming,
        exchange,
        pool,
        replica,
        family,
        stream: stream && plain,
        stores: asked.stores && plain && success,
        reports: asked.reports && success,
        hides_usage: asked.hides_usage && stream && plain && success,
        plain,
        on_success,
        idle,
    });
    Response::from_parts(head, AnswerBody::relay(relay))
}

/// `%2F` and the like in a model's name.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit(high).zip(digit(low)).map(|(high, low)| high << 4 | low)
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = tail.get(if escaped.is_some() { 2 } else { 0 }..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
