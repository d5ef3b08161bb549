//! A request for each endpoint that the router knows.
use serde_json::{Value, json};

use super::Request;

/// Whose API an endpoint belongs to: what its errors look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// OpenAI's shape, which the engines' own endpoints share.
    Openai,
    /// The same, but stream events of the Responses API.
    Responses,
    Anthropic,
}

/// One endpoint, and whether it can stream.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    pub path: &'static str,
    pub family: Family,
    pub streams: bool,
}

/// Every endpoint with a JSON body.
pub const ENDPOINTS: &[Endpoint] = &[
    Endpoint { path: "/v1/chat/completions", family: Family::Openai, streams: true },
    Endpoint { path: "/v1/completions", family: Family::Openai, streams: true },
    Endpoint { path: "/v1/responses", family: Family::Responses, streams: true },
    Endpoint { path: "/v1/messages", family: Family::Anthropic, streams: true },
    Endpoint { path: "/v1/messages/count_tokens", family: Family::Anthropic, streams: false },
    Endpoint { path: "/v1/embeddings", family: Family::Openai, streams: false },
    Endpoint { path: "/v1/rerank", family: Family::Openai, streams: false },
    Endpoint { path: "/v1/score", family: Family::Openai, streams: false },
    Endpoint { path: "/tokenize", family: Family::Openai, streams: false },
    Endpoint { path: "/detokenize", family: Family::Openai, streams: false },
    Endpoint { path: "/generate", family: Family::Openai, streams: true },
];

impl Endpoint {
    /// A body that asks this endpoint of `model`.
    pub fn body(&self, model: &str, stream: bool) -> Value {
        let mut body = match self.path {
            "/v1/chat/completions" => json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64}),
            "/v1/completions" => json!({"prompt": "hello", "max_tokens": 64}),
            "/v1/responses" => json!({"input": "hello", "max_output_tokens": 64}),
            "/v1/messages" => json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64}),
            "/v1/messages/count_tokens" => json!({"messages": [{"role": "user", "content": "hello"}]}),
            "/v1/embeddings" => json!({"input": "hello"}),
            "/v1/rerank" => json!({"query": "hello", "documents": ["a", "b"]}),
            "/v1/score" => json!({"text_1": "hello", "text_2": "there"}),
            "/tokenize" => json!({"prompt": "hello"}),
            "/detokenize" => json!({"tokens": [1, 2, 3]}),
            "/generate" => json!({"text": "hello", "sampling_params": {"max_new_tokens": 64}}),
            other => panic!("no body known for {other}"),
        };
        body["model"] = model.into();
        if self.streams {
            body["stream"] = stream.into();
        }
        body
    }

    /// A whole request to this endpoint for model `m`.
    pub fn request(&self, stream: bool) -> Request {
        Request::post(self.path, &self.body("m", stream))
    }

    /// The ways it can be asked: streaming only where it can stream.
    pub fn ways(&self) -> &'static [bool] {
        if self.streams { &[false, true] } else { &[false] }
    }
}

/// A chat request for model `m` of `tokens` tokens.
pub fn chat(stream: bool, tokens: u32) -> Request {
    Request::post("/v1/chat/completions", &chat_body("m", stream, tokens))
}

/// The body of a chat request.
pub fn chat_body(model: &str, stream: bool, tokens: u32) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": "hello"}],
        "stream": stream,
        "max_tokens": tokens,
    })
}

/// A chat request of exactly `size` bytes of body.
pub fn sized_chat(size: usize, stream: bool) -> Request {
    let frame = json!({"model": "m", "messages": [{"role": "user", "content": ""}], "stream": stream, "max_tokens": 4});
    let (before, after) = {
        let text = frame.to_string();
        let cut = text.find("\"\"").expect("an empty content") + 1;
        (text[..cut].to_string(), text[cut..].to_string())
    };
    let fill = size.checked_sub(before.len() + after.len()).expect("the size holds the frame");
    let body = before + &super::letters(fill, size as u64) + &after;
    Request::new("POST", "/v1/chat/completions").header("content-type", "application/json").body(body)
}
