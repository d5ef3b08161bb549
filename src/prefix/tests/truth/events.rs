//! What each kind of event does, with blocks as large as ours or several times as large.
use super::*;

/// First of all: otherwise an orphaned tail would stand beside its own re-inserted head, and the tree be corrupt.
#[test]
fn a_run_never_keeps_hashes_that_no_replica_holds() {
    let mut truth = following(2);
    let (one, other) = (Engine::new(1, 16, &tokens(1, 8)), Engine::new(2, 16, &tokens(1, 3)));
    one.store_all(&mut truth, 0).unwrap();
    other.store_all(&mut truth, 1).unwrap();
    assert_eq!(truth.stats().blocks, 8);
    one.remove(&mut truth, 0, 2..8, Tier::Device);
    assert_eq!(held(&truth, 0, &one.chain()), (2, 2));
    assert_eq!(truth.stats().blocks, 3, "what the other one holds stays, no more");
    one.store(&mut truth, 0, 2..8, Tier::Device).unwrap();
    assert_eq!((held(&truth, 0, &one.chain()), truth.stats().blocks), ((8, 8), 8), "the tail is found again");
    one.remove(&mut truth, 0, 0..7, Tier::Device);
    other.remove(&mut truth, 1, 0..3, Tier::Device);
    assert_eq!((held(&truth, 0, &one.chain()), truth.held(0)), ((0, 0), 1));
    one.remove(&mut truth, 0, 7..8, Tier::Device);
    assert_eq!((held(&truth, 0, &one.chain()), truth.stats().blocks), ((0, 0), 0), "nothing is left");
    one.store_all(&mut truth, 0).unwrap();
    truth.unfollow(0);
    while truth.sweep(1) {
        truth.check();
    }
    assert_eq!(truth.stats().blocks, 0, "nor after a sweep");
}

#[test]
fn a_prompt_that_branches_and_comes_back_is_found_from_both_sides() {
    let mut truth = following(1);
    let (mut long, mut short) = (tokens(1, 6), tokens(1, 3));
    short.extend(tokens(2, 4));
    let (first, second) = (Engine::new(1, 16, &long), Engine::new(1, 16, &short));
    assert_eq!((first.store_all(&mut truth, 0), second.store_all(&mut truth, 0)), (Ok(6), Ok(4)));
    assert_eq!(held(&truth, 0, &first.chain()), (6, 6));
    assert_eq!(held(&truth, 0, &second.chain()), (7, 7));
    // Everything before the second branch goes, and its head is met again from a new run.
    assert_eq!(second.remove(&mut truth, 0, 0..3, Tier::Device), 3, "two copies each, of one content");
    assert_eq!(first.remove(&mut truth, 0, 0..6, Tier::Device), 6);
    assert_eq!((held(&truth, 0, &second.chain()), truth.held(0)), ((0, 0), 4));
    second.store(&mut truth, 0, 0..3, Tier::Device).unwrap();
    assert_eq!((held(&truth, 0, &second.chain()), truth.stats().blocks), ((7, 7), 7));
    long.truncate(16);
    assert_eq!(held(&truth, 0, &Engine::new(1, 16, &long).chain()), (1, 1));
}

#[test]
fn replicas_whose_engines_hash_differently_share_what_they_hold_alike() {
    let mut truth = following(3);
    let engines = [(1, 16), (2, 32), (3, 4)].map(|(seed, size)| Engine::new(seed, size, &tokens(1, 4)));
    for (at, engine) in engines.iter().enumerate() {
        assert_eq!(engine.store_all(&mut truth, at), Ok(4));
    }
    assert_eq!((truth.stats().pairs, truth.stats().blocks), (12, 4));
    let mut depths = Vec::new();
    truth.lookup(&engines[0].chain(), &mut depths);
    assert_eq!(depths, [Held { any: 4, device: 4 }; 3]);
}

#[test]
fn only_the_same_root_is_the_same_prompt() {
    let mut truth = following(1);
    let engine = Engine::new(1, 16, &tokens(1, 2));
    engine.store_all(&mut truth, 0).unwrap();
    let mut chain = Chain::new(ROOT + 1);
    chain.push(&engine.tokens);
    assert_eq!(held(&truth, 0, &chain.finish()), (0, 0));
}

#[test]
fn what_comes_after_an_unknown_parent_is_not_stored() {
    let mut truth = following(1);
    let engine = Engine::new(1, 16, &tokens(1, 4));
    assert_eq!(engine.store(&mut truth, 0, 1..3, Tier::Device), Err(Unstored::UnknownParent));
    engine.store(&mut truth, 0, 0..2, Tier::Device).unwrap();
    engine.remove(&mut truth, 0, 1..2, Tier::Device);
    assert_eq!(engine.store(&mut truth, 0, 2..4, Tier::Device), Err(Unstored::UnknownParent));
    let as_first = Engine::new(1, 16, &engine.tokens[2 * 16..]).chain();
    assert_eq!((held(&truth, 0, &engine.chain()), held(&truth, 0, &as_first)), ((1, 1), (0, 0)));
}

#[test]
fn an_image_sets_its_block_apart_and_shares_what_comes_before() {
    let mut truth = following(2);
    let mut engine = Engine::new(1, 16, &tokens(1, 4));
    engine.extras = vec![None, None, Some(5)];
    assert_eq!(engine.store_all(&mut truth, 0), Ok(4));
    assert_eq!(held(&truth, 0, &engine.chain()), (2, 2), "no prompt without it has this block");
    engine.extras[2] = Some(6);
    assert_eq!(engine.store_all(&mut truth, 0), Ok(2), "another one is another block, and so is what comes after");
    assert_eq!(engine.store_all(&mut truth, 1), Ok(4));
    assert_eq!(truth.stats().blocks, 6, "the same one is the same");
}

#[test]
fn other_block_sizes_and_what_is_not_dense_are_refused() {
    let mut truth = following(1);
    for size in [0, 3, 5, 24, 40, 256 * 16] {
        let (hashes, tokens) = ([1, 2], vec![1; 2 * size]);
        let (root, tier, extras) = (ROOT, Tier::Device, &[]);
        let block_size = size as u32;
        let mut stored = Stored { root, parent: None, hashes: &hashes, tokens: &tokens, block_size, tier, extras };
        if size > 0 {
            assert_eq!(truth.store(0, &stored), Err(Unstored::BlockSize), "{size}");
            stored.tokens = &tokens[1..];
        } else {
            stored.tokens = &[1];
        }
        assert_eq!(truth.store(0, &stored), Err(Unstored::NotDense), "{size}");
    }
    assert_eq!(Engine::new(1, 255 * 16, &tokens(1, 255)).store_all(&mut truth, 0), Ok(255));
    let small = Engine::new(1, 4, &tokens(1, 1));
    assert_eq!(small.store_all(&mut truth, 0), Err(Unstored::BlockSize), "one replica has not both kinds");
}

#[test]
fn each_removal_takes_one_of_several_copies() {
    for size in [16, 32] {
        let mut truth = following(1);
        let engine = Engine::new(1, size, &tokens(1, 4));
        let blocks = 64 / size;
        (0..3).for_each(|_| _ = engine.store_all(&mut truth, 0));
        for _ in 0..2 {
            assert_eq!(engine.remove(&mut truth, 0, 0..blocks, Tier::Device), blocks);
            assert_eq!(held(&truth, 0, &engine.chain()), (4, 4));
        }
        assert_eq!(engine.remove(&mut truth, 0, 0..blocks, Tier::Device), blocks);
        assert_eq!(held(&truth, 0, &engine.chain()), (0, 0));
        assert_eq!(engine.remove(&mut truth, 0, 0..blocks, Tier::Device), 0, "of what is unknown nothing is taken");
        assert_eq!(truth.stats().pairs, 0);
    }
}

#[test]
fn what_is_removed_at_once_need_not_stand_side_by_side() {
    for order in [[2, 3, 5, 7], [7, 5, 3, 2], [5, 2, 7, 3]] {
        let mut truth = following(1);
        let engine = Engine::new(1, 16, &tokens(1, 8));
        engine.store_all(&mut truth, 0).unwrap();
        let hashes = order.map(|at| engine.hashes()[at]);
        assert_eq!(truth.remove(0, Tier::Device, &hashes), 4);
        assert_eq!((held(&truth, 0, &engine.chain()), truth.held(0), truth.stats().blocks), ((2, 2), 4, 7));
        assert_eq!(engine.remove(&mut truth, 0, 4..7, Tier::Device), 2, "those between are still there");
        assert_eq!((truth.held(0), truth.stats().blocks), (2, 2));
    }
}

#[test]
fn a_block_is_held_while_any_tier_has_it_and_on_the_device_only_there() {
    for size in [8, 16, 32] {
        let mut truth = following(1);
        let engine = Engine::new(1, size, &tokens(1, 4));
        let (blocks, half) = (64 / size, 32 / size);
        engine.store_all(&mut truth, 0).unwrap();
        assert_eq!(engine.store(&mut truth, 0, 0..blocks, Tier::Host), Ok(0));
        assert_eq!(engine.remove(&mut truth, 0, 0..blocks, Tier::Disk), 0, "there is none");
        assert_eq!(engine.remove(&mut truth, 0, half..blocks, Tier::Device), half);
        assert_eq!(held(&truth, 0, &engine.chain()), (4, 2));
        assert_eq!(engine.remove(&mut truth, 0, 0..1, Tier::Device), 1);
        assert_eq!(held(&truth, 0, &engine.chain()), (4, 0), "all of it on the device, or it does not count");
        assert_eq!(engine.store(&mut truth, 0, 0..1, Tier::Device), Ok(0));
        assert_eq!(held(&truth, 0, &engine.chain()), (4, 2), "what comes after counts again");
        assert_eq!(engine.remove(&mut truth, 0, 0..blocks, Tier::Host), blocks);
        assert_eq!(held(&truth, 0, &engine.chain()), (2, 2));
    }
}

#[test]
fn what_was_stored_on_a_lower_tier_first_is_no_block_of_the_device() {
    let mut truth = following(1);
    let engine = Engine::new(1, 16, &tokens(1, 3));
    assert_eq!(engine.store(&mut truth, 0, 0..3, Tier::Remote), Ok(3));
    assert_eq!(held(&truth, 0, &engine.chain()), (3, 0));
}

#[test]
fn an_offload_that_does_not_describe_itself_copies_what_is_known() {
    for size in [4, 16, 32] {
        let mut truth = following(1);
        let engine = Engine::new(1, size, &tokens(1, 4));
        let (blocks, half) = (64 / size, 32 / size);
        engine.store(&mut truth, 0, 0..half, Tier::Device).unwrap();
        let (parent, hashes) = (None, engine.hashes());
        let offload =
            Stored { root: 1, parent, hashes: &hashes, tokens: &[], block_size: 0, tier: Tier::Host, extras: &[] };
        assert_eq!(truth.store(0, &offload), Ok(0));
        assert_eq!(held(&truth, 0, &engine.chain()), (2, 2), "what is unknown is no content");
        engine.remove(&mut truth, 0, 0..half, Tier::Device);
        assert_eq!(held(&truth, 0, &engine.chain()), (2, 0));
        assert_eq!(engine.remove(&mut truth, 0, 0..blocks, Tier::Host), half);
        assert_eq!(held(&truth, 0, &engine.chain()), (0, 0));
    }
}

#[test]
fn a_gap_shortens_and_filling_it_counts_the_tail_at_once() {
    for size in [1, 16, 32] {
        let mut truth = following(1);
        let engine = Engine::new(1, size, &tokens(1, 200));
        let per = 32 / size;
        engine.store_all(&mut truth, 0).unwrap();
        // Gaps at 2·5 and at 2·70 own blocks; the later one first.
        engine.remove(&mut truth, 0, 70 * per..71 * per, Tier::Device);
        engine.remove(&mut truth, 0, 5 * per..6 * per, Tier::Device);
        assert_eq!((held(&truth, 0, &engine.chain()), truth.held(0)), ((10, 10), 196));
        engine.store(&mut truth, 0, 5 * per..6 * per, Tier::Device).unwrap();
        assert_eq!(held(&truth, 0, &engine.chain()), (140, 140));
        engine.store(&mut truth, 0, 70 * per..71 * per, Tier::Device).unwrap();
        assert_eq!(held(&truth, 0, &engine.chain()), (200, 200));
        // From the front to the end, as no engine should.
        for at in 0..200 * 16 / size {
            engine.remove(&mut truth, 0, at..at + 1, Tier::Device);
        }
        assert_eq!((held(&truth, 0, &engine.chain()), truth.stats().blocks), ((0, 0), 0));
    }
}

#[test]
fn a_replica_that_lacks_the_beginning_gets_nothing_for_what_comes_after() {
    let mut truth = following(2);
    let mut other = tokens(1, 2);
    other.extend(tokens(2, 3));
    let (one, other) = (Engine::new(1, 16, &tokens(1, 5)), Engine::new(1, 16, &other));
    one.store_all(&mut truth, 0).unwrap();
    (0..2).for_each(|at| _ = other.store_all(&mut truth, at));
    other.remove(&mut truth, 1, 0..2, Tier::Device);
    assert_eq!((held(&truth, 0, &other.chain()), held(&truth, 1, &other.chain())), ((5, 5), (0, 0)));
}

#[test]
fn two_of_the_engines_hashes_for_one_content_are_two_blocks_there() {
    for size in [4, 16] {
        let mut truth = following(1);
        let [one, other] = [1, 2].map(|seed| Engine::new(seed, size, &tokens(1, 2)));
        let blocks = 32 / size;
        assert_eq!((one.store_all(&mut truth, 0), other.store_all(&mut truth, 0)), (Ok(2), Ok(0)));
        assert_eq!((held(&truth, 0, &one.chain()), truth.held(0)), ((2, 2), 2));
        one.remove(&mut truth, 0, 0..blocks, Tier::Device);
        assert_eq!(held(&truth, 0, &one.chain()), (2, 2));
        other.remove(&mut truth, 0, 0..blocks, Tier::Device);
        assert_eq!((held(&truth, 0, &one.chain()), truth.held(0)), ((0, 0), 0));
    }
}

/// SGLang 0.4.9 to 0.5.4 hash a page's own tokens only, so equal pages at different places have one hash.
#[test]
fn a_hash_that_means_two_blocks_is_void_and_gives_no_credit() {
    for size in [8, 16, 32] {
        let mut truth = following(1);
        let prompt = |begin: u32| [vec![begin; size], vec![5; size], vec![6; size]].concat();
        let per = size.max(16) as u32 / 16;
        let store = |truth: &mut Truth, parent, hashes: &[u64], tokens: &[u32]| {
            let block_size = size as u32;
            truth.store(0, &Stored { root: ROOT, parent, hashes, tokens, block_size, tier: Tier::Device, extras: &[] })
        };
        let [one, other] = [1, 2].map(prompt);
        let deep = if size == 8 { 1 } else { 3 * per };
        store(&mut truth, None, &[1, 5, 6], &one).unwrap();
        assert_eq!(held(&truth, 0, &Engine::new(0, size, &one).chain()), (deep, deep));
        assert_eq!(store(&mut truth, None, &[2, 5, 6], &other), Err(Unstored::Ambiguous));
        let left = if size == 8 { 0 } else { per };
        assert_eq!(held(&truth, 0, &Engine::new(0, size, &one).chain()), (left, left), "neither counts");
        assert_eq!(held(&truth, 0, &Engine::new(0, size, &other).chain()), (left, left), "what came before is stored");
        // Nor is it anything later: what comes after it could be after either.
        assert_eq!(truth.remove(0, Tier::Device, &[5]), 0);
        assert_eq!(store(&mut truth, Some(5), &[7], &vec![7; size]), Err(Unstored::UnknownParent));
        assert_eq!(store(&mut truth, Some(1), &[5], &vec![5; size]), Err(Unstored::Ambiguous));
        truth.clear(0);
        store(&mut truth, None, &[1, 5, 6], &one).unwrap();
        assert_eq!(held(&truth, 0, &Engine::new(0, size, &one).chain()), (deep, deep), "a new life begins anew");
    }
}

#[test]
fn over_the_bytes_nothing_is_stored_until_something_goes() {
    let mut truth = following(1);
    let prompts = |from: u32, to: u32| (from..to).map(|prompt| Engine::new(1, 16, &tokens(prompt, 10)));
    prompts(0, 500).for_each(|engine| _ = engine.store_all(&mut truth, 0).unwrap());
    let full = truth.stats().bytes;
    truth.set_max_bytes(full);
    let more = prompts(500, 501).next().unwrap();
    assert_eq!(more.store_all(&mut truth, 0), Err(Unstored::OverBudget));
    assert_eq!(held(&truth, 0, &more.chain()), (0, 0));
    prompts(0, 400).for_each(|engine| _ = engine.remove(&mut truth, 0, 0..10, Tier::Device));
    assert_eq!(more.store_all(&mut truth, 0), Ok(10));
    prompts(501, 2000).for_each(|engine| _ = engine.store_all(&mut truth, 0));
    assert!(truth.stats().bytes <= full, "{} of {full}", truth.stats().bytes);
}

#[test]
fn who_is_not_followed_holds_nothing() {
    let mut truth = following(1);
    let engine = Engine::new(1, 16, &tokens(1, 2));
    for at in [1, 70_000] {
        assert_eq!(engine.store_all(&mut truth, at), Err(Unstored::NotFollowed));
        assert_eq!((engine.remove(&mut truth, at, 0..2, Tier::Device), truth.held(at)), (0, 0));
        truth.clear(at);
        truth.unfollow(at);
    }
    truth.follow(70_000);
    assert_eq!(engine.store_all(&mut truth, 70_000), Err(Unstored::NotFollowed), "there are 65,535 places");
    truth.follow(3);
    assert_eq!(engine.store_all(&mut truth, 3), Ok(2));
    assert_eq!((held(&truth, 3, &engine.chain()), held(&truth, 2, &engine.chain())), ((2, 2), (0, 0)));
    assert_eq!(truth.stats().followed, 2);
}
