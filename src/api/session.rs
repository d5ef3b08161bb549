//! Which session a request belongs to: a chain of sources, the first that yields a usable value wins.
//!
//! Values are 8 to 256 bytes of visible ASCII, in places that the operator configured 1 to 256; they are hashed at once, together with the scope (tenant or credential),
//! so that two clients with the same string can't steer each other, and are never logged. The hash has no seed: every
//! router gives the same key to the same session.
use http::{HeaderMap, HeaderName, header};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::Hints;
use crate::config::{Session, SessionKeySource, SessionScope};
use crate::routing::SessionKey;

/// Where a key came from; a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A header or JSON pointer that the operator configured.
    Configured,
    /// `x-<vendor>-session-id` or `x-session-id`.
    SessionHeader,
    /// Codex's `session-id`, `session_id`, `thread-id` or `thread_id`.
    Codex,
    /// `prompt_cache_key`.
    PromptCacheKey,
    /// `previous_response_id`: looked up, not hashed.
    PreviousResponse,
    /// Anthropic's `metadata.user_id`.
    UserId,
    /// Hash of the API key.
    ApiKey,
    /// There was none, but for a value that can't be one.
    Unusable,
    /// There was none.
    None,
}

impl Source {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::SessionHeader => "session_header",
            Self::Codex => "codex",
            Self::PromptCacheKey => "prompt_cache_key",
            Self::PreviousResponse => "previous_response_id",
            Self::UserId => "user_id",
            Self::ApiKey => "api_key",
            Self::Unusable => "unusable",
            Self::None => "none",
        }
    }
}

const CODEX: [HeaderName; 4] = [
    HeaderName::from_static("session-id"),
    HeaderName::from_static("thread-id"),
    HeaderName::from_static("session_id"),
    HeaderName::from_static("thread_id"),
];

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The hash of whoever shares a name space of keys with this client.
pub fn scope(session: &Session, headers: &HeaderMap) -> u64 {
    match &session.scope {
        SessionScope::None => 0,
        SessionScope::Credential => credential(headers).map_or(0, xxh3_64),
        SessionScope::Tenant(name) => headers.get(name).map_or(0, |value| xxh3_64(value.as_bytes())),
    }
}

fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION).or_else(|| headers.get(&X_API_KEY))?;
    Some(value.as_bytes())
}

/// A key of a usual place: a short value is more likely a counter or a constant than a session's name.
fn hashed(scope: u64, value: &[u8]) -> Option<SessionKey> {
    (value.len() >= 8).then(|| configured(scope, value)).flatten()
}

/// A key of a place that the operator chose: even `7` names a session there.
fn configured(scope: u64, value: &[u8]) -> Option<SessionKey> {
    let usable = (1..=256).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    usable.then(|| {
        let mut hash = Xxh3::new();
        hash.update(&scope.to_le_bytes());
        hash.update(value);
        SessionKey(hash.digest128())
    })
}

/// The part of the chain that the head alone can answer. `Some` ends the chain: the body need not be read for it.
///
/// A configured pointer into the body stands before the default chain, so it makes the head's defaults wait.
pub fn key_from_head(session: &Session, scope: u64, headers: &HeaderMap) -> Option<(SessionKey, Source)> {
    for source in &session.keys {
        match source {
            SessionKeySource::Header(name) => {
                if let Some(key) = headers.get(name).and_then(|value| configured(scope, value.as_bytes())) {
                    return Some((key, Source::Configured));
                }
            }
            SessionKeySource::Body(_) => return None,
        }
    }
    default_head(scope, headers)
}

/// Whether a request without a key has a header that would have been one, had its value been usable.
pub fn unusable(session: &Session, headers: &HeaderMap) -> bool {
    let configured = |name: &HeaderName| {
        session.keys.iter().any(|source| matches!(source, SessionKeySource::Header(header) if header == name))
    };
    headers.keys().any(|name| configured(name) || names_session(name))
}

fn names_session(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-") && name.ends_with("-session-id") || name == "x-session-id"
}

fn default_head(scope: u64, headers: &HeaderMap) -> Option<(SessionKey, Source)> {
    let vendor =
        headers.iter().find_map(|(name, value)| names_session(name).then(|| hashed(scope, value.as_bytes())).flatten());
    if let Some(key) = vendor {
        return Some((key, Source::SessionHeader));
    }
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    if agent.to_ascii_lowercase().contains("codex") {
        let found = CODEX.iter().find_map(|name| headers.get(name).and_then(|value| hashed(scope, value.as_bytes())));
        if let Some(key) = found {
            return Some((key, Source::Codex));
        }
    }
    None
}

/// The whole chain, once the body is known. `previous_response_id` is the caller's to look up: it is no key.
pub fn key_from_body(
    session: &Session,
    scope: u64,
    headers: &HeaderMap,
    body: &[u8],
    hints: &Hints<'_>,
) -> Option<(SessionKey, Source)> {
    for source in &session.keys {
        let key = match source {
            SessionKeySource::Header(name) => headers.get(name).and_then(|value| configured(scope, value.as_bytes())),
            SessionKeySource::Body(pointer) => {
                pointed(body, pointer).and_then(|value| configured(scope, value.as_bytes()))
            }
        };
        if let Some(key) = key {
            return Some((key, Source::Configured));
        }
    }
    if let Some(found) = default_head(scope, headers) {
        return Some(found);
    }
    let text = |value: &Option<std::borrow::Cow<'_, str>>| value.as_ref().and_then(|v| hashed(scope, v.as_bytes()));
    if let Some(key) = text(&hints.prompt_cache_key) {
        return Some((key, Source::PromptCacheKey));
    }
    if let Some(key) = hints.user_id.as_deref().map(session_part).and_then(|value| hashed(scope, value.as_bytes())) {
        return Some((key, Source::UserId));
    }
    if session.api_key
        && let Some(value) = credential(headers)
    {
        let mut hash = Xxh3::new();
        hash.update(b"api-key");
        hash.update(value);
        return Some((SessionKey(hash.digest128()), Source::ApiKey));
    }
    None
}

/// Claude Code writes `user_<hash>_account_<id>_session_<uuid>`: the session is what varies by conversation. A user id
/// of another form is taken whole.
fn session_part(user_id: &str) -> &str {
    user_id.rsplit_once("_session_").map_or(user_id, |(_, session)| session)
}

/// The string or number at an RFC 6901 pointer, as text.
fn pointed(body: &[u8], pointer: &str) -> Option<String> {
    let mut raw: &RawValue = serde_json::from_slice(body).ok()?;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        raw = if raw.get().starts_with('[') {
            let items: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
            items.get(token.parse::<usize>().ok()?).copied()?
        } else {
            let fields: std::collections::HashMap<std::borrow::Cow<'_, str>, &RawValue> =
                serde_json::from_str(raw.get()).ok()?;
            fields.get(&*token).copied()?
        };
    }
    match serde_json::from_str(raw.get()).ok()? {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::api::read;

    fn key(session: &Session, headers: &[(&'static str, &'static str)], body: &str) -> Option<(SessionKey, Source)> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let scope = scope(session, &headers);
        let hints = read(body.as_bytes()).unwrap();
        let whole = key_from_body(session, scope, &headers, body.as_bytes(), &hints);
        if let Some(early) = key_from_head(session, scope, &headers) {
            assert_eq!(Some(early), whole, "the head's answer must be the chain's");
        }
        whole
    }

    #[test]
    fn the_chain_in_its_order() {
        let session = Session {
            keys: vec![
                SessionKeySource::Header(HeaderName::from_static("x-mine")),
                SessionKeySource::Body("/extra/0/chat~1id".into()),
            ],
            api_key: true,
            ..Session::default()
        };
        let body = r#"{"extra":[{"chat/id":"pointed-at"}],"prompt_cache_key":"cache-key-1",
            "metadata":{"user_id":"user_1_account_2_session_0123456789"}}"#;
        let plain =
            r#"{"prompt_cache_key":"cache-key-1","metadata":{"user_id":"user_1_account_2_session_0123456789"}}"#;
        let anthropic = r#"{"metadata":{"user_id":"user_1_account_2_session_0123456789"}}"#;
        let source = |headers: &[(&'static str, &'static str)], body| key(&session, headers, body).map(|found| found.1);
        assert_eq!(source(&[("x-mine", "configured")], body), Some(Source::Configured));
        assert_eq!(source(&[("x-session-id", "12345678")], body), Some(Source::Configured));
        assert_eq!(source(&[("x-session-id", "12345678")], plain), Some(Source::SessionHeader));
        assert_eq!(source(&[("x-acme-session-id", "12345678")], plain), Some(Source::SessionHeader));
        assert_eq!(source(&[("session_id", "12345678")], plain), Some(Source::PromptCacheKey));
        let codex = [("session_id", "12345678"), ("user-agent", "codex_cli_rs/1.0")];
        assert_eq!(source(&codex, plain), Some(Source::Codex));
        assert_eq!(source(&[], plain), Some(Source::PromptCacheKey));
        assert_eq!(source(&[], anthropic), Some(Source::UserId));
        assert_eq!(source(&[("authorization", "Bearer abc")], "{}"), Some(Source::ApiKey));
        assert_eq!(source(&[], "{}"), None);
    }

    #[test]
    fn unusable_values_are_passed_over() {
        let session = Session::default();
        for value in ["short", "has a space in it", "tilde and space~"] {
            let headers = [("x-session-id", value)];
            assert_eq!(
                key(&session, &headers, r#"{"prompt_cache_key":"12345678"}"#).unwrap().1,
                Source::PromptCacheKey
            );
        }
    }

    #[test]
    fn a_short_value_is_a_key_only_where_the_operator_said_so() {
        let session =
            Session { keys: vec![SessionKeySource::Header(HeaderName::from_static("x-user"))], ..Session::default() };
        assert_eq!(key(&session, &[("x-user", "7")], "{}").unwrap().1, Source::Configured);
        assert_eq!(key(&session, &[("x-session-id", "7")], "{}"), None);
        let headers = |name: &'static str, value| HeaderMap::from_iter([(HeaderName::from_static(name), value)]);
        assert!(unusable(&session, &headers("x-session-id", HeaderValue::from_static("7"))));
        assert!(unusable(&session, &headers("x-user", HeaderValue::from_static("a b"))));
        assert!(!unusable(&session, &headers("x-other", HeaderValue::from_static("7"))));
    }

    #[test]
    fn the_same_string_of_two_credentials_is_two_keys() {
        let session = Session::default();
        let of = |authorization| key(&session, &[("authorization", authorization), ("x-session-id", "12345678")], "{}");
        assert_ne!(of("Bearer a"), of("Bearer b"));
        assert_eq!(of("Bearer a"), of("Bearer a"));
        let open = Session { scope: SessionScope::None, ..Session::default() };
        let of = |authorization| key(&open, &[("authorization", authorization), ("x-session-id", "12345678")], "{}");
        assert_eq!(of("Bearer a"), of("Bearer b"));
    }

    #[test]
    fn a_session_of_claude_code_is_its_last_part() {
        let session = Session { scope: SessionScope::None, ..Session::default() };
        let of = |id: &str| key(&session, &[], &format!(r#"{{"metadata":{{"user_id":"{id}"}}}}"#)).unwrap().0;
        assert_eq!(of("user_a_account_b_session_0123456789"), of("user_x_account_y_session_0123456789"));
        assert_ne!(of("user_a_account_b_session_0123456789"), of("user_a_account_b_session_9876543210"));
    }
}
