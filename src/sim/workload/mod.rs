//! What is asked: streams of calls, drawn from a seed, the same for whoever places them.
//!
//! `chat` and `documents` are the published study's; `drifting` and `agents` are what it leaves out; traces of others are
//! in `trace`.
mod conversations;
mod documents;
mod zipf;

pub use conversations::{Conversations, Shape};
pub use documents::Documents;

use super::call::{Call, mix};

/// A workload that draws its calls: an endless stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generated {
    /// Conversations behind one system prompt; see [`Shape::CHAT`].
    Chat,
    /// Questions about documents; see [`Documents`].
    Documents,
    /// The same, and what is popular changes; see [`Documents::drifting`].
    Drifting,
    /// Long conversations behind one of several system prompts; see [`Shape::AGENTS`].
    Agents,
}

impl Generated {
    /// All, by name.
    pub const NAMES: &'static [&'static str] = &["chat", "documents", "drifting", "agents"];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "chat" => Some(Self::Chat),
            "documents" => Some(Self::Documents),
            "drifting" => Some(Self::Drifting),
            "agents" => Some(Self::Agents),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Documents => "documents",
            Self::Drifting => "drifting",
            Self::Agents => "agents",
        }
    }

    /// Calls of one run: as many as the study's.
    #[must_use]
    pub fn requests(self) -> usize {
        match self {
            Self::Chat | Self::Agents => 40_000,
            Self::Documents | Self::Drifting => 60_000,
        }
    }

    /// Its calls, drawn from `seed`.
    #[must_use]
    pub fn stream(self, seed: u64) -> Box<dyn Iterator<Item = Call> + Send> {
        match self {
            Self::Chat => Box::new(Conversations::new(Shape::CHAT, seed)),
            Self::Documents => Box::new(Documents::new(seed)),
            Self::Drifting => Box::new(Documents::drifting(seed)),
            Self::Agents => Box::new(Conversations::new(Shape::AGENTS, seed)),
        }
    }
}

/// What a stream is drawn with: no other part of a replay that is given the same seed draws the same numbers.
fn draws(seed: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(mix(0x0064_7261_7773, seed))
}

/// The name of one kind of content's `number`th piece.
fn content(kind: u64, number: u64) -> u64 {
    mix(kind.wrapping_mul(0x2545_f491_4f6c_dd1d), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_again_and_another_for_another_seed() {
        for name in Generated::NAMES {
            let workload = Generated::named(name).expect("its own name");
            assert_eq!(workload.as_str(), *name);
            let draw = |seed| workload.stream(seed).take(2_000).collect::<Vec<_>>();
            assert_eq!(draw(1), draw(1));
            assert_ne!(draw(1), draw(2));
            let mut numbers: Vec<_> = draw(1).iter().map(|call| call.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 2_000, "each call has a number of its own");
            for call in draw(1) {
                let tokens: u32 = call.segments.iter().map(|segment| segment.tokens).sum();
                assert_eq!(tokens, call.prompt_tokens + call.output_tokens);
            }
        }
    }
}
