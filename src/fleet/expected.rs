//! What a request's replica is expected to hold, from the decision to the request's end.
use std::sync::Arc;

use parking_lot::Mutex;

use super::pool::Core;
use crate::routing::{Expectation, Tick};

/// An expectation on its way with a request; its drop is the request's end.
#[derive(Debug)]
pub struct Expected {
    core: Arc<Mutex<Core>>,
    expectation: Option<Expectation>,
    now: fn() -> Tick,
}

impl Expected {
    pub(super) fn new(core: Arc<Mutex<Core>>, expectation: Expectation, now: fn() -> Tick) -> Self {
        Self { core, expectation: Some(expectation), now }
    }

    /// The first output has come. Only the first call counts.
    pub fn confirm(&mut self) {
        if let Some(expectation) = &mut self.expectation
            && !expectation.confirmed
        {
            self.core.lock().router.confirm(expectation, (self.now)());
        }
    }

    /// The attempt failed before the replica computed anything.
    pub fn withdraw(mut self) {
        if let Some(expectation) = self.expectation.take() {
            self.core.lock().router.withdraw(expectation, (self.now)());
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if let Some(expectation) = self.expectation.take() {
            self.core.lock().router.finish(expectation, (self.now)());
        }
    }
}
