//! Virtual engines and what runs them: the pure engine in virtual time, and `mock`, the same engine behind real HTTP.
//!
//! `simulate` is made of these: a workload (`workload`, `trace`) is a stream of calls; a chooser (`choose`) places each on
//! a replica, the product's policies by the very routing core that serves; `replay` plays them on a fleet of virtual
//! engines, or on the cache of the published study; `floors` says what no placement can be better than; `grid` runs
//! many replays side by side; `study` holds the published figures against ours.
pub mod call;
pub mod choose;
pub mod engine;
pub mod floors;
pub mod grid;
pub mod mock;
pub mod noise;
pub mod prefill;
pub mod replay;
pub mod report;
pub mod study;
pub mod trace;
pub mod workload;
