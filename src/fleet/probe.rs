//! One probe: the health path answers 2xx and, if so wished, `/v1/models` lists the model.
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, StatusCode, header};
use memchr::memmem;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::{ConnectError, Connection, Replica, Request, SendFailure};

/// Largest health answer that is read, so that the connection can be used again.
const HEALTH_BODY: usize = 64 * 1024;
/// Largest list of models that is read.
const MODELS_BODY: usize = 1 << 20;

/// Why a probe failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// No connection could be opened.
    Unreachable(String),
    /// Nobody listens there.
    Refused(String),
    /// One could, but what came was wrong, or nothing.
    Sick(String),
    /// It answers that it is not ready (503).
    Unready {
        /// What it answered.
        cause: String,
        /// It says that it loads its model.
        loads: bool,
    },
    /// This machine has run out of something: that says nothing of the replica.
    Local(String),
}

impl Fault {
    /// In words.
    pub fn cause(&self) -> &str {
        match self {
            Self::Unreachable(cause) | Self::Refused(cause) | Self::Sick(cause) | Self::Local(cause) => cause,
            Self::Unready { cause, .. } => cause,
        }
    }

    /// Of a connection that could not be opened.
    pub fn of(error: &ConnectError) -> Self {
        let cause = error.to_string();
        match error {
            error if error.is_local() => Self::Local(cause),
            error if error.is_refused() => Self::Refused(cause),
            _ => Self::Unreachable(cause),
        }
    }
}

/// What is read of `/v1/models`.
#[derive(Deserialize)]
struct Models<'a> {
    #[serde(borrow)]
    data: Vec<Model<'a>>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    id: std::borrow::Cow<'a, str>,
}

impl Replica {
    /// One probe, within `health.timeout`.
    pub(super) async fn probe(&self) -> Result<(), Fault> {
        let health = self.health();
        // In messages, paths carry the base path: that is what the engine was asked.
        let list_of_models = format!("{}/v1/models", self.url().base_path);
        let deadline = Instant::now() + health.timeout;
        self.ask(&format!("{}{}", self.url().base_path, health.path), HEALTH_BODY, deadline).await?;
        if let Some(model) = &health.model {
            let list = self.ask(&list_of_models, MODELS_BODY, deadline).await?;
            let list: Models<'_> = serde_json::from_slice(&list)
                .map_err(|error| Fault::Sick(format!("{list_of_models} is no list of models: {error}")))?;
            if !list.data.iter().any(|entry| entry.id == **model) {
                return Err(Fault::Sick(format!("{list_of_models} does not list `{model}` (health.model_match)")));
            }
        }
        Ok(())
    }

    /// GETs a path, the base path included, that must answer 2xx; its body, or nothing if that is longer than `most`.
    async fn ask(&self, path: &str, most: usize, deadline: Instant) -> Result<Bytes, Fault> {
        let over = |_| Fault::Sick(format!("{path}: no answer in time"));
        // An idle connection that dies says nothing; a fresh one does.
        if let Some(connection) = self.connections().take_idle().await
            && let Ok(body) = timeout_at(deadline, self.get(connection, path, most)).await.map_err(over)?
        {
            return body;
        }
        let connection = match timeout_at(deadline, self.connections().open()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(Fault::of(&error)),
            Err(_) => return Err(Fault::Unreachable("no connection in time".into())),
        };
        let body = timeout_at(deadline, self.get(connection, path, most)).await.map_err(over)?;
        body.unwrap_or_else(|error| Err(Fault::Sick(format!("{path}: {error}"))))
    }

    /// The outer error is the connection's.
    async fn get(&self, connection: Connection, path: &str, most: usize) -> Result<Result<Bytes, Fault>, SendFailure> {
        let target = match PathAndQuery::try_from(path) {
            Ok(target) => target,
            Err(error) => return Ok(Err(Fault::Sick(format!("{path}: {error}")))),
        };
        let mut request = Request::new(Method::GET, &target, self.authority());
        if let Some(authorization) = self.authorization() {
            request.field(&header::AUTHORIZATION, &authorization);
        }
        let response = connection.send(request).await?;
        let status = response.status();
        let mut body = response.into_body();
        let read = body.whole(most).await;
        if read.is_ok() {
            self.connections().give_back(body.into_connection());
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // llama.cpp: `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`.
            let loads = read.is_ok_and(|body| memmem::find(&body.to_ascii_lowercase(), b"loading").is_some());
            return Ok(Err(Fault::Unready { cause: format!("{path} answered {status}"), loads }));
        }
        if !status.is_success() {
            return Ok(Err(Fault::Sick(format!("{path} answered {status}"))));
        }
        Ok(Ok(read.unwrap_or_default()))
    }
}
