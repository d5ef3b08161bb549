//! A pool's encoder: tokens where tokenizer and template allow it, else canonical text, and always blocks.
use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::boundary::{Boundaries, CacheStats, Key, Path as Pieces};
use super::budget::{Budget, LONGEST, Over, Rate};
use super::canonical;
use super::prompt::{Chat, Content, Messages, Prompt};
use super::template::{Template, TemplateError};
use super::tokenizer::Tokenizer;
use crate::prefix::{Basis, Chain, TOKEN_BYTES, root};

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
    /// Engines count the tokens of such prompts otherwise.
    Parity,
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
            Self::Parity => "parity",
        }
    }
}

static AFTER_LOAD: OnceLock<fn()> = OnceLock::new();

/// Sets, once for the whole process, what is called after a tokenizer has been read, or could not be: that takes, for a
/// moment, many times the memory that stays in use, and only the binary knows its allocator.
pub fn after_load(call: fn()) {
    // Whoever is first knows the allocator as well as any other.
    let _ = AFTER_LOAD.set(call);
}

/// A prompt in blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Hashes of its whole blocks; of a batch, of its first prompt.
    pub blocks: Vec<u64>,
    /// Its tokens; of a batch, all of them. Estimated where `basis` is text, and where there is a `fallback`.
    pub tokens: usize,
    /// What the blocks are made of.
    pub basis: Basis,
    /// Why that is not, or not to its end, what the engine has, where the pool has a tokenizer.
    pub fallback: Option<Fallback>,
}

/// Renders, encodes and chains the prompts of one pool.
#[derive(Debug)]
pub struct Encoder {
    model: String,
    exact: Option<Box<Exact>>,
}

/// Why a prompt has no tokens.
#[derive(Debug)]
enum Stop {
    /// It would take more bytes than the caller allows.
    Bytes,
    /// It is cut as text.
    Fallback(Fallback),
}

impl From<Fallback> for Stop {
    fn from(fallback: Fallback) -> Self {
        Self::Fallback(fallback)
    }
}

impl From<Over> for Stop {
    fn from(over: Over) -> Self {
        match over {
            Over::Bytes => Self::Bytes,
            Over::Time => Self::Fallback(Fallback::Budget),
        }
    }
}

/// What it takes to know the engine's tokens.
#[derive(Debug)]
struct Exact {
    tokenizer: Tokenizer,
    template: Option<Template>,
    boundaries: Boundaries,
    rate: Rate,
    budget: Duration,
}

impl Encoder {
    /// One that cuts text.
    pub fn text(model: &str) -> Self {
        Self { model: model.to_owned(), exact: None }
    }

    /// One that reads `tokenizer.json`, and the chat template, from a folder. Takes up to seconds.
    ///
    /// `cache_bytes` bounds the boundary cache, `budget` the time that one prompt may take.
    ///
    /// # Errors
    /// When a file is missing or can't be read.
    pub fn load(model: &str, folder: &Path, cache_bytes: usize, budget: Duration) -> Result<Self, LoadError> {
        let loaded = Tokenizer::load(folder).and_then(|tokenizer| Ok((tokenizer, Template::load(folder)?)));
        AFTER_LOAD.get().inspect(|after_load| after_load());
        let (tokenizer, template) = loaded?;
        let boundaries = Boundaries::new(cache_bytes);
        let exact = Exact { tokenizer, template, boundaries, rate: Rate::new(), budget };
        Ok(Self { model: model.to_owned(), exact: Some(Box::new(exact)) })
    }

    /// Bytes that an encoding of this prompt has to read: what it costs, nearly, if nothing of it is known.
    pub fn cost_hint(prompt: &Prompt<'_>) -> usize {
        match &prompt.content {
            Content::None => 0,
            Content::Chat(chat) => chat_bytes(chat),
            Content::Text { prompts, .. } => prompts.iter().map(|text| text.len()).sum(),
            Content::Ids(prompts) => prompts.iter().map(|ids| size_of_val(&**ids)).sum(),
        }
    }

    /// What the boundary cache holds; nothing without a tokenizer.
    pub fn cache_stats(&self) -> CacheStats {
        self.exact.as_ref().map(|exact| exact.boundaries.stats()).unwrap_or_default()
    }

    /// The blocks of a prompt whose tokens the engine counts otherwise: of its text, or of the token ids that stand in it.
    pub fn encode_distrusted(&self, prompt: &Prompt<'_>) -> Encoded {
        self.encode_text(prompt, Some(Fallback::Parity))
    }

    /// The blocks of a prompt; never fails.
    pub fn encode(&self, prompt: &Prompt<'_>) -> Encoded {
        let unbounded = self.encode_within(prompt, usize::MAX);
        unbounded.unwrap_or_else(|| self.encode_text(prompt, Some(Fallback::Budget)))
    }

    /// The same if it takes no more than that many bytes to be tokenized, with what the boundary cache knows; else
    /// `None`, after the prompt was rendered at most.
    pub fn encode_within(&self, prompt: &Prompt<'_>, most: usize) -> Option<Encoded> {
        let Some(exact) = self.exact.as_deref() else { return Some(self.encode_text(prompt, None)) };
        let fallback = if prompt.truncated {
            Fallback::Shape
        } else {
            match exact.encode(self.root(Basis::Tokens, prompt), prompt, most) {
                Ok(encoded) => return Some(encoded),
                Err(Stop::Bytes) => return None,
                Err(Stop::Fallback(fallback)) => fallback,
            }
        };
        Some(self.encode_text(prompt, Some(fallback)))
    }

    fn root(&self, basis: Basis, prompt: &Prompt<'_>) -> u64 {
        root(basis, &self.model, prompt.adapter.as_deref(), prompt.salt.as_deref())
    }

    /// Where chains of token ids begin under an adapter and a `cache_salt`: as those of prompts do, for what an engine
    /// tells of its cache.
    pub fn tokens_root(&self, adapter: Option<&str>, salt: Option<&str>) -> u64 {
        root(Basis::Tokens, &self.model, adapter, salt)
    }

    /// The blocks of the canonical text. Token ids are the engine's own, whoever counts them.
    fn encode_text(&self, prompt: &Prompt<'_>, fallback: Option<Fallback>) -> Encoded {
        if let (Content::Ids(prompts), false) = (&prompt.content, prompt.truncated) {
            return encode_ids(self.root(Basis::Tokens, prompt), prompts);
        }
        let mut chain = Chain::new(self.root(Basis::Text, prompt));
        let mut others = 0;
        match &prompt.content {
            Content::Chat(chat) => canonical::push(&mut chain, chat),
            Content::Text { prompts, .. } => {
                let mut prompts = prompts.iter();
                prompts.next().into_iter().for_each(|text| chain.push_text(text.as_bytes()));
                others = prompts.map(|text| text.len() / TOKEN_BYTES).sum();
            }
            Content::Ids(prompts) => {
                let mut prompts = prompts.iter();
                prompts.next().into_iter().for_each(|ids| chain.push(ids));
                others = prompts.map(Vec::len).sum();
            }
            Content::None => {}
        }
        let tokens = chain.tokens() + others;
        Encoded { blocks: chain.finish(), tokens, basis: Basis::Text, fallback }
    }
}

fn encode_ids(root: u64, prompts: &[Vec<u32>]) -> Encoded {
    let mut chain = Chain::new(root);
    prompts.iter().take(1).for_each(|ids| chain.push(ids));
    let tokens = prompts.iter().map(Vec::len).sum();
    Encoded { blocks: chain.finish(), tokens, basis: Basis::Tokens, fallback: None }
}

/// Bytes of a chat's JSON, about.
pub(super) fn chat_bytes(chat: &Chat<'_>) -> usize {
    let messages = match &chat.messages {
        Messages::Raw(raw) => raw.get().len(),
        Messages::Built(messages) => messages.iter().map(value_bytes).sum(),
    };
    [&chat.tools, &chat.documents].into_iter().flatten().map(|raw| raw.get().len()).sum::<usize>() + messages
}

/// Bytes of a value's JSON, about.
pub(super) fn value_bytes(value: &Value) -> usize {
    let (mut bytes, mut open) = (0, vec![value]);
    while let Some(value) = open.pop() {
        bytes += match value {
            Value::String(text) => text.len() + 2,
            Value::Array(list) => {
                open.extend(list);
                2
            }
            Value::Object(fields) => {
                open.extend(fields.values());
                2 + fields.keys().map(|key| key.len() + 4).sum::<usize>()
            }
            _ => 4,
        };
    }
    bytes
}

impl Exact {
    fn encode(&self, root: u64, prompt: &Prompt<'_>, most: usize) -> Result<Encoded, Stop> {
        let budget = Budget::new(self.budget, most);
        if Encoder::cost_hint(prompt) > LONGEST {
            return match &prompt.content {
                Content::Ids(prompts) => Ok(encode_ids(root, prompts)),
                _ => Err(Fallback::Budget.into()),
            };
        }
        match &prompt.content {
            Content::Chat(chat) => self.encode_chat(root, chat, budget),
            Content::Text { prompts, .. } if prompts.len() > 1 && Encoder::cost_hint(prompt) > most => Err(Stop::Bytes),
            Content::Text { prompts, add_special_tokens } => {
                self.encode_texts(root, prompts, *add_special_tokens, budget)
            }
            Content::Ids(prompts) => Ok(encode_ids(root, prompts)),
            Content::None => Err(Fallback::Shape.into()),
        }
    }

    fn encode_texts(
        &self,
        root: u64,
        prompts: &[Cow<'_, str>],
        add_special_tokens: bool,
        budget: Budget,
    ) -> Result<Encoded, Stop> {
        let (first, others) = prompts.split_first().ok_or(Fallback::Shape)?;
        let key = self.boundaries.key(&[b"text", &root.to_le_bytes(), &[add_special_tokens.into()], first.as_bytes()]);
        let chain = match self.boundaries.whole(key) {
            Some(chain) => chain,
            None => self.encode_rendered(root, Some(key), first, add_special_tokens, budget)?,
        };
        let (mut tokens, mut fallback) = (chain.tokens(), None);
        for text in others {
            match self.encode_rendered(root, None, text, add_special_tokens, budget) {
                Ok(chain) => tokens += chain.tokens(),
                Err(Stop::Bytes) => return Err(Stop::Bytes),
                Err(Stop::Fallback(reason)) => {
                    tokens += text.len() / TOKEN_BYTES;
                    fallback = Some(reason);
                }
            }
        }
        Ok(Encoded { blocks: chain.finish(), tokens, basis: Basis::Tokens, fallback })
    }

    fn encode_chat(&self, root: u64, chat: &Chat<'_>, budget: Budget) -> Result<Encoded, Stop> {
        let Some(template) = self.template.as_ref().filter(|_| !chat.own_template) else {
            return Err(Fallback::NoTemplate.into());
        };
        let exact = |chain: Chain| {
            let tokens = chain.tokens();
            Encoded { blocks: chain.finish(), tokens, basis: Basis::Tokens, fallback: None }
        };
        // A template that reads the clock may give another text the next time.
        let key = if template.reads_clock() { None } else { self.chat_key(root, chat) };
        if let Some(chain) = key.and_then(|key| self.boundaries.whole(key)) {
            return Ok(exact(chain));
        }
        let rendered = template.render(chat).map_err(|error| match error {
            TemplateError::NoTemplate => Fallback::NoTemplate,
            TemplateError::TooLong => Fallback::Budget,
            TemplateError::Refused(_) | TemplateError::Failed(_) => Fallback::Template,
        })?;
        let Some(medium) = rendered.media else {
            return self.encode_rendered(root, key, &rendered.text, chat.add_special_tokens, budget).map(exact);
        };
        // Up to the first medium the engine has what we have; there it puts tokens of its own.
        let head = rendered.text.get(..medium).ok_or(Fallback::Template)?;
        let mut chain = self.encode_head(root, head, chat.add_special_tokens, budget)?;
        canonical::push_from_medium(&mut chain, chat);
        Ok(Encoded { fallback: Some(Fallback::Media), ..exact(chain) })
    }

    /// A key of all that a chat's text follows from. A chat that was built for us has none: to hash it would cost about
    /// what it saves.
    fn chat_key(&self, root: u64, chat: &Chat<'_>) -> Option<Key> {
        let Messages::Raw(messages) = &chat.messages else { return None };
        let flags = [chat.add_generation_prompt, chat.continue_final_message, chat.add_special_tokens].map(u8::from);
        let kwargs = if chat.kwargs.is_empty() { String::new() } else { serde_json::to_string(&chat.kwargs).ok()? };
        Some(self.boundaries.key(&[
            b"chat",
            &root.to_le_bytes(),
            &flags,
            kwargs.as_bytes(),
            chat.documents.as_ref().map_or("", |json| json.get()).as_bytes(),
            chat.tools.as_ref().map_or("", |json| json.get()).as_bytes(),
            messages.get().as_bytes(),
        ]))
    }

    /// Encodes a whole text, and keeps it under `key`.
    fn encode_rendered(
        &self,
        root: u64,
        key: Option<Key>,
        text: &str,
        add_special_tokens: bool,
        budget: Budget,
    ) -> Result<Chain, Stop> {
        let (mut chain, path) = self.encode_pieces(root, text, add_special_tokens, budget)?;
        if add_special_tokens {
            chain.push(self.tokenizer.suffix());
        }
        if let Some(key) = key {
            self.boundaries.keep(key, root, &chain, path);
        }
        Ok(chain)
    }

    /// Encodes a text that goes on with something else.
    fn encode_head(&self, root: u64, text: &str, add_special_tokens: bool, budget: Budget) -> Result<Chain, Stop> {
        self.encode_pieces(root, text, add_special_tokens, budget).map(|(chain, _)| chain)
    }

    fn encode_pieces(
        &self,
        root: u64,
        text: &str,
        add_special_tokens: bool,
        budget: Budget,
    ) -> Result<(Chain, Pieces), Stop> {
        let mut chain = Chain::new(root);
        if add_special_tokens {
            chain.push(self.tokenizer.prefix());
        }
        let start = self.boundaries.key(&[b"pieces", &root.to_le_bytes(), &[add_special_tokens.into()]]);
        let mut ids = Vec::new();
        let (mut fresh, mut took) = (0, Duration::ZERO);
        let encode = |piece: &str, left: usize, chain: &mut Chain| {
            budget.allows(&self.rate, piece, left)?;
            let began = Instant::now();
            ids.clear();
            self.tokenizer.encode(piece, false, &mut ids).map_err(|_| Fallback::Tokenizer)?;
            chain.push(&ids);
            fresh += piece.len();
            took += began.elapsed();
            Ok::<_, Stop>(())
        };
        let cuts = self.tokenizer.cut_points().find(text);
        let path = self.boundaries.extend(&mut chain, root, start, text, cuts, encode);
        self.rate.learn(fresh, took);
        path.map(|path| (chain, path))
    }
}

#[cfg(test)]
#[path = "tests/encoder.rs"]
mod tests;
