//! Replicas that come and go: each look reads the whole list, and the whole list is handed on.
//!
//! There are no increments, so nothing can be missed: what is not in the next list has left, and a name that was away
//! for one list and is back is a new life. A look that fails leaves the last list in force. An empty list is believed
//! when it was answered: a file that holds `[]`, or a DNS server that says there are none.
mod dns;
mod file;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Discover, DiscoverFrom, Replica};
use crate::telemetry::Metrics;

/// Longest pause after a look that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Where one pool's replicas are listed.
enum Source {
    File(file::File),
    Dns(Box<dns::Names>),
}

/// One whole list, and for how long it holds at most.
struct List {
    replicas: Vec<Replica>,
    holds: Option<Duration>,
}

/// Looks for as long as it is polled, and hands each list that differs from the one before to `found`.
pub async fn watch(
    pool: Arc<str>,
    discover: Discover,
    metrics: Arc<Metrics>,
    found: impl Fn(Vec<Replica>) + Send + Sync,
) {
    let mut source = match discover.from {
        DiscoverFrom::File(path) => Source::File(file::File::new(path, discover.defaults)),
        DiscoverFrom::Dns(dns) => Source::Dns(Box::new(dns::Names::new(dns, discover.defaults.kv_events))),
    };
    let mut last: Option<Vec<Replica>> = None;
    let mut told = String::new();
    loop {
        let list = match &mut source {
            Source::File(file) => file.look().await,
            Source::Dns(names) => names.look().await,
        };
        let (result, pause) = match list {
            Ok(List { replicas, holds }) => {
                metrics.discovered(&pool, replicas.len());
                told.clear();
                let changed = last.as_ref() != Some(&replicas);
                if changed {
                    tracing::info!(%pool, replicas = replicas.len(), "discovery has a new list");
                    found(replicas.clone());
                    last = Some(replicas);
                }
                let pause = holds.map_or(discover.interval, |holds| holds.min(discover.interval));
                (if changed { "changed" } else { "unchanged" }, pause)
            }
            Err(problem) => {
                if told != problem {
                    tracing::warn!(%pool, problem, "discovery failed; the last list stays in force");
                    told = problem;
                }
                ("failed", discover.interval.min(RETRY))
            }
        };
        metrics.discoveries.with_label_values(&[&pool, result]).inc();
        match &source {
            Source::File(file) => file.changed(pause).await,
            Source::Dns(_) => tokio::time::sleep(pause).await,
        }
    }
}
