//! Where the last requests went: a window of 32 × replicas placements, counted for each replica.
//!
//! Idle replicas all have the same load; what they were given lately tells them apart.
use std::collections::VecDeque;

/// Placements remembered for each replica, on average.
const PER_REPLICA: usize = 32;

/// The window and its counts. Members are named by their position.
#[derive(Debug, Default)]
pub(super) struct Placements {
    window: VecDeque<u32>,
    counts: Vec<u32>,
}

impl Placements {
    /// An empty window for `members` members.
    pub fn new(members: usize) -> Self {
        Self { window: VecDeque::with_capacity(members * PER_REPLICA), counts: vec![0; members] }
    }

    /// Records one placement; the oldest leaves when the window is full.
    pub fn record(&mut self, member: usize) {
        self.window.push_back(member as u32);
        self.counts[member] += 1;
        self.shrink();
    }

    /// Placements of a member in the window.
    pub fn count(&self, member: usize) -> u32 {
        self.counts[member]
    }

    /// Follows the members to their new positions (`moved[old]`); placements of those that left are forgotten.
    pub fn remap(&mut self, moved: &[Option<u32>], members: usize) {
        let old = std::mem::replace(self, Self::new(members));
        for place in old.window.into_iter().filter_map(|member| moved[member as usize]) {
            self.record(place as usize);
        }
    }

    fn shrink(&mut self) {
        while self.window.len() > self.counts.len() * PER_REPLICA {
            if let Some(oldest) = self.window.pop_front() {
                self.counts[oldest as usize] -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_holds_32_placements_a_replica() {
        let mut placements = Placements::new(2);
        for _ in 0..100 {
            placements.record(0);
        }
        assert_eq!(placements.count(0), 64);
        for _ in 0..10 {
            placements.record(1);
        }
        assert_eq!((placements.count(0), placements.count(1)), (54, 10));
    }

    #[test]
    fn placements_follow_members_that_move() {
        let mut placements = Placements::new(3);
        for member in [0, 1, 1, 2, 2, 2] {
            placements.record(member);
        }
        placements.remap(&[Some(1), None, Some(0)], 2);
        assert_eq!((placements.count(0), placements.count(1)), (3, 1));
    }
}
