//! Which replica a session is bound to: a bounded table with a time to live.
//!
//! A use makes a binding young again. The least recently used goes first when the table is full; expired ones are swept
//! from that same end, a few a call, so that no call ever pays for many.
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;

use super::{LastPrompt, SessionKey, Tick};

/// Expired bindings removed by one sweep. More than one: a call adds at most one, so the table catches up.
const SWEEP: usize = 2;

/// A session's replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binding {
    /// The replica's id.
    pub replica: Arc<str>,
    /// Its life when the binding was written.
    pub incarnation: u64,
    /// The session's last prompt there, where it is known.
    pub prompt: Option<LastPrompt>,
    used: Tick,
}

/// The table.
#[derive(Debug)]
pub(super) struct Bindings {
    // Unbounded as the crate sees it: a bounded one would allocate for its whole capacity at once.
    table: LruCache<SessionKey, Binding>,
    ttl: u64,
    max: usize,
}

impl Bindings {
    /// A table of at most `max` bindings, each forgotten when unused for `ttl`.
    pub fn new(ttl: Duration, max: usize) -> Self {
        Self { table: LruCache::unbounded(), ttl: micros(ttl), max }
    }

    /// Changes its bounds; what is over them goes.
    pub fn set_bounds(&mut self, ttl: Duration, max: usize) {
        (self.ttl, self.max) = (micros(ttl), max);
        self.shrink();
    }

    /// Uses a session's binding: hands it to `read` and starts its time to live again.
    pub fn touch<T>(&mut self, session: SessionKey, now: Tick, read: impl FnOnce(&Binding) -> T) -> Option<T> {
        let ttl = self.ttl;
        let binding = self.table.get_mut(&session)?;
        if expired(binding, now, ttl) {
            self.table.pop(&session);
            return None;
        }
        // Callers take the time before they get here, so it may step back a little between calls.
        binding.used = binding.used.max(now);
        Some(read(binding))
    }

    /// Looks at a session's binding, and leaves its age as it is.
    pub fn peek(&self, session: SessionKey, now: Tick) -> Option<&Binding> {
        self.table.peek(&session).filter(|binding| !expired(binding, now, self.ttl))
    }

    /// Binds a session, in place of any binding it has.
    pub fn write(
        &mut self,
        session: SessionKey,
        replica: Arc<str>,
        incarnation: u64,
        prompt: Option<LastPrompt>,
        now: Tick,
    ) {
        self.table.put(session, Binding { replica, incarnation, prompt, used: now });
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.table.len() > self.max {
            self.table.pop_lru();
        }
    }

    /// Removes a few expired bindings.
    pub fn sweep(&mut self, now: Tick) {
        for _ in 0..SWEEP {
            match self.table.peek_lru() {
                Some((_, oldest)) if expired(oldest, now, self.ttl) => self.table.pop_lru(),
                _ => return,
            };
        }
    }

    /// Bindings held; some may have expired and not been swept yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn expired(binding: &Binding, now: Tick, ttl: u64) -> bool {
    now.0.saturating_sub(binding.used.0) >= ttl
}
