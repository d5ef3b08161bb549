//! Plays a workload's calls on virtual replicas, each placed by a chooser, and counts.
//!
//! Two models of a replica: `study` keeps whole conversations or documents and answers one call at a time, as the
//! published study counts; `blocks` is the virtual engine that `mock` runs, in virtual time, with queues.
mod arrivals;
mod blocks;
mod study;
mod tally;

pub use arrivals::{Arrivals, Session, Source};
pub use blocks::{Replicas, play};
pub use study::{StudyCache, play_study};
pub use tally::{Outcome, Tally};
