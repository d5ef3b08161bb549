//! The router and the mock as processes, over sockets. One binary, a module for each promise.
mod support;

mod access_log;
mod admin;
mod alias;
mod audio;
mod backpressure;
mod client_leaves;
mod encoding;
mod errors;
mod headers;
mod http_rows;
mod keys;
mod load;
mod metrics;
mod models;
mod paths;
mod policies;
mod recorded;
mod relay;
mod responses;
mod reuse;
mod secrets;
mod sessions;
mod strict;
mod timeouts;
