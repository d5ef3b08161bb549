//! Why the router answers a request itself; it becomes a response in one place, [`super::answer`].
use crate::api::{Cause, Phase};

/// What went wrong with a request that the router answers itself.
#[derive(Debug)]
pub struct Problem {
    /// What.
    pub cause: Cause,
    /// When.
    pub phase: Phase,
    /// For people: what was wrong, where, what to do.
    pub message: String,
}

impl Problem {
    /// A problem.
    pub fn new(cause: Cause, phase: Phase, message: impl Into<String>) -> Self {
        Self { cause, phase, message: message.into() }
    }
}
