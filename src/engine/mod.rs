//! What engines say of themselves: what their answers report of the tokens they used, and what [`events`] tell of their
//! caches.
//!
//! Answers are watched beside the relay. Nothing here can change, delay or refuse one; what is not understood is unknown.
mod document;
pub mod events;
mod usage;

pub use usage::{Observer, Usage};
