//! Each rule by situations made by hand: who is chosen, why, and where it turns. And every name plays to the end.
use super::*;
use crate::routing::Reason;
use crate::sim::call::{Call, Segment};
use crate::sim::choose::{Holdings, Placed, Rule};
use crate::sim::engine::VirtualTime;
use crate::sim::noise::Noise;
use crate::sim::replay::{Replicas, Source, play};
use crate::sim::workload::Generated;

const START: VirtualTime = VirtualTime(0);

/// What each replica holds of any prompt.
struct Held<'a>(&'a [u32]);

impl Holdings for Held<'_> {
    fn held(&self, replica: usize, _: &Call, _: &[u64]) -> u32 {
        self.0[replica]
    }
}

/// A prompt of pieces of content: (name, tokens).
fn call(pieces: &[(u64, u32)]) -> Call {
    let segments: Vec<_> = pieces.iter().map(|&(seed, tokens)| Segment { seed, tokens }).collect();
    Call { prompt_tokens: segments.iter().map(|piece| piece.tokens).sum(), segments, ..Call::default() }
}

fn place(chooser: &mut dyn Chooser, call: &Call, held: &[u32]) -> Placed {
    chooser.choose(call, &call.blocks(), &Held(held), START).expect("a replica")
}

/// Where a call would go; it ends at once.
fn probe(chooser: &mut dyn Chooser, call: &Call, held: &[u32]) -> (usize, Reason) {
    let placed = place(chooser, call, held);
    let seen = (placed.replica, placed.reason);
    chooser.refused(placed, START);
    seen
}

#[test]
fn dynamo_adds_prefill_blocks_to_the_blocks_in_use() {
    let (ours, other) = (call(&[(1, 1_600)]), call(&[(2, 1_600)]));
    let mut rule = DynamoSum::new(2, 1);
    // 50 + 100 blocks against 100 + 100.
    let mut first = place(&mut rule, &ours, &[800, 0]);
    assert_eq!((first.replica, first.expected), (0, Some(800)));
    // The same again shares its blocks: 50 + 50 + 100 against 100 + 100 is a draw; another's adds 100.
    let drawn: Vec<_> = (0..64).map(|_| probe(&mut rule, &ours, &[800, 0]).0).collect();
    assert!(drawn.contains(&0) && drawn.contains(&1), "a draw does not go to the first: {drawn:?}");
    assert_eq!(probe(&mut rule, &ours, &[816, 0]).0, 0);
    assert_eq!(probe(&mut rule, &other, &[1_584, 0]).0, 1);
    // With its first token its prompt is computed, and its blocks stay: 1 + 200 against 100 + 100 for another's.
    rule.first_token(&mut first, START);
    assert_eq!(probe(&mut rule, &other, &[1_584, 0]).0, 1);
    assert_eq!(probe(&mut rule, &ours, &[800, 0]).0, 0);
    rule.finished(first, START);
    assert_eq!(probe(&mut rule, &other, &[1_584, 0]).0, 0);
    assert!(rule.at_rest());
}

#[test]
fn lmetric_multiplies_tokens_to_compute_by_the_batch() {
    let ours = call(&[(1, 1_600)]);
    let mut rule = Lmetric::new(2);
    let mut first = place(&mut rule, &ours, &[1_200, 0]);
    assert_eq!(first.replica, 0, "400 · 1 against 1,600 · 1");
    assert_eq!(probe(&mut rule, &ours, &[1_200, 0]).0, 0, "(400 + 400) · 2 against 1,600 · 1: the first of equals");
    assert_eq!(probe(&mut rule, &ours, &[1_184, 0]).0, 1, "(400 + 416) · 2 against 1,600 · 1");
    rule.first_token(&mut first, START);
    assert_eq!(probe(&mut rule, &ours, &[816, 0]).0, 0, "784 · 2 against 1,600 · 1");
    assert_eq!(probe(&mut rule, &ours, &[784, 0]).0, 1, "816 · 2 against 1,600 · 1");
    rule.finished(first, START);
    assert!(rule.at_rest());
}

#[test]
fn sglang_leaves_an_owner_whose_load_is_over_both_bounds() {
    let mut rule = SglBalanced::new(2, 1);
    // The router's own example: of 10,000 tokens A has 8,000, B none.
    let (prompt, held) = (call(&[(1, 10_000)]), [8_000, 0]);
    let at_a = place(&mut rule, &call(&[(2, 22_000)]), &[2_000, 0]);
    let at_b = place(&mut rule, &call(&[(3, 6_000)]), &[0, 2_000]);
    assert_eq!((at_a.replica, at_b.replica), (0, 1));
    assert_eq!(probe(&mut rule, &prompt, &held), (0, Reason::Prefix), "20,000 + 2,000 is no more than 2 · 14,000");
    let more = place(&mut rule, &call(&[(2, 12_000)]), &[2_000, 0]);
    assert_eq!(more.replica, 0);
    assert_eq!(probe(&mut rule, &prompt, &held), (1, Reason::PrefixOverflow), "30,000 + 2,000 is");
    for placed in [at_a, at_b, more] {
        rule.finished(placed, START);
    }
    assert!(rule.at_rest());
}

#[test]
fn sglang_wants_a_long_match_and_a_wide_gap() {
    let mut rule = SglBalanced::new(2, 1);
    let prompt = call(&[(1, 1_616)]);
    assert_eq!(probe(&mut rule, &prompt, &[1_024, 0]), (0, Reason::Prefix));
    assert_eq!(probe(&mut rule, &prompt, &[1_008, 0]).1, Reason::NoMatch);
    // 1,016 + 16 is over twice 32, and 1,000 above it; 1,041 + 16 is 1,025 above.
    for (waiting, replica) in [(1_016, 0), (1_040, 0), (1_041, 1)] {
        let placed = place(&mut rule, &call(&[(2, 1_024 + waiting)]), &[1_024, 0]);
        assert_eq!(placed.replica, 0);
        assert_eq!(probe(&mut rule, &prompt, &[1_600, 1_584]).0, replica, "{waiting} wait");
        assert_eq!(probe(&mut rule, &prompt, &[0, 0]).0, 1, "the less loaded of two");
        rule.finished(placed, START);
    }
}

#[test]
fn sglang_draws_where_nobody_owns() {
    let mut rule = SglBalanced::new(8, 1);
    let drawn: std::collections::HashSet<_> =
        (0..200).map(|_| probe(&mut rule, &call(&[(1, 64)]), &[0; 8]).0).collect();
    assert_eq!(drawn.len(), 8);
}

#[test]
fn a_hashed_key_stays_within_the_bound_and_comes_home() {
    let mut rule = BoundedHash::new(4);
    let keyed = |session| Call { session: Some(session), ..call(&[(1, 64)]) };
    let home = probe(&mut rule, &keyed(7), &[]);
    assert_eq!(home.1, Reason::Hashed);
    let open: Vec<_> = (0..100).map(|_| place(&mut rule, &keyed(7), &[])).collect();
    for (at, placed) in open.iter().enumerate() {
        let before = open[..at].iter().filter(|other| other.replica == placed.replica).count();
        assert!((before as f64) < (1.25 * (at + 1) as f64 / 4.0).ceil(), "{at}");
    }
    // As many at home as fit: ⌈1.25 · 100 ÷ 4⌉.
    assert_eq!(open.iter().filter(|placed| placed.replica == home.0).count(), 32);
    assert_eq!(open[1].reason, Reason::HashOverflow);
    assert_eq!(open[1].replica, open[4].replica, "what overflows goes the ring's way, too");
    for placed in open {
        rule.finished(placed, START);
    }
    assert!(rule.at_rest());
    assert_eq!(probe(&mut rule, &keyed(7), &[]), home);
}

#[test]
fn the_key_is_the_session_then_the_header_then_the_prompts_own_beginning() {
    let mut rule = BoundedHash::new(8);
    let mut homes = |calls: Vec<Call>| {
        let homes: std::collections::HashSet<_> = calls.iter().map(|call| probe(&mut rule, call, &[]).0).collect();
        homes.len()
    };
    let some = |make: &dyn Fn(u64) -> Call| (0..64).map(make).collect::<Vec<_>>();
    let plain = |own| Call { common_tokens: 2_000, ..call(&[(1, 2_000), (10 + own, 100)]) };
    assert_eq!(homes(some(&|own| Call { session: Some(5), header: Some(own), ..plain(own) })), 1);
    assert_eq!(homes(some(&|own| Call { header: Some(5), ..plain(own) })), 1);
    assert_eq!(homes(some(&|own| Call { session: Some(own), header: Some(5), ..plain(1) })), 8);
    assert_eq!(homes(some(&plain)), 8, "a common head makes nobody the same");
    assert_eq!(homes(some(&|own| call(&[(1, 2_000), (10 + own, 100)]))), 1, "unless nobody knows that it is common");
}

#[test]
fn preble_exploits_what_is_mostly_there_and_else_explores() {
    let model = PrefillModel::linear(1_000.0);
    let mut rule = Preble::new(2, 100_000, model, f64::INFINITY);
    let first = place(&mut rule, &call(&[(1, 1_600)]), &[]);
    assert_eq!((first.replica, first.reason), (0, Reason::LeastLoad), "nothing is anywhere");
    // Half is there: to explore is 1.6 + 0.8 seconds against 0 + 1.6.
    assert_eq!(probe(&mut rule, &call(&[(1, 800), (2, 800)]), &[]), (1, Reason::LeastLoad));
    assert_eq!(probe(&mut rule, &call(&[(1, 816), (2, 784)]), &[]), (0, Reason::Prefix), "more than half is");
    // In both places: the lower load; what was placed counts before it is computed.
    let second = place(&mut rule, &call(&[(1, 400), (3, 400)]), &[]);
    assert_eq!((second.replica, second.expected), (1, Some(0)));
    assert_eq!(probe(&mut rule, &call(&[(1, 400), (4, 100)]), &[]), (1, Reason::Prefix));
    rule.finished(first, START);
    rule.finished(second, START);
    assert!(rule.at_rest(START));
}

#[test]
fn preble_remembers_three_minutes() {
    let mut rule = Preble::new(2, 100_000, PrefillModel::linear(1_000.0), f64::INFINITY);
    let shared = call(&[(1, 800), (2, 800)]);
    let first = place(&mut rule, &call(&[(1, 1_600)]), &[]);
    rule.finished(first, START);
    for (seconds, replica) in [(180.0, 1), (180.1, 0)] {
        let now = VirtualTime::from_secs_f64(seconds);
        let placed = rule.choose(&shared, &shared.blocks(), &Held(&[]), now).expect("a replica");
        assert_eq!(placed.replica, replica, "after {seconds} s");
        rule.refused(placed, now);
    }
}

#[test]
fn preble_counts_decoding_by_the_answers_that_it_saw() {
    // 100 tokens a second.
    let mut rule = Preble::new(2, 100_000, PrefillModel::linear(1_000.0), 100.0);
    let long = place(&mut rule, &Call { output_tokens: 500, ..call(&[(1, 160)]) }, &[]);
    let short = place(&mut rule, &Call { output_tokens: 100, ..call(&[(2, 480)]) }, &[]);
    assert_eq!((long.replica, short.replica), (0, 1));
    assert_eq!(probe(&mut rule, &call(&[(3, 160)]), &[]).0, 0, "0.16 against 0.48 seconds of prefill");
    rule.finished(long, START);
    rule.finished(short, START);
    assert_eq!(probe(&mut rule, &call(&[(3, 160)]), &[]).0, 1, "5.16 against 1.48 with what was decoded");
}

#[test]
fn preble_redirects_from_the_heaviest_after_fifty_calls() {
    let mut rule = Preble::new(2, 100_000, PrefillModel::linear(1_000.0), f64::INFINITY);
    let hot = call(&[(1, 1_600)]);
    let open: Vec<_> = (0..51).map(|_| place(&mut rule, &hot, &[])).collect();
    assert!(open[..50].iter().all(|placed| placed.replica == 0));
    assert_eq!((open[50].replica, open[50].reason), (1, Reason::PrefixOverflow));
    // 1.6 + 49 · 0.016 against 1.6 seconds: now both have it, and the lighter is exploited.
    assert_eq!(probe(&mut rule, &hot, &[]), (1, Reason::Prefix));
}

fn replicas() -> Replicas {
    Replicas {
        count: 8,
        cache_tokens: 300_000,
        prefill: PrefillModel::QWEN3_8B_H100,
        decode_tps: 20_000.0,
        noise: Noise::default(),
        reports: false,
    }
}

fn plays(chooser: &mut dyn Chooser, workload: Generated, rate: f64, calls: usize) {
    let source = Source::poisson(workload.stream(1).take(calls), rate, 1);
    let outcome = play(source, &replicas(), chooser, &|_| {}).expect("replicas are there");
    assert_eq!((outcome.requests, outcome.refused), (calls as u64, 0));
}

#[test]
fn every_rival_plays_to_the_end_with_its_books_at_zero() {
    let end = VirtualTime::from_secs_f64(3_600.0);
    for (workload, rate) in [(Generated::Chat, 700.0), (Generated::Documents, 50.0)] {
        let mut dynamo = DynamoSum::new(8, 1);
        plays(&mut dynamo, workload, rate, 500);
        let mut sglang = SglBalanced::new(8, 1);
        plays(&mut sglang, workload, rate, 500);
        let mut hash = BoundedHash::new(8);
        plays(&mut hash, workload, rate, 500);
        let mut preble = Preble::new(8, 300_000, PrefillModel::QWEN3_8B_H100, 20_000.0);
        plays(&mut preble, workload, rate, 500);
        let mut lmetric = Lmetric::new(8);
        plays(&mut lmetric, workload, rate, 500);
        let at_rest = [dynamo.at_rest(), sglang.at_rest(), hash.at_rest(), preble.at_rest(end), lmetric.at_rest()];
        assert_eq!(at_rest, [true; 5], "{workload:?}");
    }
}

#[test]
fn a_rival_is_found_by_its_name_and_takes_calls() {
    for rival in Rival::ALL {
        assert_eq!(Rule::named(rival.as_str()), Some(Rule::Rival(rival)));
        assert!(Rule::NAMES.contains(&rival.as_str()) && !Rule::Rival(rival).is_product());
        let mut chooser = rival.on(8, 300_000, &PrefillModel::QWEN3_8B_H100, 20_000.0, 1);
        plays(&mut *chooser, Generated::Chat, 700.0, 20);
    }
}

#[test]
fn what_no_replica_takes_leaves_nothing_booked() {
    let tiny = Replicas { cache_tokens: 1_600, ..replicas() };
    let calls = || Source::closed(Generated::Documents.stream(1).take(20), 4);
    let mut dynamo = DynamoSum::new(8, 1);
    let mut preble = Preble::new(8, 1_600, PrefillModel::QWEN3_8B_H100, f64::INFINITY);
    for chooser in [&mut dynamo as &mut dyn Chooser, &mut preble] {
        assert_eq!(play(calls(), &tiny, chooser, &|_| {}).expect("replicas are there").refused, 20);
    }
    assert!(dynamo.at_rest() && preble.at_rest(START));
}
