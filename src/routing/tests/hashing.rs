//! Rendezvous hashing, seen through `header_hash` and unbound sessions.
use proptest::prelude::*;

use super::*;

fn place(router: &mut Router, key: u64) -> Arc<str> {
    router.decide(&of_header(key), Tick(0)).expect("ready").leg.replica
}

#[test]
fn rendezvous_respects_weights() {
    let weights = [1, 2, 5, 2];
    let mut router = router(header_hash(), &fleet(&weights));
    let mut counts = HashMap::<Arc<str>, u32>::new();
    for key in 0..20_000 {
        *counts.entry(place(&mut router, key)).or_default() += 1;
    }
    for (at, weight) in weights.into_iter().enumerate() {
        let share = f64::from(counts[format!("replica-{at}").as_str()]) / 20_000.0;
        assert!((share - f64::from(weight) / 10.0).abs() < 0.02, "{counts:?}");
    }
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn routers_with_the_same_replicas_place_new_keys_alike(
        weights in prop::collection::vec(1..4_u32, 1..9),
        turn in 0..9_usize,
        seeds: (u64, u64),
        keys in prop::collection::vec(any::<u128>(), 50),
    ) {
        let mut members = fleet(&weights);
        for policy in [sticky(), header_hash()] {
            let mut one = Router::new(&settings(&policy, &Session::default()), members.clone(), seeds.0);
            members.rotate_left(turn % weights.len());
            let mut other = Router::new(&settings(&policy, &Session::default()), members.clone(), seeds.1);
            spread(&mut other, turn, Tick(0));
            for &key in &keys {
                let request = Request { header: Some(key as u64), ..of_session(key) };
                let (a, b) = (one.decide(&request, Tick(0)).unwrap(), other.decide(&request, Tick(0)).unwrap());
                assert_eq!((a.leg.replica, a.reason), (b.leg.replica, Reason::Hashed));
            }
        }
    }
}

/// Routers of different releases run side by side during an upgrade: the hash is part of the contract.
#[test]
fn placement_is_the_same_in_every_release() {
    let mut plain = router(header_hash(), &fleet(&[1; 8]));
    let mut weighted = router(header_hash(), &fleet(&[1, 2, 3, 4, 5, 6, 7, 8]));
    let places = |router: &mut Router| (0..12).map(|key| place(router, key)[8..].to_owned()).collect::<String>();
    assert_eq!((places(&mut plain).as_str(), places(&mut weighted).as_str()), ("267671522634", "267671522664"));
}

#[test]
fn only_a_lost_replicas_keys_move_and_they_come_back() {
    for weights in [&[1, 1, 1, 1, 1][..], &[1, 2, 3, 1, 1]] {
        let members = fleet(weights);
        let mut router = router(header_hash(), &members);
        let before: Vec<_> = (0..3_000).map(|key| place(&mut router, key)).collect();
        members[1].status.set(State::Down);
        for key in 0..3_000 {
            let now = place(&mut router, key);
            assert_eq!(now == before[key as usize], before[key as usize] != members[1].id);
        }
        members[1].status.set(State::Ready);
        assert!((0..3_000).all(|key| place(&mut router, key) == before[key as usize]));
    }
}

/// Equal weights skip the logarithm: one that is heavier, and joins, must take keys but not shuffle the others.
#[test]
fn a_heavier_newcomer_takes_only_its_own_keys() {
    let mut members = fleet(&[1; 5]);
    let mut router = router(header_hash(), &members);
    let before: Vec<_> = (0..3_000).map(|key| place(&mut router, key)).collect();
    members.push(member("heavy", 5));
    router.set_members(members);
    let moved = (0..3_000).filter(|&key| {
        let now = place(&mut router, key);
        assert!(now == before[key as usize] || &*now == "heavy");
        now != before[key as usize]
    });
    assert!(moved.count().abs_diff(1_500) < 90);
}

#[test]
fn a_warming_replica_keeps_its_share_of_the_hash() {
    let members = fleet(&[1; 4]);
    let mut router = router(header_hash(), &members);
    let before: Vec<_> = (0..200).map(|key| place(&mut router, key)).collect();
    members[2].status.set(State::Warming);
    assert!((0..200).all(|key| place(&mut router, key) == before[key as usize]));
}

/// sglang #33625: a hash without a load bound; a pure ratio fires on noise.
#[test]
fn an_overloaded_first_choice_is_left_only_beyond_both_ratio_and_gap() {
    // Open on the first choice and on each of three others; weight of all; whether it is left.
    let cases = [
        (7, 0, 1, false),    // 4 × the mean, but a gap of 5.25
        (11, 0, 1, true),    // 4 × the mean, and a gap of 8.25
        (10, 0, 1, false),   // 4 × the mean, and a gap of 7.5
        (100, 80, 1, false), // a gap of 15, but 1.18 × the mean
        (100, 70, 1, true),  // a gap of 22.5, and 1.29 × the mean
        (11, 0, 50, true),   // ratio and gap are in requests, whatever the weights' unit
        (10, 0, 50, false),
    ];
    for (first_open, others_open, weight, left) in cases {
        for policy in [header_hash(), sticky()] {
            let members = fleet(&[weight; 4]);
            let mut router = router(policy, &members);
            let request = Request { header: Some(5), ..of_session(5) };
            let first = router.decide(&request, Tick(0)).unwrap().leg.replica;
            let of = |id: &str| members.iter().find(|member| &*member.id == id).unwrap();
            of(&first).status.set(State::Down);
            let next = router.decide(&request, Tick(0)).unwrap().leg.replica;
            of(&first).status.set(State::Ready);
            let open = |member: &Member| if member.id == first { first_open } else { others_open };
            let _open: Vec<_> = members
                .iter()
                .flat_map(|member| (0..open(member)).map(|_| member.load.reserve(1, None).unwrap()))
                .collect();
            let plan = router.decide(&request, Tick(0)).unwrap();
            let expected = if left { (&next, Reason::HashOverflow) } else { (&first, Reason::Hashed) };
            assert_eq!((&plan.leg.replica, plan.reason), expected, "{first_open} against {others_open}");
        }
    }
}

#[test]
fn the_overflow_passes_over_each_overloaded_replica() {
    let members = fleet(&[1; 4]);
    let mut router = router(header_hash(), &members);
    // The order of this key, found by taking its first choices away one by one.
    let mut order = Vec::new();
    while let Ok(plan) = router.decide(&of_header(9), Tick(0)) {
        members.iter().find(|member| member.id == plan.leg.replica).unwrap().status.set(State::Down);
        order.push(plan.leg.replica.clone());
    }
    let mut open = Vec::new();
    for member in &members {
        member.status.set(State::Ready);
        let busy = if order[..2].contains(&member.id) { 40 } else { 0 };
        open.extend((0..busy).map(|_| member.load.reserve(1, None).unwrap()));
    }
    let plan = router.decide(&of_header(9), Tick(0)).unwrap();
    assert_eq!((&plan.leg.replica, plan.reason), (&order[2], Reason::HashOverflow));
}

#[test]
fn a_full_first_choice_overflows_to_the_next() {
    let mut members = fleet(&[1; 3]);
    for member in &mut members {
        member.max_in_flight = Some(1);
    }
    let mut router = router(header_hash(), &members);
    let plans: Vec<_> = (0..3).map(|_| router.decide(&of_header(2), Tick(0)).unwrap()).collect();
    let reasons: Vec<_> = plans.iter().map(|plan| plan.reason).collect();
    assert_eq!(reasons, [Reason::Hashed, Reason::HashOverflow, Reason::HashOverflow]);
    assert!(members.iter().all(|member| member.load.requests() == 1));
}

#[test]
fn a_request_without_the_header_goes_by_load_and_says_so() {
    let members = fleet(&[1; 4]);
    let affinity = Affinity { fallback: LoadPolicy::LeastLoad, ..Affinity::default() };
    let header = http::HeaderName::from_static("x-user");
    let mut router = router(Policy::HeaderHash { header, affinity }, &members);
    let plans: Vec<_> = (0..4).map(|_| router.decide(&of_session(1), Tick(0)).unwrap()).collect();
    assert!(plans.iter().all(|plan| plan.reason == Reason::NoKey && plan.on_success.is_none()));
    assert!(members.iter().all(|member| member.load.requests() == 1), "never a constant key");
}
