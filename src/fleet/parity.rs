//! Whether engines count the tokens of prompts as the pool's tokenizer does.
//!
//! Where they differ, a match in tokens is an illusion: another template, another tokenizer, a prompt that the engine
//! changes. So of each endpoint the counts that answers report are compared, and where more than [`DISTRUST`] of the last
//! [`WINDOW`] differ, its prompts are cut as text. One in [`PROBE`] is still tokenized, to learn when they agree again.
use std::collections::HashMap;

use parking_lot::Mutex;

/// Comparisons that are judged together.
const WINDOW: u32 = 32;
/// More of them than this differ: distrusted. Clients may send token ids, or shapes that happen to agree.
const DISTRUST: u32 = WINDOW / 4;
/// At most so many differ: trusted again.
const TRUST: u32 = WINDOW / 16;
/// Of prompts that are distrusted, one in so many is tokenized.
const PROBE: u32 = 8;

/// The judgements of one pool, by endpoint.
#[derive(Debug, Default)]
pub struct Parity(Mutex<HashMap<&'static str, Judgement>>);

#[derive(Debug, Clone, Copy, Default)]
struct Judgement {
    distrusted: bool,
    /// Of the present window.
    compared: u32,
    differed: u32,
    /// Prompts since it was distrusted.
    prompts: u32,
}

/// A judgement that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They differ: from now on prompts are cut as text.
    Distrusted,
    /// They agree again.
    Trusted,
}

impl Parity {
    /// Whether a prompt of this endpoint is worth tokenizing.
    pub fn trusts(&self, endpoint: &'static str) -> bool {
        let mut judgements = self.0.lock();
        let Some(judgement) = judgements.get_mut(endpoint).filter(|judgement| judgement.distrusted) else {
            return true;
        };
        judgement.prompts = judgement.prompts.wrapping_add(1);
        judgement.prompts % PROBE == 0
    }

    /// A prompt of so many tokens was counted by its engine; what that changes, if anything.
    pub fn compare(&self, endpoint: &'static str, ours: u32, theirs: u32) -> Option<Verdict> {
        let mut judgements = self.0.lock();
        let judgement = judgements.entry(endpoint).or_default();
        judgement.compared += 1;
        judgement.differed += u32::from(ours != theirs);
        // What can't become right in this window any more is known before its end.
        if !judgement.distrusted && judgement.differed > DISTRUST {
            *judgement = Judgement { distrusted: true, ..Judgement::default() };
            return Some(Verdict::Distrusted);
        }
        if judgement.compared < WINDOW {
            return None;
        }
        let agrees = judgement.distrusted && judgement.differed <= TRUST;
        *judgement = Judgement { distrusted: judgement.distrusted && !agrees, ..Judgement::default() };
        agrees.then_some(Verdict::Trusted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    /// What so many comparisons change, of which each `n`th differs.
    fn compare(parity: &Parity, times: u32, nth: u32) -> Vec<Verdict> {
        (1..=times).filter_map(|at| parity.compare(CHAT, 100, if at % nth == 0 { 101 } else { 100 })).collect()
    }

    #[test]
    fn what_differs_often_is_distrusted_until_it_agrees() {
        let parity = Parity::default();
        assert_eq!(compare(&parity, 10 * WINDOW, 5), [], "a few shapes may differ");
        assert_eq!(compare(&parity, WINDOW, 2), [Verdict::Distrusted]);
        let probes = (0..4 * PROBE).filter(|_| parity.trusts(CHAT)).count();
        assert_eq!(probes, 4, "some are still tokenized");
        assert!(parity.trusts("/v1/completions"), "the others are not concerned");
        assert_eq!(compare(&parity, 2 * WINDOW, 5), [], "it is not trusted for a little less");
        assert_eq!(compare(&parity, WINDOW, WINDOW), [Verdict::Trusted]);
        assert!((0..PROBE).all(|_| parity.trusts(CHAT)));
    }

    #[test]
    fn one_window_does_not_add_to_the_next() {
        let parity = Parity::default();
        for _ in 0..10 {
            let first = (0..DISTRUST).filter_map(|_| parity.compare(CHAT, 1, 2)).count();
            let rest = (DISTRUST..WINDOW).filter_map(|_| parity.compare(CHAT, 1, 1)).count();
            assert_eq!(first + rest, 0);
        }
    }
}
