//! Tests of the virtual engine: its cache against a naive model, and what it promises about requests.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// The cache as one would write it without caring for speed.
#[derive(Default)]
struct Naive {
    capacity: usize,
    /// Hash, parent, pins, when it was last unpinned.
    blocks: Vec<(u64, Option<u64>, u32, u64)>,
    reserved: usize,
    clock: u64,
}

struct NaiveLease {
    path: Vec<u64>,
    reserved: usize,
}

impl Naive {
    fn find(&mut self, hash: u64) -> Option<&mut (u64, Option<u64>, u32, u64)> {
        self.blocks.iter_mut().find(|block| block.0 == hash)
    }
    fn matched(&mut self, chain: &[u64]) -> usize {
        chain.iter().take_while(|hash| self.find(**hash).is_some()).count()
    }
    fn pinned(&self) -> usize {
        self.blocks.iter().filter(|block| block.2 > 0).count()
    }
    fn acquire(&mut self, chain: &[u64], total: usize) -> Option<NaiveLease> {
        let matched = self.matched(chain);
        let path = chain[..matched].to_vec();
        let missing = total - matched;
        let held = self.blocks.iter().filter(|block| block.2 > 0 || path.contains(&block.0)).count();
        if held + self.reserved + missing > self.capacity {
            return None;
        }
        path.iter().for_each(|hash| self.find(*hash).expect("matched").2 += 1);
        while self.blocks.len() + self.reserved + missing > self.capacity {
            let leaves = self
                .blocks
                .iter()
                .filter(|block| block.2 == 0 && !self.blocks.iter().any(|child| child.1 == Some(block.0)));
            let victim = leaves.min_by_key(|block| block.3).expect("an unpinned leaf").0;
            self.blocks.retain(|block| block.0 != victim);
        }
        self.reserved += missing;
        Some(NaiveLease { path, reserved: missing })
    }
    fn extend(&mut self, lease: &mut NaiveLease, hashes: &[u64]) {
        for hash in hashes.iter().take(lease.reserved) {
            match self.find(*hash) {
                Some(block) => block.2 += 1,
                None => self.blocks.push((*hash, lease.path.last().copied(), 1, 0)),
            }
            lease.path.push(*hash);
            lease.reserved -= 1;
            self.reserved -= 1;
        }
    }
    fn release(&mut self, lease: NaiveLease) {
        self.reserved -= lease.reserved;
        for hash in lease.path.iter().rev() {
            self.clock += 1;
            let clock = self.clock;
            let block = self.find(*hash).expect("pinned");
            block.2 -= 1;
            block.3 = clock;
        }
    }
}

/// A chain named by what its blocks hold; few letters, so that chains share prefixes.
fn chain_of(letters: &[u8]) -> Vec<u64> {
    letters
        .iter()
        .scan(7, |parent, letter| {
            *parent = block_hash(*parent, &[u32::from(*letter)], &mut Vec::new());
            Some(*parent)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_cache_is_the_naive_cache(
        capacity in 4_u32..24,
        steps in prop::collection::vec((prop::collection::vec(0_u8..3, 1..9), 0_u32..4, 0_usize..6, any::<bool>()), 1..80),
    ) {
        let mut cache = BlockCache::new(capacity);
        let mut naive = Naive { capacity: capacity as usize, ..Naive::default() };
        let mut leases: Vec<(Lease, NaiveLease)> = Vec::new();
        for (letters, extra, pick, release) in steps {
            if release && !leases.is_empty() {
                let (lease, other) = leases.remove(pick % leases.len());
                cache.release(lease);
                naive.release(other);
            } else {
                let chain = chain_of(&letters);
                let total = chain.len() as u32 + extra;
                let limit = chain.len().saturating_sub(pick % 2);
                let (mine, other) = (cache.acquire(&chain[..limit], total), naive.acquire(&chain[..limit], total as usize));
                prop_assert_eq!(mine.is_some(), other.is_some());
                if let (Some(mut lease), Some(mut other)) = (mine, other) {
                    prop_assert_eq!(lease.matched() as usize, other.path.len());
                    let from = other.path.len();
                    cache.extend(&mut lease, &chain[from..]);
                    naive.extend(&mut other, &chain[from..]);
                    leases.push((lease, other));
                }
            }
            let known: HashSet<u64> = naive.blocks.iter().map(|block| block.0).collect();
            let cached = cache.blocks();
            prop_assert_eq!((&cached, cache.cached() as usize), (&known, known.len()));
            prop_assert_eq!(cache.in_use() as usize, naive.pinned() + naive.reserved);
            prop_assert!(cache.cached() + leases.iter().map(|(lease, _)| lease.reserved()).sum::<u32>() <= capacity);
            // No pinned block is ever evicted, nor one that a cached block stands on.
            for (_, lease) in &leases {
                prop_assert!(lease.path.iter().all(|hash| cached.contains(hash)));
            }
            for block in &naive.blocks {
                prop_assert!(block.1.is_none_or(|parent| cached.contains(&parent)));
            }
        }
    }

    #[test]
    fn every_request_ends_and_leaves_nothing_behind(
        capacity in 6_u64..40,
        requests in prop::collection::vec((prop::collection::vec(0_u8..3, 1..6), 0_u32..30, 0_u64..4_000, any::<bool>(), 0_u64..12_000), 1..60),
    ) {
        let run = || {
            let options = Options { block_size: 4, cache_tokens: capacity * 4, prefill_tps: 2_000.0, decode_tps: 3_000.0, chunk_tokens: 6, ..Options::default() };
            let mut engine = Engine::new(options);
            let (mut events, mut accepted, mut cancelled, mut at) = (Vec::new(), 0, HashSet::new(), 0);
            let mut pending: Vec<(u64, RequestId)> = Vec::new();
            for (letters, output_tokens, wait, report_tokens, patience) in &requests {
                at += wait * 1_000;
                pending.sort_unstable();
                while let Some((when, id)) = pending.first().copied().filter(|(when, _)| *when <= at) {
                    pending.remove(0);
                    if engine.cancel(VirtualTime(when), id) {
                        cancelled.insert(id);
                    }
                }
                let blocks: Arc<[u64]> = chain_of(letters).into();
                let prompt_tokens = blocks.len() as u32 * 4 + 1;
                let (output_tokens, report_tokens) = (*output_tokens, *report_tokens);
                let request = Request { blocks, prompt_tokens, output_tokens, prefill_factor: 1.0, report_tokens };
                let size = u64::from((prompt_tokens + output_tokens).div_ceil(4));
                match engine.submit(VirtualTime(at), request) {
                    Ok(id) => {
                        accepted += 1;
                        if patience % 3 == 0 {
                            pending.push((at + patience * 1_000, id));
                        }
                    }
                    Err(_) => assert!(size > capacity),
                }
                engine.advance(VirtualTime(at), &mut events);
            }
            while let Some(next) = engine.next_event_at() {
                engine.advance(next, &mut events);
            }
            (events, accepted, cancelled, engine.stats())
        };
        let (events, accepted, cancelled, stats) = run();
        let finished: Vec<RequestId> = events.iter().filter(|event| event.what == What::Finished).map(|event| event.id).collect();
        prop_assert_eq!(finished.iter().collect::<HashSet<_>>().len(), finished.len());
        prop_assert!(finished.iter().all(|id| !cancelled.contains(id)));
        prop_assert_eq!(finished.len() + cancelled.len(), accepted);
        prop_assert_eq!((stats.running, stats.waiting, stats.waiting_tokens, stats.blocks_in_use), (0, 0, 0, 0));
        prop_assert!(events.is_sorted_by_key(|event| event.at));
        for id in finished {
            let firsts = events.iter().filter(|event| event.id == id && matches!(event.what, What::FirstToken { .. }));
            prop_assert_eq!(firsts.count(), 1);
        }
        // The same calls give the same events.
        prop_assert_eq!(run().0, events);
    }
}

/// A look at an engine one nanosecond before a token is due, where "due" and "generated" could round apart, once spun
/// for ever.
#[test]
fn a_look_just_before_a_token_is_due_ends() {
    for decode_tps in [100.0, 300.0, 500.0, 1_000.0, 2_000.0, 2_500.0, 3_000.0, 4_000.0] {
        for sequences in 1..4_u32 {
            let options = Options { prefill_tps: 1e9, decode_tps, ..Options::default() };
            let (mut engine, mut events) = (Engine::new(options), Vec::new());
            for seed in 0..sequences {
                engine.submit(VirtualTime(0), request(seed, 16, 40)).unwrap();
            }
            let mut looks = 0;
            while let Some(next) = engine.next_event_at() {
                for at in next.0.saturating_sub(3)..=next.0 {
                    engine.advance(VirtualTime(at), &mut events);
                }
                looks += 1;
                assert!(looks < 1_000, "{decode_tps} tokens/s, {sequences} sequences");
            }
            let tokens = |event: &Event| if let What::Tokens { n } = event.what { n } else { 0 };
            assert_eq!(events.iter().map(tokens).sum::<u32>(), sequences * 39);
        }
    }
}

fn request(seed: u32, prompt_tokens: u32, output_tokens: u32) -> Request {
    let tokens: Vec<u32> =
        (0..prompt_tokens + output_tokens).map(|at| if at < 32 { at } else { seed * 100_000 + at }).collect();
    let blocks = hash_blocks(&tokens, 16, 1).into();
    Request { blocks, prompt_tokens, output_tokens, prefill_factor: 1.0, report_tokens: true }
}

fn engine(cache_tokens: u64) -> Engine {
    Engine::new(Options { cache_tokens, prefill_tps: 1_000.0, decode_tps: 100.0, ..Options::default() })
}

fn run_all(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(next) = engine.next_event_at() {
        engine.advance(next, &mut events);
    }
    events
}

fn cached(events: &[Event]) -> Vec<u32> {
    events
        .iter()
        .filter_map(|event| match event.what {
            What::FirstToken { cached_tokens, .. } => Some(cached_tokens),
            _ => None,
        })
        .collect()
}

#[test]
fn a_repeated_prompt_hits_all_but_its_last_block_and_a_sibling_hits_the_shared_part() {
    let mut engine = engine(10_000);
    for seed in [1, 1, 2] {
        engine.submit(engine.now(), request(seed, 64, 0)).expect("fits");
        let events = run_all(&mut engine);
        // 64 tokens are 4 blocks; the last is computed again, since the last token must be.
        let expected = match (seed, engine.stats().finished) {
            (1, 1) => 0,
            (1, _) => 48,
            _ => 32,
        };
        assert_eq!(cached(&events), [expected]);
    }
    assert_eq!(engine.stats().cached_tokens, 80);
}

#[test]
fn the_next_turn_hits_the_answer_of_the_last() {
    let mut engine = engine(10_000);
    engine.submit(engine.now(), request(1, 40, 41)).expect("fits");
    run_all(&mut engine);
    // The same 81 tokens as a prompt: 80 were computed, the 81st generated and never fed in.
    engine.submit(engine.now(), request(1, 100, 0)).expect("fits");
    assert_eq!(cached(&run_all(&mut engine)), [80]);
}

#[test]
fn first_token_takes_the_uncached_tokens_and_decoding_is_shared() {
    let mut engine = engine(10_000);
    let first = engine.submit(VirtualTime(0), request(1, 500, 11)).expect("fits");
    let second = engine.submit(VirtualTime(0), request(2, 532, 11)).expect("fits");
    let events = run_all(&mut engine);
    let at = |id, wanted: fn(&What) -> bool| {
        events.iter().find(|event| event.id == id && wanted(&event.what)).expect("happened").at.as_secs_f64()
    };
    let first_token = |what: &What| matches!(what, What::FirstToken { .. });
    let end = |what: &What| matches!(what, What::Finished);
    assert!((at(first, first_token) - 0.5).abs() < 1e-6);
    // The second shares 32 tokens with the first, which are there by the time it begins.
    assert!((at(second, first_token) - 1.0).abs() < 1e-6);
    // 10 tokens at 30 a second beside the second's prefill; then 10 at the full 100.
    assert!((at(first, end) - (0.5 + 10.0 / 30.0)).abs() < 1e-6);
    assert!((at(second, end) - 1.1).abs() < 1e-6);
    let tokens: u32 = events.iter().map(|event| if let What::Tokens { n } = event.what { n } else { 0 }).sum();
    assert_eq!(tokens, 20);
}

#[test]
fn a_factor_slows_a_request_s_prefill_and_no_other() {
    let options = Options { prefill_overhead: 0.1, prefill_pair: 1e-7, decode_tps: 100.0, ..Options::default() };
    let ends = |prefill_factor| {
        let mut engine = Engine::new(options.clone());
        // Three chunks.
        engine.submit(VirtualTime(0), Request { prefill_factor, ..request(1, 5_000, 0) }).expect("fits");
        engine.submit(VirtualTime(0), request(2, 5_000, 0)).expect("fits");
        let ends = run_all(&mut engine).into_iter().filter(|event| event.what == What::Finished);
        ends.map(|event| event.at.as_secs_f64()).collect::<Vec<_>>()
    };
    let (plain, slow, fast) = (ends(1.0), ends(2.0), ends(0.5));
    for (ends, factor) in [(slow, 2.0), (fast, 0.5)] {
        assert!((ends[0] / plain[0] - factor).abs() < 1e-6, "{ends:?} {plain:?}");
        assert!((ends[1] - ends[0] - (plain[1] - plain[0])).abs() < 1e-6, "{ends:?} {plain:?}");
    }
}

#[test]
fn coarse_steps_report_the_same_as_fine_ones() {
    let totals = |step: u64| {
        let mut engine = engine(10_000);
        let mut events = Vec::new();
        for seed in 1..6 {
            engine.submit(VirtualTime(0), request(seed, 200, 20)).expect("fits");
        }
        for at in (0..).step_by(step as usize).take_while(|at| *at < 5_000_000_000) {
            engine.advance(VirtualTime(at), &mut events);
        }
        let tokens: u32 = events.iter().map(|event| if let What::Tokens { n } = event.what { n } else { 0 }).sum();
        let ends: Vec<RequestId> =
            events.iter().filter(|event| event.what == What::Finished).map(|event| event.id).collect();
        (tokens, ends, cached(&events))
    };
    let coarse = totals(1_000_000_000);
    assert_eq!(coarse, totals(1_000_000));
    assert_eq!((coarse.0, coarse.1.len()), (5 * 19, 5));
}

#[test]
fn a_request_that_does_not_fit_waits_and_one_that_never_could_is_refused() {
    let mut engine = engine(160);
    let long = engine.submit(VirtualTime(0), request(1, 100, 20)).expect("fits alone");
    let waiting = engine.submit(VirtualTime(0), request(2, 100, 20)).expect("fits alone");
    assert_eq!(engine.submit(VirtualTime(0), request(3, 150, 20)), Err(TooLarge { tokens: 170, capacity: 160 }));
    let mut events = Vec::new();
    engine.advance(VirtualTime(0) + Duration::from_millis(150), &mut events);
    assert_eq!((engine.stats().running, engine.stats().waiting), (1, 1), "the second waits for the first's blocks");
    events.extend(run_all(&mut engine));
    let ends: Vec<RequestId> =
        events.iter().filter(|event| event.what == What::Finished).map(|event| event.id).collect();
    assert_eq!(ends, [long, waiting]);
}

#[test]
fn cancelling_frees_the_blocks_for_the_next_in_every_phase() {
    for cancel_after_ms in [0, 50, 150] {
        let mut engine = engine(160);
        let gone = engine.submit(VirtualTime(0), request(1, 100, 60)).expect("fits");
        let next = engine.submit(VirtualTime(0), request(2, 100, 20)).expect("fits");
        let mut events = Vec::new();
        let now = VirtualTime(cancel_after_ms * 1_000_000);
        engine.advance(now, &mut events);
        assert!(engine.cancel(now, gone));
        assert!(!engine.cancel(now, gone), "it is gone");
        assert_eq!((engine.stats().running, engine.stats().waiting), (1, 0), "after {cancel_after_ms} ms");
        assert!(run_all(&mut engine).iter().all(|event| event.id == next));
    }
}

#[test]
fn a_restart_forgets_the_cache_and_the_requests() {
    let mut engine = engine(10_000);
    engine.submit(engine.now(), request(1, 64, 0)).expect("fits");
    run_all(&mut engine);
    let lost = engine.submit(engine.now(), request(1, 64, 8)).expect("fits");
    assert_eq!(engine.restart(engine.now()), [lost]);
    assert_eq!(engine.next_event_at(), None);
    engine.submit(engine.now(), request(1, 64, 0)).expect("fits");
    assert_eq!(cached(&run_all(&mut engine)), [0]);
}

/// The simulator's budget. In a debug build it only shows that the work is done; run it with `--release` for the time.
#[test]
#[ignore = "measures; run with --release --ignored"]
fn sixty_thousand_requests_over_eight_engines_take_under_three_seconds() {
    let began = std::time::Instant::now();
    let options = Options { prefill_tps: 40_000.0, decode_tps: 4_000.0, ..Options::default() };
    let mut engines: Vec<Engine> = (0..8).map(|_| Engine::new(options.clone())).collect();
    let mut events = Vec::new();
    let mut finished = 0;
    for number in 0..60_000_u64 {
        let session = number % 600;
        let turn = (number / 600) % 20;
        let blocks: Arc<[u64]> = (0..60 + turn * 20).map(|at| session * 1_000_003 + at + 1).collect();
        let prompt_tokens = blocks.len() as u32 * 16 + 3;
        let engine = &mut engines[(session % 8) as usize];
        let now = VirtualTime(number * 10_000_000);
        let request = Request { blocks, prompt_tokens, output_tokens: 150, prefill_factor: 1.0, report_tokens: false };
        engine.submit(now, request).expect("fits");
        engine.advance(now, &mut events);
        finished += events.drain(..).filter(|event| event.what == What::Finished).count();
    }
    finished += engines
        .iter_mut()
        .map(|engine| run_all(engine).iter().filter(|event| event.what == What::Finished).count())
        .sum::<usize>();
    assert_eq!(finished, 60_000);
    let took = began.elapsed();
    eprintln!("{took:?}");
    assert!(cfg!(debug_assertions) || took < Duration::from_secs(3), "{took:?}");
}
