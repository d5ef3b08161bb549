//! Asks a running router.
//!
//! `POST /explain?path=PATH` carries the request's own body and headers. `Host` and `Authorization` are the admin
//! listener's, so the request's own `Authorization` goes as `x-explain-authorization`; headers that frame a message are
//! left out.
use bytes::Bytes;
use http::header::{self, InvalidHeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use serde_json::Value;

use super::PATIENCE;
use crate::config::{ReplicaTls, ReplicaUrl, Secret};
use crate::fleet::{Connections, Payload, Request};

/// The `Authorization` of the request that is explained.
const AUTHORIZATION: HeaderName = HeaderName::from_static("x-explain-authorization");
/// Bytes of an answer that are read: a line for each of thousands of replicas.
const MOST_BYTES: usize = 16 << 20;

/// The router's answer.
///
/// # Errors
/// Nobody listens there, or the request can't be explained; for people.
pub async fn ask(admin: ReplicaUrl, token: Option<&Secret>, asked: super::Request) -> Result<Value, String> {
    let place = admin.to_string();
    let tls = admin.tls.then(|| ReplicaTls { ca: None, server_name: admin.host.clone() });
    let target = PathAndQuery::try_from(format!("{}/explain?path={}", admin.base_path, escaped(&asked.path)))
        .map_err(|error| format!("the request could not be made: {error}"))?;
    let host = HeaderValue::from_str(&admin.authority).map_err(invalid)?;
    let mut request = Request::new(Method::POST, &target, &host).body(Payload::from(Bytes::from(asked.body)));
    headers(asked.headers, token)?.iter().for_each(|(name, value)| request.field(name, value));
    let connections = Connections::new(admin, tls.as_ref(), PATIENCE, PATIENCE);
    let exchange = async {
        let connection = connections.open().await.map_err(|error| {
            format!(
                "no router answers at {place}: {error}\nIs `warmroute serve` running with this configuration? --admin URL \
                 asks another one, --offline asks none and tells the prompt's tokens and blocks alone."
            )
        })?;
        let response =
            connection.send(request).await.map_err(|_| format!("{place} closed the connection without an answer"))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| format!("the answer of {place} broke off: {error}"))?.to_bytes();
        judge(&place, status, &body)
    };
    let waited = tokio::time::timeout(PATIENCE, exchange).await;
    waited.unwrap_or_else(|_| Err(format!("{place} has not answered within {} s", PATIENCE.as_secs())))
}

fn invalid(_: InvalidHeaderValue) -> String {
    "the admin listener's name or token is no header's value".into()
}

fn headers(mut headers: HeaderMap, token: Option<&Secret>) -> Result<HeaderMap, String> {
    // What else frames a message, a request leaves out by itself.
    for framing in [header::UPGRADE, header::TE] {
        headers.remove(framing);
    }
    if let Some(own) = headers.remove(header::AUTHORIZATION) {
        headers.insert(AUTHORIZATION, own);
    }
    if let Some(token) = token {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal())).map_err(invalid)?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    Ok(headers)
}

fn judge(place: &str, status: StatusCode, body: &[u8]) -> Result<Value, String> {
    match (status, serde_json::from_slice::<Value>(body)) {
        (StatusCode::OK, Ok(answer)) if answer.is_object() => Ok(answer),
        (StatusCode::OK, _) => Err(format!("{place} answers, but not as a router's admin listener does")),
        (StatusCode::UNAUTHORIZED, _) => {
            Err(format!("{place} asks for a token: the router runs with another `admin.token` than this configuration"))
        }
        (status, parsed) => {
            // An error in the shape of the API that the request speaks.
            let message = parsed.as_ref().ok().and_then(|body| body.pointer("/error/message")?.as_str());
            let said = message.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned);
            Err(format!("{place} can't explain this request ({status}): {said}"))
        }
    }
}

/// A path as the value of a query's field.
fn escaped(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => out.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
