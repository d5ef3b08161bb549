//! Conversations that grow: a system prompt that all of a kind share, then turns of a message and an answer. So many are
//! live; each step picks one uniformly and plays its next turn; one that has played its last is replaced at once.
use fastrand::Rng;

use super::zipf::Zipf;
use super::{content, draws};
use crate::sim::call::{Call, Segment, mix};

/// The proportions of such a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Conversations live at once.
    pub live: usize,
    /// System prompts; which of them a conversation begins with is drawn by Zipf's law.
    pub kinds: usize,
    /// Tokens of a system prompt.
    pub system: u32,
    /// Tokens of a message.
    pub message: u32,
    /// Tokens of an answer.
    pub answer: u32,
    /// Turns of a conversation.
    pub turns: u32,
}

impl Shape {
    /// The study's chats. Turn k has 1,600 + 600k prompt tokens.
    pub const CHAT: Self = Self { live: 200, kinds: 1, system: 2_000, message: 200, answer: 400, turns: 12 };
    /// Agents of eight kinds: the tools of each take 6,000 tokens, a tool's result 300, the next call 100.
    pub const AGENTS: Self = Self { live: 200, kinds: 8, system: 6_000, message: 300, answer: 100, turns: 30 };
}

/// The stream; endless.
#[derive(Debug)]
pub struct Conversations {
    shape: Shape,
    kinds: Zipf,
    rng: Rng,
    /// Number of each live conversation, and turns it has played.
    live: Vec<(u64, u32)>,
    begun: u64,
    asked: u64,
    /// Sets this seed's conversations apart from another's.
    seed: u64,
}

impl Conversations {
    /// All of them at their first turn.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        let begun = shape.live as u64;
        let live = (0..begun).map(|number| (number, 0)).collect();
        Self { shape, kinds: Zipf::new(shape.kinds), rng: draws(seed), live, begun, asked: 0, seed }
    }
}

impl Iterator for Conversations {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        let Shape { live, kinds, system, message, answer, turns } = self.shape;
        let at = self.rng.usize(..live);
        let (number, played) = &mut self.live[at];
        *played += 1;
        let (key, turn) = (*number, *played);
        if turn == turns {
            (*number, *played) = (self.begun, 0);
            self.begun += 1;
        }
        self.asked += 1;
        let unique = key ^ (self.seed << 40);
        let kind = self.kinds.rank(Rng::with_seed(mix(unique, 0)).f64());
        let own = turn * (message + answer);
        let total = system + own;
        Some(Call {
            number: self.asked,
            key,
            session: Some(key),
            header: Some(key),
            segments: vec![
                Segment { seed: content(1, kind as u64), tokens: system },
                Segment { seed: content(2, unique), tokens: own },
            ],
            prompt_tokens: total - answer,
            output_tokens: answer,
            // What it says is what the turn before it was answered, then the message.
            answer: (turn > 1).then(|| (total - 2 * answer - message, total - answer - message)),
            common_tokens: if kinds == 1 { system } else { 0 },
            lasting_tokens: total,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn turns_come_in_order_and_grow_by_what_was_said() {
        for (shape, first, more) in [(Shape::CHAT, 2_200, 600), (Shape::AGENTS, 6_300, 400)] {
            let mut turns = HashMap::new();
            for call in Conversations::new(shape, 3).take(20_000) {
                let turn = turns.entry(call.key).or_insert(0);
                *turn += 1;
                assert!(*turn <= shape.turns);
                assert_eq!(call.prompt_tokens, first + more * (*turn - 1));
            }
            let unfinished = turns.values().filter(|turn| **turn < shape.turns).count();
            assert!(
                unfinished <= shape.live && unfinished > shape.live / 2,
                "the others have just begun: {unfinished}"
            );
        }
    }

    #[test]
    fn the_next_turn_begins_with_prompt_and_answer_of_the_one_before() {
        for shape in [Shape::CHAT, Shape::AGENTS] {
            let mut last: HashMap<u64, Vec<u64>> = HashMap::new();
            for call in Conversations::new(shape, 3).take(2_000) {
                let blocks = call.blocks();
                if let Some(before) = last.insert(call.key, blocks.clone()) {
                    assert!(blocks[..call.prompt_blocks()].starts_with(&before));
                }
            }
        }
    }

    #[test]
    fn agents_of_a_kind_share_their_tools_and_nothing_else() {
        let mut conversations: HashMap<u64, u64> = HashMap::new();
        for call in Conversations::new(Shape::AGENTS, 1).take(60_000) {
            let tools = call.segments[0].seed;
            assert_eq!(*conversations.entry(call.key).or_insert(tools), tools, "a conversation stays of its kind");
        }
        let mut kinds: HashMap<u64, usize> = HashMap::new();
        conversations.values().for_each(|tools| *kinds.entry(*tools).or_default() += 1);
        let mut sizes: Vec<_> = kinds.into_values().collect();
        sizes.sort_unstable();
        assert_eq!(sizes.len(), 8);
        assert!(sizes[7] > 3 * sizes[0], "some kinds are asked for more: {sizes:?}");
    }
}
