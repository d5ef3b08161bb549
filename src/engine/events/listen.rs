//! Listens to what replicas publish: a task for each, from its sockets to the pools that it serves.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use zeromq::{DealerSocket, Socket, SocketEvent, SocketRecv as _, SocketSend as _, SubSocket, ZmqMessage};

use super::order::{Counts, Order, ReplayId, Settings};
use super::sink::{Pools, Sink};
use super::wire;
use crate::config::{EventSource, KvEvents};
use crate::fleet::{Clock, Fleet, Pool, Replica};
use crate::routing::Following;
use crate::telemetry::{KvEventMetrics, Metrics};

/// To connect to a publisher.
const CONNECT: Duration = Duration::from_secs(2);
/// Pauses between attempts, from and to.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Where a replica does not say that it publishes anything, it is asked again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_secs(1);
/// An engine that has computed so many tokens of prompts, and published nothing for so long, should have.
const SILENT: (u64, Duration) = (1024, Duration::from_secs(5));
/// Replies of a replay that wait to be taken.
const REPLIES: usize = 256;

/// Those who are listened to.
#[derive(Debug, Default)]
pub struct Listeners(HashMap<Arc<str>, Listener>);

#[derive(Debug)]
struct Listener {
    replica: Arc<Replica>,
    source: KvEvents,
    pools: Pools,
    metrics: KvEventMetrics,
    task: AbortHandle,
}

impl Listener {
    fn is(&self, replica: &Arc<Replica>, source: &KvEvents, pools: &[Arc<Pool>]) -> bool {
        let before = self.pools.load();
        Arc::ptr_eq(&self.replica, replica)
            && self.source == *source
            && before.len() == pools.len()
            && before.iter().zip(pools).all(|(before, pool)| before.shares_core(pool))
    }

    fn end(self, stays: bool) {
        self.task.abort();
        for pool in self.pools.load().iter() {
            pool.follow(self.replica.id(), Following::None);
        }
        if stays {
            self.metrics.state("off");
        }
    }
}

impl Listeners {
    /// Listens to the replicas of this fleet that publish events, in pools whose policy reads prompts, and to no others.
    pub fn follow(&mut self, fleet: &Fleet, metrics: &Metrics, clock: Clock, runtime: &Handle) {
        let mut before = std::mem::take(&mut self.0);
        for replica in fleet.replicas() {
            let source = replica.kv_events();
            let serves =
                |pool: &&Arc<Pool>| pool.settings().policy.uses_prompts() && pool.replica(replica.id()).is_some();
            let pools: Vec<_> = fleet.pools().iter().filter(serves).cloned().collect();
            if source == KvEvents::None || pools.is_empty() {
                continue;
            }
            let listener = match before.remove(replica.id()) {
                Some(listener) if listener.is(replica, &source, &pools) => {
                    listener.pools.store(Arc::new(pools));
                    listener
                }
                other => {
                    other.into_iter().for_each(|listener| listener.end(true));
                    for pool in pools.iter().filter(|pool| pool.settings().tokenizer.is_none()) {
                        let (replica, pool) = (replica.id(), pool.name());
                        tracing::warn!(%replica, %pool, "KV events are in token ids, and this pool has no `tokenizer`: \
                            only prompts of token ids can be found in them");
                    }
                    let pools: Pools = Arc::new(ArcSwap::from_pointee(pools));
                    let metrics = metrics.kv_events(replica.id());
                    let sink = Sink::new(replica.clone(), pools.clone(), metrics.clone());
                    let listen = listen(replica.clone(), source.clone(), sink, clock);
                    let task = runtime.spawn(listen).abort_handle();
                    Listener { replica: replica.clone(), source, pools, metrics, task }
                }
            };
            self.0.insert(replica.id().clone(), listener);
        }
        for (id, listener) in before {
            listener.end(fleet.replica(&id).is_some());
        }
    }

    /// Listens to nobody any more.
    pub fn end(&mut self) {
        self.0.drain().for_each(|(_, listener)| listener.end(true));
    }
}

/// Listens for as long as it is polled.
async fn listen(replica: Arc<Replica>, source: KvEvents, sink: Sink, clock: Clock) {
    let mut session: Option<Session> = None;
    let mut sink = Some(sink);
    let mut pause = PAUSES[0];
    loop {
        let found = match &source {
            KvEvents::None => return,
            KvEvents::Ask => super::ask::ask(&replica).await,
            KvEvents::At(source) => Some(source.clone()),
        };
        let Some(found) = found else {
            sleep(ASK_AGAIN).await;
            continue;
        };
        if session.as_ref().is_none_or(|session| session.source != found)
            && let Some(sink) = session.take().map(|session| session.sink).or_else(|| sink.take())
        {
            session = Some(Session::new(found, replica.clone(), sink, clock));
        }
        let Some(session) = &mut session else { return };
        if session.connected().await {
            pause = PAUSES[0];
        }
        sleep(pause.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// What is known of a publisher, over its connections.
struct Session {
    source: EventSource,
    replica: Arc<Replica>,
    restarts: u32,
    order: Order<Bytes>,
    /// What it has counted, as far as metrics have it.
    counted: Counts,
    sink: Sink,
    clock: Clock,
    replay: Option<Replay>,
    /// When the last message came, and what the engine had computed by then.
    heard: (Instant, u64),
}

/// A replay in progress.
struct Replay {
    id: ReplayId,
    replies: mpsc::Receiver<Reply>,
    task: AbortHandle,
}

enum Reply {
    Message(u64, Bytes),
    End,
    Failed,
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    fn new(source: EventSource, replica: Arc<Replica>, mut sink: Sink, clock: Clock) -> Self {
        sink.begin();
        let order = Order::new(Settings::new(source.replay.is_some()));
        let heard = (Instant::now(), replica.computed());
        let counted = Counts::default();
        Self { restarts: replica.restarts(), source, replica, order, counted, sink, clock, replay: None, heard }
    }

    /// One connection, from its beginning to its end; whether there was one.
    async fn connected(&mut self) -> bool {
        let mut socket = SubSocket::new();
        let mut monitor = socket.monitor();
        let endpoint = self.source.endpoint.to_string();
        // Before it is connected: nothing may come in between.
        if socket.subscribe(&self.source.topic).await.is_err()
            || !matches!(timeout(CONNECT, socket.connect(&endpoint)).await, Ok(Ok(())))
        {
            return false;
        }
        self.heard = (Instant::now(), self.replica.computed());
        self.order.subscribed(self.clock.now(), &mut self.sink);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.settle();
            tokio::select! {
                message = socket.recv() => match message {
                    Ok(message) => self.live(message),
                    Err(_) => break,
                },
                event = monitor.next() => if matches!(event, None | Some(SocketEvent::Disconnected(_))) {
                    break;
                },
                reply = next(&mut self.replay) => self.replayed(reply),
                _ = tick.tick() => self.tick(),
            }
        }
        self.replay = None;
        self.order.disconnected(&mut self.sink);
        self.count();
        true
    }

    fn live(&mut self, message: ZmqMessage) {
        let frames = message.into_vec();
        if let Some((sequence, payload)) = wire::live(&frames) {
            self.heard = (Instant::now(), self.replica.computed());
            self.order.live(sequence, payload.clone(), self.clock.now(), &mut self.sink);
        }
    }

    fn replayed(&mut self, reply: Reply) {
        let Some(replay) = &self.replay else { return };
        let (id, now) = (replay.id, self.clock.now());
        match reply {
            Reply::Message(sequence, payload) => self.order.replayed(id, sequence, payload, now, &mut self.sink),
            Reply::End => {
                self.replay = None;
                self.order.replay_ended(id, now, &mut self.sink);
            }
            Reply::Failed => {
                self.replay = None;
                self.order.replay_failed(id, now, &mut self.sink);
            }
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        if std::mem::replace(&mut self.restarts, self.replica.restarts()) != self.restarts {
            self.sink.outlived = true;
        }
        self.order.tick(now, &mut self.sink);
        let (since, computed) = self.heard;
        if since.elapsed() >= SILENT.1 && self.replica.computed().saturating_sub(computed) >= SILENT.0 {
            self.heard = (Instant::now(), self.replica.computed());
            self.order.silent(now, &mut self.sink);
        }
    }

    fn count(&mut self) {
        let counts = self.order.counts();
        for (what, count) in counts.since(&std::mem::replace(&mut self.counted, counts)) {
            self.sink.messages(what, count);
        }
    }

    /// Does what the order has asked for, and what the pools have found.
    fn settle(&mut self) {
        self.count();
        if self.sink.outlived {
            // The pools hold nothing of it any more, so all of it has to come again.
            self.sink.begin();
            self.replay = None;
            self.counted = Counts::default();
            self.order = Order::new(Settings::new(self.source.replay.is_some()));
            self.order.subscribed(self.clock.now(), &mut self.sink);
        }
        if let Some((id, from)) = self.sink.asked.take()
            && let Some(endpoint) = &self.source.replay
        {
            let (sender, replies) = mpsc::channel(REPLIES);
            let task = tokio::spawn(replay(endpoint.to_string(), from, sender)).abort_handle();
            self.replay = Some(Replay { id, replies, task });
        }
    }
}

/// The next reply of a replay; without one it never comes.
async fn next(replay: &mut Option<Replay>) -> Reply {
    match replay {
        Some(replay) => replay.replies.recv().await.unwrap_or(Reply::Failed),
        None => std::future::pending().await,
    }
}

/// Asks for all messages from a number on, over a connection of its own.
async fn replay(endpoint: String, from: u64, replies: mpsc::Sender<Reply>) {
    let mut socket = DealerSocket::new();
    let mut monitor = socket.monitor();
    let asked = async {
        timeout(CONNECT, socket.connect(&endpoint)).await.ok()?.ok()?;
        let frames: Vec<Bytes> = wire::request(from).into_iter().map(Bytes::from).collect();
        socket.send(ZmqMessage::try_from(frames).ok()?).await.ok()
    };
    if asked.await.is_none() {
        let _ = replies.send(Reply::Failed).await;
        return;
    }
    loop {
        let reply = tokio::select! {
            message = socket.recv() => message.ok().map(ZmqMessage::into_vec),
            event = monitor.next() => match event {
                None | Some(SocketEvent::Disconnected(_)) => None,
                Some(_) => continue,
            },
        };
        let reply = match reply.as_deref().map(wire::reply) {
            Some(Some(wire::Reply::Batch(sequence, payload))) => Reply::Message(sequence, payload.clone()),
            Some(Some(wire::Reply::End)) => Reply::End,
            Some(None) => continue,
            None => Reply::Failed,
        };
        let last = !matches!(reply, Reply::Message(..));
        if replies.send(reply).await.is_err() || last {
            return;
        }
    }
}
