//! The load, over real HTTP: a closed loop of sessions, or everything at once.
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::report::Sent;
use super::text::{Conversation, answer_tokens, words};
use super::{MODEL, Shape};

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where requests go and what is known of those behind it.
#[derive(Debug)]
pub struct Target {
    pub router: SocketAddr,
    /// Named by the answers' `system_fingerprint`, numbered from 0.
    pub replicas: HashMap<String, usize>,
    /// The header that carries a session's name, if any does.
    pub session_header: Option<String>,
}

/// What an engine answers, as far as it is of interest.
#[derive(Debug, Deserialize)]
struct Answer {
    system_fingerprint: Option<String>,
    choices: Vec<Choice>,
    usage: Usage,
    /// Of ours: why it went there.
    #[serde(skip)]
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    message: Message,
}

#[derive(Debug, Deserialize)]
struct Message {
    content: String,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Holds the shape's sessions: `concurrency` clients, each of which takes the next session that nobody has, asks its
/// turns one after the other (an answer is part of the next prompt), and takes another.
pub async fn sessions(
    target: Arc<Target>,
    shape: Shape,
    concurrency: usize,
    round: u64,
    seed: u64,
) -> io::Result<Vec<Sent>> {
    let (next, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let sent = Arc::new(Mutex::new(Vec::new()));
    let mut clients = JoinSet::new();
    for _ in 0..concurrency {
        let (target, next, order, sent) = (target.clone(), next.clone(), order.clone(), sent.clone());
        clients.spawn(async move {
            let mut client = Client::new(target);
            loop {
                let session = next.fetch_add(1, Relaxed);
                if session >= shape.sessions {
                    return Ok(());
                }
                let mut conversation = Conversation::new(words(shape.system, round, 0, 0));
                for turn in 0..shape.turns {
                    conversation.say("user", words(shape.turn, round, session as u64 + 1, turn as u64));
                    let order = order.fetch_add(1, Relaxed);
                    let tokens = answer_tokens(seed, session as u64 + 1, turn as u64);
                    let (record, text) = client.ask(&conversation, session, order, tokens).await?;
                    sent.lock().push(record);
                    conversation.say("assistant", text);
                }
            }
        });
    }
    joined(clients).await?;
    Ok(std::mem::take(&mut *sent.lock()))
}

/// Sends one prompt of so many characters so many times at once, each on a connection that is open already.
pub async fn burst(target: Arc<Target>, requests: usize, characters: usize, round: u64) -> io::Result<Vec<Sent>> {
    let conversation = Arc::new(Conversation::new(words(characters, round, 0, 0)));
    let sent = Arc::new(Mutex::new(Vec::new()));
    let mut clients = JoinSet::new();
    let mut ready = Vec::new();
    for _ in 0..requests {
        let mut client = Client::new(target.clone());
        client.connect().await?;
        ready.push(client);
    }
    for (at, mut client) in ready.into_iter().enumerate() {
        let (conversation, sent) = (conversation.clone(), sent.clone());
        clients.spawn(async move {
            let (record, _) = client.ask(&conversation, at, at as u64, 1).await?;
            sent.lock().push(record);
            Ok(())
        });
    }
    joined(clients).await?;
    Ok(std::mem::take(&mut *sent.lock()))
}

async fn joined(mut clients: JoinSet<io::Result<()>>) -> io::Result<()> {
    while let Some(ended) = clients.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Waits until the router passes a request on: a peer may have only just been started.
pub async fn wait_for(target: Arc<Target>) -> io::Result<()> {
    let conversation = Conversation::new("Are you there?".to_owned());
    let mut last = io::Error::other("no answer");
    for _ in 0..240 {
        match Client::new(target.clone()).ask(&conversation, 0, 0, 1).await {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Err(last)
}

/// One connection to the router.
struct Client {
    target: Arc<Target>,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    fn new(target: Arc<Target>) -> Self {
        Self { target, sender: None }
    }

    async fn connect(&mut self) -> io::Result<()> {
        if self.sender.as_ref().is_none_or(|sender| sender.is_closed()) {
            let stream = TcpStream::connect(self.target.router).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            self.sender = Some(sender);
        }
        Ok(())
    }

    /// One answer: where it came from, and its text.
    async fn ask(
        &mut self,
        conversation: &Conversation,
        session: usize,
        order: u64,
        tokens: u32,
    ) -> io::Result<(Sent, String)> {
        let answer = tokio::time::timeout(PATIENCE, self.exchange(conversation, session, tokens));
        let answer = answer.await.map_err(|_| io::Error::other("an answer took too long"))??;
        let name = answer.system_fingerprint.unwrap_or_default();
        let Some(&replica) = self.target.replicas.get(&name) else {
            return Err(io::Error::other(format!("`{name}` is none of the replicas: does the router go to others?")));
        };
        let sent = Sent {
            order,
            replica,
            reason: answer.reason.unwrap_or_default(),
            blocks: conversation.blocks(),
            tokens: conversation.tokens(),
            engine_tokens: answer.usage.prompt_tokens,
            engine_cached: answer.usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0),
        };
        let text = answer.choices.into_iter().next().map(|choice| choice.message.content).unwrap_or_default();
        Ok((sent, text))
    }

    async fn exchange(&mut self, conversation: &Conversation, session: usize, tokens: u32) -> io::Result<Answer> {
        self.connect().await?;
        let mut request = Request::post("/v1/chat/completions")
            .header(header::HOST, self.target.router.to_string())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(name) = &self.target.session_header {
            request = request.header(name, format!("session-{session:04}"));
        }
        let body = Full::new(Bytes::from(conversation.body(MODEL, tokens)));
        let request = request.body(body).map_err(io::Error::other)?;
        let Some(sender) = &mut self.sender else { return Err(io::Error::other("not connected")) };
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let reason = response.headers().get("x-warmroute-reason").and_then(|reason| reason.to_str().ok());
        let reason = reason.map(str::to_owned);
        let body = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        if status != StatusCode::OK {
            return Err(io::Error::other(format!("status {status}: {}", String::from_utf8_lossy(&body))));
        }
        let answer: Answer = serde_json::from_slice(&body).map_err(io::Error::other)?;
        Ok(Answer { reason, ..answer })
    }
}
