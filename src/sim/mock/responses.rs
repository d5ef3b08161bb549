//! `/v1/responses`: answers that are kept, so that a later request can go on from one or look it up.
//!
//! A kept answer remembers the tokens of its whole context; `previous_response_id` prepends them, and a replica that
//! does not know the id says 404, as vLLM does.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::answer::Answer;
use super::call::{Call, cache_root, count, parse, whole};
use super::errors::Reply;
use super::sse::{Encoder, EventStream, Events, Usage};
use super::state::{Mock, unix_seconds};
use super::tokens;

/// Answers kept; older ones are forgotten.
const KEPT: NonZeroUsize = NonZeroUsize::new(4_096).unwrap();

#[derive(Debug)]
struct Kept {
    response: Value,
    context: Vec<u32>,
}

/// The answers that can be looked up.
#[derive(Debug)]
pub(super) struct Store(Mutex<LruCache<String, Kept>>);

impl Store {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::new(KEPT)))
    }
    fn keep(&self, id: &str, response: Value, context: Vec<u32>) {
        self.0.lock().put(id.to_owned(), Kept { response, context });
    }
}

fn not_found(mock: &Mock, id: &str) -> Reply {
    let message = format!("Response with id '{id}' not found.");
    Reply::error(mock, 404, "invalid_request_error", &message, Some("response_id"))
}

/// `GET /v1/responses/{id}`.
pub(super) fn get(mock: &Mock, id: &str) -> Result<Reply, Reply> {
    let mut store = mock.responses.0.lock();
    let kept = store.get(id).ok_or_else(|| not_found(mock, id))?;
    Ok(Reply::json(&kept.response))
}

/// `DELETE /v1/responses/{id}`.
pub(super) fn delete(mock: &Mock, id: &str) -> Result<Reply, Reply> {
    mock.responses.0.lock().pop(id).ok_or_else(|| not_found(mock, id))?;
    Ok(Reply::json(&json!({"id": id, "object": "response", "deleted": true})))
}

/// `POST /v1/responses/{id}/cancel`. Answers are not made in the background, so there is nothing to stop but the name.
pub(super) fn cancel(mock: &Mock, id: &str) -> Result<Reply, Reply> {
    let mut store = mock.responses.0.lock();
    let kept = store.get_mut(id).ok_or_else(|| not_found(mock, id))?;
    kept.response["status"] = json!("cancelled");
    Ok(Reply::json(&kept.response))
}

/// One answer being made.
struct Draft {
    mock: Arc<Mock>,
    answer: Arc<Answer>,
    /// The response object but for its output, status and usage.
    base: Value,
    /// The one output item, finished.
    item: Value,
    context: Vec<u32>,
    store: bool,
}

impl Draft {
    fn id(&self) -> &str {
        self.base["id"].as_str().unwrap_or_default()
    }

    fn begun(&self) -> Value {
        let mut response = self.base.clone();
        response["status"] = json!("in_progress");
        response
    }

    /// The finished response, kept if the request wants it.
    fn finish(&mut self, usage: Usage) -> Value {
        let mut response = self.base.clone();
        let limited = self.answer.limited();
        response["status"] = json!(if limited { "incomplete" } else { "completed" });
        if limited {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = json!([self.item]);
        response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.output,
        });
        if self.store {
            let context = std::mem::take(&mut self.context);
            self.mock.responses.keep(self.id(), response.clone(), context);
        }
        response
    }
}

/// `POST /v1/responses`.
pub(super) async fn create(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let limit = count(mock, &body, "max_output_tokens")?;
    let input = match body.get("input") {
        None | Some(Value::Null) => return Err(Reply::missing(mock, "input")),
        Some(Value::Array(items)) => items.clone(),
        Some(text) => vec![json!({"role": "user", "content": text})],
    };
    let previous = body.get("previous_response_id").and_then(Value::as_str);
    let mut prompt = match previous {
        None => Vec::new(),
        Some(id) => mock.responses.0.lock().get(id).ok_or_else(|| not_found(mock, id))?.context.clone(),
    };
    let tools = body.get("tools");
    // What came before holds its own instructions and tools.
    let (system, rendered_tools) = if previous.is_some() { (None, None) } else { (body.get("instructions"), tools) };
    prompt.extend(tokens::render(system, &input, rendered_tools));
    let willing = tokens::last_user_message_contains(&input, "weather");
    let answer = Arc::new(Answer::for_chat(limit, tools, body.get("tool_choice"), willing));
    let stream = body["stream"].as_bool().unwrap_or(false);
    let sequences = vec![mock.submit(&prompt, &answer, cache_root(&model, &body), stream)?];

    let mut context = prompt;
    tokens::encode(&answer.text(), &mut context);
    tokens::marker("<|end|>", &mut context);
    let field = |name: &str, default: Value| body.get(name).cloned().unwrap_or(default);
    let base = json!({
        "id": format!("resp_{}", mock.new_id()), "object": "response", "created_at": unix_seconds(), "model": model,
        "status": "in_progress", "error": null, "incomplete_details": null, "output": [], "usage": null,
        "instructions": field("instructions", Value::Null), "metadata": field("metadata", json!({})),
        "parallel_tool_calls": true, "temperature": field("temperature", json!(1.0)), "top_p": field("top_p", json!(1.0)),
        "tool_choice": field("tool_choice", json!("auto")), "tools": field("tools", json!([])), "background": false,
        "max_output_tokens": limit, "previous_response_id": previous, "service_tier": "auto", "truncation": "disabled",
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": null, "summary": null}, "user": field("user", Value::Null),
    });
    let item = match answer.tool_name() {
        None => json!({
            "id": format!("msg_{}", mock.new_id()), "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": answer.text(), "annotations": [], "logprobs": []}],
        }),
        Some(name) => json!({
            "id": format!("fc_{}", mock.new_id()), "type": "function_call", "status": "completed",
            "call_id": format!("call_{}", mock.new_id()), "name": name, "arguments": answer.text(),
        }),
    };
    let store = body.get("store").and_then(Value::as_bool).unwrap_or(true);
    let mut draft = Draft { mock: Arc::clone(mock), answer, base, item, context, store };
    if stream {
        let encoder = ResponseStream { draft, sequence: 0, scratch: String::new() };
        return Ok(Reply::stream(EventStream::new(sequences, Box::new(encoder), call.plan.pace)));
    }
    let usage = whole(&call, &sequences).await?;
    Ok(Reply::json(&draft.finish(usage)))
}

struct ResponseStream {
    draft: Draft,
    sequence: u64,
    scratch: String,
}

impl ResponseStream {
    fn event(&mut self, kind: &str, fields: Value, events: &mut Events) {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        self.sequence += 1;
        events.named(kind, &event.to_string());
    }

    /// An event about the output item or its one part.
    fn about_item(&mut self, kind: &str, mut fields: Value, events: &mut Events) {
        fields["item_id"] = self.draft.item["id"].clone();
        fields["output_index"] = json!(0);
        self.event(kind, fields, events);
    }
}

impl Encoder for ResponseStream {
    fn start(&mut self, _choice: usize, _usage: Usage, events: &mut Events) {
        let begun = self.draft.begun();
        self.event("response.created", json!({"response": begun}), events);
        self.event("response.in_progress", json!({"response": begun}), events);
        let mut item = self.draft.item.clone();
        item["status"] = json!("in_progress");
        let tool = self.draft.answer.tool_name().is_some();
        item[if tool { "arguments" } else { "content" }] = if tool { json!("") } else { json!([]) };
        self.event("response.output_item.added", json!({"output_index": 0, "item": item}), events);
        if !tool {
            let part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
            self.about_item("response.content_part.added", json!({"content_index": 0, "part": part}), events);
        }
    }

    fn token(&mut self, _choice: usize, index: u32, events: &mut Events) {
        let mut piece = std::mem::take(&mut self.scratch);
        piece.clear();
        self.draft.answer.piece(index, &mut piece);
        match self.draft.answer.tool_name() {
            Some(_) => self.about_item("response.function_call_arguments.delta", json!({"delta": piece}), events),
            None => {
                let fields = json!({"content_index": 0, "delta": piece, "logprobs": []});
                self.about_item("response.output_text.delta", fields, events);
            }
        }
        self.scratch = piece;
    }

    fn end(&mut self, usage: Usage, events: &mut Events) {
        let item = self.draft.item.clone();
        if self.draft.answer.tool_name().is_some() {
            let fields = json!({"arguments": item["arguments"], "name": item["name"]});
            self.about_item("response.function_call_arguments.done", fields, events);
        } else {
            let part = &item["content"][0];
            let text = json!({"content_index": 0, "text": part["text"], "logprobs": []});
            self.about_item("response.output_text.done", text, events);
            self.about_item("response.content_part.done", json!({"content_index": 0, "part": part}), events);
        }
        self.event("response.output_item.done", json!({"output_index": 0, "item": item}), events);
        let response = self.draft.finish(usage);
        // vLLM ends so even when the answer was cut at its limit; the status in the response tells.
        self.event("response.completed", json!({"response": response}), events);
    }
}
