//! Who gets how much under policies that look at load alone.
use proptest::prelude::*;

use super::*;

fn count(counts: &HashMap<Arc<str>, usize>, at: usize) -> usize {
    counts.get(format!("replica-{at}").as_str()).copied().unwrap_or(0)
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn round_robin_honours_weights_exactly_over_a_cycle(weights in prop::collection::vec(1..10_u32, 1..7), seed: u64) {
        let members = fleet(&weights);
        let mut router = Router::new(&settings(&Policy::RoundRobin, &Session::default()), members, seed);
        let cycle = weights.iter().sum::<u32>() as usize;
        for _ in 0..3 {
            let counts = spread(&mut router, cycle, Tick(0));
            for (at, &weight) in weights.iter().enumerate() {
                assert_eq!(count(&counts, at), weight as usize);
            }
        }
    }

    #[test]
    fn round_robin_without_one_keeps_the_others_shares(weights in prop::collection::vec(1..10_u32, 2..7), late in 0..20_usize) {
        let members = fleet(&weights);
        let mut router = router(Policy::RoundRobin, &members);
        spread(&mut router, late, Tick(0));
        members[0].status.set(State::Down);
        let cycle = weights[1..].iter().sum::<u32>() as usize;
        let counts = spread(&mut router, 10 * cycle, Tick(0));
        assert_eq!(count(&counts, 0), 0);
        for (at, &weight) in weights.iter().enumerate().skip(1) {
            assert!(count(&counts, at).abs_diff(10 * weight as usize) <= 1, "{counts:?}");
        }
        members[0].status.set(State::Ready);
        let counts = spread(&mut router, cycle + weights[0] as usize, Tick(0));
        assert!(count(&counts, 0) <= weights[0] as usize + 1, "it does not catch up: {counts:?}");
    }
}

#[test]
fn round_robin_spreads_a_heavy_replicas_turns_out() {
    let mut router = router(Policy::RoundRobin, &fleet(&[4, 1, 1]));
    let order: Vec<_> = (0..12).map(|_| router.decide(&Request::default(), Tick(0)).unwrap().leg.replica).collect();
    let longest = order.chunk_by(|a, b| a == b).map(<[_]>::len).max();
    assert!(longest < Some(4), "its four turns are not taken in a row: {order:?}");
}

#[test]
fn ties_never_favour_a_position() {
    for policy in LOAD_POLICIES.into_iter().chain([by_cost()]) {
        for seed in 0..4 {
            let mut router = Router::new(&settings(&policy, &Session::default()), fleet(&[1; 16]), seed);
            let counts = spread(&mut router, 16 * 200, Tick(0));
            let tolerance = match policy {
                Policy::RoundRobin | Policy::LeastLoad | Policy::LeastCost(_) => 0,
                Policy::PowerOfTwo => 20,
                // Binomial: 200 ± 14; four of those.
                _ => 56,
            };
            for at in 0..16 {
                assert!(count(&counts, at).abs_diff(200) <= tolerance, "{policy:?}, seed {seed}: {counts:?}");
            }
        }
    }
}

#[test]
fn a_burst_on_idle_replicas_takes_each_once() {
    for policy in [Policy::RoundRobin, Policy::LeastLoad] {
        let members = fleet(&[1; 16]);
        let mut router = router(policy, &members);
        let open: Vec<_> = (0..16).map(|_| router.decide(&Request::default(), Tick(0)).unwrap()).collect();
        assert!(members.iter().all(|member| member.load.requests() == 1), "{open:?}");
    }
}

#[test]
fn routers_with_different_seeds_do_not_all_begin_with_the_same_replica() {
    for policy in [Policy::RoundRobin, Policy::LeastLoad, by_cost()] {
        let mut firsts = HashMap::<_, usize>::new();
        for seed in 0..8 {
            let mut router = Router::new(&settings(&policy, &Session::default()), fleet(&[1; 4]), seed);
            *firsts.entry(router.decide(&Request::default(), Tick(0)).unwrap().leg.replica).or_default() += 1;
        }
        assert_eq!(firsts.values().collect::<Vec<_>>(), [&2; 4]);
    }
}

#[test]
fn idle_replicas_get_their_weights_share() {
    let weights = [1, 2, 5];
    for policy in LOAD_POLICIES {
        let mut router = router(policy.clone(), &fleet(&weights));
        let counts = spread(&mut router, 8_000, Tick(0));
        for (at, weight) in weights.into_iter().enumerate() {
            let share = count(&counts, at) as f64 / 8_000.0;
            // Of two draws by weight, the heavy one is in nearly each, so ties decide: near its weight, not at it.
            let tolerance = if policy == Policy::PowerOfTwo { 0.06 } else { 0.02 };
            assert!((share - f64::from(weight) / 8.0).abs() < tolerance, "{policy:?}: {counts:?}");
        }
    }
}

#[test]
fn open_requests_follow_weights() {
    for policy in [Policy::LeastLoad, Policy::RoundRobin] {
        let members = fleet(&[1, 2, 5]);
        let mut router = router(policy, &members);
        let _open: Vec<_> = (0..80).map(|_| router.decide(&Request::default(), Tick(0)).unwrap()).collect();
        let loads: Vec<_> = members.iter().map(|member| member.load.requests()).collect();
        assert_eq!(loads, [10, 20, 50]);
    }
}

#[test]
fn power_of_two_draws_two_different_ones_and_takes_the_less_loaded() {
    let members = fleet(&[1, 1]);
    let _busy = members[0].load.reserve(1, None);
    let mut router = router(Policy::PowerOfTwo, &members);
    assert_eq!(count(&spread(&mut router, 200, Tick(0)), 1), 200);
}

#[test]
fn power_of_two_never_takes_the_busiest() {
    let members = fleet(&[1; 4]);
    let _busy: Vec<_> = (0..3).map(|_| members[2].load.reserve(1, None)).collect();
    let mut router = router(Policy::PowerOfTwo, &members);
    let counts = spread(&mut router, 400, Tick(0));
    assert_eq!(count(&counts, 2), 0);
    assert!([0, 1, 3].iter().all(|&at| count(&counts, at) > 80), "{counts:?}");
}

/// A new or restarted replica must not look infinitely attractive: it has no load and no placements.
#[test]
fn a_warming_replica_ramps_from_a_tenth_to_its_whole_share() {
    for policy in [Policy::RoundRobin, Policy::LeastLoad] {
        let members = fleet(&[1, 1, 1]);
        members[2].status.set(State::Warming);
        let mut router = router(policy, &members);
        let begin = 5 * SECOND;
        let counts = spread(&mut router, 210, Tick(begin));
        assert!(count(&counts, 2).abs_diff(10) <= 1, "a tenth of a share: {counts:?}");
        spread(&mut router, 500, Tick(begin + 15 * SECOND));
        // Three windows of placements: what a whole window holds is what ties are broken by, give or take one.
        let counts = spread(&mut router, 3 * 96, Tick(begin + 15 * SECOND));
        assert!(count(&counts, 2).abs_diff(62) <= 4, "55 % of a share half-way: {counts:?}");
        spread(&mut router, 500, Tick(begin + 30 * SECOND));
        let counts = spread(&mut router, 3 * 96, Tick(begin + 90 * SECOND));
        assert!(count(&counts, 2).abs_diff(96) <= 4, "all of it after 30 s: {counts:?}");
    }
}

#[test]
fn a_burst_does_not_pile_on_a_warming_replica() {
    let members = fleet(&[1, 1]);
    members[1].status.set(State::Warming);
    let mut router = router(Policy::LeastLoad, &members);
    let _open: Vec<_> = (0..22).map(|_| router.decide(&Request::default(), Tick(0)).unwrap()).collect();
    assert_eq!(members[1].load.requests(), 2);
}

#[test]
fn a_ramp_survives_a_change_of_members_but_not_a_new_life() {
    let share = |incarnation| {
        let mut members = fleet(&[1, 1]);
        members[1].status.set(State::Warming);
        let mut router = router(Policy::RoundRobin, &members);
        spread(&mut router, 1, Tick(0));
        members.insert(0, member("new", 1));
        members[0].status.set(State::Down);
        members[2].incarnation = incarnation;
        router.set_members(members);
        count(&spread(&mut router, 200, Tick(30 * SECOND)), 1)
    };
    assert!(share(1).abs_diff(100) <= 1, "whole share: the ramp went on");
    assert!(share(2).abs_diff(18) <= 2, "1/11: the ramp began anew");
}

#[test]
fn placements_survive_a_change_of_members() {
    let mut members = fleet(&[1, 1, 1]);
    members[2].status.set(State::Down);
    let mut router = router(Policy::LeastLoad, &members);
    spread(&mut router, 30, Tick(0));
    members[2].status.set(State::Ready);
    members.reverse();
    members.push(member("new", 1));
    members[3].status.set(State::Down);
    router.set_members(members);
    let counts = spread(&mut router, 15, Tick(0));
    assert_eq!(count(&counts, 2), 15, "the others had 15 each already: {counts:?}");
}

#[test]
fn turns_survive_a_change_of_members() {
    let order = |change: bool| {
        let mut members = fleet(&[3, 1, 2]);
        let mut router = router(Policy::RoundRobin, &members);
        spread(&mut router, 4, Tick(0));
        if change {
            members.push(member("new", 1));
            members[3].status.set(State::Down);
            router.set_members(members);
        }
        (0..6).map(|_| router.decide(&Request::default(), Tick(0)).unwrap().leg.replica).collect::<Vec<_>>()
    };
    assert_eq!(order(true), order(false), "the cycle goes on where it was");
}

#[test]
fn a_replica_that_warms_again_ramps_again() {
    let members = fleet(&[1, 1]);
    let mut router = router(Policy::RoundRobin, &members);
    for begin in [0, 100 * SECOND] {
        members[1].status.set(State::Warming);
        let counts = spread(&mut router, 110, Tick(begin));
        assert!(count(&counts, 1).abs_diff(10) <= 1, "{counts:?}");
        members[1].status.set(State::Ready);
        spread(&mut router, 2, Tick(begin));
    }
}
