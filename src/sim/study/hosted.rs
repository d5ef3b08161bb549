//! The study's arithmetic of hosted APIs: what a shared prefix costs by who comes first, and how many cache keys a rate
//! of requests takes.

/// Dollars for a million prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// Not cached, and left so.
    pub input: f64,
    /// Written into the cache (for five minutes).
    pub write: f64,
    /// Read from it.
    pub read: f64,
}

impl Prices {
    /// As in the study.
    pub const STUDY: Self = Self { input: 2.0, write: 2.5, read: 0.1 };

    fn cents(tokens: f64, price: f64) -> f64 {
        tokens * price / 1e6 * 100.0
    }

    /// Cents for `requests` that share `tokens`, with no cache.
    #[must_use]
    pub fn uncached(&self, requests: u32, tokens: u32) -> f64 {
        Self::cents(f64::from(requests) * f64::from(tokens), self.input)
    }

    /// All at once: an entry is usable once the first answer has begun, so each writes its own.
    #[must_use]
    pub fn at_once(&self, requests: u32, tokens: u32) -> f64 {
        Self::cents(f64::from(requests) * f64::from(tokens), self.write)
    }

    /// One first, and the others when its answer has begun.
    #[must_use]
    pub fn one_first(&self, requests: u32, tokens: u32) -> f64 {
        let others = f64::from(requests.saturating_sub(1)) * f64::from(tokens);
        Self::cents(f64::from(tokens), self.write) + Self::cents(others, self.read)
    }

    /// A request of its own that generates nothing (max_tokens 0) writes the entry, and all read it.
    #[must_use]
    pub fn prewarmed(&self, requests: u32, tokens: u32) -> f64 {
        self.one_first(requests + 1, tokens)
    }
}

/// Cache keys to split a rate over so that each gets at most `per_key` requests a minute.
#[must_use]
pub fn keys_for(requests_a_minute: u32, per_key: u32) -> u32 {
    requests_a_minute.div_ceil(per_key.max(1)).max(1)
}

/// Hours of a month, as bills have it.
#[must_use]
pub fn monthly_hours() -> f64 {
    730.0
}
