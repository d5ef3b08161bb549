//! The policies: each chooses a row of the candidates' table and changes nothing.
//!
//! What a choice changes (a reservation, the turn of round robin, a placement) is booked by the router, in one place,
//! once it holds. Randomness is the router's seeded generator.
pub(super) mod cache_aware;
mod header_hash;
pub(super) mod least_cost;
mod least_load;
mod power_of_two;
mod random;
mod round_robin;
mod session_sticky;

pub(super) use round_robin::RoundRobin;
pub(super) use session_sticky::Standing;

use super::candidates::{Candidates, Home};
use super::rendezvous;
use super::{Reason, Request, SessionKey};
use crate::config::{self, Affinity, CacheAware, LeastCost, LoadPolicy, LoadUnit};

/// A pool's policy.
#[derive(Debug)]
pub(super) enum Policy {
    /// By load alone.
    Load(LoadPolicy),
    /// By the session's binding, then by its key's hash.
    SessionSticky(Affinity),
    /// By one header's hash.
    HeaderHash(Affinity),
    /// By the longest prefix, while load allows.
    CacheAware(CacheAware),
    /// By cost in seconds.
    LeastCost(LeastCost),
}

/// What a policy chose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    /// Row of the table.
    pub row: usize,
    /// Why.
    pub reason: Reason,
    /// The load policy that chose, if one did.
    pub by: Option<LoadPolicy>,
}

/// What policies may draw on besides the table.
pub(super) struct Aids<'a> {
    /// Whose turn it is.
    pub turns: &'a RoundRobin,
    /// Draws.
    pub rng: &'a mut fastrand::Rng,
    /// What the request asks of a replica.
    pub work: &'a least_cost::Work<'a>,
}

impl Policy {
    pub fn new(policy: &config::Policy) -> Self {
        match policy {
            config::Policy::RoundRobin => Self::Load(LoadPolicy::RoundRobin),
            config::Policy::Random => Self::Load(LoadPolicy::Random),
            config::Policy::LeastLoad => Self::Load(LoadPolicy::LeastLoad),
            config::Policy::PowerOfTwo => Self::Load(LoadPolicy::PowerOfTwo),
            config::Policy::SessionSticky(affinity) => Self::SessionSticky(affinity.clone()),
            config::Policy::CacheAware(settings) => Self::CacheAware(settings.clone()),
            config::Policy::LeastCost(settings) => Self::LeastCost(settings.clone()),
            config::Policy::HeaderHash { affinity, .. } => Self::HeaderHash(affinity.clone()),
        }
    }

    /// The session whose binding this policy reads and writes for the request, if it does.
    pub fn session(&self, request: &Request<'_>) -> Option<SessionKey> {
        request.session.filter(|_| self.binds() && !request.load_only)
    }

    /// Whether it has bindings.
    pub fn binds(&self) -> bool {
        matches!(self, Self::SessionSticky(_)) || self.reads_prompts()
    }

    /// Whether it looks at prompts; its bindings then follow their sessions.
    pub fn reads_prompts(&self) -> bool {
        matches!(self, Self::CacheAware(_) | Self::LeastCost(_))
    }

    /// What counts as load for a request.
    pub fn load_unit(&self, request: &Request<'_>) -> LoadUnit {
        match self {
            Self::CacheAware(settings) => settings.load,
            // What goes by load alone books no seconds, so it would not see its own kind.
            Self::LeastCost(_) if !request.load_only => LoadUnit::QueuedSeconds,
            _ => LoadUnit::Requests,
        }
    }

    /// Whether a session's home that is no candidate, as it drains, still serves it; it holds `depth` blocks of the
    /// prompt.
    pub fn keeps(&self, table: &Candidates, home: Home, depth: u32) -> bool {
        match self {
            Self::CacheAware(settings) => cache_aware::keeps(settings, table, home, depth),
            Self::LeastCost(_) => least_cost::keeps(table, home, depth),
            // Those that do not read prompts keep a binding whatever others hold.
            _ => true,
        }
    }

    /// Chooses a candidate; `None` when there is none.
    pub fn choose(&self, request: &Request<'_>, table: &Candidates, aids: &mut Aids<'_>) -> Option<Choice> {
        match self {
            Self::Load(policy) => by_load(*policy, table, aids),
            Self::SessionSticky(affinity) | Self::HeaderHash(affinity) if request.load_only => {
                by_load(affinity.fallback, table, aids)
            }
            Self::SessionSticky(affinity) => by_key(session_sticky::key(request), affinity, table, aids),
            Self::HeaderHash(affinity) => by_key(header_hash::key(request), affinity, table, aids),
            Self::CacheAware(settings) if request.load_only => by_load(settings.fallback, table, aids),
            Self::CacheAware(settings) => cache_aware::choose(settings, table, aids),
            Self::LeastCost(_) if request.load_only => by_load(LoadPolicy::LeastLoad, table, aids),
            Self::LeastCost(settings) => least_cost::choose(settings, table, aids),
        }
    }
}

fn by_load(policy: LoadPolicy, table: &Candidates, aids: &mut Aids<'_>) -> Option<Choice> {
    let (row, reason) = match policy {
        LoadPolicy::RoundRobin => (aids.turns.choose(table)?, Reason::RoundRobin),
        LoadPolicy::Random => (random::choose(table, aids.rng)?, Reason::Random),
        LoadPolicy::LeastLoad => (least_load::choose(table)?, Reason::LeastLoad),
        LoadPolicy::PowerOfTwo => (power_of_two::choose(table, aids.rng)?, Reason::PowerOfTwo),
    };
    Some(Choice { row, reason, by: Some(policy) })
}

fn by_key(key: Option<u128>, affinity: &Affinity, table: &Candidates, aids: &mut Aids<'_>) -> Option<Choice> {
    let Some(key) = key else {
        return by_load(affinity.fallback, table, aids).map(|choice| Choice { reason: Reason::NoKey, ..choice });
    };
    let (row, overflow) = rendezvous::choose(key, table, affinity)?;
    let reason = if overflow { Reason::HashOverflow } else { Reason::Hashed };
    Some(Choice { row, reason, by: None })
}
