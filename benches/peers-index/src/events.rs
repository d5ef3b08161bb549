//! Mode `events`: what engines say they hold, instead of what was sent there.
//!
//! Every index is told the same: of each replica the blocks that are new there, and after which they come. Then sessions go
//! on: a turn stores its new blocks, and the engine gives as many back, from the end of an older session. Ours is told
//! tokens and hashes them, as it does in the product; the others get the hashes that they want, made outside of what is
//! timed. A turn's cost is CPU time of the whole process, since Dynamo's tree is written to by a thread of its own; its
//! older `RadixTree`, which is not, is measured beside it.
use std::fs;

use dynamo_kv_router::indexer::RadixTree;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};
use kv_index::{ContentHash, SequenceHash, StoredBlock};

use crate::designs::{Design, Dynamo, Smg, Told};
use crate::prefix::{BLOCK_TOKENS, Chain, Held, Stored, Tier, Truth};
use crate::workload::{Prompt, TURN, Turn, Workload};
use crate::{Args, Bench, MEMORY, QUERIES, median};

/// Turns that are told, by so many sessions in turn, in batches that take turns between the indexes.
const TURNS: usize = 4_096;
const ACTIVE: usize = 512;
const AT_ONCE: usize = 256;
/// Where our chains begin.
const ROOT: u64 = 1;

/// An index that is fed by events.
pub trait Fed {
    /// One as it takes it.
    type Event;
    /// The replica has the blocks of a prompt from `from` on, that were not there before.
    fn stored(&self, replica: u32, prompt: &Prompt, from: usize) -> Self::Event;
    /// The replica has given these blocks back.
    fn removed(&self, replica: u32, hashes: &[u64]) -> Self::Event;
    /// Takes one in.
    fn apply(&mut self, event: Self::Event);
    /// Everything is visible from here on.
    fn settle(&mut self) {}
}

/// Ours.
struct Ours {
    truth: Truth,
}

impl Ours {
    fn new(replicas: u32) -> Self {
        let mut truth = Truth::new(usize::MAX / 2);
        (0..replicas as usize).for_each(|at| truth.follow(at));
        Self { truth }
    }
}

struct Event {
    replica: usize,
    parent: Option<u64>,
    hashes: Vec<u64>,
    tokens: Vec<u32>,
}

/// Tokens that are as different as the contents.
fn tokens(contents: &[u64]) -> Vec<u32> {
    let block = |&content: &u64| (0..BLOCK_TOKENS as u64).map(move |at| (content >> (at % 2 * 32)) as u32);
    contents.iter().flat_map(block).collect()
}

impl Fed for Ours {
    type Event = Event;

    fn stored(&self, replica: u32, prompt: &Prompt, from: usize) -> Event {
        let parent = from.checked_sub(1).map(|before| prompt.chain[before]);
        let (hashes, tokens) = (prompt.chain[from..].to_vec(), tokens(&prompt.contents[from..]));
        Event { replica: replica as usize, parent, hashes, tokens }
    }

    fn removed(&self, replica: u32, hashes: &[u64]) -> Event {
        Event { replica: replica as usize, parent: None, hashes: hashes.to_vec(), tokens: Vec::new() }
    }

    fn apply(&mut self, event: Event) {
        let Event { replica, parent, hashes, tokens } = event;
        if tokens.is_empty() {
            assert_eq!(self.truth.remove(replica, Tier::Device, &hashes), hashes.len());
            return;
        }
        let (hashes, tokens, block_size) = (&hashes, &tokens, BLOCK_TOKENS as u32);
        let stored = Stored { root: ROOT, parent, hashes, tokens, block_size, tier: Tier::Device, extras: &[] };
        assert_eq!(self.truth.store(replica, &stored), Ok(hashes.len()));
    }
}

impl Design for Ours {
    type Query = Vec<u64>;
    type Depth = Held;

    fn query(prompt: &Prompt) -> Vec<u64> {
        let mut chain = Chain::new(ROOT);
        chain.push(&tokens(&prompt.contents));
        chain.finish()
    }

    fn lookup(&self, query: &Vec<u64>, depths: &mut Vec<Held>) {
        self.truth.lookup(query, depths);
    }

    fn touch(query: &Vec<u64>) -> u64 {
        query.iter().fold(0, |sum, hash| sum ^ hash)
    }
}

impl Fed for Smg {
    type Event = (u32, Option<SequenceHash>, Vec<StoredBlock>, Vec<SequenceHash>);

    fn stored(&self, replica: u32, prompt: &Prompt, from: usize) -> Self::Event {
        let blocks = std::iter::zip(&prompt.chain[from..], &prompt.contents[from..])
            .map(|(&hash, &content)| StoredBlock { seq_hash: SequenceHash(hash), content_hash: ContentHash(content) });
        (replica, from.checked_sub(1).map(|at| SequenceHash(prompt.chain[at])), blocks.collect(), Vec::new())
    }

    fn removed(&self, replica: u32, hashes: &[u64]) -> Self::Event {
        (replica, None, Vec::new(), hashes.iter().map(|&hash| SequenceHash(hash)).collect())
    }

    fn apply(&mut self, (replica, parent, blocks, hashes): Self::Event) {
        let (index, worker, map) = self.parts(replica);
        index.apply_stored(worker, &blocks, parent, map).expect("its parent is known");
        index.apply_removed(worker, &hashes, map);
    }
}

fn dynamo_stored(replica: u32, prompt: &Prompt, from: usize) -> RouterEvent {
    let blocks = std::iter::zip(&prompt.chain[from..], &prompt.contents[from..]).map(|(&hash, &content)| {
        let (block_hash, tokens_hash) = (ExternalSequenceBlockHash(hash), LocalBlockHash(content));
        KvCacheStoredBlockData { block_hash, tokens_hash, mm_extra_info: None }
    });
    let parent_hash = from.checked_sub(1).map(|at| ExternalSequenceBlockHash(prompt.chain[at]));
    let data = KvCacheStoreData { parent_hash, start_position: None, blocks: blocks.collect() };
    RouterEvent::new(replica.into(), KvCacheEvent { event_id: 0, data: KvCacheEventData::Stored(data), dp_rank: 0 })
}

fn dynamo_removed(replica: u32, hashes: &[u64]) -> RouterEvent {
    let block_hashes = hashes.iter().map(|&hash| ExternalSequenceBlockHash(hash)).collect();
    let data = KvCacheEventData::Removed(KvCacheRemoveData { block_hashes });
    RouterEvent::new(replica.into(), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

impl Fed for Dynamo {
    type Event = RouterEvent;

    fn stored(&self, replica: u32, prompt: &Prompt, from: usize) -> RouterEvent {
        dynamo_stored(replica, prompt, from)
    }

    fn removed(&self, replica: u32, hashes: &[u64]) -> RouterEvent {
        dynamo_removed(replica, hashes)
    }

    fn apply(&mut self, event: RouterEvent) {
        self.tell(event);
    }

    fn settle(&mut self) {
        Told::settle(self);
    }
}

impl Fed for RadixTree {
    type Event = RouterEvent;

    fn stored(&self, replica: u32, prompt: &Prompt, from: usize) -> RouterEvent {
        dynamo_stored(replica, prompt, from)
    }

    fn removed(&self, replica: u32, hashes: &[u64]) -> RouterEvent {
        dynamo_removed(replica, hashes)
    }

    fn apply(&mut self, event: RouterEvent) {
        self.apply_event(event).expect("its parent is known");
    }
}

/// Fills an index; and the bytes a pair that took.
fn fill<F: Fed>(mut index: F, before: usize, workload: &Workload) -> (F, f64) {
    for (replica, prompt, from) in workload.told() {
        let event = index.stored(replica, &prompt, from);
        index.apply(event);
    }
    index.settle();
    let bytes = MEMORY.allocated().saturating_sub(before);
    (index, bytes as f64 / workload.pairs as f64)
}

/// Microseconds of CPU a turn takes.
fn tell<F: Fed>(index: &mut F, turns: &[Turn]) -> f64 {
    let events: Vec<_> = turns
        .iter()
        .map(|turn| {
            (index.stored(turn.replica, &turn.prompt, turn.from), index.removed(turn.replica, &turn.removed))
        })
        .collect();
    let begun = cpu();
    for (stored, removed) in events {
        index.apply(stored);
        index.apply(removed);
    }
    index.settle();
    (cpu() - begun) / turns.len() as f64
}

/// CPU time of all threads so far, in microseconds.
fn cpu() -> f64 {
    // The kernel counts a running thread's time at ticks, and where it gives way.
    std::thread::yield_now();
    let tasks = fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let nanos = tasks.filter_map(|task| {
        let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        schedstat.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1_000.0
}

/// Prints the figures for so many replicas; whether the targets are met.
pub fn compare(args: &Args, replicas: u32) -> bool {
    let mut workload = Workload::new(args.pairs, replicas);
    let queries = workload.queries();
    let turns = workload.turns(TURNS, ACTIVE);
    let start = MEMORY.allocated();
    let (mut ours, our_bytes) = fill(Ours::new(replicas), start, &workload);
    let start = MEMORY.allocated();
    let (mut smg, smg_bytes) = fill(Smg::new(replicas), start, &workload);
    let start = MEMORY.allocated();
    let (mut dynamo, dynamo_bytes) = fill(Dynamo::new(), start, &workload);
    let start = MEMORY.allocated();
    let (mut radix, radix_bytes) = fill(RadixTree::new(), start, &workload);
    assert_eq!(ours.truth.stats().pairs, workload.pairs);

    let mut buffer = vec![0_u8; crate::FLUSH];
    let mut met = true;
    println!("\n{replicas} replicas, {} pairs of {} sessions, events", workload.pairs, workload.sessions.len());
    println!("{:24}{:>8}{:>8}{:>8}{:>9}{:>9}", "", "ours", "SMG", "Dynamo", "x SMG", "x Dynamo");
    let row = |name: &str, figures: [f64; 3], digits: usize, fails: bool| {
        let [us, smg, dynamo] = figures;
        let figures = figures.map(|figure| format!("{figure:8.digits$}")).concat();
        let missed = if fails { "  MISSED" } else { "" };
        println!("{name:24}{figures}{:9.1}{:9.1}{missed}", smg / us, dynamo / us);
    };
    for (name, prompts) in &queries {
        equal(prompts, replicas, &ours, &smg, &dynamo);
        let mut bench = (Bench::new(&ours, prompts), Bench::new(&smg, prompts), Bench::new(&dynamo, prompts));
        for _ in 0..args.rounds {
            for from in (0..QUERIES).step_by(crate::BATCH) {
                for _ in 0..4 {
                    bench.0.cold(&ours, from, replicas, &mut buffer);
                    bench.1.cold(&smg, from, replicas, &mut buffer);
                    bench.2.cold(&dynamo, from, replicas, &mut buffer);
                }
            }
            bench.0.warm(&ours, replicas);
            bench.1.warm(&smg, replicas);
            bench.2.warm(&dynamo, replicas);
        }
        let times = [&bench.0.times, &bench.1.times, &bench.2.times];
        row(&format!("{name}, cold"), times.map(|times| median(&times.cold)), 0, false);
        row(&format!("{name}, warm"), times.map(|times| median(&times.warm)), 0, false);
    }
    let fails = our_bytes > 40.0;
    met &= !fails;
    row("bytes a pair", [our_bytes, smg_bytes, dynamo_bytes], 1, fails);
    let mut times: [Vec<f64>; 4] = Default::default();
    for turns in turns.chunks(AT_ONCE) {
        times[0].push(tell(&mut ours, turns));
        times[1].push(tell(&mut smg, turns));
        times[2].push(tell(&mut dynamo, turns));
        times[3].push(tell(&mut radix, turns));
    }
    let [us, smg_took, dynamo_took, radix_took] = times.map(|times| median(&times));
    let fails = dynamo_took.min(radix_took) < 4.0 * us;
    met &= !fails;
    row(&format!("store {TURN}, remove {TURN}, us"), [us, smg_took, dynamo_took], 2, fails);
    println!(
        "Dynamo's RadixTree: {radix_bytes:.1} bytes a pair, {radix_took:.2} us ({:.1} x ours); {} turns",
        radix_took / us,
        turns.len()
    );
    // What was told and taken back has left all in the same state.
    for (_, prompts) in &queries {
        equal(prompts, replicas, &ours, &smg, &dynamo);
    }
    met
}

/// The three must agree.
fn equal(prompts: &[Prompt], replicas: u32, ours: &Ours, smg: &Smg, dynamo: &Dynamo) {
    let (mut held, mut a, mut b) = (Vec::new(), vec![0; replicas as usize], vec![0; replicas as usize]);
    for prompt in prompts {
        ours.lookup(&Ours::query(prompt), &mut held);
        smg.lookup(&Smg::query(prompt), &mut a);
        dynamo.lookup(&Dynamo::query(prompt), &mut b);
        assert!(held.iter().map(|held| held.any).eq(a.iter().copied()), "ours and SMG's differ");
        assert!(held.iter().map(|held| held.device).eq(b.iter().copied()), "ours and Dynamo's differ");
    }
}
