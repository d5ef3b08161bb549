//! Waiting for conditions.
use std::future::Future;
use std::time::{Duration, Instant};

/// Pause between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until `condition` holds; panics with `what` when `deadline` has passed. Returns the time it took.
pub async fn wait_until<F, Fut>(what: &str, deadline: Duration, mut condition: F) -> Duration
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
    start.elapsed()
}

/// Awaits `future`; panics with `what` when `deadline` has passed.
pub async fn within<T>(what: &str, deadline: Duration, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(deadline, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {deadline:?}: {what}"),
    }
}
