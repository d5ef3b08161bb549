//! `session_sticky`: the replica a session is bound to; an unbound session by rendezvous hashing of its key.
//!
//! | the bound replica is | the request goes | the binding |
//! | --- | --- | --- |
//! | ready, warming, draining | there, whatever its weight or load | stays |
//! | at its `max_in_flight` | by hash over the rest | stays: its cache is worth coming back for |
//! | down, gone, or tried by this request | by hash over the rest | is rewritten when the attempt succeeds |
//!
//! A session that had to move is not moved back: after one turn its prefix is warm in the new place.
use crate::routing::{Member, Request, State};

/// What is hashed for a session without a binding.
pub(super) fn key(request: &Request<'_>) -> Option<u128> {
    request.session.map(|session| session.0)
}

/// How a replica stands to a request that belongs to it (by binding, or by stored state).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::routing) enum Standing {
    /// Takes it.
    Takes,
    /// Would take it, but is full.
    Full,
    /// Cannot: down, or already failed this request.
    Lost,
}

impl Standing {
    /// Draining replicas still serve what belongs to them.
    pub fn of(member: &Member, request: &Request<'_>) -> Self {
        if request.state_of(member) == State::Down || request.tried.contains(&member.id) {
            Self::Lost
        } else if member.max_in_flight.is_some_and(|max| request.open_on(member) >= max) {
            Self::Full
        } else {
            Self::Takes
        }
    }
}
