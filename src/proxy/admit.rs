//! Which pool a request belongs to, which session, and where its prompt is: reads of the body what these questions need,
//! and nothing when the head answers them. It only looks: what it finds is counted by who asked.
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use xxhash_rust::xxh3::xxh3_64;

use super::body::{self, Coding};
use super::problem::Problem;
use super::prompt::Unread;
use super::{Proxy, Snapshot};
use crate::api::{self, Body, Cause, Edit, Endpoint, Family, Hints, ModelName, Phase, Source};
use crate::config::{RequestEncoding, StreamUsage};
use crate::fleet::{Fleet, Payload, Pool};
use crate::routing::{self, Prompt, SessionKey};

/// Bytes of a body whose reading, at about a second a GB, is not done on an async thread.
const LONG: usize = 1 << 20;

/// A request that knows its pool.
pub struct Admitted {
    /// Its pool.
    pub pool: Arc<Pool>,
    /// What it asks for.
    pub model: Option<Box<str>>,
    /// What is sent.
    pub body: Payload,
    /// Whether the body was compressed when it came and no longer is.
    pub decoded: bool,
    /// Whether the router asks in it for the usage that its client did not ask for.
    pub asks_usage: bool,
    /// Its session, when the policy asks for one.
    pub session: Option<(SessionKey, Source)>,
    /// The replica that holds the response it continues.
    pub pinned: Option<Arc<str>>,
    /// Sequences it makes the engine generate.
    pub sequences: u32,
    /// Its answer is asked for in pieces.
    pub streams: bool,
    /// Its prompt.
    pub prompt: Unread,
    /// Why its body passes without being understood, if it does.
    pub unparsed: Option<String>,
}

impl Admitted {
    /// A body that is nobody's business.
    pub fn opaque(pool: Arc<Pool>, body: Payload) -> Self {
        Self {
            pool,
            model: None,
            body,
            decoded: false,
            asks_usage: false,
            session: None,
            pinned: None,
            sequences: 1,
            streams: false,
            prompt: Unread::Unused,
            unparsed: None,
        }
    }
}

impl Admitted {
    /// What the routing core needs to know of it.
    pub fn request<'a>(
        &'a self,
        endpoint: &Endpoint,
        headers: &HeaderMap,
        prompt: Option<&'a Arc<Prompt>>,
    ) -> routing::Request<'a> {
        let hashed = self.pool.settings().hashed_header().and_then(|header| headers.get(header));
        routing::Request {
            session: self.session.map(|(key, _)| key),
            header: hashed.map(|value| xxh3_64(value.as_bytes())),
            sequences: self.sequences,
            load_only: endpoint.load_only,
            streams: self.streams,
            pinned: self.pinned.as_deref(),
            prompt,
            ..Default::default()
        }
    }
}

/// Whether the pool's policy asks for a session on this endpoint.
pub fn keyed(pool: &Pool, endpoint: &Endpoint) -> bool {
    pool.settings().uses_sessions() && !endpoint.load_only
}

/// Finds pool and session.
///
/// # Errors
/// The problem to answer with: the model is unknown or missing, or the body can't be read and must be.
pub async fn admit(
    proxy: &Proxy,
    snapshot: &Snapshot,
    endpoint: &Endpoint,
    headers: &HeaderMap,
    received: Payload,
) -> Result<Admitted, Problem> {
    let fleet = &snapshot.fleet;
    if let Some(pool) = fleet.only_pool()
        && let Some(session) = by_head(pool, endpoint, headers)
    {
        let prompt = if wants_prompt(pool, endpoint) { Unread::Nowhere("encoded") } else { Unread::Unused };
        return Ok(Admitted { session, prompt, ..Admitted::opaque(pool.clone(), received) });
    }
    let received = received.into_whole();
    let coding = body::coding(headers)?;
    let plain = match coding {
        Some(coding) => Box::pin(body::decode(received.clone(), coding, &snapshot.config.limits)).await?,
        None => received.clone(),
    };
    let (hints, unread) = match read(endpoint, headers, &plain).await {
        Ok(hints) => (hints, None),
        Err(cause) => (Hints { sequences: 1, ..Hints::default() }, Some(cause)),
    };
    let previous = hints.previous_response_id.as_deref().and_then(|id| proxy.stored.find(id));
    let pool = match (&hints.model, &previous) {
        // A response that is continued says where it belongs.
        (None, Some(place)) => fleet.pools().iter().find(|pool| *pool.name() == place.pool),
        _ => None,
    };
    let pool = match pool {
        Some(pool) => pool,
        None => pool_for(fleet, hints.model.as_ref(), unread.as_deref())?,
    };
    let session = if keyed(pool, endpoint) {
        let session = &pool.settings().session;
        api::key_from_body(session, api::scope(session, headers), headers, &plain, &hints)
    } else {
        None
    };
    let pinned = previous.filter(|place| place.pool == *pool.name()).map(|place| place.replica);
    let prompt = match &unread {
        _ if !wants_prompt(pool, endpoint) => Unread::Unused,
        Some(_) => Unread::Nowhere("unreadable"),
        None => Unread::of(pool, endpoint, &plain, &hints, adapter(pool, hints.model.as_ref())),
    };
    let Sent { body, decoded, asks_usage } = outgoing_body(pool, endpoint, &hints, coding, &received, &plain)?;
    let body = body.into();
    let (pool, sequences, streams) = (pool.clone(), hints.sequences, hints.streams);
    let model = hints.model.map(|model| model.name.into());
    Ok(Admitted {
        pool,
        model,
        body,
        decoded,
        asks_usage,
        session,
        pinned,
        sequences,
        streams,
        prompt,
        unparsed: unread,
    })
}

/// Whether the pool has a use for the prompts of this endpoint.
fn wants_prompt(pool: &Pool, endpoint: &Endpoint) -> bool {
    pool.settings().uses_prompts() && !endpoint.load_only
}

/// Whether the pool asks for the usage of streams of this endpoint.
fn asks_usage(pool: &Pool, endpoint: &Endpoint) -> bool {
    pool.settings().stream_usage == StreamUsage::Ask && api::takes_stream_options(endpoint)
}

/// What is asked for where that is not the pool's model, nor an alias of it, which shares its cache: a LoRA adapter, or
/// any model in a pool that takes all.
fn adapter(pool: &Pool, asked: Option<&ModelName<'_>>) -> Option<Box<str>> {
    let name = &*asked?.name;
    (pool.any_model() || pool.is_adapter(name)).then(|| name.into())
}

/// The session (if any), when nothing in the body matters: it is passed on encoded, or the pool takes any model, the
/// policy wants no key or finds it in the head, and no earlier response can be meant.
fn by_head(pool: &Pool, endpoint: &Endpoint, headers: &HeaderMap) -> Option<Option<(SessionKey, Source)>> {
    let settings = pool.settings();
    let encoded = !matches!(body::coding(headers), Ok(None));
    let passes = encoded && settings.request_encoding == RequestEncoding::Pass;
    let unread = pool.any_model() && endpoint.family != Family::Responses;
    if !passes && (encoded || !unread || wants_prompt(pool, endpoint) || asks_usage(pool, endpoint)) {
        return None;
    }
    if !keyed(pool, endpoint) {
        return Some(None);
    }
    let session = api::key_from_head(&settings.session, api::scope(&settings.session, headers), headers);
    (passes || session.is_some()).then_some(session)
}

/// What routing reads from the body; the error says why it can't.
async fn read<'a>(endpoint: &Endpoint, headers: &HeaderMap, plain: &'a Bytes) -> Result<Hints<'a>, String> {
    match endpoint.body {
        Body::Form => {
            let boundary = api::boundary(headers).ok_or("the body must be multipart/form-data with a boundary")?;
            let model = Box::pin(api::read_form(plain, &boundary)).await;
            let model = model.map_err(|error| format!("the form can't be read: {error}"))?;
            Ok(Hints { model, sequences: 1, ..Hints::default() })
        }
        // Its prompt is read apart.
        Body::Json | Body::Opaque if plain.len() > LONG => {
            let body = plain.clone();
            let read = move || api::read(&body).map(Hints::detached).map_err(|error| not_an_object(&error));
            tokio::task::spawn_blocking(read).await.map_err(|_| "the body could not be read")?
        }
        Body::Json | Body::Opaque => api::read(plain).map_err(|error| not_an_object(&error)),
    }
}

/// Says where a body stops being a JSON object. What a value was instead stays unsaid: serde would quote it, and bodies
/// are prompts, which no log may hold.
fn not_an_object(error: &serde_json::Error) -> String {
    if error.is_data() {
        return "the body is not a JSON object".into();
    }
    format!("the body is not a JSON object: {error}")
}

/// The body the engine gets.
struct Sent {
    body: Bytes,
    decoded: bool,
    asks_usage: bool,
}

/// An alias gives way to the model's real name, usage is asked for where the pool wants that; all else stays.
fn outgoing_body(
    pool: &Pool,
    endpoint: &Endpoint,
    hints: &Hints<'_>,
    coding: Option<Coding>,
    received: &Bytes,
    plain: &Bytes,
) -> Result<Sent, Problem> {
    let pass = coding.is_some() && pool.settings().request_encoding == RequestEncoding::Pass;
    let alias = replaced_alias(pool, endpoint, hints.model.as_ref(), pass)?;
    if pass {
        return Ok(Sent { body: received.clone(), decoded: false, asks_usage: false });
    }
    let usage = if asks_usage(pool, endpoint) { Edit::include_usage(plain, hints) } else { None };
    let asks_usage = usage.is_some();
    let edits = alias.into_iter().chain(usage).collect();
    Ok(Sent { body: api::splice(plain, edits), decoded: coding.is_some(), asks_usage })
}

/// The model's real name in the place of its alias, if that is what was asked for.
fn replaced_alias(
    pool: &Pool,
    endpoint: &Endpoint,
    asked: Option<&ModelName<'_>>,
    pass: bool,
) -> Result<Option<Edit>, Problem> {
    let alias =
        pool.model().zip(asked).filter(|(model, asked)| asked.name != ***model && !pool.is_adapter(&asked.name));
    let Some((model, asked)) = alias else { return Ok(None) };
    let problem = |cause, message: String| Err(Problem::new(cause, Phase::Admit, message));
    if pass {
        let message = "an alias can't be replaced in a compressed body that is passed on (request_encoding: pass)";
        return problem(Cause::UnsupportedEncoding, format!("{message}: send the model as `{model}`"));
    }
    if asked.range.is_empty() {
        return problem(
            Cause::BadBody,
            format!("the alias can't be replaced in this form: send the model as `{model}`"),
        );
    }
    Ok(Some(match endpoint.body {
        Body::Form => Edit::form_model(asked, model),
        Body::Json | Body::Opaque => Edit::json_model(asked, model),
    }))
}

/// The pool that serves the model. With one pool only, a body that names none, or can't be read, goes there: the engine
/// judges it.
fn pool_for<'a>(
    fleet: &'a Fleet,
    model: Option<&ModelName<'_>>,
    unread: Option<&str>,
) -> Result<&'a Arc<Pool>, Problem> {
    if let Some(pool) = fleet.only_pool()
        && (unread.is_some() || pool.any_model() || model.is_none())
    {
        return Ok(pool);
    }
    match (model, unread) {
        (Some(model), _) => fleet.pool_of(&model.name).ok_or_else(|| model_not_found(fleet, &model.name)),
        (None, Some(cause)) => Err(Problem::new(Cause::BadBody, Phase::Admit, cause)),
        (None, None) => {
            let message = format!("`model` is required: this router serves several; {}", served(fleet));
            Err(Problem::new(Cause::ModelRequired, Phase::Admit, message))
        }
    }
}

fn served(fleet: &Fleet) -> String {
    let names: Vec<String> =
        fleet.pools().iter().filter_map(|pool| pool.model()).map(|model| format!("`{model}`")).collect();
    if names.is_empty() {
        // The one pool that takes any model: only its engines know.
        return "GET /v1/models lists those that do".into();
    }
    format!("it is one of {}", names.join(", "))
}

/// No pool serves the model.
pub fn model_not_found(fleet: &Fleet, name: &str) -> Problem {
    // It also goes to the access log: what a terminal would act on is written as an escape.
    let plain = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    let mut shown = String::new();
    for c in name.chars().take(100) {
        if plain(c) { shown.push(c) } else { shown.extend(c.escape_unicode()) }
    }
    let message = format!("the model `{shown}` does not exist here; {}", served(fleet));
    Problem::new(Cause::ModelNotFound, Phase::Admit, message)
}
