//! What engines say of themselves: so far, what their answers report of the tokens they used.
//!
//! Answers are watched beside the relay. Nothing here can change, delay or refuse one; what is not understood is unknown.
mod document;
mod usage;

pub use usage::{Observer, Usage};
