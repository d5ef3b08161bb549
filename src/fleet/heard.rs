//! What a replica's engine says of itself beside requests, and what comes of it: another process has lost the cache, a
//! sleeping one takes no requests, its cache is as large as it says, and one with too much to do is left out for a while.
//!
//! Nothing here touches the count of open requests, and what an engine does not say changes nothing.
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Replica;
use crate::config::{Engine, EngineMetrics};
use crate::routing::{QueueReport, Tick};

/// Processes that are remembered as having answered at one address.
const PROCESSES: usize = 8;
/// Intervals after which a report counts for nothing.
const INTERVALS: u32 = 3;

/// What an engine says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineSays {
    /// Which it is.
    pub engine: Option<Engine>,
    /// A number that each of its processes has for itself.
    pub process: Option<f64>,
    /// Prompt tokens processed so far by that one.
    pub prompt_tokens: Option<u64>,
    /// Requests being computed.
    pub running: Option<u32>,
    /// Requests that wait to be.
    pub waiting: Option<u32>,
    /// The share of the KV cache that requests use, 0 to 1.
    pub cache_use: Option<f64>,
    /// Tokens that the KV cache holds.
    pub cache_tokens: Option<u64>,
    /// Whether it sleeps.
    pub sleeping: Option<bool>,
}

/// What was heard of an engine.
#[derive(Debug, Default)]
pub(super) struct Heard {
    last: Option<(EngineSays, Tick)>,
    /// The processes that have answered here, the last one last.
    processes: VecDeque<u64>,
    prompt_tokens: Option<u64>,
}

impl Heard {
    /// The process that answers next is none that was heard before.
    pub fn forget_process(&mut self) {
        self.processes.clear();
        self.prompt_tokens = None;
    }

    /// Whether this is another process than the one before, which is gone.
    fn is_new(&mut self, says: &EngineSays, replica: &str) -> bool {
        let fewer = says.prompt_tokens.zip(self.prompt_tokens).is_some_and(|(now, before)| now < before);
        self.prompt_tokens = says.prompt_tokens.or(self.prompt_tokens);
        let Some(process) = says.process.map(f64::to_bits) else { return fewer };
        if self.processes.back() == Some(&process) {
            return false;
        }
        if self.processes.contains(&process) {
            // It is not gone, then: several answer at this address, and what one holds is not what the next one does.
            self.processes.retain(|known| *known != process);
            tracing::debug!(replica, "several engine processes answer at this address");
            self.processes.push_back(process);
            return false;
        }
        let first = self.processes.is_empty();
        if self.processes.len() == PROCESSES {
            self.processes.pop_front();
        }
        self.processes.push_back(process);
        !first
    }
}

impl Replica {
    /// The engine has said this of itself.
    pub fn heard(&self, says: EngineSays, now: Tick) {
        let settings = self.engine_metrics();
        let mut heard = self.heard.lock();
        let slept = heard.last.as_ref().and_then(|(last, _)| last.sleeping) == Some(true);
        let (new, sleeps) = (heard.is_new(&says, self.id()), says.sleeping == Some(true));
        let cache_tokens = says.cache_tokens.unwrap_or(0);
        let report = says.waiting.map(|waiting| QueueReport {
            waiting,
            cache_use: says.cache_use,
            max_waiting: settings.max_waiting,
            until: until(now, settings),
        });
        heard.last = Some((says, now));
        drop(heard);
        self.load().report(report);
        if new {
            tracing::info!(replica = %self.id(), "the engine is a new process: what the one before had cached is forgotten");
            self.lose_cache();
        } else if sleeps && !slept {
            self.lose_cache();
        }
        if sleeps != slept {
            self.set_asleep(sleeps);
        }
        if self.engine_cache.swap(cache_tokens, Ordering::AcqRel) != cache_tokens {
            self.outdate_pools();
        }
    }

    /// The engine has said how much waits in it, in an answer's head: newer than what its metrics said, and less.
    pub fn heard_queue(&self, waiting: Option<u32>, cache_use: Option<f64>, now: Tick) {
        let settings = self.engine_metrics();
        let (Some(waiting_now), Some(_)) = (waiting, settings.interval) else { return };
        let mut heard = self.heard.lock();
        let mut says = heard.last.take().map(|(says, _)| says).unwrap_or_default();
        (says.waiting, says.cache_use) = (waiting, cache_use.or(says.cache_use));
        let report = QueueReport {
            waiting: waiting_now,
            cache_use: says.cache_use,
            max_waiting: settings.max_waiting,
            until: until(now, settings),
        };
        heard.last = Some((says, now));
        drop(heard);
        self.load().report(Some(report));
    }

    /// The engine did not answer, or said nothing of itself.
    pub fn unheard(&self, now: Tick) {
        let mut heard = self.heard.lock();
        let old = heard.last.as_ref().is_some_and(|(_, at)| until(*at, self.engine_metrics()) <= now);
        let slept = old && heard.last.take().is_some_and(|(says, _)| says.sleeping == Some(true));
        drop(heard);
        if slept {
            self.set_asleep(false);
        }
    }

    /// The engine is not asked any more: what it said is forgotten.
    pub fn unwatched(&self) {
        *self.heard.lock() = Heard::default();
        self.load().report(None);
        self.set_asleep(false);
        if self.engine_cache.swap(0, Ordering::AcqRel) != 0 {
            self.outdate_pools();
        }
    }

    /// What the engine last said, and when; however old.
    pub fn says(&self) -> Option<(EngineSays, Tick)> {
        self.heard.lock().last.clone()
    }
}

fn until(at: Tick, settings: EngineMetrics) -> Tick {
    let long = settings.interval.unwrap_or(Duration::ZERO) * INTERVALS;
    Tick(at.0.saturating_add(u64::try_from(long.as_micros()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(process: Option<u32>, prompt_tokens: Option<u64>) -> EngineSays {
        EngineSays { process: process.map(f64::from), prompt_tokens, ..EngineSays::default() }
    }

    fn news(said: &[(Option<u32>, Option<u64>)]) -> Vec<bool> {
        let mut heard = Heard::default();
        said.iter().map(|&(start, tokens)| heard.is_new(&process(start, tokens), "r")).collect()
    }

    #[test]
    fn another_start_is_another_process() {
        assert_eq!(
            news(&[(Some(1), None), (Some(1), None), (Some(2), None), (Some(2), None)]),
            [false, false, true, false]
        );
        assert_eq!(
            news(&[(None, None), (Some(1), None), (None, None), (Some(1), None)]),
            [false; 4],
            "unknown is not new"
        );
        // A start is known, so that the counter (a gauge that one process of several resets) has no say.
        assert_eq!(news(&[(Some(1), Some(9)), (Some(1), Some(3))]), [false, false]);
    }

    #[test]
    fn a_counter_that_falls_is_another_process_where_no_start_is_known() {
        let said = [(None, Some(5)), (None, Some(5)), (None, None), (None, Some(4)), (None, Some(9))];
        assert_eq!(news(&said), [false, false, false, true, false]);
    }

    #[test]
    fn several_processes_behind_one_address_are_no_restarts() {
        let turns: Vec<_> = (0..30).map(|turn| (Some(turn % 3), None)).collect();
        assert_eq!(news(&turns).iter().filter(|new| **new).count(), 2, "each is new once");
        let mut heard = Heard::default();
        assert_eq!((0..1_000).filter(|&start| heard.is_new(&process(Some(start), None), "r")).count(), 999);
        assert!(heard.processes.len() <= PROCESSES);
    }
}
