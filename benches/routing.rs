//! The time of one decision (choose, reserve, record, release) under each policy.
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use warmroute::config::{Affinity, CacheAware, Policy, Prefill, Session};
use warmroute::routing::{Member, Prompt, Request, Router, SessionKey, Settings, State, Status, Tick};

fn fleet(replicas: u32, weight: impl Fn(u32) -> u32) -> Vec<Member> {
    let member = |at| Member {
        id: format!("10.0.0.{at}:8000").into(),
        weight: weight(at),
        max_in_flight: Some(1_000),
        cache_tokens: 1_000_000,
        incarnation: 1,
        load: Arc::default(),
        status: Arc::new(Status::new(State::Ready)),
    };
    (0..replicas).map(member).collect()
}

fn decide(criterion: &mut Criterion) {
    let header = http::HeaderName::from_static("x-user");
    let policies = [
        ("round_robin", Policy::RoundRobin),
        ("random", Policy::Random),
        ("least_load", Policy::LeastLoad),
        ("power_of_two", Policy::PowerOfTwo),
        ("sticky_unbound", Policy::SessionSticky(Affinity::default())),
        ("sticky_bound", Policy::SessionSticky(Affinity::default())),
        ("header_hash", Policy::HeaderHash { header, affinity: Affinity::default() }),
    ];
    let mut group = criterion.benchmark_group("decide");
    for replicas in [8, 64] {
        for (weights, weight) in [("equal", (|_| 1) as fn(u32) -> u32), ("mixed", |at| 1 + at % 3)] {
            for (name, policy) in &policies {
                let members = fleet(replicas, weight);
                let _open: Vec<_> = members.iter().flat_map(|m| (0..4).map(|_| m.load.reserve(1, None))).collect();
                let mut router = Router::new(
                    &Settings { policy, session: &Session::default(), index_bytes: None, prefill: &Prefill::Learned },
                    members,
                    1,
                );
                let sessions = 10_000_u128;
                let mut key = 0;
                let mut next = || {
                    key = (key + 1) % sessions;
                    Request {
                        session: Some(SessionKey(key)),
                        header: Some(key as u64),
                        sequences: 1,
                        ..Request::default()
                    }
                };
                if *name == "sticky_bound" {
                    for _ in 0..sessions {
                        let effect = router.decide(&next(), Tick(0)).ok().and_then(|plan| plan.on_success);
                        effect.iter().for_each(|effect| router.apply(effect, Tick(0)));
                    }
                }
                group.bench_function(BenchmarkId::new(format!("{name}/{weights}"), replicas), |bencher| {
                    bencher.iter(|| black_box(router.decide(&next(), Tick(0))));
                });
            }
        }
    }
    group.finish();
}

/// A whole request by prefix (decide, confirm, finish): the next turn of one of many sessions of about 8k tokens with a
/// common head, with an index that is full.
fn by_prefix(criterion: &mut Criterion) {
    let policy = Policy::CacheAware(CacheAware::default());
    let mut group = criterion.benchmark_group("cache_aware");
    for replicas in [8, 64] {
        let members = fleet(replicas, |_| 1);
        let _open: Vec<_> = members.iter().flat_map(|m| (0..4).map(|_| m.load.reserve(1, None))).collect();
        let session = Session::default();
        let settings =
            Settings { policy: &policy, session: &session, index_bytes: Some(1 << 30), prefill: &Prefill::Learned };
        let mut router = Router::new(&settings, members, 1);
        let mut rng = fastrand::Rng::with_seed(1);
        let head: Vec<_> = (0..100).map(|_| rng.u64(..)).collect();
        let mut prompts: Vec<_> = (0..64 * replicas)
            .map(|_| {
                let blocks: Vec<_> = head.iter().copied().chain((0..400).map(|_| rng.u64(..))).collect();
                Arc::new(Prompt { tokens: 16 * blocks.len() as u32 + 5, blocks, answer: None })
            })
            .collect();
        let mut serve = |prompt: &Arc<Prompt>| {
            let request = Request { sequences: 1, prompt: Some(prompt), streams: true, ..Request::default() };
            let mut plan = router.decide(&request, Tick(0)).ok()?;
            let mut expectation = plan.expectation.take()?;
            router.confirm(&mut expectation, Tick(1));
            router.finish(expectation, Tick(2));
            Some(plan)
        };
        prompts.iter().for_each(|prompt| drop(serve(prompt)));
        let mut at = 0;
        group.bench_function(BenchmarkId::new("turn", replicas), |bencher| {
            let next = || {
                at = (at + 7) % prompts.len();
                // Ten blocks more than last time; a session starts anew when it is long.
                let old = &prompts[at];
                let kept = if old.blocks.len() < 800 { old.blocks.len() } else { 400 };
                let blocks: Vec<_> = old.blocks[..kept].iter().copied().chain((0..10).map(|_| rng.u64(..))).collect();
                prompts[at] = Arc::new(Prompt { tokens: 16 * blocks.len() as u32 + 5, blocks, answer: None });
                prompts[at].clone()
            };
            bencher.iter_batched(next, |prompt| black_box(serve(&prompt)), criterion::BatchSize::SmallInput);
        });
    }
    group.finish();
}

/// The longest hold of a pool's lock that one request causes: 128k tokens on 512 replicas, with as many heads as are
/// remembered; known whole, known in half, and not at all.
fn longest(criterion: &mut Criterion) {
    let policy = Policy::CacheAware(CacheAware::default());
    let session = Session::default();
    let mut group = criterion.benchmark_group("longest");
    let settings =
        Settings { policy: &policy, session: &session, index_bytes: Some(1 << 30), prefill: &Prefill::Learned };
    let mut rng = fastrand::Rng::with_seed(1);
    let whole: Vec<u64> = (0..8_192).map(|_| rng.u64(..)).collect();
    let prompt = |kept: usize, rng: &mut fastrand::Rng| {
        let blocks: Vec<_> = whole[..kept].iter().copied().chain((kept..8_192).map(|_| rng.u64(..))).collect();
        Arc::new(Prompt { tokens: 16 * blocks.len() as u32 + 5, blocks, answer: None })
    };
    let serve = |router: &mut Router, prompt: &Arc<Prompt>| {
        let request = Request { sequences: 1, prompt: Some(prompt), streams: true, ..Request::default() };
        let mut plan = router.decide(&request, Tick(0)).ok()?;
        let mut expectation = plan.expectation.take()?;
        router.confirm(&mut expectation, Tick(1));
        router.finish(expectation, Tick(2));
        Some(plan)
    };
    for (name, kept) in [("known", 8_192), ("half", 4_096), ("new", 0)] {
        let mut router = Router::new(&settings, fleet(512, |_| 1), 1);
        for at in 0..2_100 {
            serve(&mut router, &prompt(8_192 - at * 3, &mut rng));
        }
        let mut next = || prompt(kept, &mut rng);
        let mut open = None;
        let decide = |router: &mut Router, prompt: &Arc<Prompt>| {
            let request = Request { sequences: 1, prompt: Some(prompt), streams: true, ..Request::default() };
            router.decide(&request, Tick(0)).ok()
        };
        group.bench_function(BenchmarkId::new("decide", name), |bencher| {
            bencher.iter_batched(
                &mut next,
                |prompt| open.replace(black_box(decide(&mut router, &prompt))).is_some(),
                criterion::BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("whole", name), |bencher| {
            bencher.iter_batched(
                &mut next,
                |prompt| black_box(serve(&mut router, &prompt)),
                criterion::BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, decide, by_prefix, longest);
criterion_main!(benches);
