//! The run tree against the naive map, step by step.
use proptest::collection::vec;
use proptest::prelude::*;

use super::oracle::{Naive, Placed};
use super::*;

#[derive(Debug, Clone)]
enum Step {
    Place { replica: usize, chain: Vec<u64> },
    Confirm(usize),
    Finish(usize),
    Withdraw(usize),
    Add { capacity: usize },
    Remove(usize),
    Capacity { replica: usize, capacity: usize },
    Sweep(usize),
}

/// Chains that share beginnings: each turn of a walk through a small tree is one or more blocks.
fn chain() -> impl Strategy<Value = Vec<u64>> {
    vec((0..3_u32, 1..5_usize), 0..6).prop_map(|turns| {
        let mut chain = Chain::new(7);
        turns.iter().for_each(|&(turn, blocks)| chain.push(&vec![turn; blocks * BLOCK_TOKENS]));
        chain.finish()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        12 => (any(), chain()).prop_map(|(replica, chain)| Step::Place { replica, chain }),
        4 => any().prop_map(Step::Confirm),
        7 => any().prop_map(Step::Finish),
        4 => any().prop_map(Step::Withdraw),
        1 => (0..30_usize).prop_map(|capacity| Step::Add { capacity }),
        1 => any().prop_map(Step::Remove),
        1 => (any(), 0..30_usize).prop_map(|(replica, capacity)| Step::Capacity { replica, capacity }),
        1 => (0..6_usize).prop_map(Step::Sweep),
    ]
}

/// Both, side by side.
struct Pair {
    index: Index,
    naive: Naive,
    slots: Vec<Slot>,
    open: Vec<(Placement, Placed, Vec<u64>)>,
    /// Every chain that was placed.
    chains: Vec<Vec<u64>>,
}

impl Pair {
    fn new(replicas: &[usize]) -> Self {
        let (index, naive) = (Index::new(usize::MAX), Naive::default());
        let mut pair = Self { index, naive, slots: Vec::new(), open: Vec::new(), chains: Vec::new() };
        replicas.iter().for_each(|&capacity| pair.add(capacity));
        pair
    }

    fn add(&mut self, capacity: usize) {
        self.slots.push(self.index.add(capacity));
        self.naive.add(capacity);
    }

    fn take(&mut self, at: usize) -> Option<(Placement, Placed, Vec<u64>)> {
        (!self.open.is_empty()).then(|| self.open.swap_remove(at % self.open.len()))
    }

    fn apply(&mut self, step: Step) {
        let replicas = self.slots.len();
        match step {
            Step::Place { replica, chain } => {
                let replica = replica % replicas;
                let placed = self.naive.place(replica, &chain);
                self.open.push((self.index.place(self.slots[replica], &chain), placed, chain.clone()));
                self.chains.push(chain);
            }
            Step::Confirm(at) => {
                if let Some((placement, placed, chain)) = self.take(at) {
                    self.index.confirm(&placement, &chain);
                    self.naive.confirm(&placed, &chain);
                    self.open.push((placement, placed, chain));
                }
            }
            Step::Finish(at) => {
                if let Some((placement, placed, chain)) = self.take(at) {
                    self.index.finish(placement, &chain);
                    self.naive.finish(placed, &chain);
                }
            }
            Step::Withdraw(at) => {
                if let Some((placement, placed, chain)) = self.take(at) {
                    self.index.withdraw(placement, &chain);
                    self.naive.withdraw(placed, &chain);
                }
            }
            Step::Add { capacity } => self.add(capacity),
            Step::Remove(replica) => {
                let replica = replica % replicas;
                self.index.remove(self.slots[replica]);
                self.naive.remove(replica);
            }
            Step::Capacity { replica, capacity } => {
                let replica = replica % replicas;
                self.index.set_capacity(self.slots[replica], capacity);
                if !self.naive.replicas[replica].gone {
                    self.naive.replicas[replica].capacity = capacity;
                }
            }
            Step::Sweep(steps) => _ = self.index.sweep(steps),
        }
    }

    /// Both say the same of every chain, at every depth, so of every block.
    fn compare(&self) {
        self.index.check();
        let mut depths = Vec::new();
        for chain in &self.chains {
            self.index.lookup(chain, &mut depths);
            for (replica, slot) in self.slots.iter().enumerate().filter(|(at, _)| !self.naive.replicas[*at].gone) {
                assert_eq!(depths[slot.at()] as usize, self.naive.depth(replica, chain));
                assert_eq!(self.index.confirmed(*slot, chain), self.naive.confirmed(replica, chain));
            }
            let found = depths.iter().filter(|&&depth| depth > 0).count();
            let holders = (0..self.slots.len()).filter(|&replica| self.naive.depth(replica, chain) > 0).count();
            assert_eq!(found, holders, "who has left holds nothing");
        }
        for (slot, replica) in self.slots.iter().zip(&self.naive.replicas) {
            assert_eq!(self.index.held(*slot), replica.blocks.len());
        }
        let pairs = self.naive.replicas.iter().map(|replica| replica.blocks.len()).sum();
        let Stats { pairs: counted, evicted, .. } = self.index.stats();
        assert_eq!((counted, evicted), (pairs, self.naive.evicted));
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Lost inserts, wrong depths, blurred pins, another order of eviction: all would show as another depth.
    #[test]
    fn equals_the_naive_map(replicas in vec(0..30_usize, 1..4), steps in vec(step(), 1..80)) {
        let mut pair = Pair::new(&replicas);
        for step in steps {
            pair.apply(step);
            pair.compare();
        }
        while let Some((placement, placed, chain)) = pair.take(0) {
            pair.index.finish(placement, &chain);
            pair.naive.finish(placed, &chain);
            pair.compare();
        }
        pair.slots.iter().for_each(|slot| pair.index.remove(*slot));
        while pair.index.sweep(3) {
            pair.index.check();
        }
        prop_assert_eq!(pair.index.dump(usize::MAX).runs_total, 0);
    }
}
