//! Engines whose blocks are smaller than ours.
use super::*;

#[test]
fn a_block_counts_once_all_its_pages_are_there() {
    for size in [1, 2, 4, 8] {
        let mut truth = following(1);
        let engine = Engine::new(1, size, &tokens(1, 3));
        let per = 16 / size;
        for at in 0..3 * per {
            let new = usize::from((at + 1) % per == 0);
            assert_eq!(engine.store(&mut truth, 0, at..at + 1, Tier::Device), Ok(new));
            let blocks = ((at + 1) / per) as u32;
            assert_eq!(held(&truth, 0, &engine.chain()), (blocks, blocks));
        }
        assert_eq!(truth.held(0), 3);
    }
}

#[test]
fn any_page_that_goes_takes_its_block_and_gives_it_back() {
    let mut truth = following(1);
    let engine = Engine::new(1, 4, &tokens(1, 3));
    engine.store_all(&mut truth, 0).unwrap();
    for page in 4..8 {
        engine.remove(&mut truth, 0, page..page + 1, Tier::Device);
        assert_eq!((held(&truth, 0, &engine.chain()), truth.held(0)), ((1, 1), 2));
        assert_eq!(engine.store(&mut truth, 0, page..page + 1, Tier::Device), Ok(1));
        assert_eq!(held(&truth, 0, &engine.chain()), (3, 3), "what comes after is still there");
    }
    // Two are missing, and come in either order; the page in between is known all the while.
    engine.remove(&mut truth, 0, 5..6, Tier::Device);
    engine.remove(&mut truth, 0, 4..5, Tier::Device);
    assert_eq!(engine.store(&mut truth, 0, 5..6, Tier::Device), Err(Unstored::UnknownParent));
    assert_eq!(engine.store(&mut truth, 0, 4..5, Tier::Device), Ok(0));
    assert_eq!(engine.store(&mut truth, 0, 5..6, Tier::Device), Ok(1));
    assert_eq!(held(&truth, 0, &engine.chain()), (3, 3));
}

#[test]
fn prompts_may_part_within_a_block() {
    let mut truth = following(1);
    let prompt = |end: u32| Engine::new(1, 1, &[vec![1; 16 + 5], vec![end; 11 + 16]].concat());
    let (one, other) = (prompt(2), prompt(3));
    assert_eq!((one.store_all(&mut truth, 0), other.store(&mut truth, 0, 21..48, Tier::Device)), (Ok(3), Ok(2)));
    assert_eq!((held(&truth, 0, &one.chain()), held(&truth, 0, &other.chain())), ((3, 3), (3, 3)));
    // A page of both.
    one.remove(&mut truth, 0, 18..19, Tier::Device);
    assert_eq!((held(&truth, 0, &one.chain()), held(&truth, 0, &other.chain())), ((1, 1), (1, 1)));
    assert_eq!(one.store(&mut truth, 0, 18..19, Tier::Device), Ok(2));
    // A page of one only.
    other.remove(&mut truth, 0, 30..31, Tier::Device);
    assert_eq!((held(&truth, 0, &one.chain()), held(&truth, 0, &other.chain())), ((3, 3), (1, 1)));
}

#[test]
fn what_open_blocks_begin_with_keeps_its_place_though_nobody_holds_it() {
    let mut truth = following(2);
    let (pages, blocks) = (Engine::new(1, 8, &tokens(1, 3)), Engine::new(2, 16, &tokens(1, 3)));
    pages.store(&mut truth, 0, 0..5, Tier::Device).unwrap();
    pages.remove(&mut truth, 0, 0..4, Tier::Device); // only half a block is left, of the third
    assert_eq!((truth.held(0), truth.stats().blocks), (0, 2));
    blocks.store_all(&mut truth, 1).unwrap();
    assert_eq!(pages.store(&mut truth, 0, 5..6, Tier::Device), Ok(1));
    assert_eq!(truth.stats().blocks, 3, "the third is the one that the other replica has");
    assert_eq!((held(&truth, 0, &pages.chain()), held(&truth, 1, &pages.chain())), ((0, 0), (3, 3)));
    assert_eq!(pages.store(&mut truth, 0, 0..4, Tier::Device), Ok(2));
    assert_eq!(held(&truth, 0, &pages.chain()), (3, 3));
    pages.remove(&mut truth, 0, 0..6, Tier::Device);
    blocks.remove(&mut truth, 1, 0..3, Tier::Device);
    assert_eq!((held(&truth, 0, &pages.chain()), truth.stats().blocks), ((0, 0), 0));
}

#[test]
fn an_image_within_a_block_sets_that_block_apart() {
    let mut truth = following(1);
    let mut engine = Engine::new(1, 4, &tokens(1, 3));
    for (page, extra) in [(5, 1), (6, 1), (5, 2)] {
        engine.extras = vec![None; 12];
        engine.extras[page] = Some(extra);
        assert_eq!(engine.store_all(&mut truth, 0), Ok(if (page, extra) == (5, 1) { 3 } else { 2 }));
        assert_eq!(held(&truth, 0, &engine.chain()), (1, 1));
    }
}

#[test]
fn a_replica_keeps_to_one_size_of_small_pages() {
    let mut truth = following(1);
    let [small, other, large] = [4, 8, 16].map(|size| Engine::new(1, size, &tokens(1, 1)));
    small.store_all(&mut truth, 0).unwrap();
    assert_eq!(other.store_all(&mut truth, 0), Err(Unstored::BlockSize));
    assert_eq!(large.store_all(&mut truth, 0), Err(Unstored::BlockSize));
    truth.clear(0);
    assert_eq!(other.store_all(&mut truth, 0), Ok(1));
}
