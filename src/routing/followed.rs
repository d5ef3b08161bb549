//! What replicas say they hold, where they publish it: events beside predictions.
//!
//! A replica that is followed *exactly* is credited with what its events said, and with what open requests are about to
//! put there: events alone come too late for a burst. What a request placed there counts for [`LINGERS`] after its end, by
//! when the events that it caused have come. One whose events are known to be incomplete is credited with the more of
//! what events said and what is predicted, as if it published none.
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Prompt, Tick};
use crate::prefix::{Held, Index, Placement, Stored, Tier, Truth, Unstored};

/// How long a placement counts after its request's end.
const LINGERS: u64 = 1_000_000;

/// How well a replica's events are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Following {
    /// Not at all: predictions stand for what it holds.
    #[default]
    None,
    /// Nothing was lost since it held nothing, or since all of it was sent again.
    Exactly,
    /// Some events may be missing.
    Loosely,
}

/// What one event says.
#[derive(Debug, Clone, Copy)]
pub enum CacheEvent<'a> {
    /// These blocks are there.
    Stored(Stored<'a>),
    /// These are there no more.
    Removed {
        /// Where they were.
        tier: Tier,
        /// The engine's hashes.
        hashes: &'a [u64],
    },
    /// Nothing is there any more.
    Cleared,
}

/// What came of some events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Blocks of the index' size that are new there.
    pub stored: usize,
    /// Blocks of the engine's that it had said it holds, and does no more.
    pub removed: usize,
    /// Blocks of the engine's that could not be placed, and why; of several reasons the last.
    pub unstored: Option<(Unstored, usize)>,
}

/// The followed ones of a pool's members.
#[derive(Debug)]
pub(super) struct Followed {
    truth: Truth,
    /// By member: its place in `truth`, and how well it is followed.
    members: Vec<Option<(usize, Following)>>,
    /// Places that are free.
    vacant: Vec<usize>,
    places: usize,
    /// What the prompt that was looked at last found, by place.
    held: Vec<Held>,
    /// Placements of requests that have ended, the oldest first.
    lingering: VecDeque<(Tick, Placement, Arc<Prompt>)>,
}

impl Followed {
    /// Nobody is followed yet.
    pub fn new(members: usize, max_bytes: usize) -> Self {
        Self {
            truth: Truth::new(max_bytes),
            members: vec![None; members],
            vacant: Vec::new(),
            places: 0,
            held: Vec::new(),
            lingering: VecDeque::new(),
        }
    }

    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.truth.set_max_bytes(max_bytes);
    }

    /// Follows the members to their new positions; one that begins another life is not followed any more.
    pub fn set_members(&mut self, moved: &[Option<u32>], count: usize) {
        let mut members = vec![None; count];
        for (member, moved) in std::mem::take(&mut self.members).into_iter().zip(moved) {
            match (moved, member) {
                (Some(new), member) => members[*new as usize] = member,
                (None, Some((place, _))) => self.leave(place),
                (None, None) => {}
            }
        }
        self.members = members;
    }

    /// How well a member is followed.
    pub fn following(&self, member: usize) -> Following {
        self.members[member].map_or(Following::None, |(_, following)| following)
    }

    /// From now on a member is followed so.
    pub fn follow(&mut self, member: usize, following: Following) {
        match (&mut self.members[member], following) {
            (Some((place, _)), Following::None) => {
                let place = *place;
                self.members[member] = None;
                self.leave(place);
            }
            (Some((_, now)), following) => *now = following,
            (None, Following::None) => {}
            (None, following) => {
                let place = self.vacant.pop().unwrap_or_else(|| {
                    self.places += 1;
                    self.places - 1
                });
                self.truth.follow(place);
                self.members[member] = Some((place, following));
            }
        }
    }

    fn leave(&mut self, place: usize) {
        self.truth.unfollow(place);
        self.vacant.push(place);
    }

    /// Takes events of a member; `None` when it is not followed.
    pub fn take(&mut self, member: usize, events: &[CacheEvent<'_>]) -> Option<Taken> {
        let (place, _) = self.members[member]?;
        let mut taken = Taken::default();
        for event in events {
            match event {
                CacheEvent::Stored(stored) => match self.truth.store(place, stored) {
                    Ok(new) => taken.stored += new,
                    Err(why) => taken.unstored = Some((why, stored.hashes.len())),
                },
                CacheEvent::Removed { tier, hashes } => taken.removed += self.truth.remove(place, *tier, hashes),
                CacheEvent::Cleared => self.truth.clear(place),
            }
        }
        Some(taken)
    }

    /// Looks a prompt up.
    pub fn look(&mut self, blocks: &[u64]) {
        if self.members.iter().any(Option::is_some) {
            self.truth.lookup(blocks, &mut self.held);
        }
    }

    /// Leading blocks of the prompt that was looked up last which a member said it holds. What is not on the device but
    /// in a lower tier is read back faster than it is computed again, and not for nothing: it counts three quarters.
    pub fn depth(&self, member: usize) -> u32 {
        let held = self.members[member].and_then(|(place, _)| self.held.get(place));
        held.map_or(0, |held| held.device + (held.any - held.device) * 3 / 4)
    }

    /// A request has ended on a member that is followed exactly.
    pub fn linger(&mut self, placement: Placement, prompt: Arc<Prompt>, now: Tick) {
        self.lingering.push_back((Tick(now.0 + LINGERS), placement, prompt));
    }

    /// Takes back from `index` what has counted for long enough.
    pub fn settle(&mut self, index: &mut Index, now: Tick) {
        while self.lingering.front().is_some_and(|(until, ..)| *until <= now)
            && let Some((_, placement, prompt)) = self.lingering.pop_front()
        {
            index.withdraw(placement, &prompt.blocks);
        }
    }

    /// A few steps of what is left of those that left; whether there is more.
    pub fn sweep(&mut self, steps: usize) -> bool {
        self.truth.sweep(steps)
    }

    /// Bytes that what they said takes.
    pub fn bytes(&self) -> usize {
        self.truth.stats().bytes
    }

    /// Blocks that a member said it holds.
    pub fn held(&self, member: usize) -> usize {
        self.members[member].map_or(0, |(place, _)| self.truth.held(place))
    }
}
