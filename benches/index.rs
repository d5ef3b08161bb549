//! The prefix index at a million (block, replica) pairs: a lookup of a session's next turn, the record of one with
//! eviction, chains of big prompts; and how many bytes a pair takes.
//!
//! The sessions: under 64 system prompts of 96 to 384 blocks, the first ones far more often than the last; 512 blocks
//! long, in turns of 24; one of seven runs on two replicas.
use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use warmroute::prefix::{BLOCK_TOKENS, Basis, Chain, Index, Slot, root};

/// As the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PAIRS: usize = 1_000_000;
const SESSION: usize = 512;
const TURN: usize = 24;

/// Numbers that look random, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct Session {
    id: u32,
    chain: Chain,
    slots: Vec<Slot>,
}

impl Session {
    fn new(id: u32, slots: &[Slot], random: &mut Random) -> Self {
        // The square of an even share is small more often than not.
        let system = random.below(64) * random.below(64) / 64;
        let mut chain = Chain::new(root(Basis::Tokens, "model", None, None));
        chain.push(&vec![system as u32; (96 + 288 * (system as usize * 37 % 64) / 64) * BLOCK_TOKENS]);
        let mut slot = || slots[random.below(slots.len() as u64) as usize];
        let slots = if id.is_multiple_of(7) { vec![slot(), slot()] } else { vec![slot()] };
        Self { id, chain, slots }
    }

    fn turn(&mut self) {
        self.chain.push(&[1_000 + self.id; TURN * BLOCK_TOKENS]);
    }
}

fn serve(index: &mut Index, slot: Slot, chain: &[u64]) {
    let placement = index.place(slot, chain);
    index.confirm(&placement, chain);
    index.finish(placement, chain);
}

/// An index that is full, and sessions that it holds, all at the same turn's end.
fn filled(replicas: usize) -> (Index, Vec<Slot>, Vec<Session>, Random) {
    let mut index = Index::new(usize::MAX);
    let slots: Vec<Slot> = (0..replicas).map(|_| index.add(PAIRS / replicas)).collect();
    let mut random = Random(7);
    let (mut id, mut done) = (0, Vec::new());
    while index.stats().evicted < PAIRS as u64 / 10 {
        // Turns of several sessions come in between each other.
        let mut open: Vec<Session> = (id..id + 32).map(|id| Session::new(id, &slots, &mut random)).collect();
        id += 32;
        while open.iter().any(|session| session.chain.hashes().len() < SESSION) {
            for session in open.iter_mut().filter(|session| session.chain.hashes().len() < SESSION) {
                session.turn();
                session.slots.iter().for_each(|slot| serve(&mut index, *slot, session.chain.hashes()));
            }
        }
        done.extend(open);
    }
    let kept = done.split_off(done.len().saturating_sub(16));
    (index, slots, kept, random)
}

fn lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup");
    for replicas in [8, 64, 512] {
        let (index, _, mut sessions, _) = filled(replicas);
        let stats = index.stats();
        let runs = index.dump(0).runs_total;
        println!(
            "{replicas} replicas: {} pairs, {} bytes, {:.2} bytes a pair, {runs} runs",
            stats.pairs,
            stats.bytes,
            stats.bytes as f64 / stats.pairs as f64
        );
        sessions.iter_mut().for_each(Session::turn);
        let chains: Vec<&[u64]> = sessions.iter().map(|session| session.chain.hashes()).collect();
        let mut next = chains.iter().cycle();
        let mut depths = Vec::new();
        group.bench_function(BenchmarkId::new("next_turn", replicas), |bencher| {
            bencher.iter(|| index.lookup(black_box(next.next().unwrap()), black_box(&mut depths)));
        });
    }
    group.finish();
}

fn record(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("record");
    for replicas in [8, 64, 512] {
        let (index, slots, sessions, random) = filled(replicas);
        let (index, sessions) = (&mut { index }, &mut { sessions });
        let (random, mut id, mut at) = (&mut { random }, 1_000_000, 0);
        // Sessions go on, and begin anew when they are long: every turn adds blocks, and others go for them.
        let mut next = || {
            at = (at + 1) % sessions.len();
            let session = &mut sessions[at];
            if session.chain.hashes().len() > 2 * SESSION {
                id += 1;
                *session = Session::new(id, &slots, random);
            }
            session.turn();
            (session.slots[0], session.chain.hashes().to_vec())
        };
        let before = index.stats().evicted;
        group.bench_function(BenchmarkId::new("turn", replicas), |bencher| {
            bencher.iter_batched_ref(&mut next, |(slot, chain)| serve(index, *slot, chain), BatchSize::SmallInput);
        });
        println!("{replicas} replicas: {} blocks evicted meanwhile", index.stats().evicted - before);
    }
    group.finish();
}

fn chains(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("chain");
    let tokens: Vec<u32> = (0..128 * 1024).collect();
    group.throughput(Throughput::Elements(tokens.len() as u64));
    group.bench_function("tokens_128k", |bencher| {
        bencher.iter(|| {
            let mut chain = Chain::new(1);
            chain.push(black_box(&tokens));
            chain.finish()
        });
    });
    let text: Vec<u8> = (0..1024 * 1024_u32).map(|at| at as u8).collect();
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("text_1m", |bencher| {
        bencher.iter(|| {
            let mut chain = Chain::new(1);
            chain.push_text(black_box(&text));
            chain.finish()
        });
    });
    group.finish();
}

criterion_group!(benches, lookup, record, chains);
criterion_main!(benches);
