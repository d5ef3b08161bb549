//! What each operation promises.
use super::*;

/// First of all: otherwise an orphaned tail would stand beside its own re-inserted head, and the tree be corrupt.
#[test]
fn a_run_never_keeps_hashes_that_no_replica_holds() {
    let mut index = Index::new(usize::MAX);
    let (one, other) = (index.add(8), index.add(8));
    let (long, short) = (blocks(1, 0..8), blocks(1, 0..3));
    serve(&mut index, one, &long);
    serve(&mut index, other, &short);
    serve(&mut index, one, &blocks(2, 0..6)); // evicts the long one down to 2
    let of = |index: &Index, head: u64| -> usize {
        let runs = index.dump(usize::MAX).runs;
        runs.iter().filter(|run| run.head == format!("{head:016x}")).map(|run| run.blocks).sum()
    };
    assert_eq!((depth(&index, one, &long), depth(&index, other, &long)), (2, 3));
    assert_eq!((of(&index, long[0]), of(&index, long[3])), (3, 0), "what the other one holds stays, no more");
    serve(&mut index, other, &long); // the tail comes again, and is found as far as it is held
    assert_eq!((depth(&index, one, &long), depth(&index, other, &long)), (2, 8));
    let withdrawn = index.place(one, &blocks(3, 0..5));
    index.withdraw(withdrawn, &blocks(3, 0..5));
    assert_eq!(of(&index, blocks(3, 0..1)[0]), 0, "nor after a withdrawal");
    index.remove(other);
    while index.sweep(1) {
        index.check();
    }
    let total: usize = index.dump(usize::MAX).runs.iter().map(|run| run.blocks).sum();
    assert_eq!(total, index.held(one), "nor after a sweep");
}

#[test]
fn evicts_leaf_first_and_block_by_block() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(10);
    let (first, second) = (forked(4, 1, 3), forked(4, 2, 3));
    serve(&mut index, slot, &first);
    serve(&mut index, slot, &second);
    serve(&mut index, slot, &blocks(3, 0..1));
    assert_eq!(depth(&index, slot, &first), 6, "the older branch gives its last block");
    assert_eq!(depth(&index, slot, &second), 7);
    serve(&mut index, slot, &blocks(4, 0..4));
    assert_eq!((depth(&index, slot, &first), depth(&index, slot, &second)), (4, 5), "then the newer one");
}

#[test]
fn a_chain_longer_than_the_capacity_is_placed_as_far_as_that_goes() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(5);
    let chain = blocks(1, 0..9);
    let placement = index.place(slot, &chain);
    assert_eq!((depth(&index, slot, &chain), index.held(slot)), (5, 5));
    index.finish(placement, &chain);
    assert_eq!(index.stats().evicted, 0);
}

#[test]
fn pinned_blocks_exceed_the_capacity_until_they_end() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(6);
    let (one, other) = (blocks(1, 0..5), blocks(2, 0..5));
    let first = index.place(slot, &one);
    let second = index.place(slot, &other);
    assert_eq!((depth(&index, slot, &one), depth(&index, slot, &other)), (5, 5));
    index.finish(first, &one);
    assert_eq!((depth(&index, slot, &one), depth(&index, slot, &other)), (1, 5));
    index.finish(second, &other);
}

#[test]
fn a_pin_covers_exactly_what_was_placed_although_the_run_is_split_or_gone_on_with() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(12);
    let (turn, next) = (blocks(1, 0..6), blocks(1, 0..10));
    let open = index.place(slot, &turn);
    serve(&mut index, slot, &next);
    serve(&mut index, slot, &blocks(1, 0..2)); // splits what is pinned
    serve(&mut index, slot, &blocks(2, 0..12));
    assert_eq!(depth(&index, slot, &next), 6, "no more, no less");
    index.finish(open, &turn);
    serve(&mut index, slot, &blocks(3, 0..12));
    assert_eq!(depth(&index, slot, &next), 0, "then it may go");
}

#[test]
fn withdrawing_takes_back_only_what_this_placement_expected() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(100);
    let (confirmed, open, own) = (blocks(1, 0..3), blocks(1, 0..5), blocks(1, 0..9));
    serve(&mut index, slot, &confirmed);
    let other = index.place(slot, &open);
    let placement = index.place(slot, &own);
    index.withdraw(placement, &own);
    assert_eq!(depth(&index, slot, &own), 5, "what another one expects stays");
    index.withdraw(other, &open);
    assert_eq!(depth(&index, slot, &own), 3, "what is confirmed stays");
    let (long, short) = (forked(4, 1, 4), forked(4, 1, 2));
    let placement = index.place(slot, &long);
    index.finish(placement, &long);
    let placement = index.place(slot, &short);
    index.withdraw(placement, &short);
    assert_eq!(depth(&index, slot, &long), 8, "what something else begins with stays");
}

#[test]
fn confirming_never_revives_what_is_gone() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(10);
    let chain = blocks(1, 0..4);
    let placement = index.place(slot, &chain);
    index.remove(slot);
    let again = index.add(10);
    index.confirm(&placement, &chain);
    index.finish(placement, &chain);
    index.check();
    assert_eq!((depth(&index, again, &chain), index.held(slot), index.held(again)), (0, 0, 0));
}

#[test]
fn a_place_is_used_again_only_when_it_is_swept() {
    let mut index = Index::new(usize::MAX);
    let old = index.add(10);
    let chain = blocks(1, 0..4);
    serve(&mut index, old, &chain);
    index.remove(old);
    let new = index.add(10);
    assert_ne!(new.at(), old.at());
    assert_eq!(depth(&index, new, &chain), 0);
    while index.sweep(1) {}
    let third = index.add(10);
    assert_eq!(third.at(), old.at());
    serve(&mut index, third, &chain);
    let late = index.place(old, &chain);
    index.withdraw(late, &chain);
    index.set_capacity(old, 0);
    index.remove(old);
    assert_eq!((index.held(old), depth(&index, third, &chain)), (0, 4), "the older life has no say");
}

#[test]
fn a_sweep_takes_bounded_steps() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(1000);
    (0..50).for_each(|prompt| serve(&mut index, slot, &blocks(prompt, 0..2)));
    index.remove(slot);
    assert_eq!(index.stats().pairs, 0, "gone at once");
    let mut before = index.dump(usize::MAX).runs_total;
    while index.sweep(3) {
        let runs = index.dump(usize::MAX).runs_total;
        assert!(runs < before && runs + 3 >= before, "{before} -> {runs}");
        before = runs;
    }
    assert_eq!(index.dump(usize::MAX).runs_total, 0);
}

#[test]
fn serves_more_replicas_than_it_has_places_for() {
    let mut index = Index::new(usize::MAX);
    let slots: Vec<Slot> = (0..65_537).map(|_| index.add(10)).collect();
    let (mut chain, mut depths) = (blocks(1, 0..3), Vec::new());
    for slot in [slots[0], slots[65_534], slots[65_535], slots[65_536]] {
        serve(&mut index, slot, &chain);
    }
    index.lookup(&chain, &mut depths);
    assert!(slots.iter().all(|slot| slot.at() < depths.len()));
    assert_eq!([0, 65_534, 65_535, 65_536].map(|at| index.held(slots[at])), [3, 3, 0, 0]);
    index.remove(slots[7]);
    while index.sweep(10) {}
    let again = index.add(10);
    chain.truncate(1);
    serve(&mut index, again, &chain);
    assert_eq!(index.held(again), 1, "who leaves makes room");
}

#[test]
fn over_its_bytes_it_evicts_what_was_used_longest_ago_of_all_replicas() {
    let mut index = Index::new(usize::MAX);
    let slots = [index.add(usize::MAX), index.add(usize::MAX), index.add(usize::MAX)];
    let prompts = |at: usize| (0..200_u32).map(move |prompt| blocks(3 * prompt + at as u32, 0..20));
    for at in [1, 0, 2] {
        prompts(at).for_each(|chain| serve(&mut index, slots[at], &chain));
    }
    let full = index.stats().bytes;
    index.set_max_bytes(full * 2 / 3);
    while index.sweep(5) {
        index.check();
    }
    assert!(index.stats().bytes <= full * 2 / 3);
    let held = slots.map(|slot| index.held(slot));
    assert!(held[1] < 400 && held[0] > 2000 && held[2] == 4000, "{held:?}");
    index.set_max_bytes(0);
    let chain = blocks(1_000_000, 0..30);
    let pinned = index.place(slots[0], &chain);
    while index.sweep(100) {}
    assert_eq!((depth(&index, slots[0], &chain), index.stats().pairs), (30, 30), "what is pinned stays");
    index.finish(pinned, &chain);
    assert!(!index.sweep(100) && index.stats().pairs == 0);
}

#[test]
fn a_smaller_capacity_is_reached_in_bounded_steps() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(100);
    serve(&mut index, slot, &blocks(1, 0..100));
    index.set_capacity(slot, 10);
    let mut before = index.held(slot);
    let chain = blocks(2, 0..1);
    while index.held(slot) > 10 {
        serve(&mut index, slot, &chain);
        let held = index.held(slot);
        assert!(held < before && before - held <= 2 * crate::prefix::index::EVICTED_AT_ONCE, "{before} -> {held}");
        before = held;
    }
    assert_eq!(depth(&index, slot, &chain), 1);
}

/// Two chains that have a hash in common by chance are beyond what chains promise; nothing may break all the same.
#[test]
fn colliding_hashes_do_no_harm() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(6);
    let mut open = Vec::new();
    for seed in 0..4000_u64 {
        let chain: Vec<u64> = (0..5).map(|at| ((seed * 2_654_435_761) >> (3 * at)) % 7).collect();
        open.push((index.place(slot, &chain), chain));
        if seed % 3 > 0 {
            let (placement, chain) = open.swap_remove(seed as usize % open.len());
            index.confirm(&placement, &chain);
            if seed % 2 == 0 { index.finish(placement, &chain) } else { index.withdraw(placement, &chain) }
        }
    }
    open.into_iter().for_each(|(placement, chain)| index.finish(placement, &chain));
    serve(&mut index, slot, &blocks(1, 0..6));
    index.remove(slot);
    (0..20_000).take_while(|_| index.sweep(1)).for_each(drop);
    assert_eq!((index.stats().pairs, index.dump(10).runs_total), (0, 0));
}

#[test]
fn a_dump_tells_who_holds_what_and_stays_within_its_limit() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(100);
    serve(&mut index, slot, &blocks(1, 0..3));
    let chain = blocks(1, 0..5);
    let placement = index.place(slot, &chain);
    (2..9).for_each(|prompt| serve(&mut index, slot, &blocks(prompt, 0..2)));
    assert_eq!(index.dump(3).runs.len(), 3);
    let dump = serde_json::to_value(index.dump(100)).unwrap();
    assert_eq!((&dump["runs_total"], &dump["pairs"]), (&8.into(), &19.into()));
    let run = &dump["runs"].as_array().unwrap().iter().find(|run| run["blocks"] == 5).unwrap();
    assert_eq!(run["head"], format!("{:016x}", chain[0]));
    let holder = serde_json::json!({"at": 0, "depth": 5, "confirmed": 3, "pins": 1, "stamp": 3, "gone": false});
    assert_eq!(run["holders"], serde_json::json!([holder]));
    index.finish(placement, &chain);
}
