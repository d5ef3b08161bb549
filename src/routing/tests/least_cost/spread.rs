//! Prefixes that many requests begin with, and bursts.
use super::*;

/// The replicas that hold a prompt's beginning.
fn holders(router: &mut Router, prompt: &Arc<Prompt>) -> usize {
    let plan = router.preview(&Request { explain: true, ..of_prompt(prompt) }, Tick(0)).expect("ready");
    plan.scores.iter().filter(|score| score.matched > 0).count()
}

#[test]
fn a_head_goes_to_as_many_idle_replicas_as_its_share_asks_for() {
    // So many requests of ten begin with it; the others share nothing.
    for (of_ten, replicas, expected) in [(10, 4, 4), (4, 4, 2), (2, 4, 1), (4, 8, 4), (3, 8, 3)] {
        let mut router = router_of(&fleet(&vec![1; replicas]));
        let mut begun = 0;
        for name in 0..400_u64 {
            // Spread over the ten, and not at their beginning.
            let with_head = (name + 1) * of_ten / 10 > name * of_ten / 10;
            let head = if with_head { 1 } else { 10_000 + name };
            serve(&mut router, &of_prompt(&prompt(&[(head, 1_600), (20_000 + name, 160)])), Tick(name * SECOND));
            begun += u64::from(with_head);
        }
        assert_eq!(begun, 40 * of_ten);
        assert_eq!(holders(&mut router, &own(1, 1_616)), expected, "{of_ten} of ten, {replicas} replicas");
    }
}

#[test]
fn a_head_that_too_few_hold_is_judged_as_if_all_did_and_booked_as_what_it_is() {
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    let of_head = |name: u64| prompt(&[(1, 1_600), (100 + name, 400)]);
    let first = serve(&mut router, &of_prompt(&of_head(0)), Tick(0)).0;
    // The second finds a holder, and parts from the first: only now a head is known.
    assert_eq!(serve(&mut router, &of_prompt(&of_head(1)), Tick(0)).0, first);
    near(&costs(&mut router, &of_prompt(&of_head(2)), Tick(0)), &[0.4; 4]);
    let plan = router.decide(&of_prompt(&of_head(2)), Tick(0)).expect("ready");
    assert!(plan.leg.replica != first && plan.matched == 0, "who computed least: {plan:?}");
    let at = members.iter().find(|member| member.id == plan.leg.replica).expect("a member");
    assert_eq!(at.load.queued_seconds(Tick(0)), 2.0);
}

/// Until a first one is answered, the same prompt again tells of a burst and not of a head.
#[test]
fn a_burst_of_one_cold_prompt_is_no_head() {
    let mut router = router_of(&fleet(&[1; 4]));
    let same = own(1, 1_600);
    let mut open: Vec<_> = (0..2).map(|_| router.decide(&of_prompt(&same), Tick(0)).expect("ready")).collect();
    // Two were placed: on idle replicas computing it again takes no longer than waiting.
    let mut found = costs(&mut router, &of_prompt(&same), Tick(0));
    found.sort_by(f64::total_cmp);
    near(&found, &[1.6, 1.6, 1.6165, 1.6165]);
    for mut plan in open.drain(..) {
        router.finish(plan.expectation.take().expect("an index"), Tick(0));
    }
    let found = costs(&mut router, &of_prompt(&same), Tick(0));
    near(&found, &[0.016; 4]);
}

/// While replicas are busy a second of work is dear, and the line is worth the wait.
#[test]
fn a_burst_of_one_cold_prompt_stays_together_while_replicas_are_busy() {
    let now = Tick(SECOND);
    let members = fleet(&[1; 4]);
    let mut router = router_of(&members);
    let _busy: Vec<_> = (0..3).map(|at| line(&mut router, &format!("replica-{at}"), 100 + at, now)).collect();
    let same = own(1, 1_600);
    let burst: Vec<_> = (0..32).map(|_| router.decide(&of_prompt(&same), now).expect("ready")).collect();
    assert!(burst.iter().all(|plan| &*plan.leg.replica == "replica-3"));
}

#[test]
fn a_shadow_agrees_with_the_same_policy_and_books_no_seconds() {
    let members = fleet(&[1; 3]);
    let (mut main, mut shadow) = (router_of(&members), router_of(&members).into_shadow());
    let mut plans = Vec::new();
    for at in 0..120 {
        let prompt = prompt(&[(at % 5, 3_000), (100 + at, 500)]);
        let now = Tick(at * SECOND / 2);
        let request = with_session(u128::from(at % 7), &prompt);
        let plan = main.decide(&request, now).expect("ready");
        let queued: f64 = members.iter().map(|member| member.load.queued_seconds(now)).sum();
        let beside = shadow.decide(&Request { booked: Some(&plan), ..request }, now).expect("ready");
        assert_eq!(beside.leg.replica, plan.leg.replica, "request {at}");
        assert_eq!(members.iter().map(|member| member.load.queued_seconds(now)).sum::<f64>(), queued);
        for (router, plan) in [(&mut main, &plan), (&mut shadow, &beside)] {
            plan.on_success.iter().for_each(|effect| router.apply(effect, now));
        }
        plans.push((plan, beside));
    }
}
