//! What operators see: metric families, the access log, and the set-up of the program's own log.
//!
//! Label values come from configuration or fixed lists, never from a client. No prompt text is ever written.
mod access_log;
mod caches;
mod engine;
mod families;
mod kv_events;
mod log;
mod metrics;
mod reference;
mod tokens;

pub use access_log::{AccessLog, Record};
pub use engine::{EngineFamilies, EngineGauges};
pub use families::{FAMILIES, Family, Kind};
pub use kv_events::KvEventMetrics;
pub use log::{init as init_log, set_filter as set_log_filter};
pub use metrics::{Metrics, ReplicaMetrics};
pub use reference::reference;
pub use tokens::TokenMetrics;
