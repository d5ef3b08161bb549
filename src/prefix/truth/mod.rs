//! What engines say that they hold: fed by the KV events of every followed replica of a pool.
//!
//! Blocks are known by our own hashes (`hash`); an engine's hash is only a key to find them again, as a parent or to
//! remove them. The own blocks stand in runs (see `runs`); a table for each replica leads from its engine's hashes to
//! them (see `table`). It is exact: a block is held while any tier has a copy of it, and counts as soon as nothing before
//! it is missing. It never guesses: what it cannot place for certain it does not store. Two replicas whose engines hash
//! differently share what they hold alike.
//!
//! Every operation is bounded by the event's size; what a life left behind is swept in steps.
mod blocks;
#[cfg(test)]
mod check;
mod entries;
mod life;
mod pages;
mod runs;
mod segment;
mod store;
mod table;

pub use life::Tier;

use life::Life;
use runs::Runs;

/// The place of a life that is over, and beyond those that there may be.
const NOWHERE: u16 = u16::MAX;
/// Entries that a store over the bytes sweeps first, if there are any to sweep.
const SWEPT_AT_ONCE: usize = 256;

/// Blocks that an engine has stored.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// Where a chain without a parent begins: see [`super::root`].
    pub root: u64,
    /// The engine's hash of the block before the first; `None` where the prompt begins.
    pub parent: Option<u64>,
    /// The engine's hashes.
    pub hashes: &'a [u64],
    /// The tokens of all of its blocks; without any, and a block size of 0, only blocks that are known are copied.
    pub tokens: &'a [u32],
    /// Tokens of one of its blocks: a multiple of ours, or a divisor.
    pub block_size: u32,
    /// Where they are.
    pub tier: Tier,
    /// What each of its blocks is made of beside tokens, if anything, such as the hash of an image's id; may be shorter.
    pub extras: &'a [Option<u64>],
}

/// Why blocks were not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unstored {
    /// The replica is not followed.
    NotFollowed,
    /// The block before them is not held, so nothing tells what they come after.
    UnknownParent,
    /// The block size is neither a multiple of ours (up to 255 times) nor a divisor, or the replica has both kinds.
    BlockSize,
    /// Not as many tokens as the blocks have: some are masked, partial, or pairs.
    NotDense,
    /// The bytes are used up.
    OverBudget,
    /// The engine uses one hash for different blocks. What came before that block is stored; the hash is void for the
    /// rest of the replica's life, as what it means later nobody could tell.
    Ambiguous,
}

impl Unstored {
    /// Its name, as a metric's label has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFollowed => "not_followed",
            Self::UnknownParent => "orphan",
            Self::BlockSize => "unusable_block_size",
            Self::NotDense => "not_dense",
            Self::OverBudget => "over_budget",
            Self::Ambiguous => "ambiguous",
        }
    }
}

/// What a replica holds of a prompt, in leading own blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// In any tier.
    pub any: u32,
    /// All of it on the device; never more than `any`.
    pub device: u32,
}

/// Figures of a [`Truth`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TruthStats {
    /// (own block, replica) pairs.
    pub pairs: usize,
    /// Different own blocks, with those between held ones that nobody holds.
    pub blocks: usize,
    /// Bytes that it has asked of the allocator.
    pub bytes: usize,
    /// Replicas that are followed.
    pub followed: usize,
}

/// What the followed replicas of one pool hold.
#[derive(Debug)]
pub struct Truth {
    runs: Runs,
    lives: Vec<Life>,
    keeper: Life,
    /// By life: the replica's place; [`NOWHERE`] where it is over.
    places: Vec<u16>,
    /// By place: the present life; [`NOWHERE`] where none is followed.
    present: Vec<u16>,
    /// Lives that are over, and not swept yet.
    gone: Vec<u16>,
    /// Lives that may begin.
    vacant: Vec<u16>,
    /// Bytes of the lives.
    inner: usize,
    pairs: usize,
    max_bytes: usize,
}

impl Truth {
    /// One that follows nobody, of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            runs: Runs::new(),
            lives: Vec::new(),
            keeper: Life::new(NOWHERE),
            places: Vec::new(),
            present: Vec::new(),
            gone: Vec::new(),
            vacant: Vec::new(),
            inner: 0,
            pairs: 0,
            max_bytes,
        }
    }

    /// Changes its bound. What is over it stays until the engines remove it; nothing more is stored.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// The replica at this place ([`super::Slot::at`]) is followed from now on, and holds nothing; one that was followed
    /// already begins anew.
    pub fn follow(&mut self, at: usize) {
        self.unfollow(at);
        if at >= usize::from(NOWHERE) {
            return;
        }
        let life = match self.vacant.pop() {
            Some(life) => life,
            None if self.lives.len() == usize::from(NOWHERE) => return,
            None => {
                let life = self.lives.len() as u16;
                self.lives.push(Life::new(life));
                self.places.push(NOWHERE);
                life
            }
        };
        if self.present.len() <= at {
            self.present.resize(at + 1, NOWHERE);
        }
        self.present[at] = life;
        self.places[usize::from(life)] = at as u16;
    }

    /// The replica is not followed any more: it holds nothing. What it held is swept later.
    pub fn unfollow(&mut self, at: usize) {
        let Some(life) = self.present.get_mut(at).map(|life| std::mem::replace(life, NOWHERE)) else { return };
        if life != NOWHERE {
            self.places[usize::from(life)] = NOWHERE;
            self.pairs -= self.lives[usize::from(life)].held;
            self.gone.push(life);
        }
    }

    /// The engine has dropped all, or was started anew: a new life, if the replica is followed.
    pub fn clear(&mut self, at: usize) {
        if self.life(at).is_some_and(|life| !self.lives[usize::from(life)].is_new()) {
            self.follow(at);
        }
    }

    /// Takes a copy of each of these blocks back; of how many there was one. In any order: what comes after a block that
    /// is gone is still held, but does not count until it is there again.
    pub fn remove(&mut self, at: usize, tier: Tier, hashes: &[u64]) -> usize {
        let Some(life) = self.life(at) else { return 0 };
        self.change(life, |truth| {
            let (life, runs) = (&mut truth.lives[usize::from(life)], &mut truth.runs);
            life.take(runs, &mut truth.keeper, hashes, tier)
        })
    }

    /// How many leading blocks of `chain` each followed replica holds, by place. `depths` is resized and overwritten.
    pub fn lookup(&self, chain: &[u64], depths: &mut Vec<Held>) {
        // The last one is for all lives that are over.
        let nowhere = self.present.len();
        depths.clear();
        depths.resize(nowhere + 1, Held::default());
        let (mut rest, mut before) = (chain, 0);
        while let Some(&head) = rest.first()
            && let Some(run) = self.runs.find(head)
        {
            let run = &self.runs[run];
            let common = run.common(rest) as u32;
            for holder in run.holders() {
                let place = usize::from(self.places.get(usize::from(holder.life)).copied().unwrap_or(NOWHERE));
                let depth = &mut depths[place.min(nowhere)];
                if depth.any == before {
                    depth.any += holder.any.min(common);
                    if depth.device == before {
                        depth.device += holder.device.min(common);
                    }
                }
            }
            before += common;
            rest = &rest[common as usize..];
        }
        depths.truncate(nowhere);
    }

    /// Sweeps up to `steps` of the engine's blocks of lives that are over; whether there is more.
    pub fn sweep(&mut self, steps: usize) -> bool {
        for _ in 0..steps {
            let Some(&id) = self.gone.last() else { return false };
            self.change(id, |truth| {
                let life = &mut truth.lives[usize::from(id)];
                if !life.give_back(&mut truth.runs, &mut truth.keeper) {
                    *life = Life::new(id);
                    truth.gone.pop();
                    truth.vacant.push(id);
                }
            });
        }
        !self.gone.is_empty()
    }

    /// Its figures.
    pub fn stats(&self) -> TruthStats {
        let followed = self.lives.len() - self.gone.len() - self.vacant.len();
        TruthStats { pairs: self.pairs, blocks: self.runs.blocks(), bytes: self.bytes(), followed }
    }

    /// Own blocks that a replica holds, in any tier, whether or not all before them are there.
    pub fn held(&self, at: usize) -> usize {
        self.life(at).map_or(0, |life| self.lives[usize::from(life)].held)
    }

    fn life(&self, at: usize) -> Option<u16> {
        self.present.get(at).copied().filter(|&life| life != NOWHERE)
    }

    fn bytes(&self) -> usize {
        let lists = [&self.places, &self.present, &self.gone, &self.vacant];
        self.runs.bytes()
            + self.inner
            + self.lives.capacity() * size_of::<Life>()
            + lists.iter().map(|list| list.capacity() * size_of::<u16>()).sum::<usize>()
    }

    /// Any change of a life goes through here, so that bytes and pairs stay true.
    fn change<T>(&mut self, life: u16, change: impl FnOnce(&mut Self) -> T) -> T {
        let at = usize::from(life);
        let followed = self.places[at] != NOWHERE;
        let figures = |truth: &Self| {
            let life = &truth.lives[at];
            (life.bytes() + truth.keeper.bytes(), if followed { life.held } else { 0 })
        };
        let (bytes, held) = figures(self);
        let result = change(self);
        let (bytes_now, held_now) = figures(self);
        self.inner = self.inner + bytes_now - bytes;
        self.pairs = self.pairs + held_now - held;
        result
    }
}
