//! `warmroute serve` as a process.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::process::address_after;
use super::{Client, Config, PATIENCE, Process, Request, Response, exchange, get, wait_until};

/// A running router.
pub struct Proxy {
    pub process: Process,
    address: SocketAddr,
    admin: SocketAddr,
    config: PathBuf,
    folder: TempDir,
}

impl Proxy {
    /// Starts it and waits until it is ready.
    pub async fn start(config: &Config) -> Self {
        let proxy = Self::start_unready(config);
        wait_until("the router is ready", PATIENCE, || async { proxy.admin_get("/readyz").await.status() == 200 })
            .await;
        proxy
    }

    /// Starts it and waits only for its addresses: for replicas that are not up.
    pub fn start_unready(config: &Config) -> Self {
        Self::start_with(config, &[])
    }

    /// Starts it with extra environment.
    pub fn start_with(config: &Config, environment: &[(&str, &str)]) -> Self {
        Self::launch(config, |path| Process::start(&["serve", "--config", path], environment))
    }

    /// Starts it with a listening socket passed to it.
    pub fn start_on(config: &Config, socket: &std::net::TcpListener) -> Self {
        Self::launch(config, |path| Process::start_with_socket(&["serve", "--config", path], socket))
    }

    fn launch(config: &Config, start: impl FnOnce(&str) -> Process) -> Self {
        let folder = TempDir::new().expect("a folder for the configuration");
        let path = folder.path().join("warmroute.yaml");
        std::fs::write(&path, config.yaml()).expect("the configuration is written");
        Self::follow(folder, path, start)
    }

    /// Starts it with a file that lies somewhere in `folder`.
    pub fn serving(folder: TempDir, config: PathBuf, environment: &[(&str, &str)]) -> Self {
        Self::follow(folder, config, |path| Process::start(&["serve", "--config", path], environment))
    }

    fn follow(folder: TempDir, config: PathBuf, start: impl FnOnce(&str) -> Process) -> Self {
        let mut process = start(config.to_str().expect("UTF-8"));
        let address = process.line("proxy address", |line| listening(line, "proxy"));
        let admin = process.line("admin address", |line| listening(line, "admin"));
        Self { process, address, admin, config, folder }
    }

    /// The folder of its configuration.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Puts another text in the place of its configuration's file, by renaming; whether it is read is its business.
    pub fn replace_config(&self, text: &str) {
        replace(&self.config, text);
    }

    /// POST to the admin listener.
    pub async fn admin_post(&self, target: &str) -> Response {
        exchange(self.admin, &Request::new("POST", target)).await
    }

    /// Replaces its configuration and has it reloaded.
    pub async fn reload(&self, config: &Config) {
        self.replace_config(&config.yaml());
        let answer = self.admin_post("/reload").await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }

    /// The row of one replica in `/replicas`.
    pub async fn replica(&self, id: &str) -> Option<Value> {
        self.replicas().await.into_iter().find(|row| row["id"] == id)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// One exchange on a connection of its own.
    pub async fn exchange(&self, request: &Request) -> Response {
        exchange(self.address, request).await
    }

    pub async fn admin_get(&self, target: &str) -> Response {
        get(self.admin, target).await
    }

    /// The `/replicas` listing.
    pub async fn replicas(&self) -> Vec<Value> {
        let listing = self.admin_get("/replicas").await.json();
        let rows = listing.as_array().or_else(|| listing["replicas"].as_array());
        rows.unwrap_or_else(|| panic!("/replicas has no list: {listing}")).clone()
    }

    /// Open requests as the reservations have it.
    pub async fn in_flight(&self) -> u64 {
        let rows = self.replicas().await;
        let open = |row: &Value| row["in_flight"].as_u64().unwrap_or_else(|| panic!("no in_flight in {row}"));
        rows.iter().map(open).sum()
    }

    /// Waits until exactly `open` requests are booked.
    pub async fn wait_in_flight(&self, open: u64, deadline: Duration) -> Duration {
        wait_until(&format!("{open} booked requests"), deadline, || async { self.in_flight().await == open }).await
    }

    /// The load invariant at rest.
    pub async fn load_is_zero(&self) {
        self.wait_in_flight(0, PATIENCE).await;
    }

    /// The exposition.
    pub async fn metrics(&self) -> String {
        self.admin_get("/metrics").await.text()
    }

    /// Sum over the series of a family that carry the given labels: `name` or `name{a="b",c="d"}`. 0 if there is none.
    pub async fn metric(&self, selector: &str) -> f64 {
        let (name, labels) = selector.split_once('{').unwrap_or((selector, ""));
        let labels: Vec<&str> = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()).collect();
        let mut sum = 0.0;
        for line in self.metrics().await.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (family, carried) = series.split_once('{').unwrap_or((series, ""));
            if family == name && labels.iter().all(|label| carried.contains(label)) {
                sum += value.parse::<f64>().expect("a number");
            }
        }
        sum
    }
}

/// The address in a log line, text or JSON, that tells where this role listens.
/// Writes a file as careful tools do: beside it, then renamed over it.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("the folder can be written");
    std::fs::rename(&new, path).expect("a file can be renamed");
}

fn listening(line: &str, role: &str) -> Option<SocketAddr> {
    let line = line.contains("listening").then(|| line.replace('"', "").replace("address:", "address="))?;
    let named = [format!("role={role}"), format!("role:{role}")].iter().any(|named| line.contains(named));
    named.then(|| address_after(&line, "address="))?
}
