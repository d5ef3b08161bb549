//! What rivals book of open calls: a call carries what was booked for it, so it is given back once.
use crate::prefix::Placement;
use crate::sim::choose::Placed;

/// What was booked for one call.
#[derive(Debug, Default)]
pub(in crate::sim::choose) struct Booked {
    /// Prompt tokens to compute, until its first token.
    prefill_tokens: u32,
    /// `dynamo_sum`: blocks of its prompt.
    pub(super) blocks: Vec<u64>,
    /// `preble`: its place in the tree.
    pub(super) placement: Option<Placement>,
    /// `preble`: seconds of prefill that it was counted with.
    pub(super) seconds: f64,
    /// `preble`: tokens of its answer.
    pub(super) output_tokens: u32,
}

/// What is open on one replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    /// Prompt tokens to compute, of calls whose first token has not come.
    pub prefill_tokens: u64,
    /// Calls in flight.
    pub requests: u64,
}

/// The loads of a fleet.
#[derive(Debug)]
pub(super) struct Books(Vec<Load>);

impl Books {
    pub fn new(replicas: usize) -> Self {
        Self(vec![Load::default(); replicas])
    }

    /// Replica by replica.
    pub fn loads(&self) -> impl Iterator<Item = Load> + '_ {
        self.0.iter().copied()
    }

    pub fn of(&self, replica: usize) -> Load {
        self.0[replica]
    }

    /// A call has been placed, with so many prompt tokens to compute.
    pub fn open(&mut self, placed: &mut Placed, uncached: u32) {
        let load = &mut self.0[placed.replica];
        load.requests += 1;
        load.prefill_tokens += u64::from(uncached);
        placed.booked.prefill_tokens = uncached;
    }

    /// Its first token has come: its prompt is computed.
    pub fn first_token(&mut self, placed: &mut Placed) {
        let computed = std::mem::take(&mut placed.booked.prefill_tokens);
        self.0[placed.replica].prefill_tokens -= u64::from(computed);
    }

    /// It has ended, or never began.
    pub fn close(&mut self, placed: &mut Placed) {
        self.first_token(placed);
        self.0[placed.replica].requests -= 1;
    }

    /// Whether nothing is booked.
    #[cfg(test)]
    pub fn at_rest(&self) -> bool {
        self.loads().all(|load| load == Load::default())
    }
}
