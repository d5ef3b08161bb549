//! The endpoints that are forwarded. Paths are matched exactly and never normalised.
use http::Method;

/// The family of APIs a client speaks: decides the shape of our own errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// OpenAI's shape, which the engines' own endpoints share.
    OpenAi,
    /// OpenAI's Responses API: the same shape, but other stream events.
    Responses,
    /// Anthropic's Messages API.
    Anthropic,
}

/// What a request body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// A JSON object.
    Json,
    /// `multipart/form-data` with the model in a form field.
    Form,
    /// None, or nothing we read.
    Opaque,
}

/// One endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// Exact path; also its label.
    pub path: &'static str,
    /// Shape of errors.
    pub family: Family,
    /// Shape of the body.
    pub body: Body,
    /// Goes by load alone: no session, no binding.
    pub load_only: bool,
}

const fn endpoint(path: &'static str, family: Family, body: Body, load_only: bool) -> Endpoint {
    Endpoint { path, family, body, load_only }
}

static ENDPOINTS: &[Endpoint] = &[
    endpoint("/v1/chat/completions", Family::OpenAi, Body::Json, false),
    endpoint("/v1/completions", Family::OpenAi, Body::Json, false),
    endpoint("/v1/responses", Family::Responses, Body::Json, false),
    endpoint("/v1/messages", Family::Anthropic, Body::Json, false),
    endpoint("/v1/messages/count_tokens", Family::Anthropic, Body::Json, true),
    endpoint("/v1/embeddings", Family::OpenAi, Body::Json, true),
    endpoint("/v1/rerank", Family::OpenAi, Body::Json, true),
    endpoint("/v1/score", Family::OpenAi, Body::Json, true),
    endpoint("/v1/audio/transcriptions", Family::OpenAi, Body::Form, true),
    endpoint("/v1/audio/translations", Family::OpenAi, Body::Form, true),
    endpoint("/v1/audio/speech", Family::OpenAi, Body::Json, true),
    endpoint("/generate", Family::OpenAi, Body::Json, false),
    endpoint("/tokenize", Family::OpenAi, Body::Json, true),
    endpoint("/detokenize", Family::OpenAi, Body::Json, true),
];

/// One stored response: `GET`, `DELETE` and cancel.
static STORED: Endpoint = endpoint("/v1/responses/{id}", Family::Responses, Body::Opaque, true);
static STORED_CANCEL: Endpoint = endpoint("/v1/responses/{id}/cancel", Family::Responses, Body::Opaque, true);
/// A path that the operator allowed for a pool.
pub(super) static ALLOWED: Endpoint = endpoint("allowed", Family::OpenAi, Body::Opaque, true);

/// Where a request line leads.
#[derive(Debug, Clone, Copy)]
pub enum Route<'a> {
    /// An endpoint whose pool follows from the body.
    Endpoint(&'static Endpoint),
    /// A stored response, wherever it is.
    Stored(&'static Endpoint, &'a str),
    /// The list of models.
    Models,
    /// One model of that list.
    Model(&'a str),
    /// The path is known; the method is not one of these.
    WrongMethod(&'static str),
    /// A path that only an operator's allow-list can know.
    Unknown,
}

impl Route<'_> {
    /// The endpoint of a path that the operator allowed.
    pub fn allowed() -> &'static Endpoint {
        &ALLOWED
    }
}

/// Whether a path segment can be the id of a stored response. Dots alone and escapes could make an engine, or a proxy
/// before it, see another path than we do.
fn is_id(segment: &str) -> bool {
    let safe =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'~' | b'=' | b'+');
    segment.bytes().all(safe) && segment.bytes().any(|byte| byte != b'.')
}

/// Finds where a request line leads.
pub fn find<'a>(method: &Method, path: &'a str) -> Route<'a> {
    if let Some(endpoint) = ENDPOINTS.iter().find(|endpoint| endpoint.path == path) {
        return if method == Method::POST { Route::Endpoint(endpoint) } else { Route::WrongMethod("POST") };
    }
    if path == "/v1/models" {
        return if method == Method::GET { Route::Models } else { Route::WrongMethod("GET") };
    }
    if let Some(id) = path.strip_prefix("/v1/models/").filter(|id| !id.is_empty()) {
        return if method == Method::GET { Route::Model(id) } else { Route::WrongMethod("GET") };
    }
    let Some(rest) = path.strip_prefix("/v1/responses/") else { return Route::Unknown };
    match rest.split_once('/') {
        None if is_id(rest) => match *method {
            Method::GET | Method::DELETE => Route::Stored(&STORED, rest),
            _ => Route::WrongMethod("GET, DELETE"),
        },
        Some((id, "cancel")) if is_id(id) => {
            if method == Method::POST {
                Route::Stored(&STORED_CANCEL, id)
            } else {
                Route::WrongMethod("POST")
            }
        }
        Some((id, "input_items")) if is_id(id) && method == Method::GET => Route::Stored(&STORED, id),
        _ => Route::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BUILT_IN, is_built_in};

    #[test]
    fn what_the_configuration_takes_for_built_in_is_what_is_served() {
        let served: Vec<_> = ENDPOINTS.iter().map(|endpoint| endpoint.path).chain(["/v1/models"]).collect();
        assert!(served.len() == BUILT_IN.len() && served.iter().all(|path| BUILT_IN.contains(path)), "{served:?}");
        for path in served.iter().chain(&["/v1/models/m", "/v1/responses/x", "/v1/responses/a/b", "/pooling", "/v1"]) {
            let known = !matches!(find(&Method::POST, path), Route::Unknown);
            assert_eq!(is_built_in(path), known, "{path}");
        }
    }

    #[test]
    fn paths_are_exact() {
        let is = |method: Method, path, expected: &str| {
            let found = match find(&method, path) {
                Route::Endpoint(endpoint) => endpoint.path.to_owned(),
                Route::Stored(endpoint, id) => format!("{} {id}", endpoint.path),
                Route::Models => "models".into(),
                Route::Model(id) => format!("model {id}"),
                Route::WrongMethod(allow) => format!("405 {allow}"),
                Route::Unknown => "404".into(),
            };
            assert_eq!(found, expected, "{method} {path}");
        };
        is(Method::POST, "/v1/chat/completions", "/v1/chat/completions");
        is(Method::GET, "/v1/chat/completions", "405 POST");
        is(Method::POST, "/v1/chat/completions/", "404");
        is(Method::POST, "/v1/x/../chat/completions", "404");
        is(Method::POST, "//v1/chat/completions", "404");
        is(Method::GET, "/v1/models", "models");
        is(Method::GET, "/v1/models/org/name", "model org/name");
        is(Method::GET, "/v1/responses/resp_1", "/v1/responses/{id} resp_1");
        is(Method::DELETE, "/v1/responses/resp_1", "/v1/responses/{id} resp_1");
        is(Method::POST, "/v1/responses/resp_1", "405 GET, DELETE");
        is(Method::POST, "/v1/responses/resp_1/cancel", "/v1/responses/{id}/cancel resp_1");
        is(Method::GET, "/v1/responses/", "404");
        for other_path in [
            "/v1/responses/..",
            "/v1/responses/%2e%2e%2fmetrics",
            "/v1/responses/a;b",
            "/v1/responses/../cancel",
            "/v1/responses/../input_items",
        ] {
            is(Method::GET, other_path, "404");
            is(Method::DELETE, other_path, "404");
            is(Method::POST, other_path, "404");
        }
        is(Method::GET, "/metrics", "404");
    }
}
