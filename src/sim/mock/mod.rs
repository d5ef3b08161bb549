//! The virtual engine behind a real OpenAI-style HTTP server.
//!
//! It answers as vLLM or SGLang would, in their shapes and with their metrics' names, at speeds that the options set,
//! and misbehaves on request (`POST /__control`, see `control`). `GET /__stats` tells what it received.
//! `/health`, `/metrics` and `/__*` are not counted as requests and no fault but `health_status` touches them.
//!
//! The text is `token1 token2 …`; prompts are cut into made-up tokens (see `tokens`) whose blocks are really cached,
//! so `cached_tokens` in an answer is what an engine of this size would report.
mod answer;
mod anthropic;
mod body;
mod call;
mod control;
mod driver;
mod errors;
mod info;
mod metrics;
mod native;
mod openai;
mod responses;
mod server;
mod sse;
mod state;
#[cfg(test)]
mod tests;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::engine;
use state::Mock;

/// Whose shapes a mock speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// vLLM 0.32.
    #[default]
    Vllm,
    /// SGLang 0.5.23.
    Sglang,
}

/// What a mock is started with.
#[derive(Debug, Clone)]
pub struct MockOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Models served; the first answers requests that name none.
    pub models: Vec<String>,
    /// Whose shapes to speak.
    pub dialect: Dialect,
    /// The engine's size and speed.
    pub engine: engine::Options,
    /// `system_fingerprint` of vLLM's whole answers: tells replicas apart behind a router.
    pub fingerprint: String,
}

impl Default for MockOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            models: vec!["mock-model".to_owned()],
            dialect: Dialect::Vllm,
            engine: engine::Options::default(),
            fingerprint: "vllm-0.32.0-warmroute".to_owned(),
        }
    }
}

/// A running mock. Dropping it ends it at once: it stops listening and its connections close.
#[derive(Debug)]
pub struct MockHandle {
    address: SocketAddr,
    mock: Arc<Mock>,
    stop: watch::Sender<bool>,
}

impl MockHandle {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
    /// Its base URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
    /// Requests being answered.
    #[must_use]
    pub fn inflight(&self) -> u64 {
        self.mock.counters.inflight()
    }
    /// The engine's counters and gauges.
    #[must_use]
    pub fn engine_stats(&self) -> engine::Stats {
        self.mock.driver.stats()
    }
    /// The engine dies and comes back empty; requests in it are cut.
    pub fn restart_engine(&self) {
        self.mock.driver.restart();
    }
    /// Ends it, as dropping does.
    pub fn shutdown(self) {
        self.stop.send_replace(true);
    }
}

/// Starts a mock on the current tokio runtime; it listens when this returns.
pub async fn start(options: MockOptions) -> io::Result<MockHandle> {
    let listener = TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let mock = Arc::new(Mock::new(options));
    tokio::spawn(driver::run(Arc::clone(&mock.driver), stopped.clone()));
    tokio::spawn(server::accept(listener, Arc::clone(&mock), stopped));
    Ok(MockHandle { address, mock, stop })
}
