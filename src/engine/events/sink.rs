//! What an order passes on: from a message's bytes to the pools that the replica serves.
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

use super::groups::{Groups, Stores};
use super::order::{Applied, Follower, ReplayId, State, Why};
use super::wire::{self, Adapter, Batch, Event, Stored, Tier};
use crate::fleet::{Pool, Replica};
use crate::prefix;
use crate::routing::{CacheEvent, Following};
use crate::telemetry::KvEventMetrics;

/// The pools that a replica serves and that have a use for its events; others after a reload.
pub(super) type Pools = Arc<ArcSwap<Vec<Arc<Pool>>>>;

/// The end of one replica's stream of events.
#[derive(Debug)]
pub(super) struct Sink {
    replica: Arc<Replica>,
    pools: Pools,
    metrics: KvEventMetrics,
    groups: Groups,
    /// A replay to be asked for, and from where.
    pub asked: Option<(ReplayId, u64)>,
    /// A pool had begun to see another life of the replica.
    pub outlived: bool,
}

impl Sink {
    pub fn new(replica: Arc<Replica>, pools: Pools, metrics: KvEventMetrics) -> Self {
        Self { replica, pools, metrics, groups: Groups::default(), asked: None, outlived: false }
    }

    /// Nothing is known, and everything that comes is taken.
    pub fn begin(&mut self) {
        self.groups = Groups::default();
        self.asked = None;
        self.outlived = false;
        for following in [Following::None, Following::Loosely] {
            self.follow(following);
        }
        self.metrics.state(State::Syncing.as_str());
    }

    /// What became of messages.
    pub fn messages(&self, what: &str, count: u64) {
        self.metrics.messages(what, count);
    }

    fn follow(&self, following: Following) {
        self.pools.load().iter().for_each(|pool| pool.follow(self.replica.id(), following));
    }

    /// Whether an event concerns the index; with it, what has to be forgotten first.
    fn counts(&mut self, event: &Event) -> Stores {
        match event {
            Event::Stored(Stored { adapter: Some(Adapter::Id(_)), .. }) => {
                // Which name that number has, the engine does not say.
                self.metrics.skipped("adapter_number", 1);
                Stores::Ignore
            }
            Event::Stored(stored) => self.groups.stores(stored),
            Event::Removed(removed) if self.groups.removes(removed) => Stores::Count,
            Event::Removed(_) => Stores::Ignore,
            Event::Cleared => Stores::Count,
        }
    }

    fn hand_on(&mut self, batch: &Batch) {
        let counting: Vec<_> = batch.events.iter().map(|event| (event, self.counts(event))).collect();
        for pool in self.pools.load().iter() {
            let encoder = pool.encoder();
            let events = counting.iter().flat_map(|(event, counts)| {
                let first = (*counts == Stores::Afresh).then_some(CacheEvent::Cleared);
                let root = |stored: &Stored| {
                    let adapter = match &stored.adapter {
                        Some(Adapter::Name(name)) => Some(&**name),
                        _ => None,
                    };
                    encoder.tokens_root(adapter, stored.salt.as_deref())
                };
                let then = (*counts != Stores::Ignore).then(|| as_cache_event(event, root));
                first.into_iter().chain(then)
            });
            match pool.cache_events(self.replica.id(), &events.collect::<Vec<_>>()) {
                Some(taken) => {
                    if let Some((why, blocks)) = taken.unstored {
                        self.metrics.skipped(why.as_str(), blocks);
                    }
                }
                None => self.outlived = true,
            }
        }
    }
}

fn as_cache_event<'a>(event: &'a Event, root: impl Fn(&Stored) -> u64) -> CacheEvent<'a> {
    match event {
        Event::Stored(stored) => CacheEvent::Stored(prefix::Stored {
            root: root(stored),
            parent: stored.parent,
            hashes: &stored.hashes,
            tokens: &stored.tokens,
            block_size: stored.block_size,
            tier: tier(stored.tier),
            extras: &stored.extras,
        }),
        Event::Removed(removed) => CacheEvent::Removed { tier: tier(removed.tier), hashes: &removed.hashes },
        Event::Cleared => CacheEvent::Cleared,
    }
}

fn tier(tier: Tier) -> prefix::Tier {
    match tier {
        Tier::Device => prefix::Tier::Device,
        Tier::Cpu => prefix::Tier::Host,
        Tier::Disk => prefix::Tier::Disk,
    }
}

impl Follower<Bytes> for Sink {
    fn apply(&mut self, message: Bytes) -> Applied {
        let Ok(batch) = wire::decode(&message) else {
            self.metrics.skipped("malformed", 1);
            return Applied::Lost;
        };
        if let (Some(ours), Some(theirs)) = (self.replica.rank(), batch.rank)
            && ours.at != theirs
        {
            self.metrics.skipped("other_rank", batch.events.len());
            return Applied::Whole;
        }
        let mut applied = Applied::Whole;
        for event in &batch.events {
            match event {
                Event::Stored(_) => self.metrics.stored.inc(),
                Event::Removed(_) => self.metrics.removed.inc(),
                Event::Cleared => {
                    self.metrics.cleared.inc();
                    applied = Applied::Cleared;
                }
            }
        }
        self.hand_on(&batch);
        for skip in &batch.skipped {
            self.metrics.skipped(skip.reason.as_str(), 1);
            if skip.removal {
                applied = Applied::Lost;
            }
        }
        applied
    }

    fn clear(&mut self) {
        self.metrics.lost("restarted");
        self.begin();
    }

    fn ask(&mut self, replay: ReplayId, from: u64) {
        self.asked = Some((replay, from));
    }

    fn state(&mut self, state: State) {
        self.follow(if state == State::Live { Following::Exactly } else { Following::Loosely });
        self.metrics.state(state.as_str());
        match state.why() {
            Some(Why::Disconnected) => self.metrics.lost("disconnected"),
            Some(why) => self.metrics.lost(why.as_str()),
            None => {}
        }
        let replica = self.replica.id();
        match state.why().map(Why::as_str) {
            Some(why) => tracing::warn!(%replica, state = state.as_str(), why, "KV events are not whole"),
            None => tracing::info!(%replica, state = state.as_str(), "KV events"),
        }
    }
}
