//! Chains of block hashes.
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const ROOT: u64 = 11;

fn of(tokens: &[u32]) -> Chain {
    let mut chain = Chain::new(ROOT);
    chain.push(tokens);
    chain
}

fn of_text(text: &[u8]) -> Chain {
    let mut chain = Chain::new(ROOT);
    chain.push_text(text);
    chain
}

fn three_blocks(root: u64) -> Vec<u64> {
    let mut chain = Chain::new(root);
    chain.push(&[1; 3 * BLOCK_TOKENS]);
    chain.finish()
}

/// How many leading entries two lists have in common.
fn common<T: PartialEq>(one: &[T], other: &[T]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Cuts a list at some places.
fn pieces<'a, T>(whole: &'a [T], cuts: &[usize]) -> Vec<&'a [T]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (whole.len() + 1)).chain([0, whole.len()]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| &whole[cut[0]..cut[1]]).collect()
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn chains_are_equal_as_far_as_the_tokens_are_and_no_further(
        tokens in vec(0..3_u32, 0..200), other in vec(0..3_u32, 0..200), shared in 0..200_usize,
    ) {
        let other = [&tokens[..shared.min(tokens.len())], &other[..]].concat();
        let equal = common(&tokens, &other);
        let (one, two) = (of(&tokens), of(&other));
        prop_assert_eq!(one.hashes().len(), tokens.len() / BLOCK_TOKENS);
        prop_assert_eq!(common(one.hashes(), two.hashes()), equal / BLOCK_TOKENS);
        let depth = equal / BLOCK_TOKENS;
        prop_assert!(!one.hashes()[depth..].iter().any(|hash| two.hashes()[depth..].contains(hash)));
    }

    #[test]
    fn chains_are_equal_as_far_as_the_texts_are_and_no_further(
        text in vec(0..3_u8, 0..600), other in vec(0..3_u8, 0..600), shared in 0..600_usize,
    ) {
        let other = [&text[..shared.min(text.len())], &other[..]].concat();
        let (one, two) = (of_text(&text), of_text(&other));
        prop_assert_eq!(one.tokens(), text.len().div_ceil(TOKEN_BYTES));
        prop_assert_eq!(one.hashes().len(), text.len() / TOKEN_BYTES / BLOCK_TOKENS);
        let depth = common(&text, &other) / TOKEN_BYTES / BLOCK_TOKENS;
        prop_assert_eq!(common(one.hashes(), two.hashes()), depth);
    }

    #[test]
    fn pieces_make_the_same_chain_as_the_whole(tokens in vec(any::<u32>(), 0..200), cuts in vec(any::<usize>(), 0..9)) {
        let mut chain = Chain::new(ROOT);
        pieces(&tokens, &cuts).into_iter().for_each(|piece| chain.push(piece));
        prop_assert_eq!(&chain, &of(&tokens));
        prop_assert_eq!(chain.tokens(), tokens.len());
    }

    #[test]
    fn pieces_of_text_make_the_same_chain_as_the_whole(text in vec(any::<u8>(), 0..900), cuts in vec(any::<usize>(), 0..9)) {
        let mut chain = Chain::new(ROOT);
        pieces(&text, &cuts).into_iter().for_each(|piece| chain.push_text(piece));
        prop_assert_eq!(&chain, &of_text(&text));
        let bytes = text.as_chunks::<TOKEN_BYTES>().0;
        let tokens: Vec<u32> = bytes.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        prop_assert_eq!(chain.finish(), of(&tokens).finish());
    }

    #[test]
    fn a_resumed_chain_is_the_whole_one(tokens in vec(any::<u32>(), 0..200), cut in any::<usize>()) {
        let (before, after) = tokens.split_at(cut % (tokens.len() + 1));
        let known = of(before);
        let mut chain = Chain::resume(ROOT, known.hashes().to_vec(), known.open());
        prop_assert_eq!(&chain, &known);
        chain.push(after);
        prop_assert_eq!(chain, of(&tokens));
    }

    /// What stands after a mark is another prompt with another mark, or with none.
    #[test]
    fn a_mark_parts_what_comes_after_it(before in 0..200_usize, marks in (any::<[u8; 9]>(), any::<[u8; 9]>())) {
        prop_assume!(marks.0 != marks.1);
        let with = |mark: Option<&[u8]>| {
            let mut chain = of_text(&vec![1; before]);
            mark.into_iter().for_each(|mark| chain.push_mark(mark));
            chain.push_text(&[2; 200]);
            chain.finish()
        };
        let (one, other, none) = (with(Some(&marks.0)), with(Some(&marks.1)), with(None));
        // The mark closes the text's last token, and perhaps a block with it.
        let (closed, blocks) = (before.div_ceil(TOKEN_BYTES) / BLOCK_TOKENS, before / TOKEN_BYTES / BLOCK_TOKENS);
        prop_assert!(one.len() > closed);
        prop_assert_eq!((common(&one, &other), common(&one, &none)), (closed, blocks));
        prop_assert_eq!(&one, &with(Some(&marks.0)));
    }
}

#[test]
fn a_mark_knows_how_far_the_text_before_it_came() {
    let after = |text: &[u8]| {
        let mut chain = of_text(text);
        chain.push_mark(b"image");
        chain.push(&[0; BLOCK_TOKENS]);
        chain.finish()
    };
    assert_ne!(after(b"a"), after(b"a\0"));
}

#[test]
fn prompts_of_other_kind_model_adapter_or_salt_share_nothing() {
    let parts = [None, Some(""), Some("a"), Some("b"), Some("ab")];
    let mut roots = Vec::new();
    for basis in [Basis::Tokens, Basis::Text] {
        for model in ["", "a", "b", "ab"] {
            parts.iter().for_each(|&a| parts.iter().for_each(|&salt| roots.push(root(basis, model, a, salt))));
        }
    }
    let chains: std::collections::HashSet<u64> = roots.iter().flat_map(|&root| three_blocks(root)).collect();
    assert_eq!(chains.len(), 2 * 4 * 25 * 3);
}

/// What one process knows, another can use: a change of these numbers is a change of what is stored and exchanged.
#[test]
fn hashes_are_the_same_in_every_process() {
    let root = root(Basis::Text, "qwen3", Some("sql"), None);
    let mut chain = Chain::new(root);
    chain.push_text(&[b'x'; 130]);
    assert_eq!((root, chain.finish()), (6494302993913500238, vec![5545857011842153300, 9163887619589990571]));
}
