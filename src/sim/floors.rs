//! What no placement can be better than: the share of prompt tokens that must be computed although the whole fleet were
//! one replica. With a cache that forgets nothing; with the fleet's caches in one, least recently used goes first; and
//! with the same one that knows the future (Belady: what is needed last goes first).
//!
//! Calls are taken one after the other. Blocks that always occur together are one *run*: all calls are put into a tree
//! first, which splits wherever two of them part or one ends, so a run is used as a whole or not at all, and evicting
//! its tail bit by bit is the same as evicting blocks.
use std::collections::{BTreeSet, HashMap};

use super::call::Call;
use crate::prefix::BLOCK_TOKENS;

/// Shares of all prompt tokens that are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Floors {
    /// Nothing is ever forgotten.
    pub infinite: f64,
    /// One cache as large as all together, least recently used goes first.
    pub pooled_lru: f64,
    /// The same, and what is needed last goes first.
    pub pooled_belady: f64,
}

/// The floors of `calls` (the same stream at each call of it) for caches of `pooled_tokens` together, by the number of
/// replicas given: one result each.
pub fn floors<I: Iterator<Item = Call>>(calls: impl Fn() -> I, pooled_tokens: &[u64]) -> Vec<Floors> {
    let mut tree = Tree::default();
    for call in calls() {
        let blocks = call.blocks();
        tree.insert(&blocks[..call.prompt_blocks()]);
        tree.insert(&blocks);
    }
    let paths = Paths::of(&tree, calls());
    let infinite = replay(&tree, &paths, u64::MAX, &mut |_, _| 0);
    let mut clock = 0;
    pooled_tokens
        .iter()
        .map(|tokens| {
            let blocks = tokens / BLOCK_TOKENS as u64;
            // The oldest has the highest mark: a later use, a lower one.
            let mut lru = |_: usize, _: usize| {
                clock += 1;
                u64::MAX - clock
            };
            let pooled_lru = replay(&tree, &paths, blocks, &mut lru);
            let pooled_belady = replay(&tree, &paths, blocks, &mut |at, _| paths.next_use[at]);
            Floors { infinite, pooled_lru, pooled_belady }
        })
        .collect()
}

/// Runs by the hash of their first block; a chained hash names all that stands before it.
#[derive(Debug, Default)]
struct Tree {
    runs: Vec<Vec<u64>>,
    heads: HashMap<u64, u32>,
}

impl Tree {
    fn insert(&mut self, mut chain: &[u64]) {
        while let Some(head) = chain.first() {
            let Some(&run) = self.heads.get(head) else {
                self.heads.insert(*head, self.runs.len() as u32);
                self.runs.push(chain.to_vec());
                return;
            };
            let blocks = &mut self.runs[run as usize];
            let common = blocks.iter().zip(chain).take_while(|(a, b)| a == b).count();
            if common < blocks.len() {
                let tail = blocks.split_off(common);
                self.heads.insert(tail[0], self.runs.len() as u32);
                self.runs.push(tail);
            }
            chain = &chain[common..];
        }
    }

    fn blocks(&self, run: u32) -> u64 {
        self.runs[run as usize].len() as u64
    }
}

/// The runs that each call uses, in order, first of its prompt, then of its answer.
#[derive(Debug, Default)]
struct Paths {
    calls: Vec<Path>,
    runs: Vec<u32>,
    /// For each of `runs`, the call that uses it next.
    next_use: Vec<u64>,
}

#[derive(Debug)]
struct Path {
    end: usize,
    prompt_tokens: u32,
    /// Whole blocks that can be had from a cache.
    most_cached: u64,
}

impl Paths {
    fn of(tree: &Tree, calls: impl Iterator<Item = Call>) -> Self {
        let mut paths = Self::default();
        for call in calls {
            let blocks = call.blocks();
            let mut at = 0;
            while let Some(run) = blocks.get(at).and_then(|head| tree.heads.get(head)) {
                paths.runs.push(*run);
                at += tree.runs[*run as usize].len();
            }
            paths.calls.push(Path {
                end: paths.runs.len(),
                prompt_tokens: call.prompt_tokens,
                most_cached: u64::from(call.most_cached()) / BLOCK_TOKENS as u64,
            });
        }
        let mut seen = vec![u64::MAX; tree.runs.len()];
        paths.next_use = vec![u64::MAX; paths.runs.len()];
        for (number, path) in paths.calls.iter().enumerate().rev() {
            let start = if number == 0 { 0 } else { paths.calls[number - 1].end };
            for at in start..path.end {
                let run = paths.runs[at] as usize;
                paths.next_use[at] = std::mem::replace(&mut seen[run], number as u64);
            }
        }
        paths
    }
}

/// Share of prompt tokens computed on a cache of so many blocks, where the highest mark goes first, and of equal ones
/// the one that stands deepest. `mark` is asked for each use, deepest first: (its place in the paths, the run).
fn replay(tree: &Tree, paths: &Paths, capacity: u64, mark: &mut dyn FnMut(usize, usize) -> u64) -> f64 {
    #[derive(Clone, Copy, Default)]
    struct Resident {
        blocks: u64,
        key: (u64, u64),
    }
    let mut resident = vec![Resident::default(); tree.runs.len()];
    let mut order = BTreeSet::new();
    let (mut held, mut start, mut prompt, mut cached) = (0, 0, 0, 0);
    for path in &paths.calls {
        let used = &paths.runs[start..path.end];
        let mut matched = 0;
        for &run in used {
            matched += resident[run as usize].blocks;
            if resident[run as usize].blocks < tree.blocks(run) {
                break;
            }
        }
        prompt += u64::from(path.prompt_tokens);
        cached += matched.min(path.most_cached) * BLOCK_TOKENS as u64;
        for (depth, &run) in used.iter().enumerate().rev() {
            let entry = &mut resident[run as usize];
            if entry.blocks > 0 {
                order.remove(&(entry.key, run));
            }
            held += tree.blocks(run) - entry.blocks;
            *entry = Resident { blocks: tree.blocks(run), key: (mark(start + depth, run as usize), depth as u64) };
            order.insert((entry.key, run));
        }
        while held > capacity
            && let Some(&(key, run)) = order.last()
        {
            let entry = &mut resident[run as usize];
            let goes = entry.blocks.min(held - capacity);
            entry.blocks -= goes;
            held -= goes;
            if entry.blocks == 0 {
                order.remove(&(key, run));
            }
        }
        start = path.end;
    }
    1.0 - cached as f64 / prompt.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::call::Segment;
    use crate::sim::workload::Generated;

    /// A prompt of whole blocks, one for each of `contents`.
    fn call(contents: &[u64]) -> Call {
        let segments: Vec<_> = contents.iter().map(|&seed| Segment { seed, tokens: BLOCK_TOKENS as u32 }).collect();
        let tokens = BLOCK_TOKENS as u32 * segments.len() as u32;
        Call { segments, prompt_tokens: tokens, ..Call::default() }
    }

    /// Block by block, with nothing clever: blocks computed.
    fn naive(calls: &[Call], capacity: usize, belady: bool) -> f64 {
        let chains: Vec<_> = calls.iter().map(Call::blocks).collect();
        let mut held: Vec<(u64, u64, usize)> = Vec::new();
        let (mut cached, mut total, mut clock) = (0, 0, 0_u64);
        for (at, chain) in chains.iter().enumerate() {
            let limit = chain.len() - 1;
            cached += chain[..limit].iter().take_while(|hash| held.iter().any(|(_, held, _)| held == *hash)).count();
            total += chain.len();
            for (depth, hash) in chain.iter().enumerate().rev() {
                held.retain(|(_, held, _)| held != hash);
                clock += 1;
                let next =
                    chains[at + 1..].iter().position(|chain| chain.contains(hash)).map_or(u64::MAX, |n| n as u64);
                held.push((if belady { next.saturating_add(at as u64) } else { u64::MAX - clock }, *hash, depth));
            }
            held.sort_by_key(|(mark, _, depth)| (*mark, *depth));
            held.truncate(capacity);
        }
        1.0 - cached as f64 / total as f64
    }

    #[test]
    fn runs_count_as_blocks_one_by_one_do() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..60 {
            let calls: Vec<_> = (0..rng.usize(1..60))
                .map(|_| {
                    let mut contents: Vec<_> = (0..rng.usize(1..8)).map(|_| rng.u64(0..3)).collect();
                    contents.insert(0, rng.u64(0..4));
                    call(&contents)
                })
                .collect();
            let capacity = rng.usize(1..30);
            let ours = floors(|| calls.iter().cloned(), &[(capacity * BLOCK_TOKENS) as u64])[0];
            for (ours, naive) in [
                (ours.infinite, naive(&calls, usize::MAX, false)),
                (ours.pooled_lru, naive(&calls, capacity, false)),
                (ours.pooled_belady, naive(&calls, capacity, true)),
            ] {
                assert!((ours - naive).abs() < 1e-9, "{ours} {naive} at {capacity}");
            }
        }
    }

    #[test]
    fn more_cache_and_more_knowledge_never_compute_more() {
        let calls = || Generated::Documents.stream(1).take(2_000);
        let floors = floors(calls, &[300_000, 2_400_000]);
        for floor in &floors {
            assert!(floor.infinite <= floor.pooled_belady && floor.pooled_belady < floor.pooled_lru, "{floor:?}");
        }
        assert!(floors[1].pooled_lru < floors[0].pooled_lru && floors[1].infinite == floors[0].infinite);
    }
}
