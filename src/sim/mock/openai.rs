//! `/v1/chat/completions`, `/v1/completions` and `/v1/models`, in the shapes recorded from vLLM 0.32 and SGLang 0.5.23.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use super::call::{Call, MAX_SEQUENCES, cache_root, count, parse, prompts, quoted, whole};
use super::errors::Reply;
use super::sse::{Encoder, EventStream, Events, Usage};
use super::state::{Mock, unix_seconds};
use super::tokens;

/// What every answer of one request shares.
struct Frame {
    id: String,
    model: String,
    created: u64,
    sglang: bool,
    fingerprint: String,
}

impl Frame {
    fn new(call: &Call<'_>, model: &str, prefix: &str) -> Self {
        let sglang = call.mock.is_sglang();
        let id = match (&call.request_id, sglang) {
            (_, true) => call.mock.new_id() + &call.mock.new_id(),
            (Some(id), false) => format!("{prefix}-{id}"),
            (None, false) => format!("{prefix}-{}", call.mock.new_id()),
        };
        let id = id.replace(['"', '\\'], "_");
        let fingerprint = call.mock.options.fingerprint.replace(['"', '\\'], "_");
        Self { id, model: quoted(model), created: unix_seconds(), sglang, fingerprint }
    }

    /// `{"id":…,"choices":` of an answer or chunk.
    fn head(&self, object: &str) -> String {
        let Self { id, model, created, .. } = self;
        format!(r#"{{"id":"{id}","object":"{object}","created":{created},"model":{model},"choices":"#)
    }
}

/// `usage` of chat and completions.
pub(super) fn usage_json(usage: Usage) -> String {
    let Usage { prompt, cached, output } = usage;
    format!(
        r#"{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{output},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#,
        prompt + output
    )
}

fn finish_reason(answer: &Answer) -> &'static str {
    match (answer.tool_name(), answer.limited()) {
        (Some(_), _) => "tool_calls",
        (None, true) => "length",
        (None, false) => "stop",
    }
}

/// `POST /v1/chat/completions`.
pub(super) async fn chat(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let messages = body.get("messages").and_then(Value::as_array).ok_or_else(|| Reply::missing(mock, "messages"))?;
    if messages.is_empty() {
        let message = match mock.is_sglang() {
            true => "Messages cannot be empty.",
            false => "Cannot apply chat template to an empty conversation. Provide at least one message.",
        };
        return Err(Reply::error(mock, 400, "BadRequestError", message, None));
    }
    let limit = match count(mock, &body, "max_completion_tokens")? {
        None => count(mock, &body, "max_tokens")?,
        limit => limit,
    };
    let tools = body.get("tools");
    let willing = tokens::last_user_message_contains(messages, "weather");
    let answer = Arc::new(Answer::for_chat(limit, tools, body.get("tool_choice"), willing));
    let prompt = tokens::render(None, messages, tools);
    let stream = body["stream"].as_bool().unwrap_or(false);
    let root = cache_root(&model, &body);
    let mut sequences = Vec::new();
    for choice in 0..count(mock, &body, "n")?.unwrap_or(1).clamp(1, MAX_SEQUENCES) {
        let mut sequence = mock.submit(&prompt, &answer, root, stream)?;
        sequence.counts_prompt = choice == 0;
        sequences.push(sequence);
    }
    let frame = Frame::new(&call, &model, "chatcmpl");
    if stream {
        let options = &body["stream_options"];
        let encoder = ChatStream {
            head: frame.head("chat.completion.chunk"),
            frame,
            answer,
            include_usage: options["include_usage"].as_bool().unwrap_or(false),
            call_ids: sequences.iter().map(|_| mock.new_id()).collect(),
            scratch: String::new(),
        };
        return Ok(Reply::stream(EventStream::new(sequences, Box::new(encoder), call.plan.pace)));
    }
    let usage = whole(&call, &sequences).await?;
    let mut text = frame.head("chat.completion");
    text.push('[');
    let reason = finish_reason(&answer);
    let content = quoted(&answer.text());
    for index in 0..sequences.len() {
        let comma = if index == 0 { "" } else { "," };
        let (content, calls) = match answer.tool_name() {
            None => (content.as_str(), String::new()),
            Some(name) => {
                let (id, name) = (mock.new_id(), quoted(name));
                let call = format!(
                    r#","tool_calls":[{{"id":"chatcmpl-tool-{id}","type":"function","function":{{"name":{name},"arguments":{content}}}}}]"#
                );
                ("null", call)
            }
        };
        let message = match frame.sglang {
            true => format!(r#"{{"role":"assistant","content":{content},"reasoning_content":null{calls}}}"#),
            false => format!(
                r#"{{"role":"assistant","content":{content},"refusal":null,"annotations":null,"audio":null,"function_call":null{calls},"reasoning":null}}"#
            ),
        };
        let rest = if frame.sglang { r#""matched_stop":null"# } else { r#""stop_reason":null,"token_ids":null"# };
        let _ = write!(
            text,
            r#"{comma}{{"index":{index},"message":{message},"logprobs":null,"finish_reason":"{reason}",{rest}}}"#
        );
    }
    text.push_str("],");
    text.push_str(&tail(&frame, usage));
    Ok(Reply::json_text(text))
}

/// What follows the choices of a whole answer.
fn tail(frame: &Frame, usage: Usage) -> String {
    let usage = usage_json(usage);
    match frame.sglang {
        true => format!(r#""usage":{usage},"metadata":{{"weight_version":"default"}}}}"#),
        false => format!(
            r#""service_tier":null,"system_fingerprint":"{}","usage":{usage},"kv_transfer_params":null}}"#,
            frame.fingerprint
        ),
    }
}

struct ChatStream {
    frame: Frame,
    head: String,
    answer: Arc<Answer>,
    include_usage: bool,
    call_ids: Vec<String>,
    scratch: String,
}

impl ChatStream {
    fn chunk(&mut self, choice: usize, delta: &str, reason: Option<&str>, events: &mut Events) {
        let extra = if self.frame.sglang { r#""matched_stop":null"# } else { r#""token_ids":null"# };
        let reason = reason.map_or_else(|| "null".to_owned(), quoted);
        let head = &self.head;
        events.data(&format!(
            r#"{head}[{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":{reason},{extra}}}]}}"#
        ));
    }
}

impl Encoder for ChatStream {
    fn start(&mut self, choice: usize, _usage: Usage, events: &mut Events) {
        self.chunk(choice, r#"{"role":"assistant","content":""}"#, None, events);
        if let Some(name) = self.answer.tool_name() {
            let (name, id) = (quoted(name), &self.call_ids[choice]);
            let delta = format!(
                r#"{{"content":null,"tool_calls":[{{"id":"chatcmpl-tool-{id}","type":"function","index":0,"function":{{"name":{name},"arguments":""}}}}]}}"#
            );
            self.chunk(choice, &delta, None, events);
        }
        if self.answer.len() == 0 {
            self.chunk(choice, "{}", Some(finish_reason(&Arc::clone(&self.answer))), events);
        }
    }

    fn token(&mut self, choice: usize, index: u32, events: &mut Events) {
        let answer = Arc::clone(&self.answer);
        self.scratch.clear();
        answer.piece(index, &mut self.scratch);
        let last = index + 1 == answer.len();
        let piece = quoted(&self.scratch);
        if answer.tool_name().is_some() {
            let delta =
                format!(r#"{{"content":null,"tool_calls":[{{"index":0,"function":{{"arguments":{piece}}}}}]}}"#);
            self.chunk(choice, &delta, None, events);
            if last {
                self.chunk(choice, "{}", Some(finish_reason(&answer)), events);
            }
        } else {
            let reason = last.then(|| finish_reason(&answer));
            self.chunk(choice, &format!(r#"{{"content":{piece}}}"#), reason, events);
        }
    }

    fn end(&mut self, usage: Usage, events: &mut Events) {
        if self.include_usage {
            events.data(&format!(r#"{}[],"usage":{}}}"#, self.head, usage_json(usage)));
        }
        events.data("[DONE]");
    }
}

/// `POST /v1/completions`.
pub(super) async fn completions(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let answer = Arc::new(Answer::words(count(mock, &body, "max_tokens")?));
    let stream = body["stream"].as_bool().unwrap_or(false);
    let root = cache_root(&model, &body);
    let n = count(mock, &body, "n")?.unwrap_or(1).clamp(1, MAX_SEQUENCES);
    let mut sequences = Vec::new();
    for prompt in prompts(mock, &body, "prompt")? {
        for choice in 0..n {
            let mut sequence = mock.submit(&prompt, &answer, root, stream)?;
            sequence.counts_prompt = choice == 0;
            sequences.push(sequence);
        }
    }
    let frame = Frame::new(&call, &model, "cmpl");
    let head = frame.head("text_completion");
    if stream {
        let include_usage = body["stream_options"]["include_usage"].as_bool().unwrap_or(false);
        let encoder = TextStream { head, sglang: frame.sglang, answer, include_usage, scratch: String::new() };
        return Ok(Reply::stream(EventStream::new(sequences, Box::new(encoder), call.plan.pace)));
    }
    let usage = whole(&call, &sequences).await?;
    let content = quoted(&answer.text());
    let reason = finish_reason(&answer);
    let rest = if frame.sglang { r#""matched_stop":null"# } else { r#""stop_reason":null,"token_ids":null"# };
    let choices: Vec<String> = (0..sequences.len())
        .map(|index| {
            format!(r#"{{"index":{index},"text":{content},"logprobs":null,"finish_reason":"{reason}",{rest}}}"#)
        })
        .collect();
    Ok(Reply::json_text(format!("{head}[{}],{}", choices.join(","), tail(&frame, usage))))
}

struct TextStream {
    head: String,
    sglang: bool,
    answer: Arc<Answer>,
    include_usage: bool,
    scratch: String,
}

impl TextStream {
    fn chunk(&self, choice: usize, piece: &str, last: bool, events: &mut Events) {
        let reason = if last { quoted(finish_reason(&self.answer)) } else { "null".to_owned() };
        let (head, piece) = (&self.head, quoted(piece));
        let rest = if self.sglang { r#""matched_stop":null"# } else { r#""stop_reason":null,"token_ids":null"# };
        events.data(&format!(
            r#"{head}[{{"index":{choice},"text":{piece},"logprobs":null,"finish_reason":{reason},{rest}}}]}}"#
        ));
    }
}

impl Encoder for TextStream {
    fn start(&mut self, choice: usize, _usage: Usage, events: &mut Events) {
        if self.answer.len() == 0 {
            self.chunk(choice, "", true, events);
        }
    }
    fn token(&mut self, choice: usize, index: u32, events: &mut Events) {
        let mut piece = std::mem::take(&mut self.scratch);
        piece.clear();
        self.answer.piece(index, &mut piece);
        self.chunk(choice, &piece, index + 1 == self.answer.len(), events);
        self.scratch = piece;
    }
    fn end(&mut self, usage: Usage, events: &mut Events) {
        if self.include_usage {
            events.data(&format!(r#"{}[],"usage":{}}}"#, self.head, usage_json(usage)));
        }
        events.data("[DONE]");
    }
}

/// `GET /v1/models`.
pub(super) fn models(mock: &Mock) -> Reply {
    let sglang = mock.is_sglang();
    let card = |model: &String| {
        let mut card = json!({
            "id": model, "object": "model", "created": mock.started, "owned_by": if sglang { "sglang" } else { "vllm" },
            "root": model, "parent": null, "max_model_len": mock.max_model_len(),
        });
        if !sglang {
            card["permission"] = json!([]);
        }
        card
    };
    let cards: Vec<Value> = mock.options.models.iter().map(card).collect();
    Reply::json(&json!({"object": "list", "data": cards}))
}
