//! Who is left out because its engine says that it has too much to do.
use super::*;

fn waiting(waiting: u32, until: u64) -> QueueReport {
    QueueReport { waiting, cache_use: None, max_waiting: Some(4), until: Tick(until) }
}

fn all_policies() -> impl Iterator<Item = Policy> {
    LOAD_POLICIES.into_iter().chain([sticky(), header_hash(), by_prefix(), by_cost()])
}

#[test]
fn under_every_policy_a_saturated_replica_is_left_out_while_another_admits() {
    for policy in all_policies() {
        let mut members = fleet(&[1, 1, 1]);
        members[0].load.report(Some(waiting(4, 100)));
        members[2].max_in_flight = Some(0);
        let mut router = router(policy.clone(), &members);
        for turn in 0..20 {
            let request = if turn % 2 == 0 { of_session(turn) } else { of_header(turn as u64) };
            let plan = router.decide(&request, Tick(50)).unwrap();
            assert_eq!(&*plan.leg.replica, "replica-1", "{policy:?}");
        }
        // The others: one is full, and one is down now.
        members[1].status.set(State::Down);
        let plan = router.decide(&Request::default(), Tick(50)).unwrap();
        assert_eq!(&*plan.leg.replica, "replica-0", "{policy:?}: when all are, none is");
    }
}

#[test]
fn an_old_report_leaves_nobody_out() {
    for policy in LOAD_POLICIES {
        let members = fleet(&[1, 1]);
        members[0].load.report(Some(waiting(9, 100)));
        let mut router = router(policy.clone(), &members);
        assert_eq!(spread(&mut router, 40, Tick(99)).len(), 1, "{policy:?}");
        assert_eq!(spread(&mut router, 40, Tick(100)).len(), 2, "{policy:?}");
    }
}

#[test]
fn a_binding_stays_and_reports_change_no_count() {
    let members = fleet(&[1, 1]);
    let mut router = router(sticky(), &members);
    let first = router.decide(&of_session(7), Tick(0)).unwrap();
    router.apply(first.on_success.as_ref().unwrap(), Tick(0));
    let home = first.leg.replica.clone();
    let load = &members.iter().find(|member| member.id == home).unwrap().load;
    load.report(Some(waiting(1_000, 100)));
    assert_eq!((load.requests(), load.sequences()), (1, 1));
    let second = router.decide(&of_session(7), Tick(1)).unwrap();
    assert_eq!((second.leg.replica, second.reason), (home, Reason::Bound));
}

#[test]
fn those_who_ask_are_told() {
    let members = fleet(&[1, 1]);
    members[1].load.report(Some(waiting(4, 100)));
    let mut router = router(Policy::LeastLoad, &members);
    let asked = Request { explain: true, ..Request::default() };
    let plan = router.preview(&asked, Tick(0)).unwrap();
    let seen: Vec<_> = plan.scores.iter().map(|score| (score.candidate, score.saturated)).collect();
    assert_eq!(seen, [(true, false), (false, true)]);
}
