//! Errors of our own, in the shape of the API family the client speaks, with the phase and the origin.
//!
//! An engine's own errors are never touched; these are for what the router itself has to say.
use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::Family;

/// The way of a request: logs, metrics and error bodies name the same phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The request line and headers.
    Head,
    /// The body from the client.
    Read,
    /// Model and size checks.
    Admit,
    /// Making blocks of the prompt.
    Tokens,
    /// Choosing a replica.
    Decide,
    /// Opening a connection to it.
    Connect,
    /// Sending the request.
    Send,
    /// Waiting for the answer's first byte.
    FirstByte,
    /// Passing the answer on.
    Relay,
    /// Done.
    Finish,
}

impl Phase {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Read => "read",
            Self::Admit => "admit",
            Self::Tokens => "tokens",
            Self::Decide => "decide",
            Self::Connect => "connect",
            Self::Send => "send",
            Self::FirstByte => "first_byte",
            Self::Relay => "relay",
            Self::Finish => "finish",
        }
    }
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The request itself.
    Client,
    /// The router, or its configuration.
    Router,
    /// A replica.
    Replica,
}

impl Origin {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Router => "router",
            Self::Replica => "replica",
        }
    }
}

/// What went wrong; the label is also the `code` in error bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A request head that can't be served as it stands.
    BadHead,
    /// A request whose length can't be told without doubt.
    BadFraming,
    /// A transfer coding that nobody here decodes.
    UnsupportedTransferEncoding,
    /// A version of HTTP that is not spoken here.
    UnsupportedVersion,
    /// The head is larger than `limits.head`, or has more fields than `limits.headers`.
    HeadTooLarge,
    /// The client began a head and did not end it within `timeouts.head`.
    HeadTimeout,
    /// `Expect` asks for something else than `100-continue`.
    ExpectationFailed,
    /// The target is longer than `limits.uri`.
    UriTooLong,
    /// The body is longer than `limits.body`.
    BodyTooLarge,
    /// The client stopped sending its body.
    BodyTimeout,
    /// The client's body broke off.
    BodyIncomplete,
    /// The body is not what the endpoint takes, and routing needs to read it.
    BadBody,
    /// A `Content-Encoding` that can't be decoded.
    UnsupportedEncoding,
    /// No pool serves the model.
    ModelNotFound,
    /// Several pools, and the request names no model.
    ModelRequired,
    /// Nothing is served on this path.
    PathNotFound,
    /// Not with this method.
    MethodNotAllowed,
    /// No replica is ready.
    NoReplicaReady,
    /// Every ready replica is at its `max_in_flight`.
    ReplicasFull,
    /// As many requests wait for a place as may (`queue.max`).
    QueueFull,
    /// No place came free within `queue.timeout`.
    QueueTimeout,
    /// No connection to any replica could be opened.
    ConnectFailed,
    /// The replica closed the connection without an answer, or what it sent is none.
    NoAnswer,
    /// The replica's answer can't be read without doubt.
    BadAnswer,
    /// No response head within `timeouts.first_byte`.
    FirstByteTimeout,
    /// The replica's answer broke off.
    AnswerCut,
    /// Nothing came for `timeouts.idle`.
    IdleTimeout,
    /// The router is shutting down.
    ShuttingDown,
    /// A fault in the router.
    Internal,
}

impl Cause {
    /// The label, and the `code` in error bodies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadHead => "bad_head",
            Self::BadFraming => "bad_framing",
            Self::UnsupportedTransferEncoding => "unsupported_transfer_encoding",
            Self::UnsupportedVersion => "unsupported_version",
            Self::HeadTooLarge => "head_too_large",
            Self::HeadTimeout => "head_timeout",
            Self::ExpectationFailed => "expectation_failed",
            Self::UriTooLong => "uri_too_long",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::BodyIncomplete => "body_incomplete",
            Self::BadBody => "bad_body",
            Self::UnsupportedEncoding => "unsupported_encoding",
            Self::ModelNotFound => "model_not_found",
            Self::ModelRequired => "model_required",
            Self::PathNotFound => "path_not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NoReplicaReady => "no_replica_ready",
            Self::ReplicasFull => "replicas_full",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
            Self::ConnectFailed => "connect_failed",
            Self::NoAnswer => "no_answer",
            Self::BadAnswer => "bad_answer",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::AnswerCut => "answer_cut",
            Self::IdleTimeout => "idle_timeout",
            Self::ShuttingDown => "shutting_down",
            Self::Internal => "internal",
        }
    }

    /// The status it is answered with.
    pub fn status(self) -> StatusCode {
        match self {
            Self::BadHead | Self::BadFraming | Self::BodyIncomplete | Self::BadBody | Self::ModelRequired => {
                StatusCode::BAD_REQUEST
            }
            Self::UnsupportedTransferEncoding => StatusCode::NOT_IMPLEMENTED,
            Self::UnsupportedVersion => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadTimeout | Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::UnsupportedEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::ModelNotFound | Self::PathNotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Self::NoReplicaReady | Self::ReplicasFull | Self::QueueTimeout | Self::ShuttingDown => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::ConnectFailed | Self::NoAnswer | Self::BadAnswer | Self::AnswerCut => StatusCode::BAD_GATEWAY,
            Self::FirstByteTimeout | Self::IdleTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whose fault it is.
    pub fn origin(self) -> Origin {
        match self {
            Self::NoReplicaReady
            | Self::ReplicasFull
            | Self::QueueFull
            | Self::QueueTimeout
            | Self::ShuttingDown
            | Self::Internal => Origin::Router,
            Self::ConnectFailed
            | Self::NoAnswer
            | Self::BadAnswer
            | Self::FirstByteTimeout
            | Self::AnswerCut
            | Self::IdleTimeout => Origin::Replica,
            _ => Origin::Client,
        }
    }

    /// Seconds after which trying again makes sense.
    pub fn retry_after(self) -> Option<u32> {
        matches!(self.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS).then_some(1)
    }

    fn openai_type(self) -> &'static str {
        match self.status() {
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            StatusCode::NOT_FOUND => "not_found_error",
            status if status.is_server_error() && self.origin() != Origin::Client => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(self) -> &'static str {
        match self.status() {
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            status if status.is_server_error() && self.origin() != Origin::Client => "api_error",
            _ => "invalid_request_error",
        }
    }
}

fn openai(cause: Cause, phase: Phase, message: &str) -> serde_json::Value {
    json!({
        "message": message,
        "type": cause.openai_type(),
        "param": null,
        "code": cause.as_str(),
        "phase": phase.as_str(),
        "origin": cause.origin().as_str(),
    })
}

fn anthropic(cause: Cause, phase: Phase, message: &str) -> serde_json::Value {
    json!({
        "type": "error",
        "error": {
            "type": cause.anthropic_type(),
            "message": message,
            "code": cause.as_str(),
            "phase": phase.as_str(),
            "origin": cause.origin().as_str(),
        },
    })
}

/// The JSON body of an error response.
pub fn error_body(family: Family, cause: Cause, phase: Phase, message: &str) -> Bytes {
    let body = match family {
        Family::OpenAi | Family::Responses => json!({ "error": openai(cause, phase, message) }),
        Family::Anthropic => anthropic(cause, phase, message),
    };
    Bytes::from(body.to_string())
}

/// The last event of an event stream that broke off. `events` have been sent before it; `open_event` tells that the
/// last one was cut in the middle, and must be ended first.
pub fn stream_error(family: Family, cause: Cause, message: &str, events: u64, open_event: bool) -> Bytes {
    let phase = Phase::Relay;
    let (name, data) = match family {
        Family::OpenAi => ("", json!({ "error": openai(cause, phase, message) })),
        Family::Anthropic => ("event: error\n", anthropic(cause, phase, message)),
        Family::Responses => (
            "event: error\n",
            json!({
                "type": "error",
                "code": cause.as_str(),
                "message": message,
                "param": null,
                "sequence_number": events,
                "phase": phase.as_str(),
                "origin": cause.origin().as_str(),
            }),
        ),
    };
    let end = if open_event { "\n\n" } else { "" };
    Bytes::from(format!("{end}{name}data: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_gets_its_own_shape() {
        let parse = |family| {
            serde_json::from_slice::<serde_json::Value>(&error_body(family, Cause::ModelNotFound, Phase::Admit, "no"))
                .unwrap()
        };
        let openai = parse(Family::OpenAi);
        assert_eq!(openai["error"]["code"], "model_not_found");
        assert_eq!(openai["error"]["origin"], "client");
        assert_eq!(openai["error"]["phase"], "admit");
        let anthropic = parse(Family::Anthropic);
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "not_found_error");
    }

    #[test]
    fn a_stream_error_is_one_event_and_never_done() {
        for family in [Family::OpenAi, Family::Responses, Family::Anthropic] {
            let event = stream_error(family, Cause::AnswerCut, "gone", 3, true);
            let text = std::str::from_utf8(&event).unwrap();
            assert!(text.starts_with("\n\n") && text.ends_with("\n\n"), "{text:?}");
            assert_eq!(text.matches("data:").count(), 1);
            assert!(!text.contains("[DONE]"));
        }
    }
}
