//! Virtual engines and what runs them: the pure engine in virtual time, and `mock`, the same engine behind real HTTP.
pub mod engine;
pub mod mock;
