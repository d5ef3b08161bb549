//! What broke in others' indexes, by its number in the field reports.
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;

/// production-stack #990, #572, AIBrix #1993: an index never filled, lost inserts, a search off by one.
#[test]
fn b0e_every_block_that_went_in_is_found_at_its_depth() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(usize::MAX);
    for shared in 0..12 {
        for own in 0..12 {
            let chain = forked(shared, own as u32 + 1, own);
            serve(&mut index, slot, &chain);
        }
    }
    for shared in 0..12 {
        for own in 0..12 {
            let chain = forked(shared, own as u32 + 1, own);
            assert_eq!(depth(&index, slot, &chain) as usize, chain.len());
            let longer = [&chain[..], &blocks(9_999, 0..3)].concat();
            assert_eq!(depth(&index, slot, &longer) as usize, chain.len(), "and no further");
        }
    }
}

/// production-stack #687, #707, dynamo #10774, #11933: routers killed for memory. A million inserts.
#[test]
fn b0f_memory_is_flat_under_churn() {
    for (capacity, max_bytes) in [(2_000, usize::MAX), (usize::MAX, 400_000)] {
        let mut index = Index::new(max_bytes);
        let slots: Vec<Slot> = (0..4).map(|_| index.add(capacity)).collect();
        let mut random = 1_u64;
        let (mut settled, mut most) = (0, 0);
        for insert in 0..500_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Mostly new prompts, of 1 to 8 blocks, under one of a few heads of three blocks.
            let head = random >> 60;
            let own = (0..(random >> 40) % 8 + 1).map(|at| (random ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let chain: Vec<u64> = (0..3).map(|at| (head * 3 + at + 1) << 50).chain(own).collect();
            serve(&mut index, slots[(random >> 33) as usize % 4], &chain);
            let bytes = index.stats().bytes;
            if insert < 50_000 { settled = bytes.max(settled) } else { most = bytes.max(most) }
        }
        index.check();
        assert!(most <= settled + settled / 10, "{settled} bytes grew to {most}");
        assert!(most <= max_bytes.saturating_add(20_000), "{most}");
        slots.into_iter().for_each(|slot| index.remove(slot));
        while index.sweep(1_000) {}
        assert!(index.stats().bytes < settled / 5, "what is gone is given back: {}", index.stats().bytes);
    }
}

/// dynamo #10774 again: a tree that only ever splits grows although what it holds does not.
#[test]
fn b0f_splits_that_nobody_needs_are_undone() {
    let mut index = Index::new(usize::MAX);
    let slot = index.add(1_000);
    let whole = blocks(1, 0..100);
    for end in 1..100 {
        serve(&mut index, slot, &whole[..end]);
        serve(&mut index, slot, &whole);
        serve(&mut index, slot, &whole[..100 - end]);
    }
    serve(&mut index, slot, &whole);
    assert_eq!((index.dump(10).runs_total, depth(&index, slot, &whole)), (1, 100));
}

/// Ray #58835: a replica of another deployment in the tree. Models share no block, and an index knows its own only.
#[test]
fn b0g_models_share_no_block() {
    let of = |model: &str, adapter: Option<&str>, salt: Option<&str>| {
        let mut chain = Chain::new(root(Basis::Tokens, model, adapter, salt));
        chain.push(&[5; 4 * BLOCK_TOKENS]);
        chain.finish()
    };
    let mut index = Index::new(usize::MAX);
    let slot = index.add(100);
    serve(&mut index, slot, &of("one", None, None));
    assert_eq!(depth(&index, slot, &of("one", None, None)), 4);
    for other in [of("other", None, None), of("one", Some("lora"), None), of("one", None, Some("tenant"))] {
        assert_eq!(depth(&index, slot, &other), 0);
    }
    let mut elsewhere = Index::new(usize::MAX);
    let foreign = index.add(10);
    let placement = index.place(foreign, &blocks(1, 0..3));
    elsewhere.add(10);
    elsewhere.finish(placement, &blocks(1, 0..3));
    elsewhere.check();
    assert_eq!((elsewhere.held(foreign), elsewhere.stats().pairs), (0, 0));
}

/// Kthena #1243, #1422, #1463, #791, #754, #1650: races of eviction, entries of replicas that restarted.
#[test]
fn b0h_nothing_of_an_earlier_life_is_seen_while_others_evict_and_sweep() {
    let index = Arc::new(Mutex::new(Index::new(200_000)));
    let rounds = 4_000_u32;
    let worker = |thread: u32| {
        let index = Arc::clone(&index);
        move || {
            let mut slot = index.lock().add(60);
            let mut depths = Vec::new();
            for round in 0..rounds {
                let chain = forked(round as usize % 5, 2 * (round % 40) + thread, 1 + round as usize % 7);
                let placement = index.lock().place(slot, &chain);
                index.lock().confirm(&placement, &chain);
                index.lock().lookup(&chain, &mut depths);
                assert_eq!(depths[slot.at()] as usize, chain.len(), "what is pinned is there");
                if round % 50 == 49 {
                    let mut index = index.lock();
                    index.remove(slot);
                    index.lookup(&chain, &mut depths);
                    assert_eq!(depths[slot.at()], 0);
                    slot = index.add(60);
                    index.lookup(&chain, &mut depths);
                    assert_eq!(depths[slot.at()], 0, "a new life begins empty");
                }
                if round % 3 == 0 {
                    index.lock().withdraw(placement, &chain);
                } else {
                    index.lock().finish(placement, &chain);
                }
                if round % 7 == 0 {
                    index.lock().sweep(4);
                }
                if round % 100 == 0 {
                    index.lock().check();
                }
            }
            let mut index = index.lock();
            index.check();
            index.remove(slot);
        }
    };
    let threads = [0, 1].map(|thread| std::thread::spawn(worker(thread)));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut index = index.lock();
    while index.sweep(100) {}
    index.check();
    assert_eq!((index.stats().pairs, index.dump(10).runs_total), (0, 0));
}
