//! The paths that are served without being named: an entry of `paths` for one of them would never be looked at.
//!
//! What is done with them is told in `api`, above this room; a test there holds the two together.

/// Each exact path.
pub const BUILT_IN: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/models",
    "/generate",
    "/tokenize",
    "/detokenize",
];

/// Whether a path is one of these, or names one model or one stored response.
pub fn is_built_in(path: &str) -> bool {
    let item = |prefix: &str| path.strip_prefix(prefix).filter(|id| !id.is_empty());
    BUILT_IN.contains(&path)
        || item("/v1/models/").is_some()
        || item("/v1/responses/").is_some_and(|id| !id.contains('/'))
}
