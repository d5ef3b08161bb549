//! What a request costs, and when a match is left.
use super::*;

#[test]
fn a_cost_is_the_price_of_its_prefill_and_what_waits_and_runs_there_for_the_weight() {
    let mut members = fleet(&[1, 2, 1, 1, 1, 1, 1, 1]);
    members[2].status.set(State::Warming);
    members[4].max_in_flight = Some(1);
    let mut router = router_of(&members);
    warm(&mut router, "replica-3", &[&own(1, 1_600)]);
    let _waits = line(&mut router, "replica-1", 500, Tick(SECOND));
    let _waits_where_it_is_full = line(&mut router, "replica-4", 501, Tick(SECOND));
    let _busy = [open(&members[1], 3), open(&members[2], 1), open(&members[4], 1)];
    let request = prompt(&[(1, 1_600), (2, 400)]);
    // Two of eight have a line, one of them full, so a second of work costs 4/3; four are open at the second. The third is
    // at a tenth of its weight.
    let cold = 2.0 * 4.0 / 3.0;
    let expected = [cold, cold + (0.5 + 4.0 * 0.0005) / 2.0, cold + 0.0005 / 0.1, 0.4 * 4.0 / 3.0];
    let found = costs(&mut router, &of_prompt(&request), Tick(SECOND));
    near(&found[..4], &expected);
    assert!(found[4].is_nan(), "it is full");
    // What is open everywhere counts for nobody.
    let _all: Vec<_> = members.iter().map(|member| open(member, 2)).collect();
    near(&costs(&mut router, &of_prompt(&request), Tick(SECOND))[..4], &expected);
}

#[test]
fn a_match_wins_until_the_line_there_is_longer_than_what_it_saves() {
    let (held, request) = (own(1, 4_000), prompt(&[(1, 4_000), (2, 100)]));
    for (waits, expected) in [(3_900, ("replica-2", Reason::Prefix)), (4_100, ("elsewhere", Reason::PrefixOverflow))] {
        let mut router = router_of(&fleet(&[1; 4]));
        warm(&mut router, "replica-2", &[&held]);
        // At the first instant of all nothing is known of how busy replicas are.
        let _waits = line(&mut router, "replica-2", waits, Tick(0));
        let (replica, reason) = preview(&mut router, &of_prompt(&request), Tick(0));
        let at = if &*replica == "replica-2" { "replica-2" } else { "elsewhere" };
        assert_eq!((at, reason), expected, "{waits} ms wait");
    }
}

#[test]
fn short_matches_count_too() {
    let mut router = router_of(&fleet(&[1; 4]));
    warm(&mut router, "replica-1", &[&own(1, 32)]);
    assert_eq!(
        preview(&mut router, &of_prompt(&prompt(&[(1, 32), (2, 4_000)])), Tick(0)),
        ("replica-1".into(), Reason::Prefix)
    );
}

#[test]
fn the_busier_the_replicas_the_longer_a_request_stays() {
    let (held, request) = (own(1, 4_000), prompt(&[(1, 4_000), (2, 100)]));
    // 4 s of work cost 5.3 s while one of four is busy, and 16 s while three are.
    for (others, waits, stays) in [(0, 5_200, true), (0, 8_000, false), (2, 8_000, true), (2, 16_200, false)] {
        let now = Tick(SECOND);
        let mut router = router_of(&fleet(&[1; 4]));
        warm(&mut router, "replica-0", &[&held]);
        let _waits = line(&mut router, "replica-0", waits, now);
        let _others: Vec<_> =
            (1..=others).map(|at| line(&mut router, &format!("replica-{at}"), 500 + at, now)).collect();
        let (replica, reason) = preview(&mut router, &of_prompt(&request), now);
        let expected = if stays { ("replica-0", Reason::Prefix) } else { ("replica-3", Reason::PrefixOverflow) };
        // While one is busy, three are equal.
        let idle = others == 0 && !stays;
        assert!((idle || *replica == *expected.0) && reason == expected.1, "{others} {waits}: {replica} {reason:?}");
    }
}

#[test]
fn a_replica_is_taken_to_hold_the_answer_that_it_wrote_and_is_told_to_match_what_is_known() {
    let asked = prompt(&[(1, 1_600), (2, 400)]);
    let mut next = (*prompt(&[(1, 1_600), (2, 400), (3, 600), (4, 400)])).clone();
    next.answer = Some((1_900, 2_600));
    let next = Arc::new(next);
    let members = fleet(&[1; 3]);
    let mut router = router_of(&members);
    warm(&mut router, "replica-1", &[&asked]);
    warm(&mut router, "replica-2", &[&own(1, 1_600)]);
    let before = costs(&mut router, &of_prompt(&next), Tick(0));
    // Whole blocks of the answer: 162. Who holds less than what is before it has not written it.
    near(&before, &[3.0, 3.0 - 2.592, 3.0 - 1.6]);
    let plan = router.decide(&Request { explain: true, ..of_prompt(&next) }, Tick(0)).expect("ready");
    assert_eq!((&*plan.leg.replica, plan.reason, plan.matched), ("replica-1", Reason::Prefix, 2_000));
    assert_eq!(plan.scores.iter().map(|score| score.matched).collect::<Vec<_>>(), [0, 2_000, 1_600]);
    assert_eq!(members[1].load.queued_seconds(Tick(0)), 0.408, "its line is as long as it is taken to be");
}

#[test]
fn a_full_replica_is_passed_over_for_the_next() {
    let mut members = fleet(&[1; 3]);
    members[0].max_in_flight = Some(1);
    let (longest, shorter) = (prompt(&[(1, 2_000), (2, 2_000)]), own(1, 2_000));
    let mut router = router_of(&members);
    warm(&mut router, "replica-0", &[&longest]);
    warm(&mut router, "replica-1", &[&shorter]);
    assert_eq!(preview(&mut router, &of_prompt(&longest), Tick(0)), ("replica-0".into(), Reason::Prefix));
    let _full = open(&members[0], 1);
    assert_eq!(serve(&mut router, &of_prompt(&longest), Tick(0)), ("replica-1".into(), Reason::PrefixOverflow, 2_000));
    members.iter_mut().for_each(|member| member.max_in_flight = Some(0));
    router.set_members(members);
    assert_eq!(router.decide(&of_prompt(&longest), Tick(0)).expect_err("no room"), Refusal::AllFull);
}

#[test]
fn requests_by_load_only_take_who_has_fewest_open_and_leave_nothing() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    let _busy: Vec<_> =
        [2, 1, 0, 1].into_iter().zip(&members).map(|(requests, member)| open(member, requests)).collect();
    let same = own(1, 3_000);
    let request = Request { load_only: true, explain: true, ..with_session(1, &same) };
    let plan = router.decide(&request, Tick(0)).expect("ready");
    assert_eq!((&*plan.leg.replica, plan.reason, plan.matched), ("replica-2", Reason::LeastLoad, 0));
    assert!(plan.on_success.is_none() && plan.expectation.is_none());
    assert!(plan.scores.iter().all(|score| score.cost_seconds.is_none()), "it has no cost");
    assert_eq!(plan.scores.iter().map(|score| score.load).collect::<Vec<_>>(), [2.0, 1.0, 0.0, 1.0]);
    assert!(router.index_stats().expect("an index").pairs == 0);
    assert!(members.iter().all(|member| member.load.queued_seconds(Tick(0)) == 0.0));
}

#[test]
fn request_cost_is_what_one_more_open_request_costs() {
    for (request_cost, expected) in [(0.0005, "replica-0"), (0.5, "replica-1")] {
        let policy = Policy::LeastCost(LeastCost { request_cost });
        let members = fleet(&[1; 2]);
        let mut router = Router::new(&settings(&policy, &Session::default()), members.clone(), 0);
        let held = own(1, 2_000);
        warm(&mut router, "replica-0", &[&held]);
        let _busy = open(&members[0], 5);
        assert_eq!(&*preview(&mut router, &of_prompt(&held), Tick(0)).0, expected);
    }
}

/// What a preview sees of the replicas it must not remember: the next decision would pay another price.
#[test]
fn previews_and_shadows_do_not_make_work_dearer() {
    let members = fleet(&[1; 4]);
    let [mut router, mut untouched] = [0; 2].map(|_| router_of(&members));
    let mut shadow = router_of(&members).into_shadow();
    let _busy: Vec<_> = (0..3).map(|at| line(&mut untouched, &format!("replica-{at}"), 60_000, Tick(SECOND))).collect();
    let request = own(1, 1_000);
    for second in 1..30 {
        let now = Tick(second * SECOND);
        let _ = (preview(&mut router, &of_prompt(&request), now), shadow.decide(&of_prompt(&request), now));
    }
    let now = Tick(200 * SECOND);
    assert_eq!(costs(&mut router, &of_prompt(&request), now), costs(&mut untouched, &of_prompt(&request), now));
    let queued = members.iter().map(|member| member.load.queued_seconds(Tick(SECOND))).sum::<f64>();
    assert!((queued - 180.0).abs() < 1e-6, "a shadow has no line: {queued}");
}
