//! The load: each conversation a client with a connection of its own, closed loop, over real HTTP.
//!
//! A question goes out when its predecessor's answer is complete and its pause is over; the answer that came becomes
//! part of the next prompt. A failed request is counted and ends its conversation, for there is nothing to go on from.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::workload::{ACTIVE, Session, Shape, Turn, system_prompt};
use super::{CHAT_HEADER, MODEL};
use crate::config::ReplicaUrl;
use crate::fleet::{Broken, ConnectError, Connections, Payload, Request, SendFailure};

/// Longest wait for one whole answer; a healthy one takes well under a second.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an error's body that are looked at, and of a line of a stream.
const MOST_BYTES: usize = 64 * 1024;

/// What came of the load.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests sent.
    pub requests: u64,
    /// Those without a whole answer.
    pub errors: u64,
    /// What the first of them met.
    pub first_error: Option<String>,
    pub prompt_tokens: u64,
    /// Of the prompt tokens, those that the replicas had cached.
    pub cached_tokens: u64,
    /// Times to the first token of each whole answer.
    pub first_tokens: Vec<Duration>,
}

impl Tally {
    fn add(&mut self, answer: &Result<Answer, Failure>) {
        self.requests += 1;
        match answer {
            Ok(answer) => {
                self.prompt_tokens += answer.usage.prompt_tokens;
                self.cached_tokens += answer.usage.cached();
                self.first_tokens.push(answer.first_token);
            }
            Err(failure) => self.fail(failure.to_string()),
        }
    }

    fn fail(&mut self, message: String) {
        self.errors += 1;
        self.first_error.get_or_insert(message);
    }

    fn merge(&mut self, other: Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.first_tokens.extend(other.first_tokens);
    }
}

/// Holds all conversations with the server at `address`, at most [`ACTIVE`] at once.
pub async fn drive(address: SocketAddr, shape: Shape, pauses: bool, bar: &ProgressBar) -> Tally {
    let system: Arc<str> = system_prompt(shape.seed).into();
    let held = stream::iter(0..shape.sessions)
        .map(|number| tokio::spawn(hold(address, Session::new(shape, number), pauses, system.clone(), bar.clone())))
        .buffer_unordered(ACTIVE as usize);
    held.fold(Tally::default(), async |mut total, tally| {
        match tally {
            Ok(tally) => total.merge(tally),
            Err(error) => total.fail(format!("the client failed: {error}")),
        }
        total
    })
    .await
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

#[derive(Debug, Serialize)]
struct Body<'a> {
    model: &'static str,
    messages: &'a [Message],
    max_tokens: u32,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// One conversation.
async fn hold(address: SocketAddr, session: Session, pauses: bool, system: Arc<str>, bar: ProgressBar) -> Tally {
    let client = Client::new(address, &session.id);
    let mut messages = vec![Message { role: "system", content: system.as_ref().to_owned() }];
    let mut tally = Tally::default();
    for Turn { pause, question, answer_tokens } in session {
        if pauses {
            tokio::time::sleep(pause).await;
        }
        messages.push(Message { role: "user", content: question });
        let answer = client.ask(&messages, answer_tokens).await;
        tally.add(&answer);
        bar.inc(1);
        let Ok(answer) = answer else { break };
        messages.push(Message { role: "assistant", content: answer.text });
    }
    tally
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("no connection to the proxy: {0}")]
    Connect(#[from] ConnectError),
    #[error("the prompt could not be written: {0}")]
    Body(#[from] serde_json::Error),
    #[error("no answer: {0}")]
    Send(#[from] SendFailure),
    #[error("status {0}: {1}")]
    Status(StatusCode, String),
    #[error("the stream broke: {0}")]
    Broken(#[from] Broken),
    #[error("the stream holds an event that is none of a chat: {0}")]
    Event(String),
    #[error("the stream ended before `[DONE]`")]
    Cut,
    #[error("the answer lacks a first token, or its usage")]
    Incomplete,
    #[error("no whole answer within {} s", PATIENCE.as_secs())]
    Slow,
}

/// One person's client.
struct Client {
    connections: Connections,
    host: HeaderValue,
    session: HeaderValue,
}

impl Client {
    fn new(address: SocketAddr, session: &str) -> Self {
        let authority = address.to_string();
        let url = ReplicaUrl {
            tls: false,
            host: address.ip().to_string().into(),
            port: address.port(),
            authority: authority.as_str().into(),
            base_path: "".into(),
        };
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("demo"));
        Self {
            host: value(&authority),
            session: value(session),
            // Kept for less than the proxy keeps it, as clients should.
            connections: Connections::new(url, None, Duration::from_secs(5), Duration::from_secs(60)),
        }
    }

    async fn ask(&self, messages: &[Message], max_tokens: u32) -> Result<Answer, Failure> {
        tokio::time::timeout(PATIENCE, self.exchange(messages, max_tokens)).await.unwrap_or(Err(Failure::Slow))
    }

    async fn exchange(&self, messages: &[Message], max_tokens: u32) -> Result<Answer, Failure> {
        let stream_options = StreamOptions { include_usage: true };
        let body = Body { model: MODEL, messages, max_tokens, stream: true, stream_options };
        let target = PathAndQuery::from_static("/v1/chat/completions");
        let mut request = Request::new(Method::POST, &target, &self.host);
        request.field(&header::CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        request.field(&HeaderName::from_static(CHAT_HEADER), &self.session);
        let request = request.body(Payload::from(Bytes::from(serde_json::to_vec(&body)?)));
        let connection = match self.connections.take_idle().await {
            Some(connection) => connection,
            None => self.connections.open().await?,
        };
        let asked = Instant::now();
        let response = connection.send(request).await?;
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let said = Limited::new(body, MOST_BYTES).collect().await.map(|said| said.to_bytes()).unwrap_or_default();
            return Err(Failure::Status(status, String::from_utf8_lossy(&said).into_owned()));
        }
        let mut reader = Reader::default();
        while let Some(frame) = body.frame().await {
            if let Some(bytes) = frame?.data_ref() {
                reader.feed(bytes, asked)?;
            }
        }
        self.connections.give_back(body.into_connection());
        reader.finish()
    }
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub text: String,
    pub first_token: Duration,
    pub usage: Usage,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Debug, Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Usage {
    pub prompt_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Usage {
    /// Engines leave the detail out when it is zero, or null.
    pub(super) fn cached(&self) -> u64 {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0)
    }
}

/// Reads a chat's stream, whatever the chunks. Its events are one `data:` line each.
#[derive(Debug, Default)]
pub(super) struct Reader {
    line: Vec<u8>,
    text: String,
    first_token: Option<Duration>,
    usage: Option<Usage>,
    done: bool,
}

impl Reader {
    /// Takes the next bytes of a request that was sent at `asked`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], asked: Instant) -> Result<(), Failure> {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, rest) = bytes.split_at(end);
            self.line.extend_from_slice(head);
            let line = std::mem::take(&mut self.line);
            self.take(line.trim_ascii_end(), asked)?;
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > MOST_BYTES {
            return Err(Failure::Event(format!("a line of more than {MOST_BYTES} bytes")));
        }
        Ok(())
    }

    fn take(&mut self, line: &[u8], asked: Instant) -> Result<(), Failure> {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii_start) else { return Ok(()) };
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk: Chunk =
            serde_json::from_slice(data).map_err(|_| Failure::Event(String::from_utf8_lossy(data).into_owned()))?;
        for content in chunk.choices.into_iter().filter_map(|choice| choice.delta.content) {
            if !content.is_empty() {
                self.first_token.get_or_insert_with(|| asked.elapsed());
            }
            self.text.push_str(&content);
        }
        self.usage = chunk.usage.or(self.usage);
        Ok(())
    }

    /// The stream is over.
    pub(super) fn finish(self) -> Result<Answer, Failure> {
        if !self.done {
            return Err(Failure::Cut);
        }
        match (self.first_token, self.usage) {
            (Some(first_token), Some(usage)) => Ok(Answer { text: self.text, first_token, usage }),
            _ => Err(Failure::Incomplete),
        }
    }
}
