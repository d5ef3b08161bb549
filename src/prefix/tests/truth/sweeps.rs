//! Lives that end.
use super::*;

#[test]
fn a_clear_is_a_new_life_and_the_old_one_is_swept_in_bounded_steps() {
    for size in [4, 16, 32] {
        let mut truth = following(2);
        let engine = Engine::new(1, size, &tokens(1, 60));
        (0..2).for_each(|at| _ = engine.store_all(&mut truth, at).unwrap());
        truth.clear(0);
        assert_eq!((held(&truth, 0, &engine.chain()), truth.held(0), truth.stats().pairs), ((0, 0), 0, 60));
        engine.store(&mut truth, 0, 0..16 / size.min(16), Tier::Device).unwrap();
        let first = size.max(16) as u32 / 16;
        assert_eq!(held(&truth, 0, &engine.chain()), (first, first), "at once, beside what is not swept yet");
        let mut steps = 0;
        while truth.sweep(1) {
            steps += 1;
            assert_eq!(
                (held(&truth, 0, &engine.chain()), held(&truth, 1, &engine.chain())),
                ((first, first), (60, 60))
            );
        }
        // One for each entry: larger blocks have one for each of ours.
        assert_eq!(steps, if size == 4 { 240 } else { 60 });
        truth.unfollow(1);
        assert_eq!(held(&truth, 1, &engine.chain()), (0, 0));
        assert!(truth.sweep(10));
        while truth.sweep(100) {}
        assert_eq!((truth.stats().pairs, truth.stats().blocks), (first as usize, first as usize));
    }
}

#[test]
fn removals_of_an_older_life_take_nothing_from_the_new_one() {
    let mut truth = following(1);
    let engine = Engine::new(1, 16, &tokens(1, 4));
    engine.store_all(&mut truth, 0).unwrap();
    truth.follow(0);
    assert_eq!((engine.remove(&mut truth, 0, 0..4, Tier::Device), truth.held(0)), (0, 0));
}

#[test]
fn clearing_what_holds_nothing_takes_no_life() {
    let mut truth = following(1);
    (0..100_000).for_each(|_| truth.clear(0));
    assert!(!truth.sweep(1));
    assert_eq!(truth.stats().followed, 1);
}

#[test]
fn there_is_no_end_of_lives_as_long_as_they_are_swept() {
    let mut truth = following(1);
    let engine = Engine::new(1, 16, &tokens(1, 2));
    for _ in 0..70_000 {
        engine.store_all(&mut truth, 0).unwrap();
        truth.clear(0);
        while truth.sweep(2) {}
    }
    assert_eq!(engine.store_all(&mut truth, 0), Ok(2));
    assert_eq!(held(&truth, 0, &engine.chain()), (2, 2));
}

#[test]
fn what_is_over_is_swept_before_a_store_is_refused() {
    let mut truth = following(1);
    let prompts = || (0..100).map(|prompt| Engine::new(1, 16, &tokens(prompt, 10)));
    prompts().for_each(|engine| _ = engine.store_all(&mut truth, 0).unwrap());
    truth.set_max_bytes(truth.stats().bytes * 5 / 4);
    truth.clear(0);
    let stored = prompts().filter(|engine| engine.store_all(&mut truth, 0).is_ok()).count();
    // Beside all of it, there is room for a quarter.
    assert!(stored > 50, "{stored}");
}
