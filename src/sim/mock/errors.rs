//! Answers before they are bodies, and the engines' shapes of errors.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::body::Source;
use super::sse::EventStream;
use super::state::Mock;

/// Status, headers and source of an answer.
pub(super) struct Reply {
    pub status: StatusCode,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub source: Source,
}

impl Reply {
    fn new(content_type: &'static str, source: Source) -> Self {
        let headers = vec![(CONTENT_TYPE, HeaderValue::from_static(content_type))];
        Self { status: StatusCode::OK, headers, source }
    }
    /// JSON, already written.
    pub(super) fn json_text(text: String) -> Self {
        Self::new("application/json", Source::Full(Bytes::from(text)))
    }
    /// JSON.
    pub(super) fn json(value: &Value) -> Self {
        Self::json_text(value.to_string())
    }
    /// Plain text, for metrics.
    pub(super) fn text(text: String) -> Self {
        Self::new("text/plain; version=0.0.4; charset=utf-8", Source::Full(Bytes::from(text)))
    }
    /// Nothing, with a status.
    pub(super) fn empty(status: u16) -> Self {
        let source = Source::Full(Bytes::new());
        Self { status: StatusCode::OK, headers: Vec::new(), source }.with_status(status)
    }
    /// Server-sent events.
    pub(super) fn stream(stream: EventStream) -> Self {
        Self::new("text/event-stream; charset=utf-8", Source::Stream(Box::new(stream)))
    }
    /// The same with another status.
    pub(super) fn with_status(mut self, status: u16) -> Self {
        self.status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self
    }
    /// The same with `Retry-After`.
    pub(super) fn with_retry_after(mut self, seconds: u64) -> Self {
        self.headers.push((RETRY_AFTER, HeaderValue::from(seconds)));
        self
    }

    /// An error in the engine's shape: vLLM wraps it in `error`, SGLang puts `object: "error"` beside it.
    pub(super) fn error(mock: &Mock, status: u16, kind: &str, message: &str, param: Option<&str>) -> Self {
        let body = if mock.is_sglang() {
            json!({"object": "error", "message": message, "type": kind, "param": null, "code": status})
        } else {
            json!({"error": {"message": message, "type": kind, "param": param, "code": status}})
        };
        Self::json(&body).with_status(status)
    }

    /// An error in Anthropic's shape.
    pub(super) fn anthropic_error(status: u16, message: &str) -> Self {
        let kind = match status {
            400 => "invalid_request_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            _ => "api_error",
        };
        Self::json(&json!({"type": "error", "error": {"type": kind, "message": message}})).with_status(status)
    }

    /// An engine's error in Anthropic's shape.
    pub(super) fn into_anthropic(self) -> Self {
        let Source::Full(body) = &self.source else { return self };
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let message = body["error"]["message"].as_str().or(body["message"].as_str()).unwrap_or("error");
        Self::anthropic_error(self.status.as_u16(), message)
    }

    /// The framework's own answer to a path or method it does not know.
    pub(super) fn detail(status: u16, detail: &str) -> Self {
        Self::json(&json!({"detail": detail})).with_status(status)
    }

    /// A prompt or limit beyond the context.
    pub(super) fn too_long(mock: &Mock, prompt: u64, output: u64, limit: u64) -> Self {
        let message = match (mock.is_sglang(), prompt > limit) {
            (true, true) => {
                format!("The input ({prompt} tokens) is longer than the model's context length ({limit} tokens).")
            }
            (true, false) => {
                format!("Requested {} tokens, but the model's context length is {limit} tokens.", prompt + output)
            }
            (false, true) => format!(
                "This model's maximum context length is {limit} tokens. However, your prompt contains {prompt} input \
                 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={prompt})"
            ),
            (false, false) => format!(
                "This model's maximum context length is {limit} tokens. However, you requested {output} output tokens \
                 and your prompt contains {prompt} input tokens. (parameter=input_tokens, value={prompt})"
            ),
        };
        Self::error(mock, 400, "BadRequestError", &message, Some("input_tokens"))
    }

    /// A model that is not served.
    pub(super) fn unknown_model(mock: &Mock, model: &str) -> Self {
        let known = mock.options.models.join(", ");
        let message = format!("The model `{model}` does not exist. Valid aliases: {known}.");
        Self::error(mock, 404, "NotFoundError", &message, Some("model"))
    }

    /// A body that is no JSON.
    pub(super) fn bad_json(mock: &Mock, body: &[u8], error: &serde_json::Error) -> Self {
        let (message, param) = if body.is_empty() {
            (
                "1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}"
                    .into(),
                "body".into(),
            )
        } else {
            let at = format!("body.{}", error.column().saturating_sub(1));
            let message = format!(
                "1 validation error:\n  {{'type': 'json_invalid', 'loc': '{at}', 'msg': 'JSON decode error', 'input': {{}}, \
                 'ctx': {{'error': '{error}'}}}}"
            );
            (message, at)
        };
        let (message, param): (String, String) = (message, param);
        Self::error(mock, 400, "Bad Request", &message, Some(&param))
    }

    /// A field that must be there.
    pub(super) fn missing(mock: &Mock, field: &str) -> Self {
        let message =
            format!("1 validation error:\n  {{'type': 'missing', 'loc': 'body.{field}', 'msg': 'Field required'}}");
        Self::error(mock, 400, "Bad Request", &message, Some(&format!("body.{field}")))
    }
}
