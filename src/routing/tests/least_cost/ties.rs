//! Who takes it where costs are the same.
use super::*;

#[test]
fn an_idle_empty_fleet_is_dealt_evenly_from_wherever_it_begins() {
    let mut firsts = HashMap::<_, usize>::new();
    for seed in 0..8 {
        let mut router = Router::new(&settings(&by_cost(), &Session::default()), fleet(&[1; 8]), seed);
        let mut counts = HashMap::<_, u32>::new();
        for name in 0..80 {
            let prompt = own(name, 1_000);
            let (replica, reason, _) = serve(&mut router, &of_prompt(&prompt), Tick(name * SECOND));
            assert_eq!(reason, Reason::NoMatch);
            if name == 0 {
                *firsts.entry(replica.clone()).or_default() += 1;
            }
            *counts.entry(replica).or_default() += 1;
        }
        assert!(counts.len() == 8 && counts.values().all(|&count| count == 10), "{counts:?}");
    }
    assert!(firsts.len() == 8, "{firsts:?}");
}

/// Prompts that can't be read, or are shorter than a block, take no room: without turns, all would go to whoever has most.
#[test]
fn requests_that_need_no_room_take_turns() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    for (at, member) in members.iter().enumerate() {
        warm(&mut router, &member.id, &[&own(at as u64, 100 + 300 * at as u32)]);
    }
    let hello = own(99, 9);
    for request in [Request::default(), of_prompt(&hello)] {
        let mut counts = HashMap::<_, u32>::new();
        (0..40).for_each(|_| *counts.entry(serve(&mut router, &request, Tick(0)).0).or_default() += 1);
        assert!(counts.len() == 4 && counts.values().all(|&count| count == 10), "{counts:?}");
    }
}

#[test]
fn the_sessions_replica_goes_before_room_within_two_milliseconds() {
    for (requests, stays) in [(3, true), (5, false)] {
        let members = fleet(&[1; 4]);
        let mut router = router_of(&members);
        warm(&mut router, "replica-2", &[&own(8, 3_000)]);
        let bind = Effect::Bound { session: SessionKey(1), replica: "replica-2".into(), incarnation: 1, prompt: None };
        router.apply(&bind, Tick(0));
        let _busy = open(&members[2], requests);
        let new = own(1, 2_000);
        let (replica, reason) = preview(&mut router, &with_session(1, &new), Tick(0));
        assert_eq!((&*replica == "replica-2", reason), (stays, Reason::NoMatch), "{requests} are open there");
        assert_ne!(&*preview(&mut router, &with_session(2, &new), Tick(0)).0, "replica-2", "it has least room");
    }
}

#[test]
fn then_the_one_with_most_room() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    for (at, tokens) in [400, 100, 300, 200].into_iter().enumerate() {
        warm(&mut router, &members[at].id, &[&own(at as u64, tokens)]);
    }
    // In blocks they hold 25, 6, 18 and 12; each prompt takes 7.
    let order: Vec<_> = (10..14).map(|name| serve(&mut router, &of_prompt(&own(name, 112)), Tick(0)).0).collect();
    assert_eq!(order.iter().map(|id| &**id).collect::<Vec<_>>(), ["replica-1", "replica-3", "replica-1", "replica-2"]);
}

#[test]
fn of_full_ones_the_one_whose_oldest_prefix_was_not_used_for_longest() {
    let mut members = fleet(&[1; 4]);
    members.iter_mut().for_each(|member| member.cache_tokens = 1_600);
    let mut router = router_of(&members);
    for at in [2, 0, 3, 1] {
        warm(&mut router, &members[at].id, &[&own(at as u64, 1_600)]);
    }
    // Used again, the oldest is the youngest.
    warm(&mut router, "replica-2", &[&own(2, 1_600)]);
    let order: Vec<_> = (10..14).map(|name| serve(&mut router, &of_prompt(&own(name, 1_600)), Tick(0)).0).collect();
    assert_eq!(order.iter().map(|id| &**id).collect::<Vec<_>>(), ["replica-0", "replica-3", "replica-1", "replica-2"]);
}
