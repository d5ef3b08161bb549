//! What a mock knows while it runs: its engine, counters, faults and what it saw last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::answer::Answer;
use super::control::Faults;
use super::driver::Driver;
use super::errors::Reply;
use super::responses::Store;
use super::sse::Sequence;
use super::{Dialect, MockOptions};
use crate::sim::engine::{Request, hash_blocks};

/// Counters of `/__stats`.
#[derive(Debug)]
pub(super) struct Counters {
    pub requests: AtomicU64,
    pub disconnects: AtomicU64,
    pub inflight: AtomicU64,
    pub connections: AtomicU64,
    pub connections_total: AtomicU64,
    statuses: Vec<AtomicU64>,
}

impl Counters {
    fn new() -> Self {
        Self {
            requests: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
            inflight: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            statuses: (0..600).map(|_| AtomicU64::new(0)).collect(),
        }
    }
    pub(super) fn inflight(&self) -> u64 {
        self.inflight.load(Relaxed)
    }
    pub(super) fn count_status(&self, status: u16) {
        if let Some(counter) = self.statuses.get(usize::from(status)) {
            counter.fetch_add(1, Relaxed);
        }
    }
    fn reset(&self) {
        self.requests.store(0, Relaxed);
        self.disconnects.store(0, Relaxed);
        self.connections_total.store(0, Relaxed);
        self.statuses.iter().for_each(|counter| counter.store(0, Relaxed));
    }
}

/// The last counted request.
#[derive(Debug, Default)]
struct Last {
    headers: HeaderMap,
    method: String,
    path: String,
    body_len: usize,
    body_hash: u64,
}

/// A mock's state, shared by its connections.
#[derive(Debug)]
pub(super) struct Mock {
    pub options: MockOptions,
    pub driver: Arc<Driver>,
    pub counters: Counters,
    pub faults: Faults,
    pub responses: Store,
    pub started: u64,
    /// Times that it was told to be a new process.
    pub restarts: AtomicU64,
    last: Mutex<Last>,
    ids: AtomicU64,
}

impl Mock {
    pub(super) fn new(options: MockOptions) -> Self {
        Self {
            driver: Arc::new(Driver::new(options.engine.clone())),
            options,
            counters: Counters::new(),
            faults: Faults::new(),
            responses: Store::new(),
            started: unix_seconds(),
            restarts: AtomicU64::new(0),
            last: Mutex::new(Last::default()),
            ids: AtomicU64::new(0),
        }
    }

    pub(super) fn is_sglang(&self) -> bool {
        self.options.dialect == Dialect::Sglang
    }
    /// The model that answers requests that name none.
    pub(super) fn default_model(&self) -> &str {
        self.options.models.first().map_or("mock-model", String::as_str)
    }
    /// Tokens of prompt and answer together that it takes.
    pub(super) fn max_model_len(&self) -> u64 {
        self.options.engine.cache_tokens
    }

    /// A fresh id of 16 hex digits.
    pub(super) fn new_id(&self) -> String {
        let number = self.ids.fetch_add(1, Relaxed);
        let seed = (self.started << 20) ^ u64::from(std::process::id());
        format!("{:016x}", xxh3_64(&(number ^ (seed << 16)).to_le_bytes()))
    }

    /// Keeps what `/__stats` shows of a request. The body is kept only as its hash.
    pub(super) fn remember(&self, method: &str, path: &str, headers: HeaderMap, body: &Bytes) {
        let body_hash = xxh3_64(body);
        let mut last = self.last.lock();
        last.headers = headers;
        method.clone_into(&mut last.method);
        path.clone_into(&mut last.path);
        last.body_len = body.len();
        last.body_hash = body_hash;
    }

    /// Puts a prompt and its answer into the engine.
    pub(super) fn submit(&self, prompt: &[u32], answer: &Answer, root: u64, stream: bool) -> Result<Sequence, Reply> {
        let output_tokens = answer.len();
        let limit = self.max_model_len();
        if prompt.len() as u64 + u64::from(output_tokens) > limit {
            return Err(Reply::too_long(self, prompt.len() as u64, u64::from(output_tokens), limit));
        }
        let mut tokens = Vec::with_capacity(prompt.len() + output_tokens as usize);
        tokens.extend_from_slice(prompt);
        super::tokens::encode(&answer.text(), &mut tokens);
        // A tool call's pieces are cut elsewhere than its text's tokens: keep the count right, not the ids.
        tokens.resize(prompt.len() + output_tokens as usize, 0);
        let request = Request {
            blocks: hash_blocks(&tokens, self.options.engine.block_size, root).into(),
            prompt_tokens: prompt.len() as u32,
            output_tokens,
            prefill_factor: 1.0,
            report_tokens: stream,
        };
        match self.driver.submit(request) {
            Ok(job) => {
                let prompt_tokens = prompt.len().max(1) as u32;
                Ok(Sequence { job, prompt_tokens, output_tokens, counts_prompt: true })
            }
            Err(error) => Err(Reply::error(self, 400, "BadRequestError", &error.to_string(), None)),
        }
    }

    /// `GET /__stats`.
    pub(super) fn stats(&self) -> Value {
        let statuses = self.counters.statuses.iter().enumerate();
        let statuses: Map<String, Value> = statuses
            .filter_map(|(status, count)| {
                Some((status.to_string(), count.load(Relaxed))).filter(|(_, count)| *count > 0)
            })
            .map(|(status, count)| (status, json!(count)))
            .collect();
        let engine = self.driver.stats();
        let last = self.last.lock();
        let headers: Vec<Value> = last
            .headers
            .iter()
            .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
            .collect();
        json!({
            "requests": self.counters.requests.load(Relaxed),
            "disconnects": self.counters.disconnects.load(Relaxed),
            "inflight": self.counters.inflight(),
            "connections": self.counters.connections.load(Relaxed),
            "connections_total": self.counters.connections_total.load(Relaxed),
            "responses_by_status": statuses,
            "last_method": last.method,
            "last_path": last.path,
            "last_headers": headers,
            "last_body_hash": format!("{:016x}", last.body_hash),
            "last_body_len": last.body_len,
            "engine": {
                "running": engine.running, "waiting": engine.waiting, "waiting_tokens": engine.waiting_tokens, "submitted": engine.submitted,
                "finished": engine.finished, "cancelled": engine.cancelled, "prompt_tokens": engine.prompt_tokens,
                "cached_tokens": engine.cached_tokens, "generated_tokens": engine.generated_tokens,
                "blocks_in_use": engine.blocks_in_use, "blocks_cached": engine.blocks_cached,
                "blocks_total": engine.blocks_total,
            },
        })
    }

    /// `POST /__stats/reset`: counters to zero; gauges stay.
    pub(super) fn reset_stats(&self) {
        self.counters.reset();
        *self.last.lock() = Last::default();
    }
}

/// Now, in whole seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
