//! Which replica a request goes to: pure, without I/O, clock or hidden randomness.
//!
//! The proxy and the simulator run this very code. [`Router::decide`] is one critical section for a pool: it chooses,
//! reserves and records the placement before anyone else can look. Time comes in as a [`Tick`], randomness as a seed.
mod bindings;
mod busy;
mod candidates;
mod followed;
mod heads;
mod load;
mod placements;
mod policy;
mod prefill;
mod prefixes;
mod queue;
mod rendezvous;
mod reported;
mod router;
#[cfg(test)]
mod tests;
mod trust;

use std::sync::Arc;

use crate::config;
use crate::prefix;

pub use followed::{CacheEvent, Following, Taken};
pub use load::{Load, Reservation, State, Status};
pub use reported::QueueReport;
pub use router::Router;
pub use trust::{Reported, TOLERANCE};

/// Time since an origin of the caller's choice (process start, simulation start), in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tick(pub u64);

/// A session's key: a scoped 128-bit hash, so that no client's string is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionKey(pub u128);

/// One replica as the routing core sees it. `load` and `status` are shared by all pools the replica serves.
#[derive(Debug, Clone)]
pub struct Member {
    /// Stable name; hashed for rendezvous.
    pub id: Arc<str>,
    /// Share relative to others, at least 1.
    pub weight: u32,
    /// Most requests open there at once.
    pub max_in_flight: Option<u32>,
    /// A new life of the same id (restart, replacement) has a higher number.
    pub incarnation: u64,
    /// Tokens of KV cache it can keep.
    pub cache_tokens: u64,
    /// Open requests.
    pub load: Arc<Load>,
    /// Whether it may be chosen.
    pub status: Arc<Status>,
}

/// What the operator set for one pool's core.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// How a replica is chosen.
    pub policy: &'a config::Policy,
    /// How sessions are remembered.
    pub session: &'a config::Session,
    /// Bytes of the prefix index; `None` = no index is kept.
    pub index_bytes: Option<usize>,
    /// How long a prefill takes.
    pub prefill: &'a config::Prefill,
}

/// A prompt in blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Hashes of its whole blocks ([`prefix::Chain`]).
    pub blocks: Vec<u64>,
    /// Its tokens.
    pub tokens: u32,
    /// The last answer that stands in it: where it begins and where it ends, in tokens. Who computed what is before it
    /// has most likely written it, too, and holds it although nobody has asked it for a prompt with it yet.
    pub answer: Option<(u32, u32)>,
}

/// What a decision expects of its replica, until the request has ended: give it back to the router it came from, by
/// [`Router::finish`] or [`Router::withdraw`].
#[derive(Debug)]
#[must_use]
pub struct Expectation {
    /// The prompt.
    pub(crate) prompt: Arc<Prompt>,
    /// Its blocks, in the index.
    pub(crate) placement: prefix::Placement,
    /// The first output has been seen.
    pub(crate) confirmed: bool,
    /// Which index: a router that was told to keep none, and then one again, has another.
    index: u32,
    /// The seconds of prefill that it booked, and where. A shadow books none.
    queued: Option<(Arc<Load>, queue::Ticket)>,
    /// What of the prompt was matched, in tokens.
    matched: u32,
    /// What of it the replica had answered with before, and held since, as far as the index knows.
    known: u32,
    /// What its prefill taught.
    sample: Option<u64>,
    /// All its blocks were known somewhere.
    repeat: bool,
    /// See [`Request::streams`].
    streams: bool,
}

impl Expectation {
    /// The answer comes whole, whatever was asked for: its beginning tells nothing of its prefill's end.
    pub fn comes_whole(&mut self) {
        self.streams = false;
    }
}

/// What the core needs to know of a request.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// Session it belongs to.
    pub session: Option<SessionKey>,
    /// Hash of the header that `header_hash` looks at.
    pub header: Option<u64>,
    /// Sequences it makes the engine generate (n × batch), at least 1.
    pub sequences: u32,
    /// Goes by load alone (embeddings, rerank, score, tokenize): leaves no binding.
    pub load_only: bool,
    /// Its answer comes in pieces, so that the first one tells how long the prefill took. Without it nothing is learned
    /// from the request.
    pub streams: bool,
    /// The replica that holds the state the request refers to (a stored response): taken while it is up, also when it
    /// drains. While it is full, no other is taken in its place.
    pub pinned: Option<&'a str>,
    /// No other replica will do than the pinned one, also when that is down.
    pub pinned_only: bool,
    /// What a core that decided before has booked for this very request (for a shadow).
    pub booked: Option<&'a Plan>,
    /// Its prompt, where the policy asks for it and it could be read.
    pub prompt: Option<&'a Arc<Prompt>>,
    /// Replicas that an attempt of this request has already failed on.
    pub tried: &'a [Arc<str>],
    /// Replicas that may be chosen although they are down: more are than may be left out.
    pub readmitted: &'a [Arc<str>],
    /// Whether [`Plan::scores`] is wanted; it costs an allocation and a look at every replica.
    pub explain: bool,
}

impl Request<'_> {
    /// What is open on a member, this request aside.
    fn open_on(&self, member: &Member) -> u32 {
        let itself = self.booked.is_some_and(|plan| plan.leg.replica == member.id);
        member.load.requests().saturating_sub(itself.into())
    }

    /// Seconds of prefill that wait on a member, this request's aside.
    fn queued_on(&self, member: &Member, now: Tick) -> f64 {
        let booked = self.booked.and_then(|plan| plan.expectation.as_ref()?.queued.as_ref());
        match booked {
            Some((load, ticket)) if Arc::ptr_eq(load, &member.load) => load.queue.seconds_without(ticket, now),
            _ => member.load.queued_seconds(now),
        }
    }

    /// The state that a member has for this request.
    fn state_of(&self, member: &Member) -> State {
        match member.status.get() {
            State::Down if self.readmitted.contains(&member.id) => State::Ready,
            state => state,
        }
    }
}

/// Why a replica was chosen; a label in metrics, logs and headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its turn.
    RoundRobin,
    /// Drawn.
    Random,
    /// Lowest load.
    LeastLoad,
    /// Less loaded of two.
    PowerOfTwo,
    /// The session's binding.
    Bound,
    /// Rendezvous hash of the session's key.
    Hashed,
    /// The hash's first choice was overloaded; its next was taken.
    HashOverflow,
    /// The policy wanted a key and the request had none: the fallback chose.
    NoKey,
    /// It holds the stored response the request refers to.
    Stored,
    /// It holds the longest prefix.
    Prefix,
    /// Another holds the longest prefix, and was too busy.
    PrefixOverflow,
    /// None holds enough of the prompt to tell it from the others: load chose.
    NoMatch,
}

impl Reason {
    /// The label: stable, lower case, with underscores.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastLoad => "least_load",
            Self::PowerOfTwo => "power_of_two",
            Self::Bound => "bound",
            Self::Hashed => "hashed",
            Self::HashOverflow => "hash_overflow",
            Self::NoKey => "no_key",
            Self::Stored => "stored",
            Self::Prefix => "prefix",
            Self::PrefixOverflow => "prefix_overflow",
            Self::NoMatch => "no_match",
        }
    }
}

/// A plain record of what a decision changed, to be replayed, logged or shared.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A request was placed on a replica.
    Placed {
        /// The replica.
        replica: Arc<str>,
        /// Its life.
        incarnation: u64,
        /// Sequences booked.
        sequences: u32,
    },
    /// A session is bound to a replica (written when the attempt succeeds).
    Bound {
        /// The session.
        session: SessionKey,
        /// The replica.
        replica: Arc<str>,
        /// Its life.
        incarnation: u64,
        /// The prompt that the session is bound with, under policies that look at prompts.
        prompt: Option<LastPrompt>,
    },
}

/// What a binding remembers of its session's last prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastPrompt {
    /// Hash of its first block.
    pub first: u64,
    /// Its whole blocks.
    pub blocks: u32,
}

/// One leg of a request: the replica and the booked share of its load.
#[derive(Debug)]
pub struct Leg {
    /// Where to.
    pub replica: Arc<str>,
    /// Released by drop, once.
    pub reservation: Reservation,
}

/// What was decided.
#[derive(Debug)]
pub struct Plan {
    /// One leg now; prefill and decode pairs later.
    pub leg: Leg,
    /// Why.
    pub reason: Reason,
    /// What it changed at once (already applied here).
    pub effects: Vec<Effect>,
    /// To be applied with [`Router::apply`] when the attempt succeeds.
    pub on_success: Option<Effect>,
    /// Leading tokens of the prompt that the replica holds or is expected to, as far as is known; the last token is
    /// always computed, so it is less than the prompt has.
    pub matched: u32,
    /// What is expected of the replica, where an index is kept and the prompt is known.
    pub expectation: Option<Expectation>,
    /// Each member with what it was judged by, for `explain` and debug logs; empty unless [`Request::explain`].
    pub scores: Vec<Score>,
}

/// One member as a decision saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The replica.
    pub replica: Arc<str>,
    /// Whether it could be chosen: it is ready or warming, not full, and was not tried before.
    pub candidate: bool,
    /// Whether its engine says that too many wait there: it is left out while another can be chosen.
    pub saturated: bool,
    /// Its state, for this request.
    pub state: State,
    /// Its weight as configured.
    pub weight: u32,
    /// What the policy takes for load (open requests, if nothing else is set) ÷ weight, at that moment. The ramp of a
    /// warming replica makes its weight less.
    pub load: f64,
    /// Open requests.
    pub in_flight: u32,
    /// Requests placed there lately: of the last 32 × replicas.
    pub placed: u32,
    /// Seconds of prefill that wait there.
    pub queued_seconds: f64,
    /// Leading tokens of the prompt that it holds, or is expected to.
    pub matched: u32,
    /// What the request would cost there, in seconds, under `least_cost`; nothing for those that can't be chosen.
    pub cost_seconds: Option<f64>,
    /// Those of them that speak for it: a head that all hold, or are about to, does not, nor does a match that is too
    /// short to count.
    pub counted: u32,
}

/// Why no replica could be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// None is ready (down, draining, or already tried): waiting for a place will not help.
    NoneReady,
    /// There are ready ones, and each is at its `max_in_flight`: a place will come free.
    AllFull,
}
