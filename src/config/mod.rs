//! What the operator writes, and what it means.
//!
//! YAML text comes in; a validated, immutable [`Config`] goes out, or every error in it with its line, column, key path
//! and remedy. One table of keys drives the checks, the JSON schema and `docs/configuration.md`.
mod model;

pub use model::*;
