//! Events beside predictions: who is credited with what, and for how long.
use super::cache_aware::{of_prompt, serve, warm, with_index};
use super::*;
use crate::prefix::{Chain, Stored, Tier, Unstored};

const ROOT: u64 = 7;

fn tokens(name: u32, blocks: u32) -> Vec<u32> {
    (0..16 * blocks).map(|at| 10_000 * name + at).collect()
}

fn prompt(name: u32, blocks: u32) -> Arc<Prompt> {
    let mut chain = Chain::new(ROOT);
    chain.push(&tokens(name, blocks));
    chain.push(&[1]);
    Arc::new(Prompt { tokens: chain.tokens() as u32, blocks: chain.finish(), answer: None })
}

/// The engine's names for a prompt's blocks.
fn hashes(name: u32, blocks: u32) -> Vec<u64> {
    (0..blocks).map(|at| u64::from(1000 * name + at)).collect()
}

fn store(router: &mut Router, replica: &str, name: u32, blocks: u32, tier: Tier) -> Option<Taken> {
    let (hashes, tokens) = (hashes(name, blocks), tokens(name, blocks));
    let stored =
        Stored { root: ROOT, parent: None, hashes: &hashes, tokens: &tokens, block_size: 16, tier, extras: &[] };
    router.cache_events(replica, &[CacheEvent::Stored(stored)])
}

fn remove(router: &mut Router, replica: &str, hashes: &[u64]) -> Option<Taken> {
    router.cache_events(replica, &[CacheEvent::Removed { tier: Tier::Device, hashes }])
}

/// What each replica is credited with, in blocks.
fn credit(router: &mut Router, prompt: &Arc<Prompt>, now: Tick) -> Vec<u32> {
    let plan = router.preview(&Request { explain: true, ..of_prompt(prompt) }, now).expect("ready");
    plan.scores.iter().map(|score| score.matched / 16).collect()
}

fn two() -> (Router, Vec<Member>) {
    let members = fleet(&[1, 1]);
    let policy = by_prefix();
    let router = Router::new(&with_index(&policy, &Session::default()), members.clone(), 0);
    (router, members)
}

#[test]
fn one_that_is_followed_exactly_holds_what_it_says_and_nothing_else() {
    let (mut router, _) = two();
    assert_eq!(store(&mut router, "replica-0", 1, 4, Tier::Device), None, "nobody follows it yet");
    router.follow("replica-0", Following::Exactly);
    let before = router.index_stats().expect("an index").bytes;
    let taken = store(&mut router, "replica-0", 1, 4, Tier::Device).expect("followed");
    assert!(router.index_stats().expect("an index").bytes > before, "what it takes is told");
    assert_eq!((taken.stored, taken.unstored), (4, None));
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(0)), [4, 0]);
    assert_eq!(remove(&mut router, "replica-0", &hashes(1, 4)[3..]).expect("followed").removed, 1);
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(0)), [3, 0]);
    assert_eq!(router.index_held("replica-0"), 3);
    router.cache_events("replica-0", &[CacheEvent::Cleared]);
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(0)), [0, 0]);
}

#[test]
fn a_request_counts_while_it_is_open_and_a_second_longer() {
    let (mut router, _) = two();
    router.follow("replica-0", Following::Exactly);
    let (said, unsaid) = (prompt(1, 4), prompt(2, 4));
    for prompt in [&said, &unsaid] {
        let request = Request { pinned: Some("replica-0"), ..of_prompt(prompt) };
        let mut expectation = router.decide(&request, Tick(0)).expect("ready").expectation.expect("an index");
        assert_eq!(credit(&mut router, prompt, Tick(0)), [4, 0], "a burst finds it at once");
        router.confirm(&mut expectation, Tick(SECOND));
        assert_eq!(credit(&mut router, prompt, Tick(60 * SECOND)), [4, 0], "it is being computed");
        router.finish(expectation, Tick(60 * SECOND));
    }
    store(&mut router, "replica-0", 1, 4, Tier::Device);
    assert_eq!(credit(&mut router, &unsaid, Tick(60 * SECOND + 999_999)), [4, 0], "events may be on their way");
    assert_eq!(credit(&mut router, &unsaid, Tick(61 * SECOND)), [0, 0], "the engine does not have it");
    assert_eq!(credit(&mut router, &said, Tick(61 * SECOND)), [4, 0]);
    assert_eq!(router.index_held("replica-0"), 4, "and nothing stays pinned");
}

#[test]
fn where_events_are_missing_predictions_count_beside_them() {
    let (mut router, _) = two();
    router.follow("replica-0", Following::Loosely);
    store(&mut router, "replica-0", 1, 4, Tier::Device);
    warm(&mut router, "replica-0", &[&prompt(2, 4)]);
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(60 * SECOND)), [4, 0]);
    assert_eq!(credit(&mut router, &prompt(2, 4), Tick(60 * SECOND)), [4, 0], "predicted, and it stays");
    // Now everything is known: what was predicted and not said is not there.
    router.follow("replica-0", Following::Exactly);
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(60 * SECOND)), [4, 0]);
    assert_eq!(credit(&mut router, &prompt(2, 4), Tick(60 * SECOND)), [0, 0]);
    // Something went missing: what is known stays.
    router.follow("replica-0", Following::Loosely);
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(60 * SECOND)), [4, 0]);
    router.follow("replica-0", Following::None);
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(60 * SECOND)), [0, 0]);
}

#[test]
fn another_life_is_not_followed_and_holds_nothing() {
    let (mut router, mut members) = two();
    router.follow("replica-0", Following::Exactly);
    store(&mut router, "replica-0", 1, 4, Tier::Device);
    // Positions change; the life stays.
    members.reverse();
    router.set_members(members.clone());
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(0)), [0, 4]);
    members[1].incarnation += 1;
    router.set_members(members.clone());
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(0)), [0, 0]);
    assert_eq!(store(&mut router, "replica-0", 1, 4, Tier::Device), None, "it has to be followed anew");
    router.follow("replica-0", Following::Exactly);
    assert_eq!(store(&mut router, "replica-0", 2, 4, Tier::Device).expect("followed").stored, 4);
    assert_eq!(credit(&mut router, &prompt(2, 4), Tick(0)), [0, 4]);
    assert_eq!(credit(&mut router, &prompt(1, 4), Tick(0)), [0, 0]);
    assert_eq!(store(&mut router, "unknown", 1, 4, Tier::Device), None);
}

#[test]
fn what_lies_in_a_lower_tier_counts_three_quarters() {
    let (mut router, _) = two();
    router.follow("replica-1", Following::Exactly);
    store(&mut router, "replica-1", 1, 8, Tier::Device);
    store(&mut router, "replica-1", 1, 8, Tier::Host);
    assert_eq!(credit(&mut router, &prompt(1, 8), Tick(0)), [0, 8]);
    remove(&mut router, "replica-1", &hashes(1, 8)[4..]);
    assert_eq!(credit(&mut router, &prompt(1, 8), Tick(0)), [0, 7]);
    remove(&mut router, "replica-1", &hashes(1, 4));
    assert_eq!(credit(&mut router, &prompt(1, 8), Tick(0)), [0, 6]);
}

#[test]
fn what_cannot_be_placed_is_said() {
    let (mut router, _) = two();
    router.follow("replica-0", Following::Exactly);
    let stored = Stored {
        root: ROOT,
        parent: Some(99),
        hashes: &[1, 2],
        tokens: &tokens(1, 2),
        block_size: 16,
        tier: Tier::Device,
        extras: &[],
    };
    let taken = router.cache_events("replica-0", &[CacheEvent::Stored(stored)]).expect("followed");
    assert_eq!(taken.unstored, Some((Unstored::UnknownParent, 2)));
}

#[test]
fn what_it_says_decides() {
    let (mut router, _) = two();
    let known = prompt(1, 200);
    warm(&mut router, "replica-0", &[&known]);
    for replica in ["replica-0", "replica-1"] {
        router.follow(replica, Following::Exactly);
    }
    store(&mut router, "replica-1", 1, 200, Tier::Device);
    let (replica, reason, matched) = serve(&mut router, &of_prompt(&known), Tick(0));
    assert_eq!((&*replica, reason, matched), ("replica-1", Reason::Prefix, 3200));
}
