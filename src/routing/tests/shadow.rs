//! Routers that decide beside others, and replicas that are down yet readmitted.
use super::*;

#[test]
fn a_shadow_sees_the_loads_and_touches_none() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_prefix(), by_cost()]) {
        let members = fleet(&[1, 1, 1]);
        let mut shadow = router(policy, &members).into_shadow();
        let open: Vec<_> = (0..3).filter_map(|_| members[0].load.reserve(1, None)).collect();
        let before: Vec<_> = members.iter().map(|member| member.load.requests()).collect();
        let plans: Vec<_> = (0..50).map(|key| shadow.decide(&of_session(key), Tick(0)).expect("ready")).collect();
        assert_eq!(members.iter().map(|member| member.load.requests()).collect::<Vec<_>>(), before);
        drop((plans, open));
        assert!(members.iter().all(|member| member.load.requests() == 0));
    }
    let members = fleet(&[1, 1]);
    let mut shadow = router(Policy::LeastLoad, &members).into_shadow();
    let _open = members[0].load.reserve(1, None);
    assert!((0..9).all(|_| shadow.decide(&of_session(1), Tick(0)).expect("ready").leg.replica == members[1].id));
}

/// The policy decides first and books; a shadow that took that booking for load would never agree with itself.
#[test]
fn a_shadow_leaves_out_what_the_policy_booked_for_this_request() {
    for policy in [Policy::LeastLoad, Policy::PowerOfTwo, Policy::RoundRobin, sticky(), by_cost()] {
        let mut members = fleet(&[1, 1, 2]);
        members.iter_mut().for_each(|member| member.max_in_flight = Some(8));
        let (mut main, mut shadow) = (router(policy.clone(), &members), router(policy, &members).into_shadow());
        let mut open = Vec::new();
        for key in 0..24 {
            let plan = main.decide(&of_session(key), Tick(0)).expect("there is room");
            let request = Request { booked: Some(&plan), ..of_session(key) };
            assert_eq!(shadow.decide(&request, Tick(0)).expect("room").leg.replica, plan.leg.replica, "request {key}");
            open.push(plan);
        }
    }
}

#[test]
fn a_shadow_keeps_to_the_limits_of_the_real_loads() {
    let mut members = fleet(&[1, 1]);
    members.iter_mut().for_each(|member| member.max_in_flight = Some(1));
    let mut shadow = router(Policy::Random, &members).into_shadow();
    let _full = members[0].load.reserve(1, None);
    assert!((0..20).all(|_| shadow.decide(&of_session(1), Tick(0)).expect("ready").leg.replica == members[1].id));
    let _full = members[1].load.reserve(1, None);
    assert_eq!(shadow.decide(&of_session(1), Tick(0)).expect_err("full"), Refusal::AllFull);
}

#[test]
fn a_shadow_of_sessions_keeps_bindings_of_its_own() {
    let members = fleet(&[1, 1, 1, 1]);
    let mut shadow = router(sticky(), &members).into_shadow();
    let first = succeed(&mut shadow, &of_session(7), Tick(0));
    let again = succeed(&mut shadow, &of_session(7), Tick(1));
    assert_eq!((first.0, again.1), (again.0, Reason::Bound));
    assert_eq!(shadow.bindings(), 1);
}

#[test]
fn a_readmitted_replica_counts_as_ready_until_it_is_tried() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_prefix(), by_cost()]) {
        let members = fleet(&[1, 1]);
        for member in &members {
            member.status.set(State::Down);
        }
        let mut router = router(policy, &members);
        assert_eq!(router.decide(&of_session(1), Tick(0)).expect_err("down"), Refusal::NoneReady);
        let readmitted = [members[1].id.clone()];
        let request = Request { readmitted: &readmitted, ..of_session(1) };
        let (replica, _) = succeed(&mut router, &request, Tick(0));
        assert_eq!(replica, members[1].id);
        assert_eq!(succeed(&mut router, &request, Tick(0)).0, members[1].id, "also for a session bound there");
        let tried = Request { tried: &readmitted, ..request };
        assert_eq!(router.decide(&tried, Tick(0)).expect_err("tried"), Refusal::NoneReady);
    }
}
