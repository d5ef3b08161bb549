//! What engines say of themselves: their load and their caches, what [`events`] tell of these, and what their answers
//! report of the tokens they used.
//!
//! Answers are watched beside the relay. Nothing here can change, delay or refuse one; what is not understood is unknown.
pub mod doctor;
mod document;
pub mod events;
mod exposition;
mod failure;
mod follow;
pub mod info;
pub mod orca;
mod report;
mod usage;

pub use follow::follow;
pub use report::{EngineReport, MOST, RankReport};
pub use usage::{Observer, Usage};
