//! Configuration files for tests: what a test leaves out is what every test wants.
use std::net::SocketAddr;

/// A pool as YAML.
#[derive(Clone)]
pub struct Pool {
    models: String,
    replicas: Vec<String>,
    keys: Vec<String>,
}

impl Pool {
    /// A pool for one model.
    pub fn model(name: &str) -> Self {
        Self { models: format!("model: {name}"), replicas: Vec::new(), keys: Vec::new() }
    }

    /// The one pool of a router that does not look at models.
    pub fn any() -> Self {
        Self { models: "models: any".into(), replicas: Vec::new(), keys: Vec::new() }
    }

    /// Adds a replica `r0`, `r1`, … at an address.
    pub fn at(self, address: SocketAddr) -> Self {
        let id = self.replicas.len();
        self.replica(&format!("{{ id: r{id}, url: \"http://{address}\" }}"))
    }

    /// Adds a replica as written (a YAML flow mapping).
    pub fn replica(mut self, yaml: &str) -> Self {
        self.replicas.push(yaml.into());
        self
    }

    /// Adds a key as written: `policy: { type: random }`.
    pub fn with(mut self, yaml: &str) -> Self {
        self.keys.push(yaml.into());
        self
    }

    fn yaml(&self) -> String {
        let mut out = format!("  - {}\n", self.models);
        let mut keys = self.keys.clone();
        // Probes come often, so that a replica that is up at start, or comes back, is found at once.
        default(&mut keys, "health", "health: { interval: 100ms, timeout: 5s }");
        // Fake engines tell each request that comes: most tests want none beside their own.
        default(&mut keys, "engine_metrics", "engine_metrics: off");
        for key in &keys {
            out += &format!("    {key}\n");
        }
        if !self.replicas.is_empty() {
            out += "    replicas:\n";
        }
        for replica in &self.replicas {
            out += &format!("      - {replica}\n");
        }
        out
    }
}

/// A configuration file as YAML.
#[derive(Clone, Default)]
pub struct Config {
    pools: Vec<Pool>,
    keys: Vec<String>,
}

impl Config {
    pub fn new(pool: Pool) -> Self {
        Self::default().pool(pool)
    }

    pub fn pool(mut self, pool: Pool) -> Self {
        self.pools.push(pool);
        self
    }

    /// Adds a top-level key as written: `timeouts: { idle: 300ms }`.
    pub fn with(mut self, yaml: &str) -> Self {
        self.keys.push(yaml.into());
        self
    }

    pub fn yaml(&self) -> String {
        let mut keys = self.keys.clone();
        default(&mut keys, "listen", "listen: 127.0.0.1:0");
        default(&mut keys, "admin", "admin: { listen: 127.0.0.1:0 }");
        let mut out = keys.join("\n") + "\npools:\n";
        for pool in &self.pools {
            out += &pool.yaml();
        }
        out
    }
}

fn default(keys: &mut Vec<String>, name: &str, line: &str) {
    if !keys.iter().any(|key| key.starts_with(&format!("{name}:"))) {
        keys.push(line.into());
    }
}
