//! The three indexes behind one face: store a prompt, tell the depth of every replica.
use std::sync::Arc;
use std::thread::JoinHandle;

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer as _, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent,
};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use crate::prefix::{Index, Slot};
use crate::workload::Prompt;

/// An index under test.
pub trait Design {
    /// A hash of a query, as it is kept ready for this index.
    type Query;
    /// What it tells of one replica.
    type Depth: Clone + Default;
    /// The query in its terms; made outside of what is timed.
    fn query(prompt: &Prompt) -> Self::Query;
    /// Leading blocks that each replica holds; `depths` has a place for each and comes with what was there before.
    fn lookup(&self, query: &Self::Query, depths: &mut Vec<Self::Depth>);
    /// Brings the query's hashes into the cache, where the request's hashing would have just left them.
    fn touch(query: &Self::Query) -> u64;
}

/// One that is told whole prompts.
pub trait Told: Design {
    /// The replica now holds the whole prompt.
    fn store(&mut self, replica: u32, prompt: &Prompt);
    /// Everything stored is visible from here on.
    fn settle(&mut self) {}
}

/// Ours.
pub struct Ours {
    pub index: Index,
    pub slots: Vec<Slot>,
}

impl Ours {
    pub fn new(replicas: u32) -> Self {
        let mut index = Index::new(usize::MAX);
        let slots = (0..replicas).map(|_| index.add(u32::MAX as usize)).collect();
        Self { index, slots }
    }
}

impl Design for Ours {
    type Query = Vec<u64>;
    type Depth = u32;

    fn query(prompt: &Prompt) -> Vec<u64> {
        prompt.chain.clone()
    }

    fn lookup(&self, query: &Vec<u64>, depths: &mut Vec<u32>) {
        self.index.lookup(query, depths);
    }

    fn touch(query: &Vec<u64>) -> u64 {
        query.iter().fold(0, |sum, hash| sum ^ hash)
    }
}

impl Told for Ours {
    fn store(&mut self, replica: u32, prompt: &Prompt) {
        let placement = self.index.place(self.slots[replica as usize], &prompt.chain);
        self.index.confirm(&placement, &prompt.chain);
        self.index.finish(placement, &prompt.chain);
    }
}

/// SMG's: `ChainIndex::score_into`, which allocates nothing, and a block map for each replica.
pub struct Smg {
    index: ChainIndex,
    replicas: Vec<(u32, ChainBlockMap)>,
}

impl Smg {
    pub fn new(replicas: u32) -> Self {
        let index = ChainIndex::with_max_workers(replicas as usize);
        let replicas = (0..replicas)
            .map(|at| {
                (
                    index.intern_worker(&format!("replica-{at}")).expect("as many as it was made for"),
                    ChainBlockMap::new(),
                )
            })
            .collect();
        Self { index, replicas }
    }
}

impl Design for Smg {
    type Query = Vec<ContentHash>;
    type Depth = u32;

    fn query(prompt: &Prompt) -> Vec<ContentHash> {
        prompt.contents.iter().map(|&content| ContentHash(content)).collect()
    }

    fn lookup(&self, query: &Vec<ContentHash>, depths: &mut Vec<u32>) {
        depths.fill(0);
        self.index.score_into(query, |content| content.0, false, |worker, depth| depths[worker as usize] = depth);
    }

    fn touch(query: &Vec<ContentHash>) -> u64 {
        query.iter().fold(0, |sum, hash| sum ^ hash.0)
    }
}

impl Told for Smg {
    fn store(&mut self, replica: u32, prompt: &Prompt) {
        let (worker, map) = &mut self.replicas[replica as usize];
        let blocks: Vec<StoredBlock> = std::iter::zip(&prompt.chain, &prompt.contents)
            .map(|(&hash, &content)| StoredBlock { seq_hash: SequenceHash(hash), content_hash: ContentHash(content) })
            .collect();
        self.index.apply_stored(*worker, &blocks, None, map).expect("a chain from its start");
    }
}

/// Dynamo's `ConcurrentRadixTreeCompressed`, its events applied by one thread as in its own pool.
pub struct Dynamo {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    /// `None` only while it is dropped.
    events: Option<flume::Sender<WorkerTask>>,
    sent: u64,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Dynamo {
    /// What the thread holds must be free before the next index's bytes are counted.
    fn drop(&mut self) {
        self.events = None;
        self.thread.take().map(JoinHandle::join);
    }
}

impl Dynamo {
    pub fn new() -> Self {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        // Bounded: events that wait are none of its memory.
        let (events, received) = flume::bounded(64);
        let worker = Arc::clone(&tree);
        let thread = std::thread::spawn(move || worker.worker(received, None).expect("it ends with its channel"));
        Self { tree, events: Some(events), sent: 0, thread: Some(thread) }
    }
}

impl Smg {
    /// What an event of a replica is applied to.
    pub fn parts(&mut self, replica: u32) -> (&ChainIndex, u32, &mut ChainBlockMap) {
        let (worker, map) = &mut self.replicas[replica as usize];
        (&self.index, *worker, map)
    }
}

impl Dynamo {
    /// Sends an event to the tree.
    pub fn tell(&self, event: RouterEvent) {
        self.send(WorkerTask::Event(event));
    }

    fn send(&self, task: WorkerTask) {
        self.events.as_ref().and_then(|events| events.send(task).ok()).expect("its thread runs");
    }
}

impl Design for Dynamo {
    type Query = Vec<LocalBlockHash>;
    type Depth = u32;

    fn query(prompt: &Prompt) -> Vec<LocalBlockHash> {
        prompt.contents.iter().map(|&content| LocalBlockHash(content)).collect()
    }

    fn lookup(&self, query: &Vec<LocalBlockHash>, depths: &mut Vec<u32>) {
        depths.fill(0);
        for (worker, depth) in self.tree.find_matches(query, false).scores {
            depths[worker.worker_id as usize] = depth;
        }
    }

    fn touch(query: &Vec<LocalBlockHash>) -> u64 {
        query.iter().fold(0, |sum, hash| sum ^ hash.0)
    }
}

impl Told for Dynamo {
    fn store(&mut self, replica: u32, prompt: &Prompt) {
        let blocks = std::iter::zip(&prompt.chain, &prompt.contents)
            .map(|(&hash, &content)| KvCacheStoredBlockData {
                block_hash: ExternalSequenceBlockHash(hash),
                tokens_hash: LocalBlockHash(content),
                mm_extra_info: None,
            })
            .collect();
        self.sent += 1;
        let data = KvCacheEventData::Stored(KvCacheStoreData { parent_hash: None, start_position: None, blocks });
        let event = KvCacheEvent { event_id: self.sent, data, dp_rank: 0 };
        self.send(WorkerTask::Event(RouterEvent::new(replica.into(), event)));
    }

    fn settle(&mut self) {
        let (sender, flushed) = tokio::sync::oneshot::channel();
        self.send(WorkerTask::Flush(sender));
        flushed.blocking_recv().expect("its thread runs");
    }
}
