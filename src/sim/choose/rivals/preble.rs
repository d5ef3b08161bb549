//! `preble`: exploit or explore (E2), the global scheduler of Preble.
//!
//! Source: Srivatsa, He, Abhyankar, Li, Zhang, "Preble: Efficient Distributed Prompt Scheduling for LLM Serving", ICLR 2025,
//! arXiv 2407.00023, and its code (WukLab/preble, `global_scheduler_with_time.py`). With C the longest prefix of a
//! prompt of n tokens that any replica was given, and H three minutes:
//!
//! 1. Exploit if C > n − C: of the replicas with C, the one of the lowest load.
//! 2. Else explore: the replica of the lowest `load + P`, P the seconds to prefill what it has not.
//! 3. Rebalance, from the 50th call on: whoever would exploit the replica of the highest load goes to that of the lowest
//!    instead while the one is at least 1.5 times the other.
//!
//! A replica's load is the seconds of prefill that it was given within H, and for each of those calls the seconds of
//! decoding as many tokens as answers there had on average within H. Seconds come from regressions that were made offline:
//! here the replica's own speeds. What was placed counts as held at once, least recently used goes first, prompts only: its
//! own tree, not the engines' events. Of equal loads the first in the fleet's order, as in its code.
//!
//! Left out: the cost M of what has to be evicted for the call (its code leaves it out by default, `enable_eviction =
//! False`; the paper weighs it by hit rates, which makes it small beside the load of minutes); the preference for replicas
//! that decode much, which the paper gives no threshold for; and the trigger of replication by doubled waiting, since what
//! is rebalanced is computed where it goes and is then held in both places. The local scheduler's order of the queue is the
//! engine's business.
use std::collections::VecDeque;
use std::time::Duration;

use crate::prefix::{BLOCK_TOKENS, Index, Slot};
use crate::routing::Reason;
use crate::sim::call::Call;
use crate::sim::choose::{Chooser, Holdings, Placed};
use crate::sim::engine::VirtualTime;
use crate::sim::prefill::PrefillModel;

/// H.
const WINDOW: Duration = Duration::from_secs(180);
/// Highest load ÷ lowest at which calls are redirected: the paper's Th_bal, `HIGH_LOAD_THRESHOLD` where its code
/// rebalances.
const REBALANCE_RATIO: f64 = 1.5;
/// Calls before which nothing is redirected.
const REBALANCE_AFTER: u64 = 50;
/// Bytes of the tree: as much as any fleet here can fill.
const TREE_BYTES: usize = 4 << 30;

/// What happened within the window, and its sum.
#[derive(Debug, Default)]
struct Recent {
    entries: VecDeque<(VirtualTime, f64)>,
    sum: f64,
}

impl Recent {
    fn add(&mut self, now: VirtualTime, value: f64) {
        self.entries.push_back((now, value));
        self.sum += value;
    }

    /// Takes the last entry of this value back.
    fn take_back(&mut self, value: f64) {
        if let Some(at) = self.entries.iter().rposition(|entry| entry.1 == value) {
            self.entries.remove(at);
            self.sum -= value;
        }
    }

    fn forget(&mut self, now: VirtualTime) {
        while let Some((at, value)) = self.entries.front().copied()
            && at + WINDOW < now
        {
            self.entries.pop_front();
            self.sum -= value;
        }
        if self.entries.is_empty() {
            // No rounding is left over.
            self.sum = 0.0;
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.entries.len().max(1) as f64
    }
}

/// What a replica did within the window.
#[derive(Debug, Default)]
struct History {
    /// Seconds of prefill of each call that it was given.
    prefills: Recent,
    /// Tokens of each answer that has ended.
    answers: Recent,
}

impl History {
    /// L, in seconds, where a token takes so many to decode.
    fn load(&mut self, now: VirtualTime, token_seconds: f64) -> f64 {
        self.prefills.forget(now);
        self.answers.forget(now);
        self.prefills.sum + self.prefills.entries.len() as f64 * self.answers.mean() * token_seconds
    }
}

#[derive(Debug)]
pub(super) struct Preble {
    prefill: PrefillModel,
    /// Seconds of a replica for each token that it decodes.
    token_seconds: f64,
    tree: Index,
    slots: Vec<Slot>,
    depths: Vec<u32>,
    histories: Vec<History>,
    placed: u64,
    open: u64,
}

impl Preble {
    pub fn new(replicas: usize, cache_tokens: u64, prefill: PrefillModel, decode_tps: f64) -> Self {
        let mut tree = Index::new(TREE_BYTES);
        let slots = (0..replicas).map(|_| tree.add(cache_tokens as usize / BLOCK_TOKENS)).collect();
        let histories = (0..replicas).map(|_| History::default()).collect();
        let token_seconds = decode_tps.recip();
        Self { prefill, token_seconds, tree, slots, depths: Vec::new(), histories, placed: 0, open: 0 }
    }

    /// The loads of all replicas.
    fn loads(&mut self, now: VirtualTime) -> Vec<f64> {
        let seconds = self.token_seconds;
        self.histories.iter_mut().map(|history| history.load(now, seconds)).collect()
    }

    /// The replica, and why; `held` is what each holds of the call's prompt.
    fn pick(&self, call: &Call, held: &[u32], loads: &[f64]) -> Option<(usize, Reason)> {
        let load = |replica: usize| loads[replica];
        let longest = held.iter().copied().max()?;
        if longest <= call.prompt_tokens - longest {
            let cost = |replica| load(replica) + self.prefill.seconds(call.prompt_tokens, held[replica]);
            return Some((least(0..held.len(), cost)?, Reason::LeastLoad));
        }
        let exploited = least((0..held.len()).filter(|replica| held[*replica] == longest), load)?;
        let lightest = least(0..held.len(), load)?;
        let heaviest = loads.iter().all(|other| *other <= load(exploited));
        let uneven = load(exploited) > 0.0 && load(exploited) >= REBALANCE_RATIO * load(lightest);
        if self.placed >= REBALANCE_AFTER && heaviest && uneven {
            return Some((lightest, Reason::PrefixOverflow));
        }
        Some((exploited, Reason::Prefix))
    }

    #[cfg(test)]
    pub fn at_rest(&mut self, now: VirtualTime) -> bool {
        self.open == 0 && self.loads(now + WINDOW + Duration::from_secs(1)).iter().all(|load| *load == 0.0)
    }
}

/// The first of those with the lowest cost.
fn least(replicas: impl Iterator<Item = usize>, cost: impl Fn(usize) -> f64) -> Option<usize> {
    replicas.min_by(|a, b| cost(*a).total_cmp(&cost(*b)))
}

impl Chooser for Preble {
    fn choose(&mut self, call: &Call, blocks: &[u64], _: &dyn Holdings, now: VirtualTime) -> Result<Placed, String> {
        let chain = &blocks[..call.prompt_blocks().min(blocks.len())];
        self.tree.lookup(chain, &mut self.depths);
        let tokens = |slot: &Slot| (self.depths[slot.at()] * BLOCK_TOKENS as u32).min(call.most_cached());
        let held: Vec<_> = self.slots.iter().map(tokens).collect();
        let loads = self.loads(now);
        let (replica, reason) = self.pick(call, &held, &loads).ok_or("there is no replica")?;
        let seconds = self.prefill.seconds(call.prompt_tokens, held[replica]);
        self.histories[replica].prefills.add(now, seconds);
        (self.placed, self.open) = (self.placed + 1, self.open + 1);
        let mut placed = Placed { expected: Some(held[replica]), ..Placed::plain(replica, reason) };
        placed.booked.placement = Some(self.tree.place(self.slots[replica], chain));
        placed.booked.seconds = seconds;
        placed.booked.output_tokens = call.output_tokens;
        Ok(placed)
    }

    fn reads_blocks(&self) -> bool {
        true
    }

    fn first_token(&mut self, placed: &mut Placed, _: VirtualTime) {
        if let Some(placement) = &placed.booked.placement {
            self.tree.confirm(placement, &[]);
        }
    }

    fn finished(&mut self, placed: Placed, now: VirtualTime) {
        self.open -= 1;
        self.histories[placed.replica].answers.add(now, placed.booked.output_tokens.into());
        if let Some(placement) = placed.booked.placement {
            self.tree.finish(placement, &[]);
        }
    }

    fn refused(&mut self, placed: Placed, _: VirtualTime) {
        self.open -= 1;
        self.histories[placed.replica].prefills.take_back(placed.booked.seconds);
        if let Some(placement) = placed.booked.placement {
            self.tree.withdraw(placement, &[]);
        }
    }
}
