//! Death that looks like success: an error in the body of a 200.
//!
//! vLLM, SGLang and llama.cpp end a stream that they can't finish with `{"error": {…}}`; vLLM sends `[DONE]` after it, as
//! if all were well. The Messages API has the same in an event of type `error`, the Responses API in `response.failed`;
//! TGI writes a string.
use serde::Deserialize;
use serde_json::Value;

/// The value of `error`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Failure {
    /// With what it is.
    Told {
        /// A status, as number or text, or a word.
        #[serde(default)]
        code: Value,
        /// A word.
        #[serde(default, rename = "type")]
        kind: Value,
    },
    /// Any other.
    Other(Value),
}

impl Failure {
    /// Whether it is the engine's own: not what a client did wrong, which some engines find out late.
    pub fn is_the_engines(&self) -> bool {
        match self {
            Self::Told { code, kind } => {
                let status = code.as_u64().or_else(|| code.as_str()?.parse().ok());
                let word = |word: &Value| {
                    let word = word.as_str().unwrap_or_default().to_ascii_lowercase();
                    word.starts_with("invalid_") || word.starts_with("badrequest") || word == "rate_limit_exceeded"
                };
                !status.is_some_and(|status| (400..500).contains(&status)) && !word(kind) && !word(code)
            }
            Self::Other(value) => !value.is_null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::Observer;

    fn failed(stream: bool, body: &str) -> bool {
        let whole = |size| {
            let mut observer = Observer::new(stream);
            body.as_bytes().chunks(size).for_each(|piece| observer.feed(piece));
            observer.failed()
        };
        let failed = whole(body.len());
        for size in [1, 3, 50] {
            assert_eq!(whole(size), failed, "in pieces of {size}: {body}");
        }
        failed
    }

    #[test]
    fn an_engine_that_says_that_it_failed_has() {
        for body in [
            // vLLM 0.32 whose engine was killed, as recorded.
            "data: {\"choices\":[{\"text\":\"=%\"}]}\n\ndata: {\"error\": {\"message\": \"EngineCore encountered an issue. See stack trace (above) for the root cause.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n",
            "data: {\"error\":{\"code\":500,\"message\":\"x\",\"type\":\"server_error\"}}\r\n\r\n",
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"x\"}}\n\n",
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\",\"message\":\"x\"}}}\n\n",
            "data: {\"error\":\"Request failed during generation\",\"error_type\":\"generation\"}\n\n",
            "data: {\"error\":{\"message\":\"x\"}}",
        ] {
            assert!(failed(true, body), "{body}");
        }
        assert!(failed(false, "{\"error\":{\"message\":\"x\",\"code\":\"502\"}}"));
    }

    #[test]
    fn what_a_client_did_or_a_model_wrote_is_no_failure() {
        for body in [
            "data: {\"error\":{\"code\":400,\"message\":\"x\",\"type\":\"BadRequestError\"}}\n\ndata: [DONE]\n\n",
            "data: {\"error\":{\"code\":\"404\"}}\n\n",
            "data: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\"}}\n\n",
            "data: {\"type\":\"response.completed\",\"response\":{\"error\":null,\"usage\":{\"input_tokens\":1}}}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"error\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"data: {\\\"error\\\":{\\\"code\\\":500}}\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"error\":{\"code\":500}}}]}\n\n",
            "event: error\ndata: not json \"error\":{\n\ndata: [DONE]\n\n",
        ] {
            assert!(!failed(true, body), "{body}");
        }
        assert!(!failed(false, "{\"choices\":[{\"message\":{\"content\":\"x\"}}],\"error\":null}"));
    }
}
