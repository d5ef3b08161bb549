//! A body → what an engine makes its prompt of ([`Prompt`]), for each API that has one.
use serde_json::value::RawValue;

use super::Endpoint;
use crate::tokens::{Chat, Content, Messages, Prompt};

/// Reads the prompt of a request for `endpoint`; [`Content::None`] where the body has none, or none that can be read.
pub fn prompt<'a>(endpoint: &Endpoint, body: &'a [u8]) -> Prompt<'a> {
    #[derive(serde::Deserialize)]
    struct Fields<'a> {
        #[serde(borrow)]
        messages: Option<&'a RawValue>,
    }
    let _ = endpoint;
    let Ok(Fields { messages: Some(messages) }) = serde_json::from_slice(body) else { return Prompt::default() };
    let chat = Chat { messages: Messages::Raw(messages), add_generation_prompt: true, ..Chat::default() };
    Prompt { content: Content::Chat(Box::new(chat)), ..Prompt::default() }
}
