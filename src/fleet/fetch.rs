//! Questions of the router's own to an engine, beside requests: bounded in time and in bytes.
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};

use super::{Payload, Replica};

/// An answer, whole.
#[derive(Debug)]
pub struct Fetched {
    /// Its status.
    pub status: StatusCode,
    /// Its fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Replica {
    /// Asks for a path, which its base path goes before; `body`, if there is one, is JSON. An idle connection is used, and
    /// given back.
    ///
    /// # Errors
    /// For people: no connection, no answer `within` the time, or one of more than `most` bytes.
    pub async fn fetch(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        most: usize,
        within: Duration,
    ) -> Result<Fetched, String> {
        let path = format!("{}{path}", self.url().base_path);
        let mut request = Request::builder().method(method).uri(&path).header(header::HOST, self.authority());
        if let Some(authorization) = self.authorization() {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(Payload::from(body.unwrap_or_default())))
            .map_err(|error| format!("{path}: {error}"))?;
        let asked = async {
            let (head, mut body) = self.connections().ask(request).await?.into_parts();
            let read = Limited::new(&mut body, most).collect().await.map_err(|error| format!("{path}: {error}"))?;
            self.connections().give_back(body.into_connection());
            Ok(Fetched { status: head.status, headers: head.headers, body: read.to_bytes() })
        };
        let late = || format!("{path}: no answer within {}", humantime::format_duration(within));
        tokio::time::timeout(within, asked).await.unwrap_or_else(|_| Err(late()))
    }
}
