//! What the socket tests stand on: the binary run as processes, a client and a fake engine that show every byte.
//!
//! Nothing here uses the library's own HTTP code: what is tested must not be its own witness. Children are killed by
//! pid when their handle drops, and their output is shown when a test fails. Waiting is done by condition
//! ([`wait_until`]); a test itself never sleeps.
mod certificates;
mod config;
mod h2;
mod http;
mod mock;
mod process;
mod proxy;
mod publisher;
mod requests;
mod upstream;
mod wait;

pub use certificates::{Authority, tls_client, tls_connect, tls_front, tls12_client};
pub use config::{Config, Pool};
pub use h2::{ENDS, Http2, frame, piece, preface, request_block, rest};
pub use http::{Client, Event, Head, Request, Response, exchange, get, sse_events};
pub use mock::Mock;
pub use process::{Process, address_after};
pub use proxy::{Proxy, replace};
pub use publisher::{Publisher, cleared, removed, stored};
pub use requests::{ENDPOINTS, Endpoint, Family, chat, chat_body, sized_chat};
pub use upstream::{Seen, Upstream, Wire, full_listener, respond};
pub use wait::{wait_until, within};

use std::time::Duration;

/// How long a condition that has no promised time may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A guarantee of 100 ms is asserted at three times its value: tests share two cores.
pub const RELEASE: Duration = Duration::from_millis(300);

/// A body of `n` bytes that no accident of alignment could reproduce.
pub fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; n];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Printable noise, for use inside a JSON string: one stretch of it, numbered at each repetition so that no piece can
/// be lost or moved unseen.
pub fn letters(n: usize, seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let stretch: String = (0..n.min(10_007)).map(|_| random.alphanumeric()).collect();
    let mut text = String::with_capacity(n + stretch.len() + 20);
    while text.len() < n {
        text.push_str(&text.len().to_string());
        text.push_str(&stretch);
    }
    text.truncate(n);
    text
}

/// The hash that the mock reports of a body.
pub fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(bytes))
}
