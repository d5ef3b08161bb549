//! A follower that keeps the simplest index there can be, and checks what it is told while it is told.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::super::wire::{Event, decode};
use super::engine::{Engine, Message};
use super::*;

#[derive(Debug, Default)]
pub struct Mirror {
    /// Blocks that are believed. One whose parent is unknown is dropped.
    pub blocks: BTreeSet<u64>,
    /// Lives and numbers of the messages since the last clear.
    pub applied: Vec<(u32, u64)>,
    /// Those of them that something may be believed of: from the last that cleared everything.
    pub believed: usize,
    /// Messages that turn out to be unreadable.
    pub unreadable: BTreeSet<(u32, u64)>,
    /// Replays that were asked for.
    pub asked: VecDeque<(ReplayId, u64)>,
    /// What it was told last.
    pub state: Option<State>,
    pub clears: u64,
}

impl Follower<Message> for Mirror {
    fn apply(&mut self, message: Message) -> Applied {
        if let Some(&(_, before)) = self.applied.last() {
            assert!(before < message.sequence, "{} after {before}", message.sequence);
        }
        self.applied.push((message.life, message.sequence));
        if self.unreadable.contains(&(message.life, message.sequence)) {
            return Applied::Lost;
        }
        let batch = decode(message.as_ref()).unwrap();
        assert_eq!(batch.skipped, []);
        let mut applied = Applied::Whole;
        for event in batch.events {
            match event {
                Event::Stored(stored) if stored.parent.is_none_or(|parent| self.blocks.contains(&parent)) => {
                    self.blocks.extend(stored.hashes);
                }
                Event::Stored(_) => {}
                Event::Removed(removed) => {
                    self.blocks.remove(&removed.hashes[0]);
                }
                Event::Cleared => {
                    self.blocks.clear();
                    self.believed = self.applied.len() - 1;
                    applied = Applied::Cleared;
                }
            }
        }
        applied
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.applied.clear();
        self.believed = 0;
        self.clears += 1;
    }

    fn ask(&mut self, replay: ReplayId, from: u64) {
        self.asked.push_back((replay, from));
    }

    fn state(&mut self, state: State) {
        assert_ne!(self.state.unwrap_or(State::Syncing), state, "only changes are told");
        self.state = Some(state);
    }
}

impl Mirror {
    pub fn believes_earlier_life(&self, engine: &Engine) -> bool {
        self.applied[self.believed..].iter().any(|&(life, _)| life != engine.life)
    }

    /// Nothing is believed of an earlier life; what is wrong or unknown is so because of a message that was lost, and
    /// nothing is where the state is live.
    pub fn check(&self, engine: &Engine, state: State) {
        assert!(!self.believes_earlier_life(engine), "of an earlier life: {:?}", &self.applied[self.believed..]);
        let applied: BTreeSet<_> = self.applied.iter().copied().collect();
        let read = |message: &&Message| {
            let name = (message.life, message.sequence);
            applied.contains(&name) && !self.unreadable.contains(&name)
        };
        let (mut stores, mut removals, mut cleared) = (BTreeSet::new(), BTreeSet::new(), false);
        for message in engine.published.iter().filter(|message| !read(message)) {
            for change in &*message.changes {
                match change {
                    engine::Change::Stored { blocks, .. } => stores.extend(blocks.iter().copied()),
                    engine::Change::Removed(block) => drop(removals.insert(*block)),
                    engine::Change::Cleared => cleared = true,
                }
            }
        }
        let held: BTreeSet<_> = engine.cache.iter().map(|held| held.0).collect();
        let parents: BTreeMap<u64, Option<u64>> =
            engine.published.iter().fold(BTreeMap::new(), |mut parents, message| {
                for change in &*message.changes {
                    if let engine::Change::Stored { parent, blocks } = change {
                        let mut parent = *parent;
                        for &block in blocks {
                            parents.insert(block, parent.replace(block));
                        }
                    }
                }
                parents
            });
        if state == State::Live {
            assert_eq!(self.blocks, held, "live, and not what the engine holds");
        }
        for dead in self.blocks.difference(&held) {
            assert!(cleared || removals.contains(dead), "{dead} is believed though its removal was passed on");
            assert_ne!(state, State::Degraded(Why::Late), "late, and {dead} is believed");
        }
        for missing in held.difference(&self.blocks) {
            let mut line = std::iter::successors(Some(*missing), |block| parents.get(block).copied().flatten());
            assert!(
                line.any(|block| stores.contains(&block)),
                "{missing} is unknown though all of its line was passed on"
            );
        }
    }
}
