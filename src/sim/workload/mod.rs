//! What is asked: streams of calls, drawn from a seed, the same for whoever places them.
//!
//! `chat` and `documents` are the published study's; traces of others are in `trace`.
mod chat;
mod documents;

pub use chat::Chat;
pub use documents::Documents;

use super::call::{Call, mix};

/// A workload that draws its calls: an endless stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generated {
    /// Conversations that grow; see [`Chat`].
    Chat,
    /// Questions about documents; see [`Documents`].
    Documents,
}

impl Generated {
    /// All, by name.
    pub const NAMES: &'static [&'static str] = &["chat", "documents"];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "chat" => Some(Self::Chat),
            "documents" => Some(Self::Documents),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Documents => "documents",
        }
    }

    /// Calls of one run of the study.
    #[must_use]
    pub fn requests(self) -> usize {
        match self {
            Self::Chat => 40_000,
            Self::Documents => 60_000,
        }
    }

    /// Its calls, drawn from `seed`.
    #[must_use]
    pub fn stream(self, seed: u64) -> Box<dyn Iterator<Item = Call> + Send> {
        match self {
            Self::Chat => Box::new(Chat::new(seed)),
            Self::Documents => Box::new(Documents::new(seed)),
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
            for call in draw(1) {
                let tokens: u32 = call.segments.iter().map(|segment| segment.tokens).sum();
                assert_eq!(tokens, call.prompt_tokens + call.output_tokens);
            }
        }
    }
}
