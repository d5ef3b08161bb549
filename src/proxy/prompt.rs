//! A request's prompt → its blocks. Short work is done on the spot; long work goes to threads of its own, as many at once
//! as there are processors, so that it never holds up an async thread. Who finds all of them busy waits for as long as a
//! prompt may be tokenized (`tokens_budget`), and is then decided without a prompt.
//!
//! Whatever can't be read costs a request its prompt, never its answer; the reason is counted.
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::api::{self, Endpoint};
use crate::fleet::Pool;
use crate::prefix::Basis;
use crate::routing::Prompt;
use crate::tokens::{Encoded, Encoder};

/// A body up to this size is encoded on the spot.
const SHORT: usize = 16 * 1024;

/// Where a request's prompt is to be read.
#[derive(Debug, Default)]
pub enum Unread {
    /// The pool has no use for it, or the endpoint has none.
    #[default]
    Unused,
    /// In this body.
    In {
        /// Plain, as the client sent it.
        body: Bytes,
        /// What was asked for, where that is not the model that the encoder is for.
        adapter: Option<Box<str>>,
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
}

impl Known {
    fn nothing(fallback: &'static str) -> Self {
        Self { prompt: None, basis: "none", fallback: Some(fallback) }
    }

    fn of(encoded: Encoded) -> Self {
        let Encoded { blocks, tokens, basis, fallback } = encoded;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        Self {
            // A prompt of no tokens is one that could not be read.
            prompt: (tokens > 0).then(|| Arc::new(Prompt { blocks, tokens })),
            basis: match basis {
                _ if tokens == 0 => "none",
                Basis::Tokens => "tokens",
                Basis::Text => "text",
            },
            fallback: fallback.map(|fallback| fallback.as_str()),
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
        let (body, adapter) = match unread {
            Unread::Unused => return None,
            Unread::Nowhere(reason) => return Some(Known::nothing(reason)),
            Unread::In { body, adapter } => (body, adapter),
        };
        if body.len() <= SHORT {
            return Some(encode(pool.encoder(), endpoint, &body, adapter));
        }
        let place = self.0.clone().acquire_owned();
        let Ok(Ok(place)) = tokio::time::timeout(pool.settings().tokens_budget, place).await else {
            return Some(Known::nothing("busy"));
        };
        let encoder = pool.encoder().clone();
        let work = tokio::task::spawn_blocking(move || {
            let known = encode(&encoder, endpoint, &body, adapter);
            drop(place);
            known
        });
        // It can only fail by a panic, which is a bug that must not cost the request its answer.
        Some(work.await.unwrap_or_else(|_| Known::nothing("tokenizer_failed")))
    }
}

fn encode(encoder: &Encoder, endpoint: &Endpoint, body: &[u8], adapter: Option<Box<str>>) -> Known {
    let mut prompt = api::prompt(endpoint, body);
    if let Some(adapter) = adapter {
        prompt.adapter = Some(String::from(adapter).into());
    }
    Known::of(encoder.encode(&prompt))
}
