//! Holdings: what one replica has of one run, in the order in which it would give them back.
use super::slab::{NONE, Slab};

/// One replica's share of one run. Every block of it was last used at the same moment, because a placement always
/// ends at a run's border; so pins and stamps of blocks are pins and stamps of holdings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    /// The index' clock at its last use.
    pub stamp: u64,
    pub run: u32,
    /// Its holder's place in the run.
    pub seat: u32,
    /// The same replica's holding of what comes before the run.
    pub parent: u32,
    /// How many holdings have this one as parent; none unless it holds the whole run.
    pub children: u32,
    /// How many of its blocks, from the first on, are confirmed.
    pub confirmed: u32,
    /// Open placements that go through it, or end with it.
    pub pins: u32,
    pub older: u32,
    pub newer: u32,
    /// The replica's place.
    pub at: u16,
}

impl Default for Holding {
    fn default() -> Self {
        Self {
            stamp: 0,
            run: NONE,
            seat: 0,
            parent: NONE,
            children: 0,
            confirmed: 0,
            pins: 0,
            older: NONE,
            newer: NONE,
            at: 0,
        }
    }
}

/// A list of holdings, oldest first. A path is always put in leaf first, so what comes before a block in its chain is
/// newer than it, and the oldest one is a leaf.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    pub oldest: u32,
    newest: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { oldest: NONE, newest: NONE }
    }
}

impl List {
    pub(super) fn push(&mut self, holdings: &mut Slab<Holding>, id: u32) {
        self.insert(holdings, id, self.newest);
    }

    /// Puts `id` in as the next newer one after `older`.
    pub(super) fn insert(&mut self, holdings: &mut Slab<Holding>, id: u32, older: u32) {
        let newer = if older == NONE { self.oldest } else { holdings[older].newer };
        holdings[id].older = older;
        holdings[id].newer = newer;
        *if older == NONE { &mut self.oldest } else { &mut holdings[older].newer } = id;
        *if newer == NONE { &mut self.newest } else { &mut holdings[newer].older } = id;
    }

    pub(super) fn unlink(&mut self, holdings: &mut Slab<Holding>, id: u32) {
        let (older, newer) = (holdings[id].older, holdings[id].newer);
        *if older == NONE { &mut self.oldest } else { &mut holdings[older].newer } = newer;
        *if newer == NONE { &mut self.newest } else { &mut holdings[newer].older } = older;
    }

    #[cfg(test)]
    pub(super) fn iter<'a>(&self, holdings: &'a Slab<Holding>) -> impl Iterator<Item = u32> + use<'a> {
        let first = (self.oldest != NONE).then_some(self.oldest);
        std::iter::successors(first, |&id| Some(holdings[id].newer).filter(|&newer| newer != NONE))
    }
}

/// One place for a replica.
#[derive(Debug, Default)]
pub(super) struct Replica {
    /// Lives that had the place so far, the present one included.
    pub life: u32,
    /// Whether one has it now.
    pub present: bool,
    /// Blocks.
    pub capacity: usize,
    /// Blocks that it holds.
    pub held: usize,
    /// What it may give back.
    pub free: List,
    /// What open placements keep.
    pub pinned: List,
}

impl Replica {
    /// Whether this life of it goes on.
    pub(super) fn is(&self, slot: super::Slot) -> bool {
        self.present && self.life == slot.life
    }

    /// The list in which a holding with so many pins stands.
    pub(super) fn list(&mut self, pins: u32) -> &mut List {
        if pins > 0 { &mut self.pinned } else { &mut self.free }
    }
}
