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

/// No work is known of them: by that, all would go to whoever has least of the others'.
#[test]
fn requests_whose_prompt_cannot_be_read_are_dealt_evenly() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    for (at, member) in members.iter().enumerate() {
        warm(&mut router, &member.id, &[&own(at as u64, 100 + 300 * at as u32)]);
    }
    let mut counts = HashMap::<_, u32>::new();
    (0..40).for_each(|_| *counts.entry(serve(&mut router, &Request::default(), Tick(0)).0).or_default() += 1);
    assert!(counts.len() == 4 && counts.values().all(|&count| count == 10), "{counts:?}");
}

#[test]
fn the_sessions_replica_goes_first_within_two_milliseconds() {
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
        assert_ne!(&*preview(&mut router, &with_session(2, &new), Tick(0)).0, "replica-2", "most was computed there");
    }
}

#[test]
fn then_the_one_that_was_given_the_least_prefill_lately() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    // Tokens computed, not requests: the second was asked more often.
    for (member, name, tokens) in [(0, 0, 400), (1, 1, 50), (1, 2, 60), (2, 3, 300), (3, 4, 200)] {
        warm(&mut router, &members[member].id, &[&own(name, tokens)]);
    }
    // 400, 110, 300 and 200; each prompt adds 112.
    let order: Vec<_> = (10..15).map(|name| serve(&mut router, &of_prompt(&own(name, 112)), Tick(0)).0).collect();
    assert_eq!(
        order.iter().map(|id| &**id).collect::<Vec<_>>(),
        ["replica-1", "replica-3", "replica-1", "replica-2", "replica-3"]
    );
}

#[test]
fn what_was_found_is_no_work() {
    let members = fleet(&[1; 2]);
    let mut router = router_of(&members);
    let (long, longer) = (own(1, 1_600), prompt(&[(1, 1_600), (2, 160)]));
    warm(&mut router, "replica-0", &[&long]);
    warm(&mut router, "replica-1", &[&own(3, 1_700)]);
    // 160 tokens more for the first; the second computed 1,700.
    let (replica, _, matched) = serve(&mut router, &of_prompt(&longer), Tick(0));
    assert_eq!((&*replica, matched), ("replica-0", 1_600));
    assert_eq!(&*preview(&mut router, &of_prompt(&own(4, 320)), Tick(0)).0, "replica-1", "1,760 against 1,700");
}
