//! What engines serve beside chat: generate, tokenize, embeddings, rerank, score, transcriptions.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyDataStream, Full};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::answer::Answer;
use super::call::{Call, cache_root, count, parse, prompts, whole};
use super::errors::Reply;
use super::sse::{Encoder, EventStream, Events, Usage};
use super::state::{Mock, unix_seconds};
use super::tokens;

/// `POST /generate`, SGLang's own shape; a batch of texts gets a list of answers.
pub(super) async fn generate(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let field = if body.get("input_ids").is_some() { "input_ids" } else { "text" };
    let batched = body[field].as_array().is_some_and(|items| items.first().is_some_and(|first| !first.is_number()));
    let limit = count(mock, &body["sampling_params"], "max_new_tokens")?;
    let answer = Arc::new(Answer::words(limit));
    let stream = body["stream"].as_bool().unwrap_or(false);
    let mut sequences = Vec::new();
    for prompt in prompts(mock, &body, field)? {
        sequences.push(mock.submit(&prompt, &answer, cache_root(&model, &body), stream)?);
    }
    let ids: Vec<String> = sequences.iter().map(|_| mock.new_id() + &mock.new_id()).collect();
    if stream {
        let states = ids.into_iter().map(|id| (id, Usage::default(), String::new())).collect();
        let encoder = GenerateStream { states, answer, batched };
        return Ok(Reply::stream(EventStream::new(sequences, Box::new(encoder), call.plan.pace)));
    }
    let began = Instant::now();
    let mut answers = Vec::new();
    for (sequence, id) in sequences.iter().zip(&ids) {
        let usage = whole(&call, std::slice::from_ref(sequence)).await?;
        let mut output = generate_json(id, usage, &answer.text(), Some(&answer));
        output["meta_info"]["e2e_latency"] = json!(began.elapsed().as_secs_f64());
        answers.push(output);
    }
    Ok(Reply::json(&if batched { Value::Array(answers) } else { answers.pop().unwrap_or_default() }))
}

fn generate_json(id: &str, usage: Usage, text: &str, finished: Option<&Answer>) -> Value {
    let reason = finished.map(|answer| match answer.limited() {
        true => json!({"type": "length", "length": usage.output}),
        false => json!({"type": "stop", "matched": null}),
    });
    json!({
        "text": text,
        "meta_info": {
            "id": id, "finish_reason": reason, "prompt_tokens": usage.prompt, "weight_version": "default",
            "completion_tokens": usage.output, "cached_tokens": usage.cached,
        },
    })
}

struct GenerateStream {
    /// Id, usage so far and text so far of each prompt; SGLang repeats the text from its beginning.
    states: Vec<(String, Usage, String)>,
    answer: Arc<Answer>,
    batched: bool,
}

impl GenerateStream {
    fn emit(&self, choice: usize, last: bool, events: &mut Events) {
        let (id, usage, text) = &self.states[choice];
        let mut event = generate_json(id, *usage, text, last.then_some(&*self.answer));
        if self.batched {
            event["index"] = json!(choice);
        }
        events.data(&event.to_string());
    }
}

impl Encoder for GenerateStream {
    fn start(&mut self, choice: usize, usage: Usage, events: &mut Events) {
        self.states[choice].1 = usage;
        if self.answer.len() == 0 {
            self.emit(choice, true, events);
        }
    }
    fn token(&mut self, choice: usize, index: u32, events: &mut Events) {
        let (_, usage, text) = &mut self.states[choice];
        usage.output = u64::from(index) + 1;
        self.answer.piece(index, text);
        self.emit(choice, index + 1 == self.answer.len(), events);
    }
    fn end(&mut self, _usage: Usage, events: &mut Events) {
        events.data("[DONE]");
    }
}

/// `POST /tokenize`: a prompt or a conversation.
pub(super) fn tokenize(call: &Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, _) = parse(call)?;
    let ids = match body.get("messages").and_then(Value::as_array) {
        Some(messages) => tokens::render(None, messages, body.get("tools")),
        None => prompts(mock, &body, "prompt")?.concat(),
    };
    let mut reply = json!({"count": ids.len(), "max_model_len": mock.max_model_len(), "tokens": ids});
    if !mock.is_sglang() {
        reply["token_strs"] = Value::Null;
    }
    Ok(Reply::json(&reply))
}

/// `POST /detokenize`. The vocabulary is a hash, so the text is made up, the same for the same ids.
pub(super) fn detokenize(call: &Call<'_>) -> Result<Reply, Reply> {
    let (body, _) = parse(call)?;
    let ids = prompts(call.mock, &body, "tokens")?.concat();
    let text: String = ids.iter().map(|id| format!("<{id}>")).collect();
    Ok(Reply::json(&if call.mock.is_sglang() { json!({"text": text}) } else { json!({"prompt": text}) }))
}

/// Runs prompts through prefill only.
async fn pool(call: &Call<'_>, body: &Value, model: &str, prompts: &[Vec<u32>]) -> Result<Usage, Reply> {
    let nothing = Answer::words(Some(0));
    let root = cache_root(model, body);
    let mut sequences = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        sequences.push(call.mock.submit(prompt, &nothing, root, false)?);
    }
    whole(call, &sequences).await
}

fn pooling_usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt, "total_tokens": usage.prompt, "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    })
}

/// A number in 0..1 that depends on `ids` and `salt`.
fn fraction(ids: &[u32], salt: u64) -> f64 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).chain(salt.to_le_bytes()).collect();
    (xxh3_64(&bytes) % 1_000_000) as f64 / 1e6
}

/// `POST /v1/embeddings`: as many floats as `dimensions` says (8), whatever `encoding_format` asks.
pub(super) async fn embeddings(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let inputs = prompts(mock, &body, "input")?;
    let dimensions = count(mock, &body, "dimensions")?.unwrap_or(8).clamp(1, 8_192);
    let usage = pool(&call, &body, &model, &inputs).await?;
    let vector = |ids: &[u32]| (0..dimensions).map(|at| fraction(ids, at) * 2.0 - 1.0).collect::<Vec<f64>>();
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, ids)| json!({"index": index, "object": "embedding", "embedding": vector(ids)}))
        .collect();
    Ok(Reply::json(&json!({
        "id": format!("embd-{}", mock.new_id()), "object": "list", "created": unix_seconds(), "model": model,
        "data": data, "usage": pooling_usage(usage),
    })))
}

/// The texts of a field: one or a list, each a string or an object with `text`.
fn texts(mock: &Mock, body: &Value, field: &str) -> Result<Vec<String>, Reply> {
    let text = |item: &Value| item.as_str().or_else(|| item["text"].as_str()).map(str::to_owned);
    let texts = match body.get(field) {
        None | Some(Value::Null) => return Err(Reply::missing(mock, field)),
        Some(Value::Array(items)) => items.iter().map(text).collect(),
        Some(one) => text(one).map(|one| vec![one]),
    };
    texts.ok_or_else(|| {
        let message = format!("{field} must be a text or a list of texts");
        Reply::error(mock, 400, "BadRequestError", &message, Some(field))
    })
}

fn pairs(queries: &[String], documents: &[String]) -> Vec<Vec<u32>> {
    let pair = |(at, document): (usize, &String)| {
        let mut ids = Vec::new();
        tokens::encode(queries.get(at).or(queries.first()).map_or("", String::as_str), &mut ids);
        tokens::marker("<|document|>", &mut ids);
        tokens::encode(document, &mut ids);
        ids
    };
    documents.iter().enumerate().map(pair).collect()
}

/// `POST /v1/rerank`, best first.
pub(super) async fn rerank(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let (queries, documents) = (texts(mock, &body, "query")?, texts(mock, &body, "documents")?);
    let inputs = pairs(&queries, &documents);
    let usage = pool(&call, &body, &model, &inputs).await?;
    let mut order: Vec<(usize, f64)> = inputs.iter().map(|ids| fraction(ids, 1)).enumerate().collect();
    order.sort_by(|left, right| right.1.total_cmp(&left.1));
    let top = count(mock, &body, "top_n")?.filter(|top| *top > 0).unwrap_or(u64::MAX);
    let results: Vec<Value> = order
        .iter()
        .take(usize::try_from(top).unwrap_or(usize::MAX))
        .map(|(at, score)| json!({"index": at, "document": {"text": documents[*at]}, "relevance_score": score}))
        .collect();
    Ok(Reply::json(&json!({
        "id": format!("rerank-{}", mock.new_id()), "model": model, "results": results,
        "usage": {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt},
    })))
}

/// `POST /v1/score`.
pub(super) async fn score(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let (body, model) = parse(&call)?;
    let (left, right) = if body.get("queries").is_some() { ("queries", "documents") } else { ("text_1", "text_2") };
    let inputs = pairs(&texts(mock, &body, left)?, &texts(mock, &body, right)?);
    let usage = pool(&call, &body, &model, &inputs).await?;
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, ids)| json!({"index": index, "object": "score", "score": fraction(ids, 2)}))
        .collect();
    Ok(Reply::json(&json!({
        "id": format!("score-{}", mock.new_id()), "object": "list", "created": unix_seconds(), "model": model,
        "data": data, "usage": pooling_usage(usage),
    })))
}

/// `POST /v1/audio/transcriptions`: says how many bytes the file had and for which model it was.
pub(super) async fn transcriptions(call: Call<'_>) -> Result<Reply, Reply> {
    let mock = call.mock;
    let refuse = |message: &str| Reply::error(mock, 400, "BadRequestError", message, None);
    let boundary = call.content_type.as_ref().and_then(|value| value.to_str().ok()).map(multer::parse_boundary);
    let Some(Ok(boundary)) = boundary else { return Err(refuse("expected multipart/form-data with a boundary")) };
    let stream = BodyDataStream::new(Full::<Bytes>::new(call.body.clone()));
    let mut form = multer::Multipart::new(stream, boundary);
    let (mut bytes, mut model) = (None, mock.default_model().to_owned());
    loop {
        let field = match form.next_field().await {
            Ok(Some(field)) => field,
            Ok(None) => break,
            Err(error) => return Err(refuse(&error.to_string())),
        };
        let name = field.name().unwrap_or_default().to_owned();
        let content = field.bytes().await.map_err(|error| refuse(&error.to_string()))?;
        match name.as_str() {
            "file" => bytes = Some(content.len()),
            "model" => model = String::from_utf8_lossy(&content).into_owned(),
            _ => {}
        }
    }
    if !mock.is_sglang() && !mock.options.models.contains(&model) {
        return Err(Reply::unknown_model(mock, &model));
    }
    let bytes = bytes.ok_or_else(|| Reply::missing(mock, "file"))?;
    Ok(Reply::json(&json!({"text": format!("{bytes} bytes for {model}"), "usage": {"type": "duration", "seconds": 1}})))
}
