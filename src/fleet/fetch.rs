//! Questions of the router's own to an engine, beside requests: bounded in time and in bytes.
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::{Replica, Request};

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
        let target = PathAndQuery::try_from(path.as_str()).map_err(|error| format!("{path}: {error}"))?;
        let mut request = Request::new(method, &target, self.authority());
        if let Some(authorization) = self.authorization() {
            request.field(&header::AUTHORIZATION, &authorization);
        }
        if let Some(body) = body {
            request.field(&header::CONTENT_TYPE, &HeaderValue::from_static("application/json"));
            request = request.body(body.into());
        }
        let asked = async {
            let (head, mut body) = self.connections().ask(request).await?.into_parts();
            let read = body.whole(most).await.map_err(|error| format!("{path}: {error}"))?;
            self.connections().give_back(body.into_connection());
            Ok(Fetched { status: head.status, headers: head.headers, body: read })
        };
        let late = || format!("{path}: no answer within {}", humantime::format_duration(within));
        tokio::time::timeout(within, asked).await.unwrap_or_else(|_| Err(late()))
    }
}
