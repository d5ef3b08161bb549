//! A request's prompt → its blocks. Short work is done on the spot; long work goes to threads of its own, as many at once
//! as there are processors, so that it never holds up an async thread. Who finds all of them busy waits for as long as a
//! prompt may be tokenized (`tokens.budget`), and is then decided without a prompt.
//!
//! Whatever can't be read costs a request its prompt, never its answer; the reason is counted.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::api::{self, Endpoint, Hints};
use crate::fleet::Pool;
use crate::prefix::Basis;
use crate::routing::Prompt;
use crate::tokens::{self, Encoded};

/// So many bytes are tokenized on the spot: that takes about as long as a few requests do, and a thread of its own would
/// cost each of them a good part of it.
const SHORT: usize = 16 * 1024;
/// A body up to this size is rendered on the spot, which shows how much of it is not known yet; …
const RENDERED: usize = 256 * 1024;
/// … unless it holds more quotes than this, four and more a message: templates take their time for each.
const MOST_QUOTES: usize = 2048;
/// The same where text is only cut, at more than a GB a second.
const SHORT_TEXT: usize = 256 * 1024;

/// Where a request's prompt is to be read.
#[derive(Debug, Default)]
pub enum Unread {
    /// The pool has no use for it, or the endpoint has none.
    #[default]
    Unused,
    /// It has been read already.
    Known(Known),
    /// In this body.
    In {
        /// Plain, as the client sent it.
        body: Bytes,
        /// What was asked for, where that is not the model that the encoder is for.
        adapter: Option<Box<str>>,
        /// Whether engines count such prompts' tokens as the pool does.
        trusted: bool,
    },
    /// Nowhere, for this reason: a label.
    Nowhere(&'static str),
}

/// What is known of a request's prompt.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Its blocks.
    pub prompt: Option<Arc<Prompt>>,
    /// What they are made of; `none` without.
    pub basis: &'static str,
    /// Why that is less than the pool could have: a label.
    pub fallback: Option<&'static str>,
    /// How long it took.
    pub took: Duration,
}

impl Unread {
    /// The prompt of a body that the pool has a use for: read on the spot where little of it is left to do.
    pub fn of(pool: &Pool, endpoint: &Endpoint, body: &Bytes, hints: &Hints<'_>, adapter: Option<Box<str>>) -> Self {
        let trusted = !pool.settings().tokens_parity || pool.parity().trusts(endpoint.path);
        let on_the_spot = match pool.settings().tokenizer {
            Some(_) if trusted => body.len() <= RENDERED && memchr::memchr_iter(b'"', body).count() <= MOST_QUOTES,
            _ => body.len() <= SHORT_TEXT,
        };
        if on_the_spot {
            let (began, prompt) = (Instant::now(), with_adapter(api::prompt_of(endpoint, hints), adapter.as_deref()));
            let encoder = pool.encoder();
            let encoded =
                if trusted { encoder.encode_within(&prompt, SHORT) } else { Some(encoder.encode_distrusted(&prompt)) };
            if let Some(encoded) = encoded {
                return Self::Known(Known::of(&prompt, encoded, began));
            }
        }
        Self::In { body: body.clone(), adapter, trusted }
    }
}

impl Known {
    fn nothing(fallback: &'static str, began: Instant) -> Self {
        Self { prompt: None, basis: "none", fallback: Some(fallback), took: began.elapsed() }
    }

    fn of(prompt: &tokens::Prompt<'_>, encoded: Encoded, began: Instant) -> Self {
        let answer = tokens::last_answer(prompt, encoded.tokens);
        let Encoded { blocks, tokens, basis, fallback } = encoded;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        Self {
            // A prompt of no tokens is one that could not be read.
            prompt: (tokens > 0).then(|| Arc::new(Prompt { blocks, tokens, answer })),
            basis: match basis {
                _ if tokens == 0 => "none",
                Basis::Tokens => "tokens",
                Basis::Text => "text",
            },
            fallback: fallback.map(|fallback| fallback.as_str()),
            took: began.elapsed(),
        }
    }
}

/// The threads on which long prompts are encoded: places for as many as there are processors.
#[derive(Debug)]
pub struct Bench(Arc<Semaphore>);

impl Default for Bench {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from))))
    }
}

impl Bench {
    /// The blocks of a prompt; `None` where the pool has no use for them.
    ///
    /// Whoever drops this before it is done has left: its place is free again when the work in it ends, which the budget
    /// bounds.
    pub async fn read(&self, pool: &Pool, endpoint: &'static Endpoint, unread: Unread) -> Option<Known> {
        let began = Instant::now();
        let (body, adapter, trusted) = match unread {
            Unread::Unused => return None,
            Unread::Known(known) => return Some(known),
            Unread::Nowhere(reason) => return Some(Known::nothing(reason, began)),
            Unread::In { body, adapter, trusted } => (body, adapter, trusted),
        };
        let place = self.0.clone().acquire_owned();
        let Ok(Ok(place)) = tokio::time::timeout(pool.settings().tokens_budget, place).await else {
            return Some(Known::nothing("busy", began));
        };
        let encoder = pool.encoder().clone();
        let work = tokio::task::spawn_blocking(move || {
            let prompt = with_adapter(api::prompt(endpoint, &body), adapter.as_deref());
            let encoded = if trusted { encoder.encode(&prompt) } else { encoder.encode_distrusted(&prompt) };
            let known = Known::of(&prompt, encoded, began);
            drop(place);
            known
        });
        // It can only fail by a panic, which is a bug that must not cost the request its answer.
        Some(work.await.unwrap_or_else(|_| Known::nothing("tokenizer_failed", began)))
    }
}

fn with_adapter<'a>(prompt: tokens::Prompt<'a>, adapter: Option<&'a str>) -> tokens::Prompt<'a> {
    tokens::Prompt { adapter: adapter.map(Into::into).or(prompt.adapter), ..prompt }
}
