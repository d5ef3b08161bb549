//! `least_cost`: hand-made situations, in which a millisecond of prefill is a token.
mod cost;
mod remembered;
mod spread;
mod ties;

use super::cache_aware::{of_prompt, open, own, prompt, serve, session, warm, with_index, with_session};
use super::*;
use crate::config::LeastCost;

/// A prefill takes a millisecond for each token that is not cached.
const PREFILL: Prefill = Prefill::Fixed { overhead: 0.0, per_token: 1e-3, per_pair: 0.0 };

fn settings<'a>(policy: &'a Policy, session: &'a Session) -> Settings<'a> {
    Settings { prefill: &PREFILL, ..with_index(policy, session) }
}

fn router_of(members: &[Member]) -> Router {
    Router::new(&settings(&by_cost(), &Session::default()), members.to_vec(), 0)
}

/// Has so many tokens of prefill wait at a replica, until the plan is dropped and long after.
fn line(router: &mut Router, replica: &str, tokens: u32, now: Tick) -> Plan {
    let waits = own(7_000_000 + u64::from(tokens), tokens);
    router.decide(&Request { pinned: Some(replica), ..of_prompt(&waits) }, now).expect("it is up")
}

/// Where a request would go, and why.
fn preview(router: &mut Router, request: &Request<'_>, now: Tick) -> (Arc<str>, Reason) {
    let plan = router.preview(request, now).expect("a replica is ready");
    (plan.leg.replica, plan.reason)
}

/// What a request would cost at each replica, in seconds.
fn costs(router: &mut Router, request: &Request<'_>, now: Tick) -> Vec<f64> {
    let plan = router.preview(&Request { explain: true, ..request.clone() }, now).expect("a replica is ready");
    plan.scores.iter().map(|score| score.cost_seconds.unwrap_or(f64::NAN)).collect()
}

fn near(found: &[f64], expected: &[f64]) {
    let all = found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(all, "{found:?}, and not {expected:?}");
}
