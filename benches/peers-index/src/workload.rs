//! What is cached and what is asked: 64 system prompts, sessions under them, and the four kinds of query.
//!
//! Nothing is stored but lengths: a block's content is a hash of whose block it is and where it stands, so a chain is
//! made again whenever it is needed. Block hashes are chained as `kv_index::chain_prefix_hash` does it, the form in
//! which SMG's index keeps fewest bytes; the other two take any chain hash.
use std::collections::{HashMap, HashSet};

use fastrand::Rng;
use kv_index::{ContentHash, SequenceHash, chain_prefix_hash};

/// System prompts, and their lengths in blocks.
const SYSTEMS: u64 = 64;
const SYSTEM_BLOCKS: std::ops::RangeInclusive<u32> = 96..=384;
/// Lengths of sessions in blocks, system prompt included: about 8k tokens, or 32k.
const SHORT: std::ops::RangeInclusive<u32> = 448..=576;
const LONG: std::ops::RangeInclusive<u32> = 1_792..=2_304;
/// One session in so many is a long one: half of all blocks are theirs.
const LONG_ONE_IN: u32 = 5;
/// Sessions in a hundred that a second replica holds, too.
const SECOND_PERCENT: u32 = 15;
/// New blocks of a turn.
pub const TURN: u32 = 24;
/// Queries of each kind.
pub const QUERIES: usize = 256;

/// A prompt, in each index's terms.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    /// Chain hashes: equal hash, equal prefix.
    pub chain: Vec<u64>,
    /// Each block's own content.
    pub contents: Vec<u64>,
}

impl Prompt {
    fn extend(&mut self, owner: u64, blocks: u32) {
        for at in 0..u64::from(blocks) {
            let content = mix(owner << 24 | at);
            let hash = match self.chain.last() {
                Some(&parent) => chain_prefix_hash(SequenceHash(parent), ContentHash(content)).0,
                None => content,
            };
            self.contents.push(content);
            self.chain.push(hash);
        }
    }
}

/// One conversation as it is cached.
#[derive(Debug, Clone)]
pub struct Session {
    number: u64,
    system: usize,
    blocks: u32,
    turns: u32,
    /// Who holds it.
    pub replicas: Vec<u32>,
}

/// A turn of a session at a replica that is full.
#[derive(Debug)]
pub struct Turn {
    pub replica: u32,
    /// The whole prompt, and how many of its blocks were there before.
    pub prompt: Prompt,
    pub from: usize,
    /// The blocks that go, last one first.
    pub removed: Vec<u64>,
}

/// Whose blocks: systems count from 0, sessions from here.
const FIRST_SESSION: u64 = 1_000;

/// Everything that is cached, in the order in which it came.
#[derive(Debug)]
pub struct Workload {
    systems: Vec<u32>,
    /// Cumulated weights 1, 1/2, 1/3…
    zipf: Vec<f64>,
    /// The conversations.
    pub sessions: Vec<Session>,
    /// (block, replica) pairs of them all.
    pub pairs: usize,
    rng: Rng,
}

impl Workload {
    /// So many (block, replica) pairs over so many replicas; the same again for the same numbers.
    pub fn new(pairs: usize, replicas: u32) -> Self {
        let mut rng = Rng::with_seed(7);
        let systems: Vec<u32> = (0..SYSTEMS).map(|_| rng.u32(SYSTEM_BLOCKS)).collect();
        let zipf = (1..=SYSTEMS).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        let mut workload = Self { zipf: zipf.collect(), sessions: Vec::new(), pairs: 0, rng, systems };
        let mut known = vec![false; workload.systems.len() * replicas as usize];
        while workload.pairs < pairs {
            let session = workload.draw(replicas);
            for &replica in &session.replicas {
                let system = workload.systems[session.system];
                let known = &mut known[session.system * replicas as usize + replica as usize];
                workload.pairs += (session.blocks - if *known { system } else { 0 }) as usize;
                *known = true;
            }
            workload.sessions.push(session);
        }
        workload
    }

    fn draw_system(&mut self) -> usize {
        let at = self.rng.f64() * self.zipf.last().copied().unwrap_or_default();
        self.zipf.partition_point(|sum| *sum < at).min(self.systems.len() - 1)
    }

    fn draw(&mut self, replicas: u32) -> Session {
        let system = self.draw_system();
        let long = self.rng.u32(..LONG_ONE_IN) == 0;
        let blocks = self.rng.u32(if long { LONG } else { SHORT });
        let first = self.rng.u32(..replicas);
        let second =
            (self.rng.u32(..100) < SECOND_PERCENT).then(|| (first + 1 + self.rng.u32(..replicas - 1)) % replicas);
        let number = FIRST_SESSION + self.sessions.len() as u64;
        Session { number, system, blocks, turns: 0, replicas: [Some(first), second].into_iter().flatten().collect() }
    }

    /// A session's prompt as it is cached.
    pub fn prompt(&self, session: &Session) -> Prompt {
        let mut prompt = Prompt::default();
        let system = self.systems[session.system];
        prompt.extend(session.system as u64, system);
        prompt.extend(session.number, session.blocks - system + session.turns * TURN);
        prompt
    }

    /// The next turn of a session: so much longer.
    pub fn next_turn(&self, session: &mut Session) -> Prompt {
        session.turns += 1;
        self.prompt(session)
    }

    /// The kinds of query, by name.
    pub fn queries(&mut self) -> [(&'static str, Vec<Prompt>); 4] {
        let pick = |of: &mut Self, long: bool| -> Vec<Prompt> {
            let candidates: Vec<Session> =
                of.sessions.iter().filter(|session| LONG.contains(&session.blocks) == long).cloned().collect();
            (0..QUERIES)
                .map(|_| {
                    let at = of.rng.usize(..candidates.len());
                    of.next_turn(&mut candidates[at].clone())
                })
                .collect()
        };
        let (short, long) = (pick(self, false), pick(self, true));
        let fresh = |of: &mut Self, known: bool, at: usize| {
            let mut prompt = Prompt::default();
            if known {
                let system = of.draw_system();
                prompt.extend(system as u64, of.systems[system]);
            }
            prompt.extend(u64::from(u32::MAX) + at as u64, 512 - prompt.chain.len() as u32);
            prompt
        };
        let new = (0..QUERIES).map(|at| fresh(self, true, at)).collect();
        let unknown = (0..QUERIES).map(|at| fresh(self, false, QUERIES + at)).collect();
        [("next turn, 8k tokens", short), ("next turn, 32k", long), ("new session", new), ("unknown", unknown)]
    }

    /// What each replica is told of, in order: the prompt, and how many of its blocks are there already.
    pub fn told(&self) -> impl Iterator<Item = (u32, Prompt, usize)> {
        let mut known = HashSet::new();
        self.sessions.iter().flat_map(move |session| {
            let prompt = self.prompt(session);
            let system = self.systems[session.system] as usize;
            let events = session.replicas.iter().map(|&replica| {
                let from = if known.insert((session.system, replica)) { 0 } else { system };
                (replica, prompt.clone(), from)
            });
            events.collect::<Vec<_>>()
        })
    }

    /// So many turns of so many sessions, each pushing out as much as it brings: the ends of sessions that came early.
    pub fn turns(&mut self, count: usize, active: usize) -> Vec<Turn> {
        let mut sessions = self.active(active);
        let early = &self.sessions[..self.sessions.len() / 2];
        let mut victims: HashMap<u32, Vec<(&Session, usize)>> = HashMap::new();
        for session in early {
            let own = session.blocks as usize - self.systems[session.system] as usize;
            session.replicas.iter().for_each(|&at| victims.entry(at).or_default().push((session, own)));
        }
        let mut turns = Vec::new();
        for at in 0..count {
            let session = at % sessions.len();
            let session = &mut sessions[session];
            let replica = session.replicas[0];
            let Some(victims) = victims.get_mut(&replica) else { continue };
            victims.retain(|(_, own)| *own >= TURN as usize);
            let Some((victim, own)) = victims.first_mut() else { continue };
            let chain = self.prompt(victim).chain;
            let end = self.systems[victim.system] as usize + *own;
            *own -= TURN as usize;
            let removed = chain[end - TURN as usize..end].iter().rev().copied().collect();
            let prompt = self.next_turn(session);
            turns.push(Turn { replica, from: prompt.chain.len() - TURN as usize, prompt, removed });
        }
        turns
    }

    /// Short sessions that go on, each with one replica that holds it.
    pub fn active(&mut self, count: usize) -> Vec<Session> {
        let from = self.sessions.len() / 2;
        let mut short: Vec<Session> =
            self.sessions[from..].iter().filter(|session| SHORT.contains(&session.blocks)).cloned().collect();
        self.rng.shuffle(&mut short);
        short.truncate(count);
        short
    }
}

/// splitmix64's finish.
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
