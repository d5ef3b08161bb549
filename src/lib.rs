//! Warmroute: an LLM-aware router.
//!
//! It sends each request to the replica where its prefix is already warm, unless waiting there costs more than
//! computing it again elsewhere. The rooms of this library stand in one order; imports go down it, never up:
//!
//! `cli` → `admin` → `proxy` → `sim` → `engine` → `fleet` → `http1` → `api` → `tokens` → `routing` → `prefix` → `config` → `telemetry`
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod admin;
pub mod api;
pub mod cli;
pub mod config;
pub mod engine;
pub mod fleet;
pub mod http1;
pub mod prefix;
pub mod proxy;
pub mod routing;
pub mod sim;
pub mod telemetry;
pub mod tokens;
