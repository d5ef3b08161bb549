//! `warmroute mock` as a process.
use std::net::SocketAddr;

use serde_json::Value;

use super::process::address_after;
use super::{Process, Request, exchange, get};

/// A running virtual engine.
pub struct Mock {
    pub process: Process,
    address: SocketAddr,
}

impl Mock {
    /// Starts one that answers as fast as it can, with further arguments.
    pub fn start(args: &[&str]) -> Self {
        let mut all = vec!["mock"];
        if !args.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        all.extend_from_slice(args);
        let mut process = Process::start(&all, &[]);
        let address = process.line("address", |line| address_after(line, "listening on http://"));
        Self { process, address }
    }

    /// One that serves `m`, fast enough to be no part of what is measured.
    pub fn fast() -> Self {
        Self::start(&["--model", "m", "--prefill-tps", "1000000", "--decode-tps", "100000"])
    }

    /// One that serves `m` and makes a token about every 50 ms, so that a client can leave in mid-stream.
    pub fn slow() -> Self {
        Self::start(&["--model", "m", "--prefill-tps", "1000000", "--decode-tps", "20"])
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has seen: `requests`, `disconnects`, `inflight`, `last_headers`, `last_body_hash`.
    pub async fn stats(&self) -> Value {
        get(self.address, "/__stats").await.json()
    }

    /// One number of its stats.
    pub async fn stat(&self, name: &str) -> u64 {
        let stats = self.stats().await;
        stats[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {stats}"))
    }

    /// Sets faults.
    pub async fn control(&self, faults: Value) {
        let answer = exchange(self.address, &Request::post("/__control", &faults)).await;
        assert!(answer.status() < 300, "the mock refused {faults}: {}", answer.text());
    }
}
