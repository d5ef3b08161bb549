//! The study's conversations: a system prompt that all share, then turns of a user's message and an answer.
//!
//! Turn k has 1,600 + 600k prompt tokens. 200 conversations are live; each step picks one uniformly and plays its next
//! turn; one that has played its 12th is replaced at once.
use fastrand::Rng;

use super::{content, draws};
use crate::sim::call::{Call, Segment};

/// Tokens that all conversations begin with.
pub const SYSTEM_TOKENS: u32 = 2_000;
/// Tokens of a user's message.
pub const MESSAGE_TOKENS: u32 = 200;
/// Tokens of an answer.
pub const ANSWER_TOKENS: u32 = 400;
/// Turns of a conversation.
pub const TURNS: u32 = 12;
/// Conversations live at once.
const LIVE: usize = 200;

/// The stream; endless.
#[derive(Debug)]
pub struct Chat {
    rng: Rng,
    /// Number of each live conversation, and turns it has played.
    live: Vec<(u64, u32)>,
    begun: u64,
    /// Sets this seed's conversations apart from another's.
    seed: u64,
}

impl Chat {
    /// All conversations at their first turn.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let live = (0..LIVE as u64).map(|number| (number, 0)).collect();
        Self { rng: draws(seed), live, begun: LIVE as u64, seed }
    }
}

impl Iterator for Chat {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        let at = self.rng.usize(..LIVE);
        let (number, played) = &mut self.live[at];
        *played += 1;
        let (key, turn) = (*number, *played);
        if turn == TURNS {
            (*number, *played) = (self.begun, 0);
            self.begun += 1;
        }
        let own = turn * (MESSAGE_TOKENS + ANSWER_TOKENS);
        let total = SYSTEM_TOKENS + own;
        Some(Call {
            key,
            session: Some(key),
            header: Some(key),
            segments: vec![
                Segment { seed: content(1, 0), tokens: SYSTEM_TOKENS },
                Segment { seed: content(2, key ^ (self.seed << 40)), tokens: own },
            ],
            prompt_tokens: total - ANSWER_TOKENS,
            output_tokens: ANSWER_TOKENS,
            answer: (turn > 1).then(|| (total - 2 * ANSWER_TOKENS - MESSAGE_TOKENS, total - ANSWER_TOKENS - MESSAGE_TOKENS)),
            common_tokens: SYSTEM_TOKENS,
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
        let mut turns = HashMap::new();
        for call in Chat::new(3).take(20_000) {
            let turn = turns.entry(call.key).or_insert(0);
            *turn += 1;
            assert!(*turn <= TURNS);
            assert_eq!(call.prompt_tokens, 1_600 + 600 * *turn);
        }
        let unfinished = turns.values().filter(|turn| **turn < TURNS).count();
        assert!(unfinished <= LIVE && unfinished > LIVE / 2, "the others of the {LIVE} have just begun: {unfinished}");
    }

    #[test]
    fn the_next_turn_begins_with_prompt_and_answer_of_the_one_before() {
        let mut last: HashMap<u64, Vec<u64>> = HashMap::new();
        for call in Chat::new(3).take(2_000) {
            let blocks = call.blocks();
            if let Some(before) = last.insert(call.key, blocks.clone()) {
                assert!(blocks[..call.prompt_blocks()].starts_with(&before));
            }
        }
    }
}
