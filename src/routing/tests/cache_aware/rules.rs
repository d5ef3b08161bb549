//! The table of cases, row by row, and what each kind of request leaves behind.
use std::time::Duration;

use super::*;

#[test]
fn the_longest_match_wins_from_min_match_tokens_on() {
    for (tokens, found) in [(1_024, true), (1_023, false)] {
        let members = fleet(&[1; 4]);
        let mut router = router_of(cache_aware(), &members, 0);
        let long = prompt(&[(1, tokens), (2, 500)]);
        warm(&mut router, "replica-2", &[&prompt(&[(1, tokens), (3, 500)])]);
        let _busy = open(&members[2], 2);
        let (replica, reason, matched) = serve(&mut router, &of_prompt(&long), Tick(0));
        assert_eq!((&*replica == "replica-2", reason == Reason::Prefix), (found, found), "{tokens}: {reason:?}");
        assert_eq!(matched, if found { 1_024 } else { 0 });
    }
}

#[test]
fn the_last_token_is_never_matched() {
    let mut router = router_of(cache_aware(), &fleet(&[1; 2]), 0);
    for (tokens, matched) in [(2_048, 2_032), (2_049, 2_048), (2_063, 2_048)] {
        let same = own(tokens.into(), tokens);
        assert_eq!(serve(&mut router, &of_prompt(&same), Tick(0)).2, 0);
        assert_eq!(serve(&mut router, &of_prompt(&same), Tick(0)).2, matched);
    }
}

#[test]
fn what_all_who_are_ready_hold_counts_for_nobody() {
    let members = fleet(&[1; 3]);
    let mut router = router_of(cache_aware(), &members, 0);
    let (head, longer) = (own(1, 2_000), prompt(&[(1, 2_000), (2, 100)]));
    for member in &members {
        warm(&mut router, &member.id, &[&head]);
    }
    let _busy = open(&members[0], 1);
    assert_eq!(serve(&mut router, &of_prompt(&head), Tick(0)).1, Reason::NoMatch);
    warm(&mut router, "replica-0", &[&longer]);
    let request = prompt(&[(1, 2_000), (2, 100), (3, 100)]);
    assert_eq!(serve(&mut router, &of_prompt(&request), Tick(0)).1, Reason::Prefix, "what is beyond it counts");
    // One that is not ready needs not hold it.
    members[1].status.set(State::Down);
    assert_eq!(serve(&mut router, &of_prompt(&head), Tick(0)).1, Reason::NoMatch);
}

#[test]
fn prefer_stays_and_balanced_leaves_beyond_ratio_and_gap() {
    let same = own(1, 4_000);
    let go = |settings: CacheAware, holder: u32, others: u32| {
        let members = fleet(&[1; 3]);
        let mut router = router_of(settings, &members, 0);
        warm(&mut router, "replica-0", &[&same]);
        let _busy = [open(&members[0], holder), open(&members[1], others), open(&members[2], others + 1)];
        let (replica, reason, _) = serve(&mut router, &of_prompt(&same), Tick(0));
        assert!(reason == Reason::Prefix || &*replica == "replica-1", "the alternative is the least loaded");
        reason
    };
    assert_eq!(go(cache_aware(), 7, 0), Reason::Prefix);
    assert_eq!(go(cache_aware(), 8, 0), Reason::PrefixOverflow);
    assert_eq!(go(cache_aware(), 20, 10), Reason::Prefix, "not over twice as much");
    assert_eq!(go(cache_aware(), 21, 10), Reason::PrefixOverflow);
    assert_eq!(go(CacheAware { affinity: Stay::Prefer, ..cache_aware() }, 500, 0), Reason::Prefix);
}

#[test]
fn a_weight_makes_room_for_more() {
    let same = own(1, 4_000);
    for (weight, reason) in [(1, Reason::PrefixOverflow), (4, Reason::Prefix)] {
        let members = fleet(&[weight, 1]);
        let mut router = router_of(cache_aware(), &members, 0);
        warm(&mut router, "replica-0", &[&same]);
        let _busy = [open(&members[0], 30), open(&members[1], 4)];
        assert_eq!(serve(&mut router, &of_prompt(&same), Tick(0)).1, reason);
    }
}

#[test]
fn a_full_replica_is_passed_over_also_by_prefer() {
    let mut members = fleet(&[1; 3]);
    members[0].max_in_flight = Some(1);
    let (longest, shorter) = (prompt(&[(1, 2_000), (2, 2_000)]), own(1, 2_000));
    let settings = CacheAware { affinity: Stay::Prefer, ..cache_aware() };
    let mut router = router_of(settings, &members, 0);
    warm(&mut router, "replica-0", &[&longest]);
    let _full = open(&members[0], 1);
    let plan = router.preview(&of_prompt(&longest), Tick(0)).expect("there is room");
    assert_eq!(plan.reason, Reason::PrefixOverflow);
    warm(&mut router, "replica-1", &[&shorter]);
    let (replica, reason, matched) = serve(&mut router, &of_prompt(&longest), Tick(0));
    assert_eq!((&*replica, reason, matched), ("replica-1", Reason::PrefixOverflow, 2_000), "the next best");
}

#[test]
fn load_may_be_placements_or_queued_seconds() {
    let same = own(1, 4_000);
    let settings = CacheAware { load: LoadUnit::Placements, min_load_gap: 16, ..cache_aware() };
    let mut router = router_of(settings, &fleet(&[1; 2]), 0);
    let reasons: Vec<_> = (0..17).map(|_| router.decide(&of_prompt(&same), Tick(0)).expect("ready").reason).collect();
    assert_eq!(reasons[..16], [&[Reason::NoMatch][..], &[Reason::Prefix; 15]].concat());
    assert_eq!(reasons[16], Reason::PrefixOverflow, "16 more than the other were placed there");

    let policy = Policy::CacheAware(CacheAware { load: LoadUnit::QueuedSeconds, ..cache_aware() });
    let prefill = Prefill::Fixed { overhead: 0.0, per_token: 1e-3, per_pair: 0.0 };
    let session = Session::default();
    let settings = Settings { prefill: &prefill, ..with_index(&policy, &session) };
    let members = fleet(&[1; 2]);
    let mut router = Router::new(&settings, members.clone(), 0);
    let first = router.decide(&of_prompt(&same), Tick(0)).expect("ready");
    let home = members.iter().find(|member| member.id == first.leg.replica).expect("a member");
    assert_eq!(home.load.queued_seconds(Tick(0)), 4.0);
    let mut again = |now| router.preview(&of_prompt(&same), Tick(now)).expect("ready").reason;
    assert_eq!(again(0), Reason::PrefixOverflow);
    assert_eq!(again(2 * SECOND + 1), Reason::Prefix, "less than 2 s wait there still");
}

#[test]
fn an_unmatched_session_with_a_binding_goes_home_if_its_cache_may_still_be_there() {
    let (first, other) = (own(1, 3_000), own(2, 3_000));
    let policy = Policy::CacheAware(cache_aware());
    let session = Session::default();
    let members = fleet(&[1; 8]);
    let mut router = Router::new(&with_index(&policy, &session), members.clone(), 0);
    let home = serve(&mut router, &with_session(1, &first), Tick(0)).0;
    // Another index: it knows nothing.
    let forget = |router: &mut Router| {
        router.reconfigure(&super::super::settings(&policy, &session));
        router.reconfigure(&with_index(&policy, &session));
    };
    forget(&mut router);
    let at_home = |plan: Plan| (plan.leg.replica == home, plan.reason);
    let preview =
        |router: &mut Router, request: &Request<'_>| at_home(router.preview(request, Tick(0)).expect("ready"));
    assert_eq!(preview(&mut router, &with_session(1, &first)), (true, Reason::Bound));
    assert_eq!(preview(&mut router, &Request { prompt: None, ..with_session(1, &first) }), (true, Reason::Bound));
    assert_eq!(preview(&mut router, &with_session(1, &other)).1, Reason::NoMatch, "another first block");
    assert_eq!(preview(&mut router, &with_session(2, &first)).1, Reason::NoMatch, "another session");
    let at = members.iter().position(|member| member.id == home).expect("a member");
    let busy = open(&members[at], 8);
    assert_eq!(preview(&mut router, &with_session(1, &first)), (false, Reason::PrefixOverflow), "too busy");
    drop(busy);
    members[at].status.set(State::Down);
    assert_eq!(preview(&mut router, &with_session(1, &first)), (false, Reason::NoMatch));
    members[at].status.set(State::Ready);
    let mut reborn = members.clone();
    reborn[at].incarnation = 2;
    router.set_members(reborn);
    assert_eq!(preview(&mut router, &with_session(1, &first)).1, Reason::NoMatch, "a new life has an empty cache");
}

#[test]
fn a_binding_breaks_ties_and_follows_its_session() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(cache_aware(), &members, 0);
    let same = own(1, 3_000);
    warm(&mut router, "replica-1", &[&same]);
    warm(&mut router, "replica-2", &[&same]);
    let bind = Effect::Bound { session: SessionKey(1), replica: "replica-2".into(), incarnation: 1, prompt: None };
    router.apply(&bind, Tick(0));
    let _busy = open(&members[2], 3);
    let preview = |router: &mut Router, session| {
        let plan = router.preview(&with_session(session, &same), Tick(0)).expect("ready");
        (plan.leg.replica, plan.reason)
    };
    assert_eq!(preview(&mut router, 1), ("replica-2".into(), Reason::Bound));
    assert_eq!(preview(&mut router, 2), ("replica-1".into(), Reason::Prefix), "unbound: by load");
    let _busier = open(&members[2], 6);
    let (replica, _, _) = serve(&mut router, &with_session(1, &same), Tick(0));
    assert_eq!(&*replica, "replica-1", "too busy to stay");
    let _even = open(&members[1], 9);
    assert_ne!(preview(&mut router, 1), ("replica-2".into(), Reason::Bound), "it is bound where it went");
}

#[test]
fn a_conversation_whose_session_id_changes_is_found_by_its_prefix() {
    let mut router = router_of(cache_aware(), &fleet(&[1; 8]), 0);
    let turns = session((1, 2_000), 5, 4, 250);
    let home = serve(&mut router, &with_session(1, &turns[0]), Tick(0)).0;
    for (turn, prompt) in turns.iter().enumerate().skip(1) {
        let (replica, reason, _) = serve(&mut router, &with_session(100 + turn as u128, prompt), Tick(0));
        assert_eq!((replica, reason), (home.clone(), Reason::Prefix));
    }
}

#[test]
fn a_draining_replica_keeps_bound_sessions_only() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(cache_aware(), &members, 0);
    let turns = session((1, 2_000), 5, 3, 250);
    let home = serve(&mut router, &with_session(1, &turns[0]), Tick(0)).0;
    members.iter().find(|member| member.id == home).expect("a member").status.set(State::Draining);
    assert_eq!(router.preview(&with_session(2, &turns[1]), Tick(0)).expect("ready").reason, Reason::NoMatch);
    let (replica, reason, matched) = serve(&mut router, &with_session(1, &turns[1]), Tick(0));
    assert_eq!((replica, reason, matched), (home, Reason::Bound, 2_240));
}

#[test]
fn requests_by_load_only_leave_nothing() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(cache_aware(), &members, 0);
    let same = own(1, 3_000);
    let plan = router.decide(&Request { load_only: true, ..with_session(1, &same) }, Tick(0)).expect("ready");
    assert_eq!((plan.reason, plan.matched, plan.on_success.is_none()), (Reason::PowerOfTwo, 0, true));
    assert!(plan.expectation.is_none() && router.index_stats().expect("an index").pairs == 0);
    assert!(members.iter().all(|member| member.load.queued_seconds(Tick(0)) == 0.0));
}

#[test]
fn what_failed_is_withdrawn_and_what_left_is_nobodys() {
    let mut members = fleet(&[1; 2]);
    let mut router = router_of(cache_aware(), &members, 0);
    let same = own(1, 3_000);
    let mut plan = router.decide(&of_prompt(&same), Tick(0)).expect("ready");
    assert_eq!(router.index_held(&plan.leg.replica), 187);
    router.withdraw(plan.expectation.take().expect("an index"), Tick(0));
    assert_eq!(router.index_held(&plan.leg.replica), 0);
    assert!(members.iter().all(|member| member.load.queued_seconds(Tick(0)) == 0.0));

    let mut plans: Vec<_> = (0..3).map(|_| router.decide(&of_prompt(&same), Tick(0)).expect("ready")).collect();
    let expectations: Vec<_> = plans.iter_mut().filter_map(|plan| plan.expectation.take()).collect();
    members.iter_mut().for_each(|member| (member.incarnation, member.load) = (2, Arc::default()));
    router.set_members(members.clone());
    let new = serve(&mut router, &of_prompt(&own(2, 320)), Tick(0)).0;
    for (at, mut expectation) in expectations.into_iter().enumerate() {
        match at {
            0 => router.withdraw(expectation, Tick(0)),
            1 => router.finish(expectation, Tick(0)),
            _ => {
                router.confirm(&mut expectation, Tick(0));
                router.finish(expectation, Tick(0));
            }
        }
    }
    assert_eq!((router.index_held(&new), router.index_stats().expect("an index").pairs), (20, 20));
}

#[test]
fn other_policies_tell_what_they_hit() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_cost()]) {
        let members = fleet(&[1]);
        let mut router = Router::new(&with_index(&policy, &Session::default()), members, 0);
        let same = own(1, 3_000);
        let request = Request { header: Some(1), ..with_session(1, &same) };
        assert_eq!([0, 1].map(|_| serve(&mut router, &request, Tick(0)).2), [0, 2_992]);
    }
}

#[test]
fn an_index_outlives_a_change_of_policy_and_not_its_being_switched_off() {
    let session = Session::default();
    let same = own(1, 3_000);
    let policies = [by_prefix(), Policy::LeastLoad, by_cost(), by_prefix()];
    let mut router = Router::new(&with_index(&policies[0], &session), fleet(&[1; 4]), 0);
    let home = serve(&mut router, &of_prompt(&same), Tick(0)).0;
    let open = router.decide(&of_prompt(&same), Tick(0)).expect("ready");
    for policy in &policies {
        router.reconfigure(&with_index(policy, &session));
        assert_eq!(router.index_held(&home), 187);
    }
    router.reconfigure(&super::super::settings(&policies[0], &session));
    assert_eq!(router.index_stats(), None);
    router.reconfigure(&with_index(&policies[0], &session));
    let again = serve(&mut router, &of_prompt(&same), Tick(0));
    assert_eq!((again.1, again.2), (Reason::NoMatch, 0));
    router.withdraw(open.expectation.expect("an index"), Tick(0));
    assert_eq!(router.index_held(&again.0), 187, "an expectation of the index before");
}

#[test]
fn a_preview_tells_what_a_decision_would_do_and_does_nothing() {
    for policy in LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_prefix(), by_cost()]) {
        let members = fleet(&[1, 2, 1]);
        members[1].status.set(State::Warming);
        let session = Session::default();
        let [mut router, mut untouched] =
            [0, 0].map(|seed| Router::new(&with_index(&policy, &session), members.clone(), seed));
        for at in 0..60_u64 {
            let prompt = prompt(&[(at % 3, 1_500), (100 + at % 7, 200)]);
            let request = Request { header: Some(at % 5), explain: true, ..with_session(u128::from(at % 4), &prompt) };
            let before = (router.bindings(), router.index_stats());
            let seen = router.preview(&request, Tick(at)).expect("ready");
            let open: u32 = members.iter().map(|member| member.load.requests()).sum();
            assert_eq!((open, router.bindings(), router.index_stats()), (0, before.0, before.1));
            assert!(seen.expectation.is_none());
            let done = router.decide(&request, Tick(at)).expect("ready");
            assert_eq!((&seen.leg.replica, seen.reason, seen.matched), (&done.leg.replica, done.reason, done.matched));
            assert_eq!((seen.scores, seen.on_success), (done.scores.clone(), done.on_success.clone()));
            let end = |router: &mut Router, mut plan: Plan| {
                plan.on_success.iter().for_each(|effect| router.apply(effect, Tick(at)));
                plan.expectation.take().into_iter().for_each(|expected| router.finish(expected, Tick(at)));
            };
            let replica = done.leg.replica.clone();
            end(&mut router, done);
            let plan = untouched.decide(&request, Tick(at)).expect("ready");
            assert_eq!(plan.leg.replica, replica, "{policy:?}: the preview before changed the decision");
            end(&mut untouched, plan);
        }
    }
}

/// Where few requests are under way a difference of two is a large multiple, and says nothing of where a chat should live.
#[test]
fn a_small_difference_of_load_does_not_decide_where_chats_begin() {
    for (ahead, there) in [(2, 6), (3, 0)] {
        let members = fleet(&[1; 2]);
        let mut router = router_of(CacheAware { min_load_gap: 8, ..cache_aware() }, &members, 0);
        let _busy = open(&members[1], ahead);
        let mut begun = 0;
        for name in 0..12 {
            let prompt = own(name, 1_600);
            let mut plan = router.decide(&of_prompt(&prompt), Tick(0)).expect("ready");
            begun += u32::from(&*plan.leg.replica == "replica-1");
            router.finish(plan.expectation.take().expect("an index"), Tick(0));
        }
        assert_eq!(begun, there, "of twelve, with {ahead} more under way there");
    }
}

#[test]
fn scores_tell_what_each_was_judged_by() {
    let mut members = fleet(&[1, 2, 1, 1]);
    members[2].max_in_flight = Some(1);
    members[3].status.set(State::Down);
    let mut router = router_of(cache_aware(), &members, 0);
    for id in ["replica-0", "replica-1", "replica-2"] {
        warm(&mut router, id, &[&own(1, 1_600)]);
    }
    let longer = prompt(&[(1, 1_600), (2, 1_600)]);
    warm(&mut router, "replica-1", &[&longer]);
    let _busy = [open(&members[1], 3), open(&members[2], 1)];
    let plan = router.preview(&Request { explain: true, ..of_prompt(&longer) }, Tick(0)).expect("ready");
    let scores: Vec<_> =
        plan.scores.iter().map(|s| (s.candidate, s.state, s.in_flight, s.matched, s.counted)).collect();
    let ready = State::Ready;
    assert_eq!(
        scores,
        [
            (true, ready, 0, 1_600, 0),
            (true, ready, 3, 3_184, 1_584),
            (false, ready, 1, 1_600, 0),
            (false, State::Down, 0, 0, 0)
        ]
    );
    assert_eq!((plan.scores[1].load, plan.scores[1].weight, plan.scores[1].placed), (1.5, 2, 2));
}

#[test]
fn a_shadow_by_prefix_agrees_with_the_same_policy_and_books_no_seconds() {
    let members = fleet(&[1; 3]);
    let settings =
        CacheAware { load: LoadUnit::QueuedSeconds, min_queue_gap: Duration::from_millis(100), ..cache_aware() };
    let mut main = router_of(settings.clone(), &members, 4);
    let mut shadow = router_of(settings, &members, 4).into_shadow();
    let mut plans = Vec::new();
    for at in 0..60 {
        let prompt = prompt(&[(at % 5, 3_000), (100 + at, 500)]);
        let plan = main.decide(&of_prompt(&prompt), Tick(at)).expect("ready");
        let queued: f64 = members.iter().map(|member| member.load.queued_seconds(Tick(at))).sum();
        let beside = shadow.decide(&Request { booked: Some(&plan), ..of_prompt(&prompt) }, Tick(at)).expect("ready");
        assert_eq!(beside.leg.replica, plan.leg.replica, "request {at}");
        assert_eq!(members.iter().map(|member| member.load.queued_seconds(Tick(at))).sum::<f64>(), queued);
        plans.push((plan, beside));
    }
}

#[test]
fn prefill_times_are_learned_from_streams_that_met_no_queue() {
    let mut router = router_of(cache_aware(), &fleet(&[1; 2]), 0);
    let guess = router.prefill_seconds(8_000, 0);
    let mut answer = |streams, name: u64| {
        let (now, prompt) = (Tick(name * 1_000 * SECOND), own(name, 8_000));
        let mut plan = router.decide(&Request { streams, ..of_prompt(&prompt) }, now).expect("ready");
        let mut expectation = plan.expectation.take().expect("an index");
        router.confirm(&mut expectation, Tick(now.0 + 3 * SECOND));
        router.finish(expectation, Tick(now.0 + 9 * SECOND));
        router.prefill_seconds(8_000, 0)
    };
    let whole = (1..100).fold(None, |_, name| Some(answer(false, name)));
    assert_eq!(whole, Some(guess), "the time of a whole answer tells nothing");
    let streamed = (100..200).fold(0.0, |_, name| answer(true, name));
    assert!((streamed - 3.0).abs() < 0.1, "{streamed}");
}
