//! Decoding as processor sharing: every running sequence gets the same rate, so one clock of *tokens served to each*
//! orders all of them, and a change of rate touches no sequence.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::RequestId;

/// Tokens below which a sequence counts as having reached its mark (the clock is a float).
const SLACK: f64 = 1e-6;

/// Marks on the served clock; non-negative floats order like their bits.
#[derive(Debug, Default)]
struct Marks(BinaryHeap<Reverse<(u64, RequestId)>>);

impl Marks {
    fn push(&mut self, mark: f64, id: RequestId) {
        self.0.push(Reverse((mark.to_bits(), id)));
    }
    fn first(&self) -> Option<(f64, RequestId)> {
        self.0.peek().map(|Reverse((bits, id))| (f64::from_bits(*bits), *id))
    }
}

/// The decoding half of an engine. Times are seconds, rates tokens per second for each sequence.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    served: f64,
    active: u32,
    finish: Marks,
    report: Marks,
}

impl Decoder {
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// A sequence with `tokens` to go; `report` asks for a mark at each of them.
    pub(super) fn join(&mut self, id: RequestId, tokens: u32, report: bool) -> f64 {
        if self.active == 0 {
            // Nobody refers to the clock: start over, so that floats stay precise.
            *self = Self::default();
        }
        self.active += 1;
        self.finish.push(self.served + f64::from(tokens), id);
        if report {
            self.report.push(self.served + 1.0, id);
        }
        self.served
    }

    /// A sequence is done or cancelled; its marks are skipped when they come up (see `prune`).
    pub(super) fn leave(&mut self) {
        self.active -= 1;
    }

    /// Drops marks of sequences that left, as `alive` tells, from the fronts.
    pub(super) fn prune(&mut self, alive: impl Fn(RequestId) -> bool) {
        for marks in [&mut self.finish, &mut self.report] {
            while marks.first().is_some_and(|(_, id)| !alive(id)) {
                marks.0.pop();
            }
        }
    }

    pub(super) fn pass(&mut self, seconds: f64, rate: f64) {
        if self.active > 0 {
            self.served += seconds * rate;
        }
    }

    /// Seconds until the first sequence finishes.
    pub(super) fn next_finish(&self, rate: f64) -> Option<f64> {
        self.finish.first().map(|(mark, _)| ((mark - self.served) / rate).max(0.0))
    }
    /// Seconds until the first token that someone wants reported.
    pub(super) fn next_report(&self, rate: f64) -> Option<f64> {
        self.report.first().map(|(mark, _)| ((mark - self.served) / rate).max(0.0))
    }

    /// The next sequence that has finished; `step` is what a nanosecond serves, the resolution of time.
    pub(super) fn pop_finished(&mut self, step: f64) -> Option<RequestId> {
        let (mark, id) = self.finish.first()?;
        if mark - self.served > SLACK.max(step) {
            return None;
        }
        self.finish.0.pop();
        Some(id)
    }
    /// The next sequence with a token to report.
    pub(super) fn pop_report(&mut self, step: f64) -> Option<RequestId> {
        let (mark, id) = self.report.first()?;
        if mark - self.served > SLACK.max(step) {
            return None;
        }
        self.report.0.pop();
        Some(id)
    }
    pub(super) fn report_again(&mut self, id: RequestId, mark: f64) {
        self.report.push(mark, id);
    }

    /// Tokens served to a sequence that joined at `since`.
    pub(super) fn tokens_since(&self, since: f64, step: f64) -> u32 {
        (self.served - since + SLACK.max(step)) as u32
    }
}
