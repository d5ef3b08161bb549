//! What engines say of themselves, as gauges: a series for each replica that says it, and none for one that does not.
use prometheus::GaugeVec;

/// The families.
pub struct EngineFamilies {
    pub(super) running: GaugeVec,
    pub(super) waiting: GaugeVec,
    pub(super) cache_use: GaugeVec,
    pub(super) cache_tokens: GaugeVec,
    pub(super) age: GaugeVec,
}

/// What one engine says; unknown where it does not.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineGauges {
    /// Requests being computed.
    pub running: Option<u32>,
    /// Requests that wait.
    pub waiting: Option<u32>,
    /// The share of the KV cache in use.
    pub cache_use: Option<f64>,
    /// Tokens of KV cache.
    pub cache_tokens: Option<u64>,
    /// Seconds since it said so.
    pub age: Option<f64>,
}

impl EngineFamilies {
    /// Sets a replica's gauges; those of what is unknown go.
    pub fn set(&self, replica: &str, says: &EngineGauges) {
        for (family, value) in [
            (&self.running, says.running.map(f64::from)),
            (&self.waiting, says.waiting.map(f64::from)),
            (&self.cache_use, says.cache_use),
            (&self.cache_tokens, says.cache_tokens.map(|tokens| tokens as f64)),
            (&self.age, says.age),
        ] {
            match value {
                Some(value) => family.with_label_values(&[replica]).set(value),
                // There may be none.
                None => drop(family.remove_label_values(&[replica])),
            }
        }
    }
}
