//! What an engine makes its prompt of, as clients write it, whatever API they speak.
use std::borrow::Cow;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A request's prompt, not rendered yet.
#[derive(Debug, Default)]
pub struct Prompt<'a> {
    /// The LoRA adapter that the request asks for.
    pub adapter: Option<Cow<'a, str>>,
    /// `cache_salt`: only requests with the same one share blocks.
    pub salt: Option<Cow<'a, str>>,
    /// The engine cuts it (`truncate_prompt_tokens`): its ids are not those of the whole.
    pub truncated: bool,
    /// What is said.
    pub content: Content<'a>,
}

/// The kinds of prompts.
#[derive(Debug, Default)]
pub enum Content<'a> {
    /// None that could be read.
    #[default]
    None,
    /// A conversation, for the chat template.
    Chat(Box<Chat<'a>>),
    /// Texts, each a prompt of its own (a batch has several; never empty).
    Text {
        /// They.
        prompts: Vec<Cow<'a, str>>,
        /// Whether the tokenizer's post-processor adds its special tokens.
        add_special_tokens: bool,
    },
    /// Token ids, each list a prompt of its own (never empty).
    Ids(Vec<Vec<u32>>),
}

/// A conversation with what templates take beside it.
#[derive(Debug, Default)]
pub struct Chat<'a> {
    /// Messages, oldest first, in the form of OpenAI's chat API.
    pub messages: Messages<'a>,
    /// Tools, in the form of OpenAI's chat API, as JSON.
    pub tools: Option<Cow<'a, RawValue>>,
    /// `documents`, for templates that take them.
    pub documents: Option<Cow<'a, RawValue>>,
    /// `chat_template_kwargs`: further variables of the template.
    pub kwargs: Map<String, Value>,
    /// Whether the answer's opening stands at the end. Default of engines: true.
    pub add_generation_prompt: bool,
    /// Whether the last message is left open, to be gone on with.
    pub continue_final_message: bool,
    /// Whether the tokenizer's post-processor adds its special tokens to what the template gives. Default of engines:
    /// false.
    pub add_special_tokens: bool,
    /// A template of the request's own (`chat_template`): ours would not be the engine's.
    pub own_template: bool,
}

/// The messages of a chat.
#[derive(Debug)]
pub enum Messages<'a> {
    /// As they stand in the body: a JSON list.
    Raw(&'a RawValue),
    /// Made out of another API's body.
    Built(Vec<Value>),
}

impl Default for Messages<'_> {
    fn default() -> Self {
        Self::Built(Vec::new())
    }
}
