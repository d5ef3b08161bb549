//! Tests of the routing room: what it promises, seen from outside.
mod bindings;
mod cache_aware;
mod followed;
mod hashing;
mod least_cost;
mod load;
mod saturation;
mod shadow;
mod shares;
mod sticky;

use std::collections::HashMap;
use std::sync::Arc;

use proptest::test_runner::{Config as Cases, RngSeed};

use super::*;
use crate::config::{Affinity, LoadPolicy, Policy, Prefill, Session};

const LOAD_POLICIES: [Policy; 4] = [Policy::RoundRobin, Policy::Random, Policy::LeastLoad, Policy::PowerOfTwo];
const SECOND: u64 = 1_000_000;

pub(super) fn cases(cases: u32) -> Cases {
    Cases { cases, rng_seed: RngSeed::Fixed(0x5eed), failure_persistence: None, ..Cases::default() }
}

fn member(id: impl Into<Arc<str>>, weight: u32) -> Member {
    Member {
        id: id.into(),
        weight,
        max_in_flight: None,
        incarnation: 1,
        cache_tokens: 1_000_000,
        load: Arc::default(),
        status: Arc::new(Status::new(State::Ready)),
    }
}

fn fleet(weights: &[u32]) -> Vec<Member> {
    weights.iter().enumerate().map(|(at, &weight)| member(format!("replica-{at}"), weight)).collect()
}

fn router(policy: Policy, members: &[Member]) -> Router {
    Router::new(&settings(&policy, &Session::default()), members.to_vec(), 0)
}

fn settings<'a>(policy: &'a Policy, session: &'a Session) -> Settings<'a> {
    Settings { policy, session, index_bytes: None, prefill: &Prefill::Learned }
}

fn sticky() -> Policy {
    Policy::SessionSticky(Affinity::default())
}

fn by_prefix() -> Policy {
    Policy::CacheAware(crate::config::CacheAware::default())
}

fn by_cost() -> Policy {
    Policy::LeastCost(crate::config::LeastCost::default())
}

fn header_hash() -> Policy {
    Policy::HeaderHash { header: http::HeaderName::from_static("x-user"), affinity: Affinity::default() }
}

fn of_session(key: u128) -> Request<'static> {
    Request { session: Some(SessionKey(key)), sequences: 1, ..Request::default() }
}

fn of_header(hash: u64) -> Request<'static> {
    Request { header: Some(hash), sequences: 1, ..Request::default() }
}

/// Decides `times` with nothing else going on (each request ends before the next), and counts by replica.
fn spread(router: &mut Router, times: usize, now: Tick) -> HashMap<Arc<str>, usize> {
    let mut counts = HashMap::new();
    for _ in 0..times {
        let plan = router.decide(&Request::default(), now).expect("a replica is ready");
        *counts.entry(plan.leg.replica).or_default() += 1;
    }
    counts
}

/// A whole request of a session that succeeds: where it went, and why.
fn succeed(router: &mut Router, request: &Request<'_>, now: Tick) -> (Arc<str>, Reason) {
    let plan = router.decide(request, now).expect("a replica is ready");
    if let Some(effect) = &plan.on_success {
        router.apply(effect, now);
    }
    (plan.leg.replica, plan.reason)
}

#[test]
fn a_router_may_be_shared_behind_a_lock() {
    fn is_send<T: Send>() {}
    is_send::<Router>();
    is_send::<Plan>();
}

#[test]
fn scores_are_given_only_when_asked_for() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash()]) {
        let members = fleet(&[1, 2]);
        let _open = members[1].load.reserve(1, None);
        let mut router = router(policy, &members);
        let plan = router.decide(&of_session(1), Tick(0)).expect("ready");
        assert!(plan.scores.is_empty());
        drop(plan);
        let plan = router.decide(&Request { explain: true, ..of_session(1) }, Tick(0)).expect("ready");
        let scores = plan.scores.iter().map(|score| (&score.replica, score.load, score.in_flight, score.weight));
        let expected = [(&members[0].id, 0.0, 0, 1), (&members[1].id, 0.5, 1, 2)];
        assert_eq!(scores.collect::<Vec<_>>(), expected);
        assert!(plan.scores.iter().all(|score| score.candidate && score.state == State::Ready && score.matched == 0));
    }
}

#[test]
fn each_decision_says_what_it_changed() {
    let members = fleet(&[1]);
    let mut router = router(Policy::LeastLoad, &members);
    let plan = router.decide(&Request { sequences: 3, ..Request::default() }, Tick(0)).expect("ready");
    let placed = Effect::Placed { replica: members[0].id.clone(), incarnation: 1, sequences: 3 };
    assert_eq!((plan.effects.as_slice(), &plan.on_success), ([placed].as_slice(), &None));
}

#[test]
fn a_placement_replayed_from_elsewhere_counts_like_ones_own() {
    let members = fleet(&[1, 1]);
    let mut router = router(Policy::LeastLoad, &members);
    for (id, incarnation) in [("replica-0", 1), ("replica-0", 1), ("replica-1", 0), ("unknown", 1)] {
        router.apply(&Effect::Placed { replica: id.into(), incarnation, sequences: 1 }, Tick(0));
    }
    assert_eq!(spread(&mut router, 2, Tick(0)).get("replica-1"), Some(&2), "the other is two behind");
}

#[test]
fn the_same_seed_and_calls_give_the_same_decisions() {
    for policy in [Policy::Random, Policy::PowerOfTwo] {
        let run = |seed| {
            let mut router = Router::new(&settings(&policy, &Session::default()), fleet(&[1, 2, 3, 4]), seed);
            let decide = |_| router.decide(&Request::default(), Tick(0)).expect("ready").leg.replica;
            (0..50).map(decide).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
