//! What a request's replica is expected to hold, from the decision to the request's end.
//!
//! A guard, as the reservation is: whatever happens to the request (answered, cut, its client left), the router that
//! expects something gets it back exactly once, so that nothing stays pinned.
use std::sync::Arc;

use parking_lot::Mutex;

use super::Clock;
use super::pool::Core;
use crate::routing::{Expectation, Reported};

/// An expectation on its way with a request; its drop is the request's end.
#[derive(Debug)]
pub struct Expected {
    core: Arc<Mutex<Core>>,
    expectation: Option<Expectation>,
    reported: Option<Reported>,
    clock: Clock,
}

impl Expected {
    pub(super) fn new(core: Arc<Mutex<Core>>, expectation: Expectation, clock: Clock) -> Self {
        Self { core, expectation: Some(expectation), reported: None, clock }
    }

    /// The first output has come. Only the first call counts.
    pub fn confirm(&mut self) {
        if let Some(expectation) = &mut self.expectation
            && !expectation.confirmed
        {
            self.core.lock().router.confirm(expectation, self.clock.now());
        }
    }

    /// The answer comes whole, whatever was asked for.
    pub fn comes_whole(&mut self) {
        if let Some(expectation) = &mut self.expectation {
            expectation.comes_whole();
        }
    }

    /// The engine has said what it found in its cache; the core hears of it with the request's end.
    pub fn reported(&mut self, reported: Reported) {
        self.reported = Some(reported);
    }

    /// The attempt failed before the replica computed anything.
    pub fn withdraw(mut self) {
        if let Some(expectation) = self.expectation.take() {
            self.core.lock().router.withdraw(expectation, self.clock.now());
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if let Some(expectation) = self.expectation.take() {
            let mut core = self.core.lock();
            if let Some(reported) = self.reported {
                core.router.reported(&expectation, reported);
            }
            core.router.finish(expectation, self.clock.now());
        }
    }
}
