//! Sessions: what their replica is taken to hold, and what outlives a drain and a reload.
use super::*;

/// Another index: it knows nothing.
fn forget(router: &mut Router) {
    let (policy, session) = (by_cost(), Session::default());
    router.reconfigure(&super::super::settings(&policy, &session));
    router.reconfigure(&settings(&policy, &session));
}

#[test]
fn a_session_goes_home_if_its_cache_may_still_be_there_and_the_line_is_shorter_than_that() {
    let (first, other) = (own(1, 3_000), own(2, 3_000));
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    let home = serve(&mut router, &with_session(1, &first), Tick(0)).0;
    forget(&mut router);
    let at = members.iter().position(|member| member.id == home).expect("a member");
    let go = |router: &mut Router, request: &Request<'_>| {
        let (replica, reason) = preview(router, request, Tick(0));
        (replica == home, reason)
    };
    let unread = Request { prompt: None, ..with_session(1, &first) };
    assert_eq!(go(&mut router, &with_session(1, &first)), (true, Reason::Bound));
    assert_eq!(go(&mut router, &unread), (true, Reason::Bound));
    let mut expected = [3.0; 4];
    expected[at] = 0.008;
    near(&costs(&mut router, &with_session(1, &first), Tick(0)), &expected);
    expected = [1.024; 4];
    expected[at] = 0.0;
    near(&costs(&mut router, &unread, Tick(0)), &expected);
    near(&costs(&mut router, &with_session(2, &first), Tick(0)), &[3.0; 4]);
    near(&costs(&mut router, &with_session(1, &other), Tick(0)), &[3.0; 4]);

    let short = line(&mut router, &home, 1_000, Tick(0));
    assert_eq!(go(&mut router, &unread), (true, Reason::Bound));
    let _longer = line(&mut router, &home, 1_900, Tick(0));
    assert_eq!(go(&mut router, &unread), (false, Reason::NoMatch), "2.9 s wait there");
    assert_eq!(go(&mut router, &with_session(1, &first)), (true, Reason::Bound), "3 s are saved there");
    let _longest = line(&mut router, &home, 200, Tick(0));
    assert_eq!(go(&mut router, &with_session(1, &first)), (false, Reason::NoMatch));
    drop(short);
}

#[test]
fn where_anyone_holds_more_than_all_do_the_index_is_believed() {
    let (first, part) = (own(1, 3_000), own(1, 1_600));
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    let home = serve(&mut router, &with_session(1, &first), Tick(0)).0;
    forget(&mut router);
    // What all hold tells nothing.
    members.iter().for_each(|member| warm(&mut router, &member.id, &[&own(1, 800)]));
    assert_eq!(preview(&mut router, &with_session(1, &first), Tick(0)), (home.clone(), Reason::Bound));
    let holder = members.iter().find(|member| member.id != home).expect("another").id.clone();
    warm(&mut router, &holder, &[&part]);
    assert_eq!(preview(&mut router, &with_session(1, &first), Tick(0)), (holder, Reason::Prefix));
}

#[test]
fn a_new_life_has_an_empty_cache() {
    let first = own(1, 3_000);
    let mut members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    let home = serve(&mut router, &with_session(1, &first), Tick(0)).0;
    members.iter_mut().for_each(|member| member.incarnation += u64::from(member.id == home));
    router.set_members(members);
    near(&costs(&mut router, &with_session(1, &first), Tick(0)), &[3.0; 4]);
    assert_eq!(preview(&mut router, &with_session(1, &first), Tick(0)).1, Reason::NoMatch);
}

#[test]
fn a_draining_replica_serves_its_sessions_while_no_other_holds_more() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    let turns = session((1, 2_000), 5, 3, 250);
    let home = serve(&mut router, &with_session(1, &turns[0]), Tick(0)).0;
    members.iter().find(|member| member.id == home).expect("a member").status.set(State::Draining);
    assert_eq!(preview(&mut router, &with_session(2, &turns[1]), Tick(0)).1, Reason::NoMatch, "not its session");
    let _waits = line(&mut router, &home, 60_000, Tick(0));
    assert_eq!(serve(&mut router, &with_session(1, &turns[1]), Tick(0)), (home.clone(), Reason::Bound, 2_240));
    let other = members.iter().find(|member| member.id != home).expect("another").id.clone();
    warm(&mut router, &other, &[&turns[1]]);
    assert_eq!(preview(&mut router, &with_session(1, &turns[2]), Tick(0)), (home.clone(), Reason::Bound), "as much");
    warm(&mut router, &other, &[&turns[2]]);
    assert_eq!(preview(&mut router, &with_session(1, &turns[2]), Tick(0)), (other, Reason::Prefix));
    forget(&mut router);
    assert_eq!(
        preview(&mut router, &with_session(1, &turns[2]), Tick(0)),
        (home, Reason::Bound),
        "nobody knows better"
    );
    assert_eq!(
        preview(&mut router, &with_session(1, &own(2, 900)), Tick(0)).1,
        Reason::NoMatch,
        "another conversation"
    );
}

#[test]
fn what_all_hold_keeps_no_session_at_a_replica_that_drains() {
    let members = fleet(&[1; 3]);
    let mut router = router_of(&members);
    let head = own(1, 2_000);
    members.iter().for_each(|member| warm(&mut router, &member.id, &[&head]));
    let bind = Effect::Bound { session: SessionKey(1), replica: "replica-1".into(), incarnation: 1, prompt: None };
    router.apply(&bind, Tick(0));
    members[1].status.set(State::Draining);
    assert_ne!(&*preview(&mut router, &with_session(1, &head), Tick(0)).0, "replica-1");
}

#[test]
fn index_and_sessions_outlive_a_change_from_and_to_another_policy() {
    let session = Session::default();
    let (same, new) = (own(1, 3_000), own(2, 2_000));
    let mut members = fleet(&[1; 8]);
    let mut router = Router::new(&settings(&by_prefix(), &session), members.clone(), 3);
    let home = serve(&mut router, &with_session(1, &same), Tick(0)).0;
    for policy in [by_cost(), Policy::LeastLoad, by_cost(), sticky(), by_cost()] {
        router.reconfigure(&settings(&policy, &session));
        assert_eq!((router.index_held(&home), router.bindings()), (187, 1));
    }
    assert_eq!(preview(&mut router, &of_prompt(&same), Tick(0)), (home.clone(), Reason::Prefix));
    assert_eq!(preview(&mut router, &with_session(1, &new), Tick(0)).0, home, "of equals it takes the session's");
    // In another order, with one of them gone.
    members.retain(|member| member.id == home || &*member.id != "replica-0");
    members.reverse();
    router.set_members(members);
    assert_eq!(preview(&mut router, &of_prompt(&same), Tick(0)), (home.clone(), Reason::Prefix));
    router.reconfigure(&settings(&by_prefix(), &session));
    assert_eq!(serve(&mut router, &with_session(1, &same), Tick(0)), (home, Reason::Prefix, 2_992));
}
