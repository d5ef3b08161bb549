//! Calls on virtual engines in virtual time: block caches, prefill queues, decoding.
//!
//! Ends come before beginnings of the same moment, and replicas in their order, so a replay is the same again.
use std::collections::HashMap;

use super::arrivals::Source;
use super::tally::{Outcome, Tally};
use crate::routing::Reported;
use crate::sim::call::Call;
use crate::sim::choose::{Chooser, Holdings, Placed};
use crate::sim::engine::{Engine, Event, Options, Request, RequestId, VirtualTime, What};
use crate::sim::noise::Noise;
use crate::sim::prefill::PrefillModel;

/// What the replicas are.
#[derive(Debug, Clone, PartialEq)]
pub struct Replicas {
    /// How many.
    pub count: usize,
    /// Tokens of KV cache of each.
    pub cache_tokens: u64,
    /// How fast they read.
    pub prefill: PrefillModel,
    /// Tokens a second that a replica generates, all sequences together; infinite: decoding costs nothing.
    pub decode_tps: f64,
    /// How much prefills scatter about what the model says.
    pub noise: Noise,
    /// Whether they report what they found in their caches.
    pub reports: bool,
}

/// Tokens a second that stand for "at once".
const AT_ONCE: f64 = 1e12;

impl Replicas {
    fn engine(&self) -> Engine {
        Engine::new(Options {
            cache_tokens: self.cache_tokens,
            prefill_tps: 1.0 / self.prefill.per_token.max(1.0 / AT_ONCE),
            prefill_overhead: self.prefill.overhead,
            prefill_pair: self.prefill.per_pair,
            decode_tps: self.decode_tps.min(AT_ONCE),
            // Where decoding costs nothing, prefills do not slow it down.
            decode_share: if self.decode_tps >= AT_ONCE { 1.0 } else { Options::default().decode_share },
            ..Options::default()
        })
    }
}

struct Fleet {
    engines: Vec<Engine>,
    /// When each has something to tell.
    due: Vec<Option<VirtualTime>>,
}

impl Holdings for Fleet {
    fn held(&self, replica: usize, call: &Call, blocks: &[u64]) -> u32 {
        let limit = (call.most_cached() as usize / crate::prefix::BLOCK_TOKENS).min(blocks.len());
        let engine = &self.engines[replica];
        engine.cache().match_length(&blocks[..limit]) * engine.options().block_size
    }
}

struct Open {
    call: Call,
    placed: Placed,
    ticket: usize,
    began: VirtualTime,
    prefill_factor: f64,
}

/// Plays what `source` gives on fresh replicas; `ticks` hears of calls that have ended.
///
/// # Errors
/// When the chooser finds no replica.
pub fn play(
    mut source: Source,
    replicas: &Replicas,
    chooser: &mut dyn Chooser,
    ticks: &dyn Fn(u64),
) -> Result<Outcome, String> {
    let engines: Vec<_> = (0..replicas.count).map(|_| replicas.engine()).collect();
    let mut fleet = Fleet { due: vec![None; engines.len()], engines };
    let mut open: HashMap<(usize, RequestId), Open> = HashMap::new();
    let mut tally = Tally::new(replicas.count);
    let mut events = Vec::new();
    loop {
        let due = fleet.due.iter().enumerate().filter_map(|(at, due)| due.map(|due| (due, at))).min();
        let next = source.next_at();
        match due {
            Some((at, replica)) if next.is_none_or(|next| at <= next) => {
                fleet.engines[replica].advance(at, &mut events);
                for Event { at, id, what } in events.drain(..) {
                    let key = (replica, id);
                    match what {
                        What::FirstToken { cached_tokens, .. } => {
                            let Some(open) = open.get_mut(&key) else { continue };
                            // What the replica was really busy for: that is what is paid, and what a queue waits for.
                            let model = replicas.prefill.seconds(open.call.prompt_tokens, cached_tokens);
                            let takes = model * open.prefill_factor;
                            let ttft = at.0.saturating_sub(open.began.0) as f64 / 1e9;
                            tally.first_token(&open.call, replica, cached_tokens, takes, ttft);
                            if let Some(expected) = open.placed.expected {
                                tally.predicted(expected, cached_tokens);
                            }
                            let prompt_tokens = open.call.prompt_tokens;
                            let reported = Reported { prompt_tokens, cached_tokens };
                            open.placed.reported = replicas.reports.then_some(reported);
                            chooser.first_token(&mut open.placed, at);
                        }
                        What::Tokens { .. } => {}
                        What::Finished => {
                            let Some(open) = open.remove(&key) else { continue };
                            chooser.finished(open.placed, at);
                            source.ended(open.ticket, at);
                            ticks(1);
                        }
                    }
                }
                fleet.due[replica] = fleet.engines[replica].next_event_at();
            }
            _ => {
                let Some(now) = next else { return Ok(tally.outcome()) };
                let Some((call, ticket)) = source.take() else { continue };
                let blocks = call.blocks();
                let placed = chooser.choose(&call, &blocks, &fleet, now)?;
                let replica = placed.replica;
                let prefill_factor = replicas.noise.factor(&call);
                let request = Request {
                    blocks: blocks.into(),
                    prompt_tokens: call.prompt_tokens,
                    output_tokens: call.output_tokens,
                    prefill_factor,
                    report_tokens: false,
                };
                match fleet.engines[replica].submit(now, request) {
                    Ok(id) => {
                        open.insert((replica, id), Open { call, placed, ticket, began: now, prefill_factor });
                    }
                    Err(_) => {
                        chooser.refused(placed, now);
                        source.ended(ticket, now);
                        tally.refused();
                        ticks(1);
                    }
                }
                fleet.due[replica] = fleet.engines[replica].next_event_at();
            }
        }
    }
}
