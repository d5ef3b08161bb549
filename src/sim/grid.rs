//! Many replays side by side: each policy on each number of replicas with each seed is one, on a core of its own. What
//! comes out depends on the seeds alone, not on cores or their speed.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;

use super::call::{Call, mix};
use super::choose::Rule;
use super::engine::VirtualTime;
use super::floors::{Floors, floors};
use super::noise::Noise;
use super::prefill::PrefillModel;
use super::replay::{Arrivals, Outcome, Replicas, Session, Source, play, play_study};
use super::trace::{Calls, Trace};
use super::workload::Generated;
use crate::prefix::BLOCK_TOKENS;

/// A trace of sessions begins one in so many seconds on average, unless told otherwise.
const SESSION_GAP: f64 = 60.0;

/// What is asked.
#[derive(Debug, Clone)]
pub enum Workload {
    /// Drawn from the seed.
    Generated(Generated),
    /// Recorded.
    Recorded(Arc<Trace>),
}

impl Workload {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Generated(workload) => workload.as_str(),
            Self::Recorded(trace) => &trace.name,
        }
    }
}

/// What a replica's cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheModel {
    /// The study's: whole conversations, no time.
    Study,
    /// The virtual engine's: 16-token blocks, shared by all that begin with them.
    Blocks,
}

impl CacheModel {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Study => "study",
            Self::Blocks => "blocks",
        }
    }
}

/// What is to be compared.
#[derive(Debug, Clone)]
pub struct Setup {
    /// What is asked.
    pub workload: Workload,
    /// By whom it is placed, one after the other.
    pub rules: Vec<Rule>,
    /// On how many replicas, one after the other.
    pub replicas: Vec<usize>,
    /// Tokens of KV cache of each replica.
    pub cache_tokens: u64,
    /// What policies take that for, as a multiple of it; what a replica keeps stays [`Self::cache_tokens`].
    pub believed_cache: f64,
    /// What that cache is.
    pub cache: CacheModel,
    /// How fast replicas read…
    pub prefill: PrefillModel,
    /// …and write, in tokens a second of all sequences together; infinite: at no cost.
    pub decode_tps: f64,
    /// How much prefills scatter about that: see [`Noise::sigma`].
    pub noise: f64,
    /// Whether replicas report what they found in their caches, as engines may in `usage`.
    pub reports: bool,
    /// When calls begin.
    pub arrivals: Arrivals,
    /// A trace is played so many times as fast as it was recorded.
    pub speed: f64,
    /// The first seed…
    pub seed: u64,
    /// …of so many in sequence: each result is their mean.
    pub seeds: u64,
    /// Calls of one replay; a trace's first ones.
    pub requests: usize,
    /// Whether the floors are wanted.
    pub floors: bool,
}

/// One policy on one number of replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The policy.
    pub rule: Rule,
    /// Replicas.
    pub replicas: usize,
    /// Mean of all seeds.
    pub outcome: Outcome,
    /// What no policy can be better than there; zero where it was not wanted.
    pub floors: Floors,
}

impl Setup {
    /// Whether what was asked for goes together.
    ///
    /// # Errors
    /// What does not, and what to do about it.
    pub fn check(&self) -> Result<(), String> {
        if self.cache == CacheModel::Study {
            if let Workload::Recorded(trace) = &self.workload {
                return Err(format!(
                    "the study's cache model keeps whole conversations or documents, and {} does not say which are: use \
                     --cache-model blocks",
                    trace.name
                ));
            }
            if self.arrivals != Arrivals::Closed(1) {
                return Err("the study's cache model knows no time: use --arrivals closed with it, or --cache-model \
                            blocks"
                    .into());
            }
            if self.noise != 0.0 || self.decode_tps.is_finite() {
                return Err(
                    "the study's cache model knows no time, so --noise and --decode-tps say nothing to it: leave \
                            them out, or use --cache-model blocks"
                        .into(),
                );
            }
        }
        if self.believed_cache_tokens() < BLOCK_TOKENS as u64 {
            return Err(format!(
                "{} times {} tokens is less than a block of {BLOCK_TOKENS}: give a larger --believed-cache or \
                 --cache-tokens",
                self.believed_cache, self.cache_tokens
            ));
        }
        if let Workload::Generated(workload) = &self.workload {
            if self.arrivals == Arrivals::Trace {
                return Err(format!(
                    "{} is drawn, so nobody recorded when its requests came: use --arrivals closed or poisson:RATE",
                    workload.as_str()
                ));
            }
            if self.speed != 1.0 {
                return Err(format!(
                    "--speed is for recorded workloads, and {} is drawn: set the rate by --arrivals poisson:RATE",
                    workload.as_str()
                ));
            }
        }
        Ok(())
    }

    /// Calls of all replays, for a measure of progress.
    #[must_use]
    pub fn calls_in_all(&self) -> u64 {
        let calls = match &self.workload {
            Workload::Generated(_) => self.requests,
            Workload::Recorded(trace) => self.requests.min(trace.requests()),
        };
        calls as u64 * self.seeds * (self.rules.len() * self.replicas.len()) as u64
    }

    /// Plays everything; `ticks` hears of calls that have ended, from any thread.
    ///
    /// # Errors
    /// When a policy finds no replica.
    pub fn run(&self, ticks: &(dyn Fn(u64) + Sync)) -> Result<Vec<Row>, String> {
        self.check()?;
        let seeds = self.seeds.max(1) as usize;
        let cells: Vec<_> =
            self.replicas.iter().flat_map(|&count| self.rules.iter().map(move |rule| (rule, count))).collect();
        enum Done {
            Floors(Vec<Floors>),
            Played(Result<Outcome, String>),
        }
        // The floors of each seed first, then each cell with each seed.
        let done = side_by_side(seeds + cells.len() * seeds, |job| {
            if job < seeds {
                if !self.floors {
                    return Done::Floors(vec![Floors::default(); self.replicas.len()]);
                }
                let pooled: Vec<_> = self.replicas.iter().map(|&count| self.cache_tokens * count as u64).collect();
                return Done::Floors(floors(|| self.in_order(self.seed + job as u64), &pooled));
            }
            let (rule, count) = cells[(job - seeds) / seeds];
            Done::Played(self.play(rule, count, self.seed + ((job - seeds) % seeds) as u64, ticks))
        });
        let mut by_seed = Vec::new();
        let mut outcomes = Vec::new();
        for done in done {
            match done {
                Done::Floors(floors) => by_seed.push(floors),
                Done::Played(outcome) => outcomes.push(outcome?),
            }
        }
        let rows = cells.into_iter().zip(outcomes.chunks(seeds)).map(|((rule, replicas), runs)| {
            let at = self.replicas.iter().position(|&count| count == replicas).unwrap_or(0);
            let of =
                |floor: fn(&Floors) -> f64| by_seed.iter().map(|floors| floor(&floors[at])).sum::<f64>() / seeds as f64;
            let floors = Floors {
                infinite: of(|floors| floors.infinite),
                pooled_lru: of(|floors| floors.pooled_lru),
                pooled_belady: of(|floors| floors.pooled_belady),
            };
            Row { rule: rule.clone(), replicas, outcome: Outcome::mean(runs), floors }
        });
        Ok(rows.collect())
    }

    fn play(&self, rule: &Rule, count: usize, seed: u64, ticks: &dyn Fn(u64)) -> Result<Outcome, String> {
        let mut chooser = rule.on(count, self.believed_cache_tokens(), &self.prefill, self.decode_tps, seed);
        if self.cache == CacheModel::Study {
            let calls = self.in_order(seed);
            return play_study(calls, count, self.cache_tokens, &self.prefill, chooser.as_mut(), ticks);
        }
        let replicas = Replicas {
            count,
            cache_tokens: self.cache_tokens,
            prefill: self.prefill,
            decode_tps: self.decode_tps,
            noise: Noise { sigma: self.noise, seed },
            reports: self.reports,
        };
        play(self.source(seed), &replicas, chooser.as_mut(), ticks)
    }

    /// Tokens of KV cache that policies are told a replica keeps.
    fn believed_cache_tokens(&self) -> u64 {
        (self.cache_tokens as f64 * self.believed_cache).round() as u64
    }

    /// The calls, in the order in which they would come if every answer took no time.
    fn in_order(&self, seed: u64) -> Box<dyn Iterator<Item = Call> + Send> {
        let calls: Box<dyn Iterator<Item = Call> + Send> = match &self.workload {
            Workload::Generated(workload) => workload.stream(seed),
            Workload::Recorded(trace) => match &trace.calls {
                Calls::Timed(calls) => {
                    let calls: Vec<_> = calls.iter().take(self.requests).map(|(_, call)| call.clone()).collect();
                    Box::new(calls.into_iter())
                }
                Calls::Sessions(_) => {
                    let mut all = Vec::new();
                    for session in self.sessions(seed) {
                        let mut at = session.start;
                        all.extend(session.calls.map(|(pause, call)| {
                            at = at + pause;
                            (at, call)
                        }));
                    }
                    all.sort_by_key(|(at, _)| *at);
                    Box::new(all.into_iter().map(|(_, call)| call))
                }
            },
        };
        Box::new(calls.take(self.requests))
    }

    fn source(&self, seed: u64) -> Source {
        if let Workload::Recorded(trace) = &self.workload {
            match (&trace.calls, self.arrivals) {
                (Calls::Timed(calls), Arrivals::Trace) => {
                    let speed = self.speed;
                    let at = move |at: VirtualTime| VirtualTime::from_secs_f64(at.as_secs_f64() / speed);
                    let calls: Vec<_> =
                        calls.iter().take(self.requests).map(|(time, call)| (at(*time), call.clone())).collect();
                    return Source::open(calls.into_iter());
                }
                (Calls::Sessions(_), Arrivals::Closed(open)) => return Source::sessions(self.sessions(seed), open),
                (Calls::Sessions(_), _) => return Source::sessions(self.sessions(seed), usize::MAX),
                _ => {}
            }
        }
        match self.arrivals {
            Arrivals::Poisson(rate) => Source::poisson(self.in_order(seed), rate, seed),
            Arrivals::Closed(open) => Source::closed(self.in_order(seed), open),
            Arrivals::Trace => Source::closed(self.in_order(seed), 1),
        }
    }

    /// A trace's sessions, as many as `requests` go into: at times and in an order drawn from the seed, or in a closed
    /// loop in the order of the file.
    fn sessions(&self, seed: u64) -> Vec<Session> {
        let Workload::Recorded(trace) = &self.workload else { return Vec::new() };
        let Calls::Sessions(recorded) = &trace.calls else { return Vec::new() };
        let mut rng = Rng::with_seed(mix(0x5e55_1045, seed));
        let mut order: Vec<_> = recorded.iter().collect();
        let closed = matches!(self.arrivals, Arrivals::Closed(_));
        if !closed {
            rng.shuffle(&mut order);
        }
        let rate = match self.arrivals {
            Arrivals::Poisson(rate) => rate,
            _ => self.speed / SESSION_GAP,
        };
        let (mut seconds, mut left) = (0.0, self.requests);
        let mut sessions = Vec::new();
        for session in order {
            if left == 0 {
                break;
            }
            // In a closed loop a session begins because there is room for it, not because its time has come.
            if !closed {
                seconds -= (1.0 - rng.f64()).ln() / rate;
            }
            let faster = |pause: Duration| pause.div_f64(self.speed);
            let calls: Vec<_> = session.iter().take(left).map(|(pause, call)| (faster(*pause), call.clone())).collect();
            left -= calls.len();
            sessions.push(Session { start: VirtualTime::from_secs_f64(seconds), calls: calls.into_iter() });
        }
        sessions
    }
}

/// Runs so many jobs on all cores; results in order.
pub fn side_by_side<T: Send>(jobs: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get).min(jobs.max(1));
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return done;
            }
            done.push((job, work(job)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..cores).map(|_| scope.spawn(worker)).collect();
        let mut done = worker();
        for other in workers {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(job, _)| *job);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests;
