//! What goes into a virtual engine and what comes out.
use std::sync::Arc;
use std::time::Duration;

/// Nanoseconds since the virtual world began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualTime(pub u64);

impl VirtualTime {
    /// From seconds; negative is zero.
    #[must_use]
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9) as u64)
    }
    /// In seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl std::ops::Add<Duration> for VirtualTime {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// An engine's shape and speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Tokens in a block.
    pub block_size: u32,
    /// Tokens of KV cache; rounded down to blocks.
    pub cache_tokens: u64,
    /// Uncached prompt tokens computed a second, as far as cost goes by the token (linear layers).
    pub prefill_tps: f64,
    /// Seconds that each prefill takes besides; 0 by default.
    pub prefill_overhead: f64,
    /// Seconds of each pair of an uncached token and one before it (attention): a prompt of n tokens of which c are
    /// cached takes so many times n² − c² more; 0 by default.
    pub prefill_pair: f64,
    /// Tokens generated a second by all sequences together.
    pub decode_tps: f64,
    /// Tokens a second that one sequence gets at most.
    pub sequence_tps: f64,
    /// What decoding keeps of its speed while a prompt is prefilled, 0 to 1.
    pub decode_share: f64,
    /// Tokens of a prefill chunk: the grain in which a prompt's blocks become visible to others.
    pub chunk_tokens: u32,
    /// Requests admitted (prefilling or decoding) at once.
    pub max_running: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_size: 16,
            cache_tokens: 300_000,
            prefill_tps: 50_000.0,
            prefill_overhead: 0.0,
            prefill_pair: 0.0,
            decode_tps: 10_000.0,
            sequence_tps: f64::INFINITY,
            decode_share: 0.3,
            chunk_tokens: 2_048,
            max_running: u32::MAX,
        }
    }
}

/// Names a submitted request for as long as it lives; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

impl RequestId {
    pub(super) fn new(number: u64, slot: u32) -> Self {
        Self((number << 32) | u64::from(slot))
    }
    pub(super) fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

/// What an engine is asked to do.
#[derive(Debug, Clone)]
pub struct Request {
    /// Chained hashes of the full blocks of prompt and output. It may end early (at the prompt's last full block, say):
    /// the rest is derived from it, the same for the same chain.
    pub blocks: Arc<[u64]>,
    /// Tokens of the prompt; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Tokens that will be generated; 0 for an embedding, which ends with its prefill.
    pub output_tokens: u32,
    /// Its prefill takes so many times as long as the [`Options`] say: 1, unless times are to vary.
    pub prefill_factor: f64,
    /// Whether [`What::Tokens`] is wanted. Without it a request costs three events however long it is.
    pub report_tokens: bool,
}

/// A request that could never run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request of {tokens} tokens does not fit a cache of {capacity}")]
pub struct TooLarge {
    /// Prompt and output tokens asked for.
    pub tokens: u64,
    /// Tokens that the whole cache holds.
    pub capacity: u64,
}

/// Something that happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: VirtualTime,
    /// To whom.
    pub id: RequestId,
    /// What.
    pub what: What,
}

/// The kinds of [`Event`]. Each request that is not cancelled has one `FirstToken`, then one `Finished`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Prefill is over, and the first token generated if any was asked for.
    FirstToken {
        /// Prompt tokens found in the cache.
        cached_tokens: u32,
        /// Prompt tokens in all.
        prompt_tokens: u32,
    },
    /// Further tokens, counted after the first; only with [`Request::report_tokens`].
    Tokens {
        /// How many since the last report.
        n: u32,
    },
    /// All tokens are generated and the blocks released.
    Finished,
}

/// Counters since the start, and gauges of now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests submitted.
    pub submitted: u64,
    /// Requests finished.
    pub finished: u64,
    /// Requests cancelled, those dropped by a restart included.
    pub cancelled: u64,
    /// Prompt tokens of prefills begun.
    pub prompt_tokens: u64,
    /// Of those, found in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests queued for prefill.
    pub waiting: u32,
    /// Prompt tokens of those, cached or not: a request looks into the cache when its prefill begins.
    pub waiting_tokens: u64,
    /// Requests prefilling or decoding.
    pub running: u32,
    /// Blocks pinned or reserved by running requests.
    pub blocks_in_use: u32,
    /// Blocks that a request could match.
    pub blocks_cached: u32,
    /// Blocks in all.
    pub blocks_total: u32,
}

impl Stats {
    /// The share of the cache that running requests use, 0 to 1; what is merely cached is free for the taking.
    #[must_use]
    pub fn usage(&self) -> f64 {
        f64::from(self.blocks_in_use) / f64::from(self.blocks_total.max(1))
    }
    /// The share of prompt tokens that were found in the cache, 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}
