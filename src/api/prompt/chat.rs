//! OpenAI's chat API: the form in which templates take a conversation.
use super::{flag, kwargs, tools};
use crate::api::body::{Part, Parts};
use crate::tokens::json::value;
use crate::tokens::{Chat, Content, Messages};

pub(super) fn content<'a>(parts: &Parts<'a>) -> Content<'a> {
    let Some(messages) = parts.get(Part::Messages).filter(|raw| raw.get().starts_with('[')) else {
        return Content::None;
    };
    let effort = parts.get(Part::ReasoningEffort).map(value);
    Content::Chat(Box::new(Chat {
        messages: Messages::Raw(messages),
        // `tool_choice: none` leaves them in the prompt: vLLM drops them only under
        // `--exclude-tools-when-tool-choice-none`, which is off by default. (SGLang drops them.)
        tools: parts.get(Part::Tools).and_then(tools::chat),
        documents: parts.get(Part::Documents).map(std::borrow::Cow::Borrowed),
        kwargs: kwargs(parts, effort),
        add_generation_prompt: flag(parts, Part::AddGenerationPrompt, true),
        continue_final_message: flag(parts, Part::ContinueFinalMessage, false),
        add_special_tokens: flag(parts, Part::AddSpecialTokens, false),
        own_template: parts.get(Part::ChatTemplate).is_some(),
    }))
}
