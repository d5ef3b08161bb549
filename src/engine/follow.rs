//! Asks engines for what they say of themselves, off the way of requests: one question at a time for each replica, at
//! times of its own, bounded in bytes and time. One that is late skips its next turns; one that has nothing to say is
//! asked again now and then.
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use tokio::time::{Instant, sleep, sleep_until};

use super::{EngineReport, MOST, info};
use crate::fleet::{Clock, EngineSays, Replica};

/// An engine that has nothing to say of itself is asked again after so many intervals.
const SELDOM: u32 = 60;
/// The first question comes within this time.
const FIRST: Duration = Duration::from_secs(1);
/// Moments of an interval at which questions are asked: replicas of one moment share the waking, which takes more than
/// the asking.
const MOMENTS: u32 = 20;
/// Where llama.cpp tells one process from the next, among its metrics' fields.
const LLAMACPP_START: &str = "process-start-time-unix";

/// What came of a question.
#[derive(Debug)]
enum Asked {
    Said(Box<EngineReport>),
    /// It answers, and has no such page.
    Nothing,
    Failed(String),
}

/// Asks a replica's engine for as long as it is polled and the replica's settings have it so.
pub async fn follow(replica: Arc<Replica>, clock: Clock) {
    let mut silent = None;
    loop {
        let Some(interval) = replica.engine_metrics().interval else {
            replica.unwatched();
            replica.engine_metrics_changed().await;
            continue;
        };
        // Replicas that came together are not asked together.
        sleep(interval.min(FIRST).mul_f64(fastrand::f64())).await;
        let mut turn = Instant::now();
        loop {
            let seldom = ask_once(&replica, clock, &mut silent).await;
            let pause = interval.mul_f64(0.9 + 0.2 * fastrand::f64()) * if seldom { SELDOM } else { 1 };
            turn += pause;
            while turn <= Instant::now() {
                turn += pause;
            }
            tokio::select! {
                () = sleep_until(clock.round_up(turn, interval / MOMENTS)) => {}
                () = replica.engine_metrics_changed() => break,
            }
        }
    }
}

/// One question; whether the next has time. `silent` tells whether it was known before that the engine says nothing.
async fn ask_once(replica: &Replica, clock: Clock, silent: &mut Option<bool>) -> bool {
    let metrics = replica.metrics();
    // Who can't be reached is the probes' business.
    if !replica.condition().reachable {
        replica.unheard(clock.now());
        return false;
    }
    match ask(replica).await {
        Asked::Said(report) => {
            metrics.scrape_ok.inc();
            if *silent != Some(false) {
                let engine = report.engine.map_or("unknown", |engine| engine.as_str());
                tracing::info!(replica = %replica.id(), engine, cache_tokens = report.cache_tokens(), "the engine tells of its load");
            }
            *silent = Some(false);
            replica.heard(report.says(), clock.now());
            false
        }
        Asked::Nothing => {
            metrics.scrape_absent.inc();
            if *silent != Some(true) {
                tracing::info!(replica = %replica.id(), "the engine has no metrics that are known: its load is unknown");
            }
            *silent = Some(true);
            replica.unheard(clock.now());
            true
        }
        Asked::Failed(cause) => {
            metrics.scrape_failed.inc();
            tracing::debug!(replica = %replica.id(), cause, "the engine did not tell of its load");
            replica.unheard(clock.now());
            false
        }
    }
}

async fn ask(replica: &Replica) -> Asked {
    let within = replica.health().timeout;
    let page = match replica.fetch(Method::GET, "/metrics", None, MOST, within).await {
        Ok(page) => page,
        Err(cause) => return Asked::Failed(cause),
    };
    if page.status.is_success() {
        let report = EngineReport::of_metrics(&page.body).map(|report| report.started(&page.headers));
        return report.map_or(Asked::Nothing, |report| Asked::Said(Box::new(report)));
    }
    if is_absent(page.status) { ask_loads(replica, within).await } else { failed("/metrics", page.status) }
}

/// SGLang has this without `--enable-metrics`.
async fn ask_loads(replica: &Replica, within: Duration) -> Asked {
    match replica.fetch(Method::GET, "/v1/loads", None, MOST, within).await {
        Ok(page) if page.status.is_success() => {
            info::loads(&page.body).map_or(Asked::Nothing, |report| Asked::Said(Box::new(report)))
        }
        Ok(page) if is_absent(page.status) => Asked::Nothing,
        Ok(page) => failed("/v1/loads", page.status),
        Err(cause) => Asked::Failed(cause),
    }
}

/// llama.cpp answers 501 where its metrics are switched off; others want a key that requests don't.
fn is_absent(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 404 | 405 | 501)
}

fn failed(path: &str, status: StatusCode) -> Asked {
    Asked::Failed(format!("{path} answered {status}"))
}

impl EngineReport {
    /// With what the fields of its answer say of the process.
    fn started(mut self, headers: &HeaderMap) -> Self {
        let start = headers.get(LLAMACPP_START).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        self.process_start = self.process_start.or(start);
        self
    }

    fn says(&self) -> EngineSays {
        EngineSays {
            engine: self.engine,
            process: self.process_start,
            prompt_tokens: self.prompt_tokens,
            running: self.running(),
            waiting: self.waiting(),
            cache_use: self.cache_use(),
            cache_tokens: self.cache_tokens(),
            sleeping: self.sleeping(),
        }
    }
}
