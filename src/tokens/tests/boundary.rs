use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::*;
use crate::prefix::{Basis, root};

const MARK: &str = "<|x|>";

/// A tokenizer whose ids depend on all that stands before them, up to the last special token: a cut anywhere else shows.
fn encode(text: &str, chain: &mut Chain) {
    for (at, segment) in text.split(MARK).enumerate() {
        if at > 0 {
            chain.push(&[0]);
        }
        let mut state = 1_u32;
        for three in segment.as_bytes().chunks(3) {
            state = three.iter().fold(state, |state, byte| state.wrapping_mul(31).wrapping_add(u32::from(*byte)));
            chain.push(&[state]);
        }
    }
}

fn fresh(root: u64, text: &str) -> Chain {
    let mut chain = Chain::new(root);
    encode(text, &mut chain);
    chain
}

/// What can be seen of a chain.
fn state(chain: &Chain) -> (Vec<u64>, Vec<u32>, usize) {
    (chain.hashes().to_vec(), chain.open().to_vec(), chain.tokens())
}

/// The chain by way of the cache, and how many bytes were encoded for it.
fn cached(boundaries: &Boundaries, root: u64, text: &str) -> (Chain, Path, usize) {
    let encoded = Cell::new(0);
    let mut chain = Chain::new(root);
    let cuts = text.match_indices(MARK).map(|(at, _)| at).filter(|at| *at > 0);
    let start = boundaries.key(&[&root.to_le_bytes()]);
    let path = boundaries
        .extend::<()>(&mut chain, root, start, text, cuts, |piece, _, chain| {
            encoded.set(encoded.get() + piece.len());
            encode(piece, chain);
            Ok(())
        })
        .unwrap();
    (chain, path, encoded.get())
}

fn turn(number: usize, bytes: usize) -> String {
    format!("{MARK}turn {number} {}", "some words. ".repeat(bytes / 12))
}

proptest! {
    #![proptest_config(Config { cases: 60, rng_seed: RngSeed::Fixed(4), failure_persistence: None, ..Config::default() })]

    #[test]
    fn a_cached_encoding_is_the_uncached_one(
        segments in prop::collection::vec("[a-e]{0,40}", 1..6),
        texts in prop::collection::vec(prop::collection::vec((0..6_usize, 1..60_usize, any::<bool>()), 0..12), 1..25),
        roots in prop::collection::vec(0..3_u64, 25),
        bytes in prop::sample::select(vec![0, 1, 500, 3_000, 20_000, 1 << 20]),
    ) {
        let boundaries = Boundaries::new(bytes);
        let mut seen = Vec::<(u64, String)>::new();
        for (parts, root) in texts.iter().zip(roots) {
            // Texts share heads because they are built of few parts; half of them go on from an earlier one, cut anywhere.
            let mut text = String::new();
            if let (Some((_, earlier)), Some((at, length, true))) = (seen.last(), parts.first()) {
                text.push_str(&earlier[..(at * 97 * length).min(earlier.len())]);
            }
            for (segment, times, marked) in parts {
                text.push_str(if *marked { MARK } else { "" });
                text.push_str(&segments[segment % segments.len()].repeat(*times));
            }
            let (chain, path, _) = cached(&boundaries, root, &text);
            let expected = fresh(root, &text);
            prop_assert_eq!(state(&chain), state(&expected));
            let key = boundaries.key(&[b"whole", &root.to_le_bytes(), text.as_bytes()]);
            boundaries.keep(key, root, &chain, path);
            prop_assert!(boundaries.stats().bytes <= bytes as u64);
            seen.push((root, text));
            for (root, text) in &seen {
                let key = boundaries.key(&[b"whole", &root.to_le_bytes(), text.as_bytes()]);
                if let Some(chain) = boundaries.whole(key) {
                    prop_assert_eq!(state(&chain), state(&fresh(*root, text)));
                }
            }
        }
    }
}

#[test]
fn a_next_turn_encodes_only_what_is_new() {
    let boundaries = Boundaries::new(1 << 20);
    let mut text = turn(0, 8000);
    for number in 1..12 {
        cached(&boundaries, 7, &format!("{text}{MARK}answer:"));
        let new = turn(number, 3000);
        text.push_str(&new);
        let (chain, _, encoded) = cached(&boundaries, 7, &format!("{text}{MARK}answer:"));
        assert_eq!(state(&chain), state(&fresh(7, &format!("{text}{MARK}answer:"))));
        assert!(encoded < new.len() + PIECE + 100, "{encoded} of {} bytes", text.len());
    }
    // Another conversation knows the head, and an edit in the middle all before it.
    let (_, _, encoded) = cached(&boundaries, 7, &(turn(0, 8000) + &turn(99, 1000)));
    assert!(encoded < 2000, "{encoded}");
    let (_, _, encoded) = cached(&boundaries, 7, &text.replace("turn 6", "turn six"));
    assert!(encoded < 6 * 3000 + PIECE, "{encoded}");
    let stats = boundaries.stats();
    assert!(stats.hits > 20 && stats.misses > 0 && stats.entries > 10, "{stats:?}");
}

#[test]
fn a_block_is_kept_once() {
    let boundaries = Boundaries::new(1 << 20);
    let mut text = turn(0, 6000);
    for number in 1..12 {
        text.push_str(&turn(number, 6000));
        cached(&boundaries, 7, &text);
    }
    let blocks = fresh(7, &text).hashes().len();
    let bytes = boundaries.stats().bytes;
    assert!(bytes < blocks as u64 * 8 + 12 * (ENTRY as u64 + 64), "{bytes} bytes for {blocks} blocks");
}

#[test]
fn other_roots_share_nothing() {
    let boundaries = Boundaries::new(1 << 20);
    let text: String = (0..4).map(|number| turn(number, 1000)).collect();
    let one = root(Basis::Tokens, "m", None, Some("a"));
    let other = root(Basis::Tokens, "m", None, Some("b"));
    cached(&boundaries, one, &text);
    let (chain, _, encoded) = cached(&boundaries, other, &text);
    assert_eq!((state(&chain), encoded), (state(&fresh(other, &text)), text.len()));
}

#[test]
fn what_was_encoded_before_a_failure_stays_known() {
    let boundaries = Boundaries::new(1 << 20);
    let text: String = (0..10).map(|number| turn(number, 1000)).collect();
    let start = boundaries.key(&[b"start"]);
    let cuts = || text.match_indices(MARK).map(|(at, _)| at).filter(|at| *at > 0);
    for tries in 1.. {
        let mut left = 4;
        let mut chain = Chain::new(7);
        let path = boundaries.extend(&mut chain, 7, start, &text, cuts(), |piece, _, chain| {
            left -= 1;
            if left == 0 {
                return Err("out of time");
            }
            encode(piece, chain);
            Ok(())
        });
        if path.is_ok() {
            assert_eq!((state(&chain), tries), (state(&fresh(7, &text)), 4));
            break;
        }
    }
}

#[test]
fn threads_share_it_exactly() {
    let boundaries = Boundaries::new(40_000);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let boundaries = &boundaries;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..300 {
                    // Few conversations, so that threads meet in them.
                    let conversation = random.usize(..5);
                    let text: String = (0..random.usize(1..8)).map(|n| turn(n * conversation, 700)).collect();
                    let (chain, path, _) = cached(boundaries, 7, &text);
                    assert_eq!(state(&chain), state(&fresh(7, &text)));
                    let key = boundaries.key(&[b"whole", text.as_bytes()]);
                    boundaries.keep(key, 7, &chain, path);
                    if let Some(whole) = boundaries.whole(key) {
                        assert_eq!(state(&whole), state(&chain));
                    }
                    assert!(boundaries.stats().bytes <= 40_000);
                }
            });
        }
    });
}
