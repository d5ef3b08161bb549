//! Indexes that come and go while requests are open, and what has left.
use super::*;

fn round_robin() -> Policy {
    Policy::RoundRobin
}

/// Open placements in the index, by what they pin.
fn pins(router: &Router) -> u32 {
    let dump = router.index_dump(usize::MAX).expect("an index");
    dump.runs.iter().flat_map(|run| &run.holders).filter(|holder| !holder.gone).map(|holder| holder.pins).sum()
}

fn place(router: &mut Router, prompt: &Arc<Prompt>) -> Plan {
    router.decide(&of_prompt(prompt), Tick(0)).expect("a replica is ready")
}

/// The ends of a request that an index may see.
const ENDS: [fn(&mut Router, Expectation); 3] = [
    |router, expectation| router.finish(expectation, Tick(1)),
    |router, expectation| router.withdraw(expectation, Tick(1)),
    |router, mut expectation| {
        router.confirm(&mut expectation, Tick(1));
        router.finish(expectation, Tick(2));
    },
];

/// A placement belongs to its own index: what ends after the policy went away and came back touches nothing of the new
/// one, whose placements have the same numbers.
#[test]
fn an_expectation_of_an_index_that_is_gone_ends_without_a_trace() {
    let (with, session) = (by_prefix(), Session::default());
    for end in ENDS {
        let members = fleet(&[1]);
        let mut router = router_of(cache_aware(), &members, 0);
        let prompt = prompt(&[(1, 2_000)]);
        let mut old = [place(&mut router, &prompt), place(&mut router, &prompt)];
        router.reconfigure(&super::super::settings(&round_robin(), &session));
        assert!(router.index_stats().is_none());
        // One ends while there is none.
        end(&mut router, old[0].expectation.take().expect("an expectation"));
        router.reconfigure(&with_index(&with, &session));
        let mut new = place(&mut router, &prompt);
        let before = router.index_dump(usize::MAX).expect("an index");
        end(&mut router, old[1].expectation.take().expect("an expectation"));
        let after = router.index_dump(usize::MAX).expect("an index");
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        assert!(pins(&router) > 0, "the new request is still open");
        end(&mut router, new.expectation.take().expect("an expectation"));
        assert_eq!(pins(&router), 0);
        assert_eq!(members[0].load.queued_seconds(Tick(2)), 0.0, "every booking was given back");
    }
}

/// The index of a pool outlives all that does not ask for another one, with what is pinned there.
#[test]
fn sizes_models_and_members_change_under_open_requests() {
    let (policy, session) = (by_prefix(), Session::default());
    let fixed = Prefill::Fixed { overhead: 100.0, per_token: 1.0, per_pair: 0.0 };
    for end in ENDS {
        let mut members = fleet(&[1, 1, 1]);
        let mut router = router_of(cache_aware(), &members, 0);
        let prompts: Vec<_> = (0..12).map(|name| prompt(&[(name, 1_600)])).collect();
        let mut open: Vec<_> = prompts.iter().map(|prompt| place(&mut router, prompt)).collect();
        let pinned = pins(&router);
        // Far too small for what is pinned; another model of prefills; a cache of nothing; and back again.
        router.reconfigure(&Settings { index_bytes: Some(1), prefill: &fixed, ..with_index(&policy, &session) });
        router.sweep(10_000);
        assert_eq!(pins(&router), pinned, "what is pinned stays");
        members.iter_mut().for_each(|member| member.cache_tokens = 0);
        router.set_members(members.clone());
        router.sweep(10_000);
        assert_eq!(pins(&router), pinned);
        // One leaves, one begins another life, and one stays.
        let left = members.remove(0);
        members[0].incarnation += 1;
        router.set_members(members.clone());
        let stays = members[1].id.clone();
        let kept = open.iter().filter(|plan| plan.leg.replica == stays).count();
        assert!(kept > 0 && pins(&router) < pinned);
        router.reconfigure(&with_index(&policy, &session));
        members.push(left.clone());
        members.iter_mut().for_each(|member| member.cache_tokens = 1_000_000);
        router.set_members(members.clone());
        // The reborn and the returned one take prompts again before the old requests end.
        for prompt in &prompts {
            open.push(place(&mut router, prompt));
        }
        let mut looked = 0;
        for mut plan in open {
            end(&mut router, plan.expectation.take().expect("an expectation"));
            looked += 1;
            if looked == 12 {
                assert!(pins(&router) >= 12, "the ends of the old ones unpin none of the new");
            }
        }
        assert_eq!(pins(&router), 0);
        for member in members.iter().chain([&left]) {
            assert_eq!((member.load.requests(), member.load.queued_seconds(Tick(2))), (0, 0.0), "{}", member.id);
        }
    }
}

/// What a replica held that left is freed by the ends of open requests, and by sweeps where not even those come.
#[test]
fn what_left_is_freed_without_another_decision() {
    let held = |router: &Router| router.index_dump(usize::MAX).expect("an index").runs.len();
    for by_ends in [true, false] {
        let members = fleet(&[1, 1]);
        let mut router = router_of(CacheAware { affinity: Stay::Prefer, ..cache_aware() }, &members, 0);
        let mut open: Vec<_> = (0..200).map(|name| place(&mut router, &prompt(&[(name, 320)]))).collect();
        router.set_members(vec![members[0].clone()]);
        open.sort_by_key(|plan| plan.leg.replica == members[0].id);
        let (stay, left) = (held(&router), open.iter().filter(|plan| plan.leg.replica != members[0].id).count());
        assert!(left > 20 && stay > left);
        if by_ends {
            for mut plan in open.drain(..left) {
                router.finish(plan.expectation.take().expect("an expectation"), Tick(1));
            }
        } else {
            let sweeps = (0..1_000).take_while(|_| router.sweep(4)).count();
            assert!(sweeps > 3 && sweeps < 1_000, "in steps, and to an end: {sweeps}");
        }
        let dump = router.index_dump(usize::MAX).expect("an index");
        assert!(dump.runs.iter().all(|run| run.holders.iter().all(|holder| !holder.gone)));
        assert_eq!(dump.runs.len(), stay - left);
    }
}

/// A reload back and forth between policies keeps what the index has no part in.
#[test]
fn sessions_outlive_an_index() {
    let session = Session::default();
    let members = fleet(&[1; 4]);
    let mut router = router_of(cache_aware(), &members, 0);
    let prompt = prompt(&[(1, 2_000)]);
    let request = Request { session: Some(SessionKey(7)), ..of_prompt(&prompt) };
    let (home, _, _) = serve(&mut router, &request, Tick(0));
    router.reconfigure(&super::super::settings(&round_robin(), &session));
    router.reconfigure(&with_index(&by_prefix(), &session));
    assert_eq!(serve(&mut router, &request, Tick(0)), (home.clone(), Reason::Bound, 0), "the index is new");
    assert_eq!(serve(&mut router, &request, Tick(0)).0, home);
}
