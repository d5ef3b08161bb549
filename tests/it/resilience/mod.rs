//! What becomes of requests when replicas fail, are full, or are gone.
mod health;
pub mod queue;
mod retries;
pub mod shadow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::support::*;

/// Answers that are no status: the connection is closed in place of a response head…
pub const CLOSES: u16 = 0;
/// …or nothing comes until the other side is gone.
pub const HANGS: u16 = 1;

/// A fake engine whose answer can be changed; its health path always answers 200.
pub struct Engine {
    pub upstream: Upstream,
    answer: Arc<AtomicU16>,
}

impl Engine {
    /// One that answers with this status; 599 stands for a 503 with `Retry-After`.
    pub async fn answering(status: u16) -> Self {
        let answer = Arc::new(AtomicU16::new(status));
        let present = answer.clone();
        let upstream = Upstream::start(move |_, mut wire| {
            let status = present.load(Ordering::SeqCst);
            async move {
                match status {
                    CLOSES => return None,
                    HANGS => {
                        wire.gone().await;
                        return None;
                    }
                    PUSHES_BACK => wire.reply(503, &[("Retry-After", "7")], b"{\"later\":true}").await.ok()?,
                    429 => wire.reply(429, &[("Retry-After", "7")], b"{\"later\":true}").await.ok()?,
                    status => wire.reply(status, &[], format!("{{\"status\":{status}}}").as_bytes()).await.ok()?,
                }
                Some(wire)
            }
        })
        .await;
        Self { upstream, answer }
    }

    pub fn answers(&self, status: u16) {
        self.answer.store(status, Ordering::SeqCst);
    }

    /// Requests that it has seen.
    pub fn seen(&self) -> usize {
        self.upstream.seen("/v1/chat/completions").len()
    }
}

/// 503 with `Retry-After`.
pub const PUSHES_BACK: u16 = 599;

/// A pool of these engines with further keys; in turn, if they name no policy.
pub fn in_turn(engines: &[Engine], keys: &[&str]) -> Pool {
    let pool = keys.iter().fold(Pool::model("m"), |pool, key| pool.with(key));
    let in_turn = !keys.iter().any(|key| key.starts_with("policy:"));
    let pool = if in_turn { pool.with("policy: round_robin") } else { pool };
    engines.iter().fold(pool, |pool, engine| pool.at(engine.upstream.address()))
}

/// Sends so many requests, one after the other on one connection, and counts the answers that are 200.
pub async fn drive(proxy: &Proxy, requests: usize) -> usize {
    let mut client = proxy.client().await;
    let mut good = 0;
    for _ in 0..requests {
        let answer = client.exchange(&chat(false, 1)).await;
        good += usize::from(answer.status() == 200);
    }
    good
}

/// The state of a replica's breaker.
pub async fn breaker(proxy: &Proxy, replica: usize) -> String {
    proxy.replicas().await[replica]["breaker"]["state"].as_str().unwrap_or_default().to_owned()
}

/// The number of a metric's series.
pub async fn count(proxy: &Proxy, selector: &str) -> usize {
    proxy.metric(selector).await as usize
}
