//! An engine's publisher of KV events: a PUB socket, and a ROUTER that sends again what it still has.
use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::{PATIENCE, within};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// One life of a publisher; its sequence begins at 0.
pub struct Publisher {
    socket: PubSocket,
    next: u64,
    kept: Kept,
    keeps: usize,
    replay: Option<AbortHandle>,
    /// Of its live messages.
    pub topic: &'static str,
    /// The rank that it says it is.
    pub rank: u32,
    pub port: u16,
    pub replay_port: u16,
}

type Kept = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

impl Publisher {
    /// One that keeps its last `keeps` messages.
    pub async fn start(keeps: usize) -> Self {
        Self::at([0, 0], keeps).await
    }

    /// The next life, at the same ports.
    pub async fn again(self) -> Self {
        let (ports, keeps) = ([self.port, self.replay_port], self.keeps);
        drop(self);
        Self::at(ports, keeps).await
    }

    /// Those of two ranks, at neighbouring ports; they send nothing again.
    pub async fn of_two_ranks() -> [Self; 2] {
        loop {
            let first = Self::start(0).await;
            let next = first.port.checked_add(1).filter(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
            if let Some(port) = next {
                let mut second = Self::at([port, 0], 0).await;
                second.rank = 1;
                return [first, second];
            }
        }
    }

    async fn at([port, replay_port]: [u16; 2], keeps: usize) -> Self {
        let (mut socket, mut router) = (PubSocket::new(), RouterSocket::new());
        let bound = [bind(&mut socket, port).await, bind(&mut router, replay_port).await];
        let kept: Kept = Arc::default();
        let replay = tokio::spawn(serve_replay(router, kept.clone())).abort_handle();
        let [port, replay_port] = bound;
        Self { socket, next: 0, kept, keeps, replay: Some(replay), topic: "kv", rank: 0, port, replay_port }
    }

    /// What a replica's configuration says of it.
    pub fn keys(&self, replay: bool) -> String {
        let replay = if replay { format!(", replay: \"tcp://127.0.0.1:{}\"", self.replay_port) } else { String::new() };
        format!("kv_events: {{ endpoint: \"tcp://127.0.0.1:{}\"{replay} }}", self.port)
    }

    /// Publishes the events of one step.
    pub async fn publish(&mut self, events: Value) {
        let message = self.keep(events);
        self.socket.send(message).await.expect("a PUB socket takes everything");
    }

    /// The same, and nobody hears of it.
    pub fn lose(&mut self, events: Value) {
        self.keep(events);
    }

    fn keep(&mut self, events: Value) -> ZmqMessage {
        let mut payload = Vec::new();
        pack(&json!([1.5, events, self.rank]), &mut payload);
        let (sequence, payload) = (self.next, Bytes::from(payload));
        self.next += 1;
        let mut kept = self.kept.lock().expect("nobody panicked");
        kept.push_back((sequence, payload.clone()));
        while kept.len() > self.keeps {
            kept.pop_front();
        }
        message([Bytes::from_static(self.topic.as_bytes()), number(sequence), payload])
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.replay.take().inspect(AbortHandle::abort);
    }
}

/// `BlockStored` of vLLM from 0.24: blocks of 16 tokens that follow `parent`; a block's hash is its number.
pub fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32]) -> Value {
    json!({ "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
        "block_size": tokens.len() / hashes.len(), "lora_id": null, "medium": "GPU", "lora_name": null })
}

/// `BlockRemoved`.
pub fn removed(hashes: &[u64]) -> Value {
    json!({ "type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU" })
}

/// `AllBlocksCleared`.
pub fn cleared() -> Value {
    json!({ "type": "AllBlocksCleared" })
}

async fn bind(socket: &mut impl Socket, port: u16) -> u16 {
    let address = format!("tcp://127.0.0.1:{port}");
    let bound = async {
        loop {
            // The life before may not have let go of it yet.
            match socket.bind(&address).await {
                Ok(bound) => return bound.to_string(),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let shown = within(&format!("{address} is bound"), PATIENCE, bound).await;
    shown.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a bound port")
}

/// Answers in the newer of the two shapes: an empty frame, topic, number, payload.
async fn serve_replay(mut router: RouterSocket, kept: Kept) {
    while let Ok(asked) = router.recv().await {
        let frames = asked.into_vec();
        let [peer, .., from] = frames.as_slice() else { continue };
        let from = u64::from_be_bytes(from[..].try_into().expect("eight bytes"));
        let replies: Vec<_> = kept.lock().expect("nobody panicked").iter().cloned().collect();
        for (sequence, payload) in replies.into_iter().filter(|(sequence, _)| *sequence >= from) {
            let frames = [peer.clone(), Bytes::new(), Bytes::from_static(b"kv"), number(sequence), payload];
            if router.send(message(frames)).await.is_err() {
                break;
            }
        }
        let end = [peer.clone(), Bytes::new(), Bytes::new(), number(u64::MAX), Bytes::new()];
        let _ = router.send(message(end)).await;
    }
}

fn number(number: u64) -> Bytes {
    number.to_be_bytes().to_vec().into()
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    ZmqMessage::try_from(Vec::from(frames)).expect("frames")
}

/// JSON as MessagePack. A vector takes everything, so nothing can fail.
fn pack(value: &Value, out: &mut Vec<u8>) {
    use rmp::encode as write;
    let done = "a vector takes everything";
    match value {
        Value::Null => write::write_nil(out).expect(done),
        Value::Bool(bool) => write::write_bool(out, *bool).expect(done),
        Value::Number(number) if number.is_u64() => {
            write::write_uint(out, number.as_u64().unwrap_or_default()).map(drop).expect(done)
        }
        Value::Number(number) if number.is_i64() => {
            write::write_sint(out, number.as_i64().unwrap_or_default()).map(drop).expect(done)
        }
        Value::Number(number) => write::write_f64(out, number.as_f64().unwrap_or_default()).expect(done),
        Value::String(text) => write::write_str(out, text).expect(done),
        Value::Array(items) => {
            write::write_array_len(out, items.len() as u32).map(drop).expect(done);
            items.iter().for_each(|item| pack(item, out));
        }
        Value::Object(fields) => {
            write::write_map_len(out, fields.len() as u32).map(drop).expect(done);
            for (name, value) in fields {
                write::write_str(out, name).expect(done);
                pack(value, out);
            }
        }
    }
}
