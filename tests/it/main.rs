//! The router and the mock as processes, over sockets. One binary, a module for each promise.
mod support;

mod admin;
mod alias;
mod audio;
mod backpressure;
mod behind;
mod client_leaves;
mod encoding;
mod errors;
mod headers;
mod http2;
mod http2_frames;
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
mod timeouts;
mod tls;
mod upgrade;
