//! What a client's HTTP/2 connection is doing: written by its requests, read by its task, whose timers must tell silences
//! apart.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Open requests, and since when there are none.
#[derive(Debug)]
pub struct Activity {
    origin: Instant,
    /// Requests being answered.
    open: AtomicUsize,
    /// Milliseconds since `origin` at which the last of them ended.
    idle_since: AtomicU64,
    /// No request has come yet.
    new: AtomicBool,
}

impl Activity {
    /// Of a new connection.
    pub fn new() -> Arc<Self> {
        let (open, idle_since, new) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(true));
        Arc::new(Self { origin: Instant::now(), open, idle_since, new })
    }

    /// Since when no request is being answered; `None` while one is.
    pub fn idle_since(&self) -> Option<Instant> {
        let idle = self.open.load(Ordering::Acquire) == 0;
        idle.then(|| self.origin + Duration::from_millis(self.idle_since.load(Ordering::Acquire)))
    }

    /// Whether no request has come yet.
    pub fn is_new(&self) -> bool {
        self.new.load(Ordering::Acquire)
    }

    /// A request has begun; it is busy until the returned mark is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.new.store(false, Ordering::Release);
        Busy(self.clone())
    }
}

/// Held while a request is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        let millis = u64::try_from(self.0.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.idle_since.store(millis, Ordering::Release);
        // Last: who sees that nothing is open must see since when.
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}
