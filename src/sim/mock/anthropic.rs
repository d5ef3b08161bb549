//! `/v1/messages` and `/v1/messages/count_tokens` in Anthropic's shapes, errors included.
//!
//! As in Anthropic's own counting, `input_tokens` leaves out what `cache_read_input_tokens` counts.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use super::call::{Call, cache_root, count, parse, whole};
use super::errors::Reply;
use super::sse::{Encoder, EventStream, Events, Usage};
use super::tokens;

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "output_tokens": usage.output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
    })
}

fn stop_reason(answer: &Answer) -> &'static str {
    match (answer.tool_name(), answer.limited()) {
        (Some(_), _) => "tool_use",
        (None, true) => "max_tokens",
        (None, false) => "end_turn",
    }
}

fn messages_of<'a>(call: &Call<'_>, body: &'a Value) -> Result<&'a Vec<Value>, Reply> {
    body.get("messages").and_then(Value::as_array).ok_or_else(|| Reply::missing(call.mock, "messages"))
}

/// `POST /v1/messages/count_tokens`.
pub(super) fn count_tokens(call: &Call<'_>) -> Result<Reply, Reply> {
    let (body, _) = parse(call)?;
    let prompt = tokens::render(body.get("system"), messages_of(call, &body)?, body.get("tools"));
    Ok(Reply::json(&json!({"input_tokens": prompt.len()})))
}

/// `POST /v1/messages`.
pub(super) async fn messages(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let messages = messages_of(&call, &body)?;
    let limit = count(mock, &body, "max_tokens")?.ok_or_else(|| Reply::missing(mock, "max_tokens"))?;
    let willing = tokens::last_user_message_contains(messages, "weather");
    let answer = Arc::new(Answer::for_chat(Some(limit), body.get("tools"), body.get("tool_choice"), willing));
    let prompt = tokens::render(body.get("system"), messages, body.get("tools"));
    let stream = body["stream"].as_bool().unwrap_or(false);
    let sequences = vec![mock.submit(&prompt, &answer, cache_root(&model, &body), stream)?];
    let id = format!("msg_{}", mock.new_id());
    let block = match answer.tool_name() {
        None => json!({"type": "text", "text": ""}),
        Some(name) => json!({"type": "tool_use", "id": format!("toolu_{}", mock.new_id()), "name": name, "input": {}}),
    };
    if stream {
        let encoder = MessageStream { id, model, answer, block, scratch: String::new() };
        return Ok(Reply::stream(EventStream::new(sequences, Box::new(encoder), call.plan.pace)));
    }
    let usage = whole(&call, &sequences).await?;
    let mut block = block;
    match answer.tool_name() {
        None => block["text"] = Value::from(answer.text()),
        Some(_) => block["input"] = serde_json::from_str(&answer.text()).unwrap_or_default(),
    }
    Ok(Reply::json(&json!({
        "id": id, "type": "message", "role": "assistant", "content": [block], "model": model,
        "stop_reason": stop_reason(&answer), "stop_sequence": null, "usage": usage_json(usage),
    })))
}

struct MessageStream {
    id: String,
    model: String,
    answer: Arc<Answer>,
    /// The one content block, empty.
    block: Value,
    scratch: String,
}

impl Encoder for MessageStream {
    fn start(&mut self, _choice: usize, usage: Usage, events: &mut Events) {
        let message = json!({
            "type": "message_start",
            "message": {
                "id": self.id, "type": "message", "role": "assistant", "content": [], "model": self.model,
                "stop_reason": null, "stop_sequence": null, "usage": usage_json(usage),
            },
        });
        events.named("message_start", &message.to_string());
        let start = json!({"type": "content_block_start", "index": 0, "content_block": self.block});
        events.named("content_block_start", &start.to_string());
    }

    fn token(&mut self, _choice: usize, index: u32, events: &mut Events) {
        self.scratch.clear();
        self.answer.piece(index, &mut self.scratch);
        let delta = match self.answer.tool_name() {
            None => json!({"type": "text_delta", "text": self.scratch}),
            Some(_) => json!({"type": "input_json_delta", "partial_json": self.scratch}),
        };
        let event = json!({"type": "content_block_delta", "index": 0, "delta": delta});
        events.named("content_block_delta", &event.to_string());
    }

    fn end(&mut self, usage: Usage, events: &mut Events) {
        events.named("content_block_stop", r#"{"type":"content_block_stop","index":0}"#);
        let delta = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason(&self.answer), "stop_sequence": null},
            "usage": usage_json(usage),
        });
        events.named("message_delta", &delta.to_string());
        events.named("message_stop", r#"{"type":"message_stop"}"#);
    }
}
