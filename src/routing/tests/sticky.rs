//! `session_sticky`: who keeps its replica, who moves, and when that is remembered.
use super::*;

fn find<'a>(members: &'a [Member], id: &str) -> &'a Member {
    members.iter().find(|member| &*member.id == id).expect("a member")
}

#[test]
fn a_binding_is_written_only_on_success() {
    let mut router = router(sticky(), &fleet(&[1; 4]));
    let failed = router.decide(&of_session(1), Tick(0)).unwrap();
    assert_eq!((router.bindings(), failed.reason), (0, Reason::Hashed));
    drop(failed);
    let plan = router.decide(&of_session(1), Tick(0)).unwrap();
    assert_eq!((router.bindings(), plan.reason), (0, Reason::Hashed), "a failed attempt leaves no binding");
    router.apply(plan.on_success.as_ref().expect("to be bound"), Tick(0));
    assert_eq!(router.bindings(), 1);
    let again = router.decide(&of_session(1), Tick(0)).unwrap();
    assert_eq!((again.leg.replica, again.reason, again.on_success), (plan.leg.replica, Reason::Bound, None));
}

#[test]
fn a_binding_wins_over_hash_and_load() {
    let members = fleet(&[1; 4]);
    let mut router = router(sticky(), &members);
    let hashed = router.decide(&of_session(1), Tick(0)).unwrap().leg.replica;
    let other = members.iter().find(|member| member.id != hashed).unwrap();
    let effect = Effect::Bound { session: SessionKey(1), replica: other.id.clone(), incarnation: 1, prompt: None };
    router.apply(&effect, Tick(0));
    let _busy: Vec<_> = (0..100).map(|_| other.load.reserve(1, None).unwrap()).collect();
    assert_eq!(succeed(&mut router, &of_session(1), Tick(0)), (other.id.clone(), Reason::Bound));
}

/// LiteLLM #28427: an affinity that expires while the session is in use.
#[test]
fn a_use_makes_a_binding_young_again() {
    let minutes = |n: u64| Tick(n * 60 * SECOND);
    let mut router = router(sticky(), &fleet(&[1; 4]));
    succeed(&mut router, &of_session(1), minutes(0));
    for n in 1..10 {
        assert_eq!(succeed(&mut router, &of_session(1), minutes(n * 29)).1, Reason::Bound);
    }
    assert_eq!(succeed(&mut router, &of_session(1), minutes(9 * 29 + 30)).1, Reason::Hashed, "unused for the ttl");
}

#[test]
fn bindings_are_bounded_and_the_least_recently_used_goes_first() {
    let session = Session { max_bindings: 3, ..Session::default() };
    let mut router = Router::new(&settings(&sticky(), &session), fleet(&[1; 4]), 0);
    for key in [1, 2, 3, 1, 4] {
        succeed(&mut router, &of_session(key), Tick(0));
        assert!(router.bindings() <= 3);
    }
    let mut reason = |key| router.decide(&of_session(key), Tick(0)).unwrap().reason;
    assert_eq!([1, 2, 3, 4].map(&mut reason), [Reason::Bound, Reason::Hashed, Reason::Bound, Reason::Bound]);
}

/// How a replica leaves and returns.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Down,
    Removed,
}

fn share_moved(n: usize, sessions: u128, loss: Loss) -> f64 {
    let members = fleet(&vec![1; n]);
    let mut router = router(sticky(), &members);
    let turn = |router: &mut Router| -> Vec<Arc<str>> {
        (0..sessions).map(|key| succeed(router, &of_session(key), Tick(0)).0).collect()
    };
    let before = turn(&mut router);
    let lost = n / 2;
    match loss {
        Loss::Down => drop(members[lost].status.set(State::Down)),
        Loss::Removed => {
            let mut rest = members.clone();
            rest.remove(lost);
            router.set_members(rest);
        }
    }
    let during = turn(&mut router);
    match loss {
        Loss::Down => drop(members[lost].status.set(State::Warming)),
        Loss::Removed => {
            let mut reborn = members.clone();
            reborn[lost].incarnation = 2;
            router.set_members(reborn);
        }
    }
    let after = turn(&mut router);
    for ((before, during), after) in before.iter().zip(&during).zip(&after) {
        assert_eq!(before != during, *before == members[lost].id, "only the lost replica's sessions move");
        assert_eq!(during, after, "and they are not moved back");
    }
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    moved as f64 / sessions as f64
}

#[test]
fn at_most_a_fair_share_of_sessions_moves_when_one_replica_leaves_and_returns() {
    for n in 3..=16 {
        let loss = if n % 2 == 0 { Loss::Down } else { Loss::Removed };
        let moved = share_moved(n, 20_000, loss);
        assert!(moved <= 1.0 / n as f64 + 0.02, "{n} replicas, {loss:?}: {moved}");
    }
}

#[test]
fn draining_keeps_bound_sessions_and_takes_no_new_ones() {
    let members = fleet(&[1; 3]);
    let mut router = router(sticky(), &members);
    let homes: Vec<_> = (0..60).map(|key| succeed(&mut router, &of_session(key), Tick(0)).0).collect();
    members[1].status.set(State::Draining);
    for key in 0..60 {
        assert_eq!(succeed(&mut router, &of_session(key), Tick(0)), (homes[key as usize].clone(), Reason::Bound));
    }
    for key in 100..300 {
        assert_ne!(succeed(&mut router, &of_session(key), Tick(0)).0, members[1].id);
    }
    for request in [Request::default(), Request { load_only: true, ..of_session(0) }] {
        assert!((0..50).all(|_| router.decide(&request, Tick(0)).unwrap().leg.replica != members[1].id));
    }
}

#[test]
fn a_full_replica_keeps_its_sessions() {
    let mut members = fleet(&[1; 3]);
    for member in &mut members {
        member.max_in_flight = Some(1);
    }
    let mut router = router(sticky(), &members);
    let home = succeed(&mut router, &of_session(1), Tick(0)).0;
    let busy = find(&members, &home).load.reserve(1, None);
    let plan = router.decide(&of_session(1), Tick(0)).unwrap();
    assert_ne!(plan.leg.replica, home);
    assert_eq!((plan.reason, plan.on_success), (Reason::HashOverflow, None), "the binding stays");
    drop(busy);
    assert_eq!(succeed(&mut router, &of_session(1), Tick(0)), (home, Reason::Bound));
}

#[test]
fn a_session_bound_to_a_full_draining_replica_is_told_to_wait() {
    let mut members = fleet(&[1]);
    members[0].max_in_flight = Some(1);
    let mut router = router(sticky(), &members);
    succeed(&mut router, &of_session(1), Tick(0));
    members[0].status.set(State::Draining);
    let _busy = members[0].load.reserve(1, None);
    assert_eq!(router.decide(&of_session(1), Tick(0)).unwrap_err(), Refusal::AllFull);
    assert_eq!(router.decide(&of_session(2), Tick(0)).unwrap_err(), Refusal::NoneReady);
}

#[test]
fn a_session_whose_replica_failed_an_attempt_is_bound_to_the_one_that_served_it() {
    let mut router = router(sticky(), &fleet(&[1; 4]));
    let home = succeed(&mut router, &of_session(1), Tick(0)).0;
    let tried = [home.clone()];
    let (moved, reason) = succeed(&mut router, &Request { tried: &tried, ..of_session(1) }, Tick(0));
    assert_ne!(moved, home);
    assert_eq!(reason, Reason::Hashed);
    assert_eq!(succeed(&mut router, &of_session(1), Tick(0)), (moved, Reason::Bound));
}

/// Kthena #1243 and others: entries that outlive a restarted pod.
#[test]
fn a_binding_to_an_earlier_life_still_names_the_replica_and_is_rewritten() {
    let mut members = fleet(&[1; 4]);
    let mut router = router(sticky(), &members);
    let home = succeed(&mut router, &of_session(1), Tick(0)).0;
    for member in &mut members {
        member.incarnation = 2;
    }
    router.set_members(members);
    let plan = router.decide(&of_session(1), Tick(0)).unwrap();
    assert_eq!((&plan.leg.replica, plan.reason), (&home, Reason::Bound));
    let rewritten = Effect::Bound { session: SessionKey(1), replica: home, incarnation: 2, prompt: None };
    assert_eq!(plan.on_success.as_ref(), Some(&rewritten));
    router.apply(&rewritten, Tick(0));
    assert_eq!(router.decide(&of_session(1), Tick(0)).unwrap().on_success, None);
}

#[test]
fn no_key_is_counted_by_reason_and_binds_nothing() {
    let members = fleet(&[1; 8]);
    let mut router = router(sticky(), &members);
    let open: Vec<_> = (0..64).map(|_| router.decide(&Request::default(), Tick(0)).unwrap()).collect();
    assert!(open.iter().all(|plan| plan.reason == Reason::NoKey && plan.on_success.is_none()));
    assert!(members.iter().all(|member| member.load.requests() > 4), "spread, not sent to a constant's place");
}

#[test]
fn requests_by_load_only_neither_read_nor_write_bindings() {
    let minutes = |n: u64| Tick(n * 60 * SECOND);
    let members = fleet(&[1; 2]);
    let mut router = router(sticky(), &members);
    let home = succeed(&mut router, &of_session(1), minutes(0)).0;
    let _busy = find(&members, &home).load.reserve(1, None);
    for key in [1, 2] {
        let plan = router.decide(&Request { load_only: true, ..of_session(key) }, minutes(20)).unwrap();
        assert_ne!(plan.leg.replica, home);
        assert_eq!((plan.reason, plan.on_success), (Reason::PowerOfTwo, None));
    }
    assert_eq!(router.decide(&of_session(1), minutes(30)).unwrap().reason, Reason::Hashed, "not made young again");
}

#[test]
fn a_pinned_replica_is_taken_while_it_can_be() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_prefix()]) {
        let mut members = fleet(&[1; 4]);
        members[3].max_in_flight = Some(1);
        let mut router = router(policy, &members);
        let pinned = Request { pinned: Some("replica-3"), ..of_session(1) };
        for state in [State::Ready, State::Warming, State::Draining] {
            members[3].status.set(state);
            let plan = router.decide(&pinned, Tick(0)).unwrap();
            assert_eq!((&*plan.leg.replica, plan.reason), ("replica-3", Reason::Stored));
            assert_eq!(router.decide(&pinned, Tick(0)).unwrap_err(), Refusal::AllFull, "no other has the state");
        }
        members[3].status.set(State::Down);
        let only = Request { pinned_only: true, ..pinned.clone() };
        assert_eq!(router.decide(&only, Tick(0)).unwrap_err(), Refusal::NoneReady);
        let plan = router.decide(&pinned, Tick(0)).unwrap();
        assert!(&*plan.leg.replica != "replica-3" && plan.reason != Reason::Stored);
        let unknown = router.decide(&Request { pinned: Some("nobody"), ..of_session(1) }, Tick(0)).unwrap();
        assert_ne!(unknown.reason, Reason::Stored);
    }
}

#[test]
fn a_request_for_the_state_of_a_full_draining_replica_is_told_to_wait() {
    let mut members = fleet(&[1]);
    members[0].max_in_flight = Some(1);
    members[0].status.set(State::Draining);
    let mut router = router(sticky(), &members);
    let pinned = Request { pinned: Some("replica-0"), ..Request::default() };
    let _open = router.decide(&pinned, Tick(0)).unwrap();
    assert_eq!(router.decide(&pinned, Tick(0)).unwrap_err(), Refusal::AllFull);
}

#[test]
fn stored_state_binds_a_session_that_has_no_home_and_moves_none() {
    let members = fleet(&[1; 4]);
    let mut router = router(sticky(), &members);
    let hashed = router.decide(&of_session(1), Tick(0)).unwrap().leg.replica;
    let other = members.iter().find(|member| member.id != hashed).unwrap();
    let pinned = Request { pinned: Some(&*other.id), ..of_session(1) };
    other.status.set(State::Draining);
    assert_eq!(router.decide(&pinned, Tick(0)).unwrap().on_success, None, "no new session while draining");
    other.status.set(State::Ready);
    succeed(&mut router, &pinned, Tick(0));
    assert_eq!(succeed(&mut router, &of_session(1), Tick(0)), (other.id.clone(), Reason::Bound));
    let elsewhere = Request { pinned: Some(&*hashed), ..of_session(1) };
    assert_eq!(succeed(&mut router, &elsewhere, Tick(0)), (hashed, Reason::Stored));
    assert_eq!(succeed(&mut router, &of_session(1), Tick(0)), (other.id.clone(), Reason::Bound));
}

#[test]
fn other_policies_keep_no_bindings() {
    let mut router = router(Policy::LeastLoad, &fleet(&[1; 2]));
    let effect = Effect::Bound { session: SessionKey(1), replica: "replica-0".into(), incarnation: 1, prompt: None };
    router.apply(&effect, Tick(0));
    assert_eq!((router.bindings(), router.decide(&of_session(1), Tick(0)).unwrap().on_success), (0, None));
}

#[test]
fn a_binding_to_an_unknown_replica_is_not_taken_over() {
    let mut router = router(sticky(), &fleet(&[1; 2]));
    let (home, _) = succeed(&mut router, &of_session(1), Tick(0));
    let effect = Effect::Bound { session: SessionKey(1), replica: "nobody".into(), incarnation: 1, prompt: None };
    router.apply(&effect, Tick(0));
    assert_eq!(succeed(&mut router, &of_session(1), Tick(0)), (home, Reason::Bound));
}

#[test]
fn bindings_outlive_a_change_of_policy_and_of_bounds() {
    let members = fleet(&[1; 4]);
    let mut router = router(sticky(), &members);
    let homes: Vec<_> = (0..20).map(|key| succeed(&mut router, &of_session(key), Tick(0)).0).collect();

    // Away and back: what load decides in between is not bound, and the bindings are still there.
    router.reconfigure(&settings(&Policy::RoundRobin, &Session::default()));
    assert_eq!(succeed(&mut router, &of_session(0), Tick(1)).1, Reason::RoundRobin);
    router.reconfigure(&settings(&sticky(), &Session::default()));
    for (key, home) in homes.iter().enumerate() {
        assert_eq!(succeed(&mut router, &of_session(key as u128), Tick(2)), (home.clone(), Reason::Bound));
    }

    // A smaller table keeps the most recently used; a shorter life counts from the last use.
    router.reconfigure(&settings(&sticky(), &Session { max_bindings: 5, ..Session::default() }));
    assert_eq!(router.bindings(), 5);
    assert_eq!(succeed(&mut router, &of_session(19), Tick(3)).1, Reason::Bound);
    router.reconfigure(&settings(&sticky(), &Session { ttl: std::time::Duration::from_secs(1), ..Session::default() }));
    assert_eq!(succeed(&mut router, &of_session(19), Tick(3 + SECOND)).1, Reason::Hashed);
}
