//! Heads: openings that many different prompts share (a system prompt, a tool list, a favoured document).
//!
//! A head that draws more than its share of a pool's requests can tell no replica from another: whoever holds it would
//! get them all, and every replica will hold it soon. It then counts for nobody, *before* all hold it too: new sessions
//! spread by load, and each replica computes it once. A head of little use still counts: a document is worth following.
//!
//! The end of a head is where prompts part: the last known block of a request that goes on otherwise. A conversation
//! that only grows has no such place, however often it is used. A prompt that is repeated whole parts nowhere either;
//! its repeats count from when they are answered, so that a burst of one cold prompt stays together.

/// Requests of one head after which it may count for nobody; fewer where there are fewer replicas.
const FEW: u32 = 4;
/// Fewest heads remembered.
const REMEMBERED: usize = 64;

/// What is known of the heads of one pool's prompts. Counts fade over about 32 × replicas requests, as the window of
/// placements does.
#[derive(Debug)]
pub(super) struct Heads {
    known: Vec<Head>,
    /// What one more request counts: it grows instead of all counts fading.
    unit: f64,
    /// All requests.
    all: f64,
    requests: u64,
    /// The heads on the way of the prompt that was looked at last.
    passed: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    /// Hash of its last block.
    end: u64,
    /// Its blocks.
    depth: u32,
    /// Requests that begin with it, fading.
    passed: f64,
    /// Requests that parted there, or were it: never fades, as the head is no less one when its sessions are long.
    /// The first of all parted from nothing, so one more was placed.
    parted: u32,
    /// The last request that began with it.
    used: u64,
}

impl Default for Heads {
    fn default() -> Self {
        Self { known: Vec::new(), unit: 1.0, all: 0.0, requests: 0, passed: Vec::new() }
    }
}

impl Heads {
    /// How many leading blocks of `chain` count for nobody, among so many candidates.
    pub fn shared(&mut self, chain: &[u64], candidates: usize) -> u32 {
        self.passed.clear();
        // That many were placed, and here is one more.
        let few = FEW.min(candidates as u32);
        // Half of a fair share: whole heads are dealt like stones, and small ones can be dealt evenly.
        let share = 0.5 / candidates.max(1) as f64;
        let mut shared = 0;
        for (at, head) in self.known.iter().enumerate() {
            if chain.get(head.depth as usize - 1) == Some(&head.end) {
                self.passed.push(at);
                if head.parted + 2 > few && head.passed > share * self.all {
                    shared = shared.max(head.depth);
                }
            }
        }
        shared
    }

    /// Of the prompt that was looked at last, the end of each head, in blocks, and the share of requests that begin with
    /// it.
    pub fn shares(&self) -> impl Iterator<Item = (u32, f64)> {
        let all = self.all.max(f64::MIN_POSITIVE);
        self.passed.iter().map(move |&at| (self.known[at].depth, self.known[at].passed / all))
    }

    /// Counts the prompt that was just looked at: `reach` of its leading blocks were known somewhere.
    pub fn count(&mut self, chain: &[u64], reach: u32, replicas: usize) {
        self.requests += 1;
        self.unit *= 1.0 + 1.0 / (32 * replicas.max(1)) as f64;
        self.all += self.unit;
        for &at in &self.passed {
            self.known[at].passed += self.unit;
            self.known[at].used = self.requests;
        }
        if reach > 0 && (reach as usize) < chain.len() {
            self.part(chain[reach as usize - 1], reach, replicas);
        }
        if self.unit > 1e12 {
            self.known.iter_mut().for_each(|head| head.passed /= self.unit);
            self.all /= self.unit;
            self.unit = 1.0;
        }
    }

    /// A prompt that was known whole has been answered.
    pub fn repeated(&mut self, chain: &[u64], replicas: usize) {
        if let Some(&end) = chain.last() {
            self.part(end, chain.len() as u32, replicas);
        }
    }

    fn part(&mut self, end: u64, depth: u32, replicas: usize) {
        if let Some(head) = self.known.iter_mut().find(|head| (head.end, head.depth) == (end, depth)) {
            head.parted = head.parted.saturating_add(1);
            return;
        }
        // The one that was there before, and this one.
        let head = Head { end, depth, passed: 2.0 * self.unit, parted: 1, used: self.requests };
        // A head that matters is used at least once in 2 × replicas requests, so it is never the oldest.
        let oldest = (0..self.known.len()).min_by_key(|&at| self.known[at].used);
        match oldest {
            Some(oldest) if self.known.len() >= REMEMBERED.max(4 * replicas) => self.known[oldest] = head,
            _ => self.known.push(head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places a prompt of `head` and a tail of its own; how much of it is shared.
    fn place(heads: &mut Heads, head: &[u64], own: u64, replicas: usize) -> u32 {
        let chain: Vec<_> = head.iter().copied().chain([own, own + 1]).collect();
        let shared = heads.shared(&chain, replicas);
        heads.count(&chain, head.len() as u32, replicas);
        shared
    }

    #[test]
    fn a_head_of_all_requests_counts_for_nobody_after_more_requests_than_replicas() {
        for (replicas, free) in [(2, 1), (4, 3), (64, 3)] {
            let mut heads = Heads::default();
            let shared: Vec<_> = (0..20).map(|at| place(&mut heads, &[1, 2, 3], 100 + 2 * at, replicas)).collect();
            assert_eq!(shared.iter().position(|&shared| shared == 3), Some(free), "{replicas}: {shared:?}");
            assert!(shared[free..].iter().all(|&shared| shared == 3));
        }
    }

    #[test]
    fn of_many_documents_each_counts() {
        let mut heads = Heads::default();
        for at in 0..3_000 {
            assert_eq!(place(&mut heads, &[1_000 + at % 40], 1_000_000 + 2 * at, 8), 0, "request {at}");
        }
    }

    #[test]
    fn a_growing_conversation_is_no_head() {
        let mut heads = Heads::default();
        for turn in 1..50 {
            let chain: Vec<u64> = (0..3 * turn).collect();
            assert_eq!(heads.shared(&chain, 4), 0);
            heads.count(&chain, 3 * (turn as u32 - 1), 4);
        }
    }

    #[test]
    fn a_head_out_of_use_counts_again_and_memory_is_bounded() {
        let mut heads = Heads::default();
        (0..20).for_each(|at| assert!(place(&mut heads, &[1, 2, 3], 100 + 2 * at, 4) <= 3));
        for at in 0..1_000 {
            place(&mut heads, &[10_000 + at], 1_000_000 + 2 * at, 4);
        }
        assert_eq!(place(&mut heads, &[1, 2, 3], 1, 4), 0);
        assert!(heads.known.len() <= REMEMBERED);
    }

    #[test]
    fn long_use_neither_overflows_nor_forgets() {
        let mut heads = Heads::default();
        for at in 0..20_000 {
            place(&mut heads, &[1, 2, 3], 100 + 2 * at, 1);
        }
        assert!(heads.unit.is_finite() && heads.all.is_finite());
        assert_eq!(place(&mut heads, &[1, 2, 3], 1, 4), 3);
    }
}
