//! Reports against a naive engine: what a replica is assumed to keep follows what it keeps.
use std::collections::BTreeSet;

use super::*;

/// A cache of blocks, least recently used first out; of one prompt the last block first.
#[derive(Debug, Default)]
struct Engine {
    capacity: usize,
    clock: u64,
    used: std::collections::HashMap<u64, (u64, usize)>,
    order: BTreeSet<((u64, usize), u64)>,
}

impl Engine {
    /// Computes a prompt; what of it was cached.
    fn compute(&mut self, prompt: &Prompt) -> Reported {
        self.clock += 1;
        let cached = prompt.blocks.iter().take_while(|block| self.used.contains_key(block)).count();
        for (at, &block) in prompt.blocks.iter().enumerate() {
            let stamp = (self.clock, prompt.blocks.len() - at);
            if let Some(before) = self.used.insert(block, stamp) {
                self.order.remove(&(before, block));
            }
            self.order.insert((stamp, block));
        }
        while self.used.len() > self.capacity
            && let Some((_, block)) = self.order.pop_first()
        {
            self.used.remove(&block);
        }
        let cached_tokens = (cached * BLOCK_TOKENS).min(prompt.tokens as usize - 1) as u32;
        Reported { prompt_tokens: prompt.tokens, cached_tokens }
    }
}

struct World {
    router: Router,
    engines: Vec<Engine>,
    /// Each session's turns so far.
    turns: Vec<u32>,
    rng: fastrand::Rng,
    clock: u64,
    /// Whether the engines report.
    reports: bool,
}

const REPLICAS: usize = 2;
const BELIEVED: usize = 2_000;
const SESSIONS: usize = 90;
const MOST_TURNS: u32 = 12;

impl World {
    /// Engines that keep so many blocks, where the router believes in [`BELIEVED`].
    fn new(keep: usize) -> Self {
        let believed = Member { cache_tokens: (BELIEVED * BLOCK_TOKENS) as u64, ..member("", 1) };
        let members: Vec<_> = (0..REPLICAS)
            .map(|at| Member { id: format!("replica-{at}").into(), load: Arc::default(), ..believed.clone() })
            .collect();
        let settings = CacheAware { min_match_tokens: 64, ..cache_aware() };
        Self {
            router: router_of(settings, &members, 1),
            engines: (0..REPLICAS).map(|_| Engine { capacity: keep, ..Engine::default() }).collect(),
            turns: vec![0; SESSIONS],
            rng: fastrand::Rng::with_seed(3),
            clock: 0,
            reports: true,
        }
    }

    fn keep(&mut self, blocks: usize) {
        self.engines.iter_mut().for_each(|engine| engine.capacity = blocks);
    }

    /// Requests of sessions that come in any order; the share of the tokens predicted that was not there.
    fn run(&mut self, requests: usize) -> f64 {
        let (mut predicted, mut missing) = (0, 0);
        for _ in 0..requests {
            self.clock += SECOND;
            let (now, session) = (Tick(self.clock), self.rng.usize(..SESSIONS));
            let turn = self.turns[session];
            // One that has said all makes room for another.
            self.turns[session] = (turn + 1) % MOST_TURNS;
            let name = (session as u64) * 1_000;
            let parts: Vec<_> =
                std::iter::once((1, 32)).chain((0..=turn).map(|at| (1_000_000 + name + u64::from(at), 64))).collect();
            let prompt = prompt(&parts);
            let mut plan = self.router.decide(&of_prompt(&prompt), now).expect("ready");
            let replica = usize::from(&*plan.leg.replica == "replica-1");
            let mut expectation = plan.expectation.take().expect("an index is kept");
            let reported = self.engines[replica].compute(&prompt);
            self.router.confirm(&mut expectation, now);
            if self.reports {
                self.router.reported(&expectation, reported);
            }
            self.router.finish(expectation, now);
            predicted += plan.matched;
            missing += plan.matched.saturating_sub(reported.cached_tokens);
        }
        f64::from(missing) / f64::from(predicted)
    }

    fn assumed(&self) -> Vec<usize> {
        (0..REPLICAS).map(|at| self.router.index_capacity(&format!("replica-{at}"))).collect()
    }
}

#[test]
fn a_cache_that_is_smaller_than_believed_is_found_out() {
    for keep in [400, 700, 1_000] {
        let mut silent = World { reports: false, ..World::new(keep) };
        let without = silent.run(4_000);
        let mut world = World::new(keep);
        world.run(2_000);
        let (missing, assumed) = (world.run(2_000), world.assumed());
        println!("keeps {keep}: {without:.3} missing without reports, {missing:.3} with; assumed to keep {assumed:?}");
        assert!(without > 0.10 && missing < 0.05, "keeps {keep}: {without:.3} without reports, {missing:.3} with");
        assert!(assumed.iter().all(|&assumed| assumed > keep / 2 && assumed < keep * 5 / 4), "{assumed:?}");
        // It grows again, and is believed to have.
        world.keep(BELIEVED);
        world.run(4_000);
        let recovered = world.assumed();
        assert!(recovered.iter().zip(&assumed).all(|(now, before)| now > before), "{assumed:?} and then {recovered:?}");
    }
}

/// As much as is told, and no more; that it is told again meanwhile neither helps nor hinders.
#[test]
fn what_is_assumed_grows_back_to_what_is_told_once_errors_end() {
    let mut world = World::new(400);
    world.run(2_000);
    let mut before = world.assumed();
    assert!(before.iter().all(|&assumed| assumed < BELIEVED / 3), "{before:?}");
    world.keep(BELIEVED);
    let told: Vec<_> = (0..REPLICAS)
        .map(|at| Member { cache_tokens: (BELIEVED * BLOCK_TOKENS) as u64, ..member(format!("replica-{at}"), 1) })
        .collect();
    let mut rounds = 0;
    while world.assumed() != [BELIEVED; REPLICAS] {
        let missing = world.run(1_000);
        world.router.set_members(told.clone());
        let now = world.assumed();
        assert!(missing < 0.01 && now.iter().zip(&before).all(|(now, before)| now >= before), "{before:?}, {now:?}");
        assert!(now.iter().all(|&assumed| assumed <= BELIEVED), "{now:?}");
        (before, rounds) = (now, rounds + 1);
        assert!(rounds < 40, "{before:?} after {rounds} thousand requests without an error");
    }
    // It took its time, and it stays.
    assert!(rounds > 4, "{rounds}");
    world.run(2_000);
    assert_eq!(world.assumed(), [BELIEVED; REPLICAS]);
}

#[test]
fn a_cache_of_the_size_believed_is_left_alone() {
    for keep in [BELIEVED, 2 * BELIEVED] {
        let mut world = World::new(keep);
        let missing = world.run(6_000);
        assert_eq!((missing, world.assumed()), (0.0, vec![BELIEVED; REPLICAS]), "keeps {keep}");
        assert!(world.router.index_stats().expect("an index").evicted > 100, "it was full");
    }
}

#[test]
fn what_is_assumed_outlives_a_reload_and_ends_with_the_replica() {
    let mut world = World::new(400);
    world.run(4_000);
    let assumed = world.assumed();
    assert!(assumed.iter().all(|&assumed| assumed < BELIEVED), "{assumed:?}");
    let mut members: Vec<_> = (0..REPLICAS)
        .map(|at| Member { cache_tokens: (BELIEVED * BLOCK_TOKENS) as u64, ..member(format!("replica-{at}"), 1) })
        .collect();
    world.router.set_members(members.clone());
    assert_eq!(world.assumed(), assumed);
    members[0].incarnation += 1;
    members[1].cache_tokens /= 2;
    world.router.set_members(members);
    assert_eq!(world.assumed(), [BELIEVED, BELIEVED / 2], "another life, another word of the operator");
}

/// A burst of one new document: nobody has answered with it yet, so that nobody's report says anything of the cache.
#[test]
fn what_was_only_expected_does_not_count_against_a_replica() {
    let mut world = World::new(BELIEVED);
    for document in 0..40 {
        let prompt = prompt(&[(document, 1_600)]);
        let now = Tick(u64::from(document as u32) * SECOND);
        let decided: Vec<_> = (0..8).map(|_| world.router.decide(&of_prompt(&prompt), now).expect("ready")).collect();
        let mut plans: Vec<_> =
            decided.into_iter().map(|mut plan| plan.expectation.take().expect("an index")).collect();
        plans.iter_mut().for_each(|expectation| world.router.confirm(expectation, now));
        for expectation in plans {
            world.router.reported(&expectation, Reported { prompt_tokens: 1_600, cached_tokens: 0 });
            world.router.finish(expectation, now);
        }
    }
    assert_eq!(world.assumed(), [BELIEVED; REPLICAS]);
}
