//! The index: which leading blocks of a prompt each replica holds, or is expected to.
//!
//! A *run tree* (the name and the idea are explained in `runs`, the order of eviction in `holdings`). A lookup costs by
//! the runs on its way, two to four as a rule, not by the prompt's length. Every operation is bounded: what a replica
//! that left held is swept in steps, and a smaller capacity or budget is reached over the next uses.
#[cfg(test)]
mod check;
mod dump;
mod holdings;
mod known;
mod runs;

pub use dump::{Dump, DumpHolder, DumpRun};

use super::slab::{self, NONE, Slab};
use holdings::{Holding, Replica};
use runs::{Holder, Runs};

/// Blocks that one use of a replica may evict beyond those that it added.
pub(in crate::prefix) const EVICTED_AT_ONCE: usize = if cfg!(test) { 8 } else { 1024 };
/// Holdings that one use of an index over its bytes may evict from, beyond the blocks that it added.
const FITTED_AT_ONCE: usize = 64;
/// Blocks that a holding gives back at a time where bytes are short.
const TAIL: usize = 256;
/// The place of a replica beyond those that an index has room for: nobody is ever there.
const NOWHERE: u16 = u16::MAX;

/// One life of one replica in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    at: u16,
    life: u32,
}

impl Slot {
    /// Its place in the depths that [`Index::lookup`] fills in. Places of replicas that left are used again, once all
    /// that they held is swept.
    pub fn at(self) -> usize {
        self.at.into()
    }
}

/// A prompt that was placed on a replica: its blocks are pinned there until [`Index::finish`] or [`Index::withdraw`],
/// of the same index.
#[derive(Debug)]
#[must_use]
pub struct Placement {
    slot: Slot,
    /// The holding with which the placement ends.
    leaf: u32,
}

/// Figures of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// (block, replica) pairs.
    pub pairs: usize,
    /// Bytes that it has asked of the allocator.
    pub bytes: usize,
    /// Pairs given back so far, to keep within capacity or bytes.
    pub evicted: u64,
}

/// The index of one pool.
#[derive(Debug)]
pub struct Index {
    runs: Runs,
    holdings: Slab<Holding>,
    replicas: Vec<Replica>,
    /// By place: the stamp of what the replica would give back first; the largest where there is nothing.
    oldest: Vec<u64>,
    /// Places whose replica left, and that are not swept yet.
    gone: Vec<u16>,
    /// Places that may be used again.
    vacant: Vec<u16>,
    max_bytes: usize,
    clock: u64,
    pairs: usize,
    evicted: u64,
}

impl Index {
    /// An empty index of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            runs: Runs::new(),
            holdings: Slab::new(),
            replicas: Vec::new(),
            oldest: Vec::new(),
            gone: Vec::new(),
            vacant: Vec::new(),
            max_bytes,
            clock: 0,
            pairs: 0,
            evicted: 0,
        }
    }

    /// Changes its bound; what is over it goes, least recently used first, with the next placements and sweeps.
    /// Only pinned blocks may stay over it.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// A replica joins, with an empty cache of so many blocks. Beyond 65,535 replicas, one that joins holds nothing.
    pub fn add(&mut self, capacity: usize) -> Slot {
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                let at = self.replicas.len().min(NOWHERE.into()) as u16;
                if self.replicas.len() <= NOWHERE.into() {
                    self.replicas.push(Replica::default());
                    self.oldest.push(u64::MAX);
                }
                at
            }
        };
        let life = self.replicas[usize::from(at)].life + 1;
        if at != NOWHERE {
            self.replicas[usize::from(at)] = Replica { life, present: true, capacity, ..Replica::default() };
        }
        Slot { at, life }
    }

    /// Changes a replica's capacity, in blocks. What is over it goes with the replica's next placements and their ends,
    /// in bounded steps.
    pub fn set_capacity(&mut self, slot: Slot, capacity: usize) {
        if let Some(replica) = self.replica(slot) {
            replica.capacity = capacity;
        }
    }

    /// A replica leaves, or lost its cache: from now on it holds nothing. What it held is swept later, in small steps.
    pub fn remove(&mut self, slot: Slot) {
        let Some(replica) = self.replica(slot) else { return };
        replica.present = false;
        let held = std::mem::take(&mut replica.held);
        self.pairs -= held;
        self.oldest[slot.at()] = u64::MAX;
        self.gone.push(slot.at);
    }

    /// Sweeps up to `steps` holdings of replicas that left, then of what is over the bytes; whether there is more.
    pub fn sweep(&mut self, steps: usize) -> bool {
        let swept = (0..steps).take_while(|_| self.sweep_one()).count();
        self.fit(steps - swept) || !self.gone.is_empty()
    }

    /// How many leading blocks of `chain` each replica holds: `depths[slot.at()]`. `depths` is resized and overwritten.
    pub fn lookup(&self, chain: &[u64], depths: &mut Vec<u32>) {
        depths.clear();
        depths.resize(self.replicas.len(), 0);
        let (mut rest, mut before) = (chain, 0);
        while let Some(&head) = rest.first()
            && let Some(run) = self.runs.find(head)
        {
            let run = &self.runs[run];
            let common = run.common(rest);
            // Who holds something of this run holds all of those before it.
            for holder in run.holders() {
                depths[usize::from(holder.at)] = before + holder.cutoff.min(common as u32);
            }
            if common < run.len() {
                break;
            }
            before += common as u32;
            rest = &rest[common..];
        }
        for &at in &self.gone {
            depths[usize::from(at)] = 0;
        }
    }

    /// Places a prompt: its blocks are the replica's most recently used ones, expected where they are new, and pinned.
    /// A chain longer than the replica's capacity is placed as far as that goes.
    pub fn place(&mut self, slot: Slot, chain: &[u64]) -> Placement {
        let Some(replica) = self.replica(slot) else { return Placement { slot, leaf: NONE } };
        let before = replica.held;
        let mut rest = &chain[..chain.len().min(replica.capacity)];
        let mut leaf = NONE;
        while let Some(&head) = rest.first()
            && let Some(run) = self.runs.find(head)
        {
            let common = self.runs[run].common(rest);
            if common < self.runs[run].len() {
                self.split(run, common);
            }
            leaf = self.hold(slot.at, run, leaf);
            rest = &rest[common..];
        }
        if !rest.is_empty() {
            leaf = if leaf != NONE && self.is_private_leaf(leaf) {
                let Holding { run, seat, .. } = self.holdings[leaf];
                self.runs.extend(run, rest);
                self.raise(run, seat);
                leaf
            } else {
                let run = self.runs.create(rest);
                self.hold(slot.at, run, leaf)
            };
        }
        self.touch(slot, leaf, |pins| pins + 1);
        let added = self.held(slot) - before;
        self.evict(slot, added + EVICTED_AT_ONCE);
        self.fit(added + FITTED_AT_ONCE);
        Placement { slot, leaf }
    }

    /// The replica has begun to answer: what was expected, and is still held, is there.
    pub fn confirm(&mut self, placement: &Placement, _chain: &[u64]) {
        let mut at = self.leaf(placement);
        while at != NONE {
            let Holding { run, seat, parent, .. } = self.holdings[at];
            self.holdings[at].confirmed = self.runs.holder(run, seat).cutoff;
            at = parent;
        }
    }

    /// The request has ended: its blocks are used once more, and may go from now on.
    pub fn finish(&mut self, placement: Placement, _chain: &[u64]) {
        let leaf = self.leaf(&placement);
        self.touch(placement.slot, leaf, |pins| pins - 1);
        self.join(leaf);
        self.evict(placement.slot, EVICTED_AT_ONCE);
    }

    /// The request never got there: what only it expected is taken back, that is: what is not confirmed, in no open
    /// placement, and not the beginning of anything else that the replica holds.
    pub fn withdraw(&mut self, placement: Placement, _chain: &[u64]) {
        let mut at = self.leaf(&placement);
        self.touch(placement.slot, at, |pins| pins - 1);
        while at != NONE {
            let Holding { run, seat, parent, pins, children, confirmed, .. } = self.holdings[at];
            let cutoff = self.runs.holder(run, seat).cutoff;
            if pins > 0 || children > 0 || confirmed == cutoff {
                break;
            }
            self.lower(at, cutoff - confirmed);
            at = if confirmed == 0 { parent } else { NONE };
        }
        self.evict(placement.slot, EVICTED_AT_ONCE);
    }

    /// Its figures.
    pub fn stats(&self) -> Stats {
        Stats { pairs: self.pairs, bytes: self.bytes(), evicted: self.evicted }
    }

    /// Blocks that a replica holds.
    pub fn held(&self, slot: Slot) -> usize {
        self.replicas.get(slot.at()).filter(|replica| replica.is(slot)).map_or(0, |replica| replica.held)
    }

    fn replica(&mut self, slot: Slot) -> Option<&mut Replica> {
        self.replicas.get_mut(slot.at()).filter(|replica| replica.is(slot))
    }

    fn bytes(&self) -> usize {
        self.runs.bytes()
            + self.holdings.bytes()
            + self.replicas.capacity() * size_of::<Replica>()
            + self.oldest.capacity() * size_of::<u64>()
            + (self.gone.capacity() + self.vacant.capacity()) * size_of::<u16>()
    }

    /// The holding with which an open placement ends; of a replica that has left, and of none, [`NONE`].
    fn leaf(&self, placement: &Placement) -> u32 {
        let present = self.replicas.get(placement.slot.at()).is_some_and(|replica| replica.is(placement.slot));
        let holding = self.holdings.get(placement.leaf).filter(|_| present);
        holding.filter(|holding| holding.at == placement.slot.at && holding.pins > 0).map_or(NONE, |_| placement.leaf)
    }

    /// Whether only this replica has the run, and nothing after it, and no placement ends there: then it may grow.
    fn is_private_leaf(&self, id: u32) -> bool {
        let holding = &self.holdings[id];
        holding.pins == 0 && holding.children == 0 && self.runs[holding.run].holders().len() == 1
    }

    /// Cuts a run in two at `len`. The tail's holdings keep their numbers, so that placements that end there still do;
    /// each has a new one for its parent, as recently used.
    fn split(&mut self, run: u32, len: usize) {
        let tail = self.runs.split(run, len);
        let len = len as u32;
        for seat in 0..self.runs[run].holders().len() as u32 {
            let Holder { at, cutoff, holding: id } = *self.runs.holder(run, seat);
            if cutoff <= len {
                continue;
            }
            let Holding { stamp, parent, confirmed, pins, .. } = self.holdings[id];
            let head = Holding {
                stamp,
                run,
                seat,
                parent,
                children: 1,
                confirmed: confirmed.min(len),
                pins,
                at,
                ..Holding::default()
            };
            let head = self.holdings.insert(head);
            self.replicas[usize::from(at)].list(pins).insert(&mut self.holdings, head, id);
            *self.runs.holder(run, seat) = Holder { at, cutoff: len, holding: head };
            let seat = self.runs.seat(tail, Holder { at, cutoff: cutoff - len, holding: id });
            let holding = &mut self.holdings[id];
            (holding.run, holding.seat, holding.parent) = (tail, seat, head);
            holding.confirmed = confirmed.saturating_sub(len);
        }
    }

    /// Undoes splits at the end of a path that was just used, where only this replica has both parts, and no placement
    /// ends between them: a tree that only ever splits would grow under churn.
    fn join(&mut self, mut leaf: u32) {
        while leaf != NONE && self.is_private_leaf(leaf) {
            let Holding { run, seat, parent, confirmed, .. } = self.holdings[leaf];
            let Some(&before) = self.holdings.get(parent) else { return };
            if before.pins > 0 || before.children > 1 || self.runs[before.run].holders().len() > 1 {
                return;
            }
            self.runs.holder(before.run, before.seat).cutoff += self.runs[run].holders()[seat as usize].cutoff;
            self.runs.join(before.run, run);
            self.replicas[usize::from(before.at)].free.unlink(&mut self.holdings, leaf);
            self.holdings.remove(leaf);
            self.holdings[parent].children = 0;
            self.holdings[parent].confirmed += confirmed;
            leaf = parent;
        }
    }

    /// Makes a replica hold a whole run; its holding.
    fn hold(&mut self, at: u16, run: u32, parent: u32) -> u32 {
        if let Some(seat) = self.runs[run].seat_of(at) {
            self.raise(run, seat);
            return self.runs.holder(run, seat).holding;
        }
        let id = self.holdings.insert(Holding { run, parent, at, ..Holding::default() });
        self.holdings[id].seat = self.runs.seat(run, Holder { at, cutoff: 0, holding: id });
        self.replicas[usize::from(at)].free.push(&mut self.holdings, id);
        if parent != NONE {
            self.holdings[parent].children += 1;
        }
        self.raise(run, self.holdings[id].seat);
        id
    }

    /// Lets a holder hold its whole run.
    fn raise(&mut self, run: u32, seat: u32) {
        let len = self.runs[run].len() as u32;
        let holder = self.runs.holder(run, seat);
        let more = (len - std::mem::replace(&mut holder.cutoff, len)) as usize;
        self.replicas[usize::from(holder.at)].held += more;
        self.pairs += more;
    }

    /// Uses the path to `leaf`: the leaf first, so that it is the oldest.
    fn touch(&mut self, slot: Slot, leaf: u32, pins: impl Fn(u32) -> u32) {
        self.clock += 1;
        let mut id = leaf;
        while id != NONE {
            let replica = &mut self.replicas[slot.at()];
            let before = self.holdings[id].pins;
            replica.list(before).unlink(&mut self.holdings, id);
            let holding = &mut self.holdings[id];
            holding.stamp = self.clock;
            holding.pins = pins(before);
            let (pins, parent) = (holding.pins, holding.parent);
            replica.list(pins).push(&mut self.holdings, id);
            id = parent;
        }
    }

    fn note_oldest(&mut self, at: u16) {
        let id = self.replicas[usize::from(at)].free.oldest;
        self.oldest[usize::from(at)] = if id == NONE { u64::MAX } else { self.holdings[id].stamp };
    }

    /// Ends a use of a replica: evicts up to `most` blocks, where it is over its capacity.
    fn evict(&mut self, slot: Slot, mut most: usize) {
        if self.replica(slot).is_some() {
            self.note_oldest(slot.at);
        }
        while most > 0
            && let Some(replica) = self.replica(slot)
            && replica.held > replica.capacity
            && replica.free.oldest != NONE
        {
            let over = (replica.held - replica.capacity).min(most);
            most -= self.evict_tail(slot.at, over).max(1);
        }
    }

    /// Evicts up to `most` blocks of a replica's oldest leaf; how many.
    fn evict_tail(&mut self, at: u16, most: usize) -> usize {
        let id = self.replicas[usize::from(at)].free.oldest;
        let Holding { run, seat, children, .. } = self.holdings[id];
        let mut evicted = 0;
        if children > 0 {
            // Only where two prompts have one hash is the oldest no leaf. It waits for its turn.
            let list = &mut self.replicas[usize::from(at)].free;
            list.unlink(&mut self.holdings, id);
            list.push(&mut self.holdings, id);
        } else {
            evicted = most.min(self.runs.holder(run, seat).cutoff as usize);
            self.lower(id, evicted as u32);
        }
        self.evicted += evicted as u64;
        self.note_oldest(at);
        evicted
    }

    /// Evicts from up to `steps` holdings, while over the bytes: of the replica whose oldest leaf was used longest ago.
    /// Whether there is more to evict.
    fn fit(&mut self, steps: usize) -> bool {
        for left in (0..=steps).rev() {
            if self.bytes() <= self.max_bytes {
                return false;
            }
            let oldest = self.oldest.iter().copied().min().filter(|&oldest| oldest < u64::MAX);
            let replica = oldest.and_then(|oldest| self.oldest.iter().position(|&other| other == oldest));
            match replica {
                _ if self.gone.is_empty() && replica.is_none() => return false,
                _ if left == 0 => return true,
                Some(at) if self.gone.is_empty() => _ = self.evict_tail(at as u16, TAIL),
                _ => _ = self.sweep_one(),
            }
        }
        true
    }

    /// Takes a leaf back from a replica that left, or frees its place; whether there was one.
    fn sweep_one(&mut self) -> bool {
        let Some(&at) = self.gone.last() else { return false };
        let replica = &mut self.replicas[usize::from(at)];
        let list = if replica.free.oldest == NONE { &mut replica.pinned } else { &mut replica.free };
        let id = list.oldest;
        if id == NONE {
            self.gone.pop();
            self.vacant.push(at);
        } else if self.holdings[id].children > 0 {
            // See `evict_tail`; a pinned one may also be the child, so both lists have to turn.
            list.unlink(&mut self.holdings, id);
            self.holdings[id].pins = 1;
            self.replicas[usize::from(at)].pinned.push(&mut self.holdings, id);
        } else {
            let Holding { run, seat, .. } = self.holdings[id];
            let all = self.runs.holder(run, seat).cutoff;
            self.lower(id, all);
        }
        true
    }

    /// Takes the last `blocks` of a holding back; without any left it goes, and the run with it as far as it was the
    /// last to hold it.
    fn lower(&mut self, id: u32, blocks: u32) {
        let Holding { run, seat, at, .. } = self.holdings[id];
        let holder = self.runs.holder(run, seat);
        holder.cutoff -= blocks;
        let left = holder.cutoff;
        let replica = &mut self.replicas[usize::from(at)];
        if replica.present {
            replica.held -= blocks as usize;
            self.pairs -= blocks as usize;
        }
        if left == 0 {
            replica.list(self.holdings[id].pins).unlink(&mut self.holdings, id);
            if let Some(moved) = self.runs.unseat(run, seat) {
                self.holdings[moved].seat = seat;
            }
            let Holding { parent, .. } = self.holdings.remove(id);
            if parent != NONE {
                self.holdings[parent].children -= 1;
            }
        } else {
            let confirmed = &mut self.holdings[id].confirmed;
            *confirmed = left.min(*confirmed);
        }
        self.runs.trim(run);
    }
}
