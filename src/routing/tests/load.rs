//! The load invariant: the sum of reservations equals open requests at every step, and zero at rest.
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;
use crate::routing::router::Call;

const REPLICAS: usize = 5;
const CALL: Call = Call { now: Tick(0), acts: true };

#[derive(Debug, Clone)]
enum Step {
    Decide {
        pool: usize,
        session: Option<u8>,
        pinned: Option<u8>,
        tried: u8,
        load_only: bool,
        sequences: u32,
    },
    /// An open request ends, after a success or a failure.
    End {
        which: prop::sample::Index,
        success: bool,
    },
    Status(usize, State),
    /// The replicas that are members now; one of them may have begun a new life.
    Members {
        kept: u8,
        reborn: Option<usize>,
    },
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let states = prop::sample::select(vec![State::Ready, State::Ready, State::Warming, State::Draining, State::Down]);
    let decide = (
        0..2_usize,
        prop::option::weighted(0.8, 0..12_u8),
        prop::option::weighted(0.1, 0..REPLICAS as u8),
        prop_oneof![3 => Just(0_u8), 1 => any::<u8>()],
        prop::bool::weighted(0.1),
        1..5_u32,
    );
    prop_oneof![
        8 => decide.prop_map(|(pool, session, pinned, tried, load_only, sequences)| Step::Decide {
            pool, session, pinned, tried, load_only, sequences
        }),
        6 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(which, success)| Step::End { which, success }),
        2 => (0..REPLICAS, states).prop_map(|(replica, state)| Step::Status(replica, state)),
        1 => (any::<u8>(), prop::option::of(0..REPLICAS)).prop_map(|(kept, reborn)| Step::Members { kept, reborn }),
        1 => (0..40 * SECOND).prop_map(Step::Wait),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    let all: Vec<_> =
        LOAD_POLICIES.into_iter().chain([sticky(), sticky(), header_hash(), by_prefix(), by_prefix()]).collect();
    prop::sample::select(all)
}

/// An open request, with the books it is entered in.
struct Open {
    plan: Plan,
    load: Arc<Load>,
    pool: usize,
}

/// Two pools that share replicas, and every load there has ever been.
struct World {
    routers: [Router; 2],
    all: Vec<Member>,
    members: Vec<Member>,
    loads: Vec<Arc<Load>>,
    open: Vec<Open>,
    now: Tick,
}

const MAX_BINDINGS: usize = 6;

impl World {
    fn new(policies: [Policy; 2], limits: &[Option<u32>]) -> Self {
        let mut all = fleet(&[1, 2, 3, 1, 1]);
        for (member, &limit) in all.iter_mut().zip(limits) {
            member.max_in_flight = limit;
        }
        let session =
            Session { max_bindings: MAX_BINDINGS, ttl: std::time::Duration::from_secs(60), ..Session::default() };
        Self {
            routers: policies.map(|policy| Router::new(&settings(&policy, &session), all.clone(), 3)),
            members: all.clone(),
            loads: all.iter().map(|member| member.load.clone()).collect(),
            all,
            open: Vec::new(),
            now: Tick(0),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Decide { pool, session, pinned, tried, load_only, sequences } => {
                let pinned = pinned.map(|at| self.all[at as usize].id.clone());
                let tried: Vec<_> =
                    (0..REPLICAS).filter(|at| tried >> at & 1 == 1).map(|at| self.all[at].id.clone()).collect();
                let request = Request {
                    session: session.map(|key| SessionKey(key.into())),
                    header: session.map(u64::from),
                    sequences,
                    load_only,
                    pinned: pinned.as_deref(),
                    tried: &tried,
                    explain: false,
                    pinned_only: false,
                    readmitted: &[],
                    prompt: None,
                    streams: false,
                    booked: None,
                };
                self.decide(pool, &request);
            }
            Step::End { which, success } if !self.open.is_empty() => {
                let at = which.index(self.open.len());
                let ended = self.open.swap_remove(at);
                if let (true, Some(effect)) = (success, &ended.plan.on_success) {
                    self.routers[ended.pool].apply(effect, self.now);
                }
            }
            Step::End { .. } => {}
            Step::Status(replica, state) => {
                self.all[replica].status.set(state);
            }
            Step::Members { kept, reborn } => {
                if let Some(reborn) = reborn {
                    let member = &mut self.all[reborn];
                    member.incarnation += 1;
                    member.load = Arc::default();
                    self.loads.push(member.load.clone());
                }
                self.members = (0..REPLICAS).filter(|at| kept >> at & 1 == 1).map(|at| self.all[at].clone()).collect();
                for router in &mut self.routers {
                    router.set_members(self.members.clone());
                }
            }
            Step::Wait(micros) => self.now.0 += micros,
        }
    }

    fn decide(&mut self, pool: usize, request: &Request<'_>) {
        let full = |member: &Member| member.max_in_flight.is_some_and(|max| member.load.requests() >= max);
        let ready = |member: &&Member| {
            matches!(member.status.get(), State::Ready | State::Warming) && !request.tried.contains(&member.id)
        };
        let any_ready = self.members.iter().any(|member| ready(&member));
        let any_free = self.members.iter().filter(ready).any(|member| !full(member));
        let up = |member: &&Member| member.status.get() != State::Down && !request.tried.contains(&member.id);
        let holder = self.members.iter().filter(up).find(|member| request.pinned == Some(&*member.id)).cloned();
        let holder_full = holder.as_ref().is_some_and(full);
        match self.routers[pool].decide(request, self.now) {
            Ok(plan) => {
                if let Some(holder) = holder {
                    assert!(plan.leg.replica == holder.id && plan.reason == Reason::Stored, "went past the holder");
                }
                let member = self.members.iter().find(|member| member.id == plan.leg.replica).expect("a member");
                assert!(!request.tried.contains(&member.id), "tried already");
                assert!(member.max_in_flight.is_none_or(|max| member.load.requests() <= max), "over max_in_flight");
                match member.status.get() {
                    State::Ready | State::Warming => {}
                    State::Draining => assert!(matches!(plan.reason, Reason::Bound | Reason::Stored)),
                    State::Down => panic!("{} is down", member.id),
                }
                if request.load_only {
                    assert_eq!(plan.on_success, None);
                }
                self.open.push(Open { load: member.load.clone(), plan, pool });
            }
            Err(refusal) => {
                assert!(holder_full || !any_free, "refused with a free replica");
                assert!(!holder_full || refusal == Refusal::AllFull, "the holder can be waited for");
                assert!(refusal == Refusal::AllFull || !any_ready, "ready ones exist, all full: {refusal:?}");
            }
        }
    }

    fn check(&self) {
        for load in &self.loads {
            let booked = self.open.iter().filter(|open| Arc::ptr_eq(&open.load, load));
            let (requests, sequences) =
                booked.fold((0, 0), |(r, s), open| (r + 1, s + open.plan.leg.reservation.sequences()));
            assert_eq!((load.requests(), load.sequences()), (requests, sequences));
        }
        assert!(self.routers.iter().all(|router| router.bindings() <= MAX_BINDINGS));
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn reservations_equal_open_requests(
        first in policies(),
        second in policies(),
        limits in prop::collection::vec(prop::option::of(1..4_u32), REPLICAS),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new([first, second], &limits);
        for step in steps {
            world.step(step);
            world.check();
        }
        world.open.clear();
        world.check();
        assert!(world.loads.iter().all(|load| load.requests() == 0 && load.sequences() == 0));
    }
}

/// vllm-project/router #197: a prober that resets load. Here nothing but a reservation has a way to change it.
#[test]
fn a_state_change_leaves_load_alone() {
    let members = fleet(&[1]);
    let mut router = router(Policy::LeastLoad, &members);
    let plan = router.decide(&Request::default(), Tick(0)).expect("ready");
    for state in [State::Down, State::Warming, State::Ready] {
        members[0].status.set(state);
        assert_eq!(members[0].load.requests(), 1);
    }
    drop(plan);
    assert_eq!(members[0].load.requests(), 0);
}

#[test]
fn two_pools_on_two_threads_never_exceed_max_in_flight() {
    const LIMIT: u32 = 3;
    let mut members = fleet(&[1, 1, 1]);
    for member in &mut members {
        member.max_in_flight = Some(LIMIT);
    }
    // Counted apart from Load, so that a fault there can't hide itself.
    let open: HashMap<Arc<str>, AtomicU32> =
        members.iter().map(|member| (member.id.clone(), AtomicU32::new(0))).collect();
    let (refused, placed) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for (policy, seed) in [(Policy::LeastLoad, 1), (sticky(), 2)] {
            let mut router = Router::new(&settings(&policy, &Session::default()), members.clone(), seed);
            let (open, refused, placed) = (&open, &refused, &placed);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut held = Vec::new();
                for _ in 0..20_000 {
                    match router.decide(&of_session(rng.u128(..50)), Tick(0)) {
                        Ok(plan) => {
                            placed.fetch_add(1, Ordering::Relaxed);
                            let before = open[&plan.leg.replica].fetch_add(1, Ordering::SeqCst);
                            assert!(before < LIMIT, "{before} were open");
                            held.push(plan);
                        }
                        Err(refusal) => {
                            assert_eq!(refusal, Refusal::AllFull);
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if !held.is_empty() && rng.u32(..9) < 4 {
                        let plan = held.swap_remove(rng.usize(..held.len()));
                        open[&plan.leg.replica].fetch_sub(1, Ordering::SeqCst);
                        drop(plan);
                    }
                }
                for plan in held {
                    open[&plan.leg.replica].fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(refused.into_inner() > 100 && placed.into_inner() > 1_000, "the limit was reached, and work was done");
    assert!(members.iter().all(|member| member.load.requests() == 0));
}

/// What the threads above do by chance: the place is taken between the look and the reservation.
#[test]
fn a_place_lost_to_another_pool_means_another_choice() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_prefix()]) {
        let mut members = fleet(&[1, 1, 1]);
        for member in &mut members {
            member.max_in_flight = Some(1);
        }
        let mut router = router(policy, &members);
        let request = Request { header: Some(1), ..of_session(1) };
        let first = router.decide(&request, Tick(0)).unwrap().leg.replica;
        router.fill_table(&request, None, CALL);
        let taken: Vec<_> = members[..2].iter().map(|member| member.load.reserve(1, None)).collect();
        let plan = router.settle(&request, None, Vec::new(), CALL).expect("one is left");
        assert_eq!(plan.leg.replica, members[2].id);
        let overflowed = plan.reason == Reason::HashOverflow;
        assert!(
            !matches!(plan.reason, Reason::Hashed | Reason::HashOverflow) || overflowed == (first != members[2].id)
        );
        drop((plan, taken));
        router.fill_table(&request, None, CALL);
        let _taken: Vec<_> = members.iter().map(|member| member.load.reserve(1, None)).collect();
        assert_eq!(router.settle(&request, None, Vec::new(), CALL).expect_err("none is left"), Refusal::AllFull);
    }
}

#[test]
fn refusals_tell_full_from_not_ready() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_prefix()]) {
        let mut members = fleet(&[1, 1, 1]);
        members[0].max_in_flight = Some(1);
        members[1].status.set(State::Down);
        members[2].status.set(State::Draining);
        let mut router = router(policy, &members);
        let open = router.decide(&of_session(1), Tick(0)).expect("one is ready");
        let refusal = router.decide(&of_session(1), Tick(0)).expect_err("none is free");
        assert_eq!(refusal, Refusal::AllFull, "the only ready one is full");
        let tried = [members[0].id.clone()];
        let again = Request { tried: &tried, ..of_session(1) };
        assert_eq!(router.decide(&again, Tick(0)).expect_err("tried"), Refusal::NoneReady);
        drop(open);
        assert!(router.decide(&of_session(1), Tick(0)).is_ok());
        members[0].status.set(State::Down);
        assert_eq!(router.decide(&of_session(1), Tick(0)).expect_err("down"), Refusal::NoneReady);
        router.set_members(Vec::new());
        assert_eq!(router.decide(&of_session(1), Tick(0)).expect_err("empty"), Refusal::NoneReady);
    }
}
