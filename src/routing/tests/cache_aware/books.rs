//! The books of the index and of the virtual queues, through whatever comes.
use proptest::prelude::*;

use super::*;

const REPLICAS: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    /// A prompt: a head, and a tail of its own.
    Decide {
        head: u64,
        tail: u64,
        tokens: u32,
        session: Option<u8>,
        tried: u8,
        streams: bool,
    },
    Preview(u64),
    Confirm(prop::sample::Index),
    Finish(prop::sample::Index),
    Withdraw(prop::sample::Index),
    Status(usize, State),
    Members {
        kept: u8,
        reborn: Option<usize>,
        cache: u64,
    },
    /// Another policy, with or without an index.
    Policy(usize, bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let states = prop::sample::select(vec![State::Ready, State::Ready, State::Warming, State::Draining, State::Down]);
    let which = any::<prop::sample::Index>;
    let tried = prop_oneof![3 => Just(0_u8), 1 => any::<u8>()];
    prop_oneof![
        8 => (0..3_u64, 0..6_u64, 0..200_u32, prop::option::of(0..4_u8), tried, any::<bool>()).prop_map(
            |(head, tail, tokens, session, tried, streams)| Step::Decide { head, tail, tokens, session, tried, streams }
        ),
        1 => (0..3_u64).prop_map(Step::Preview),
        4 => which().prop_map(Step::Confirm),
        4 => which().prop_map(Step::Finish),
        2 => which().prop_map(Step::Withdraw),
        2 => (0..REPLICAS, states).prop_map(|(replica, state)| Step::Status(replica, state)),
        1 => (any::<u8>(), prop::option::of(0..REPLICAS), 0..2_000_u64)
            .prop_map(|(kept, reborn, cache)| Step::Members { kept, reborn, cache }),
        1 => (0..4_usize, prop::bool::weighted(0.8)).prop_map(|(policy, index)| Step::Policy(policy, index)),
        2 => (0..3 * SECOND).prop_map(Step::Wait),
    ]
}

fn policies() -> [Policy; 4] {
    let settings = CacheAware { min_match_tokens: 32, min_load_gap: 2, ..cache_aware() };
    let queued = CacheAware { load: LoadUnit::QueuedSeconds, affinity: Stay::Prefer, ..settings.clone() };
    [Policy::CacheAware(settings), Policy::CacheAware(queued), Policy::LeastLoad, by_cost()]
}

struct World {
    router: Router,
    all: Vec<Member>,
    loads: Vec<Arc<Load>>,
    open: Vec<Plan>,
    /// What was decided, in order.
    decided: Vec<(Arc<str>, Reason, u32)>,
    now: Tick,
}

impl World {
    fn new(policy: &Policy, seed: u64) -> Self {
        let all = fleet(&[1, 2, 1, 3]);
        Self {
            router: Router::new(&with_index(policy, &Session::default()), all.clone(), seed),
            loads: all.iter().map(|member| member.load.clone()).collect(),
            all,
            open: Vec::new(),
            decided: Vec::new(),
            now: Tick(0),
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.now;
        let pick = |open: &mut Vec<Plan>, which: &prop::sample::Index| {
            (!open.is_empty()).then(|| open.swap_remove(which.index(open.len())))
        };
        match step {
            Step::Decide { head, tail, tokens, session, tried, streams } => {
                let prompt = prompt(&[(*head, 64), (100 + tail, *tokens)]);
                let tried: Vec<_> =
                    (0..REPLICAS).filter(|at| tried >> at & 1 == 1).map(|at| self.all[at].id.clone()).collect();
                let session = session.map(|key| SessionKey(key.into()));
                let request = Request { session, tried: &tried, streams: *streams, ..of_prompt(&prompt) };
                if let Ok(plan) = self.router.decide(&request, now) {
                    assert!(plan.matched < prompt.tokens && plan.matched % 16 == 0);
                    self.decided.push((plan.leg.replica.clone(), plan.reason, plan.matched));
                    plan.on_success.iter().for_each(|effect| self.router.apply(effect, now));
                    self.open.push(plan);
                }
            }
            Step::Preview(head) => drop(self.router.preview(&of_prompt(&prompt(&[(*head, 64), (999, 50)])), now)),
            Step::Confirm(which) if !self.open.is_empty() => {
                let at = which.index(self.open.len());
                if let Some(expectation) = &mut self.open[at].expectation {
                    self.router.confirm(expectation, now);
                }
            }
            Step::Confirm(_) => {}
            Step::Finish(which) => {
                if let Some(expectation) = pick(&mut self.open, which).and_then(|plan| plan.expectation) {
                    self.router.finish(expectation, now);
                }
            }
            Step::Withdraw(which) => {
                if let Some(expectation) = pick(&mut self.open, which).and_then(|plan| plan.expectation) {
                    self.router.withdraw(expectation, now);
                }
            }
            Step::Status(replica, state) => drop(self.all[*replica].status.set(*state)),
            Step::Members { kept, reborn, cache } => {
                if let Some(reborn) = reborn {
                    let member = &mut self.all[*reborn];
                    (member.incarnation, member.load) = (member.incarnation + 1, Arc::default());
                    self.loads.push(member.load.clone());
                }
                self.all.iter_mut().for_each(|member| member.cache_tokens = *cache);
                let kept = (0..REPLICAS).filter(|at| kept >> at & 1 == 1).map(|at| self.all[at].clone()).collect();
                self.router.set_members(kept);
            }
            Step::Policy(policy, index) => {
                let (policy, session) = (&policies()[*policy], Session::default());
                let index_bytes = index.then_some(1 << 20);
                self.router.reconfigure(&Settings { index_bytes, ..with_index(policy, &session) });
            }
            Step::Wait(micros) => self.now.0 += micros,
        }
        assert!(self.loads.iter().all(|load| load.queued_seconds(self.now) >= 0.0));
    }

    /// Ends all that is open, and looks for anything left.
    fn close(mut self) {
        for mut plan in self.open.drain(..) {
            plan.expectation.take().into_iter().for_each(|expectation| self.router.finish(expectation, self.now));
        }
        assert!(self.loads.iter().all(|load| load.requests() == 0 && load.queued_seconds(self.now) == 0.0));
        // With no room left, whatever is not pinned goes, a few blocks a use.
        for member in &mut self.all {
            member.cache_tokens = 0;
            member.status.set(State::Ready);
        }
        self.router.set_members(self.all.clone());
        let small = prompt(&[(7_777, 32)]);
        for member in &self.all {
            let mut uses = 0;
            while self.router.index_held(&member.id) > 0 && uses < 1_000 {
                serve(&mut self.router, &Request { pinned: Some(&member.id), ..of_prompt(&small) }, self.now);
                uses += 1;
            }
            assert_eq!(self.router.index_held(&member.id), 0, "pinned for nobody");
        }
        // What replicas that left held is swept in small steps.
        for _ in 0..10_000 {
            if self.router.index_stats().is_none_or(|stats| stats.pairs == 0) {
                return;
            }
            serve(&mut self.router, &of_prompt(&small), self.now);
        }
        panic!("never swept");
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn nothing_leaks_and_the_same_calls_decide_the_same(
        seed in any::<u64>(),
        policy in 0..4_usize,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let [mut world, mut twin] = [0; 2].map(|_| World::new(&policies()[policy], seed));
        for step in &steps {
            world.step(step);
            twin.step(step);
        }
        assert_eq!(world.decided, twin.decided);
        world.close();
    }
}
