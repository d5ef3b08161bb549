//! Where the last requests went: a window of 32 × replicas placements, counted for each replica, and how long their
//! prefills took.
//!
//! Idle replicas all have the same load; what they were given lately tells them apart. A request that follows nothing
//! may begin a session, whose further requests will follow it: that is load to come.
use std::collections::VecDeque;

/// Placements remembered for each replica, on average.
const PER_REPLICA: usize = 32;
/// The same, of those whose sessions still have most of their requests before them.
const YOUNG_PER_REPLICA: usize = 8;

/// The window and its counts. Members are named by their position.
#[derive(Debug, Default)]
pub(super) struct Placements {
    window: VecDeque<Place>,
    counts: Vec<Count>,
    /// Sessions begun in the whole window.
    begun: u32,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    member: u32,
    begins: bool,
    micros: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    placed: u32,
    /// Sessions begun among the last few.
    young: u32,
    /// Microseconds of prefill that they took.
    micros: u64,
}

impl Placements {
    /// An empty window for `members` members.
    pub fn new(members: usize) -> Self {
        let window = VecDeque::with_capacity(members * PER_REPLICA);
        Self { window, counts: vec![Count::default(); members], begun: 0 }
    }

    /// Records one placement, and whether it may have begun a session; the oldest leaves when the window is full.
    pub fn record(&mut self, member: usize, begins: bool, micros: u64) {
        self.window.push_back(Place { member: member as u32, begins, micros });
        self.counts[member].micros += micros;
        self.counts[member].placed += 1;
        self.counts[member].young += u32::from(begins);
        self.begun += u32::from(begins);
        let grown = self.window.len().checked_sub(1 + self.counts.len() * YOUNG_PER_REPLICA);
        if let Some(grown) = grown.and_then(|at| self.window.get(at)) {
            self.counts[grown.member as usize].young -= u32::from(grown.begins);
        }
        while self.window.len() > self.counts.len() * PER_REPLICA {
            if let Some(oldest) = self.window.pop_front() {
                self.counts[oldest.member as usize].placed -= 1;
                self.counts[oldest.member as usize].micros -= oldest.micros;
                self.begun -= u32::from(oldest.begins);
            }
        }
    }

    /// Placements of a member in the window.
    pub fn count(&self, member: usize) -> u32 {
        self.counts[member].placed
    }

    /// Seconds of prefill placed on a member in the window.
    pub fn work(&self, member: usize) -> f64 {
        self.counts[member].micros as f64 / 1e6
    }

    /// What was placed on a member lately, and what the sessions begun there just now will bring: as many requests each
    /// as there were lately for each that began.
    pub fn coming(&self, member: usize) -> f64 {
        let each = self.window.len() as f64 / f64::from(self.begun.max(1));
        let Count { placed, young, .. } = self.counts[member];
        f64::from(placed) + f64::from(young) * each.min(PER_REPLICA as f64)
    }

    /// Follows the members to their new positions (`moved[old]`); placements of those that left are forgotten.
    pub fn remap(&mut self, moved: &[Option<u32>], members: usize) {
        let old = std::mem::replace(self, Self::new(members));
        for place in old.window {
            if let Some(member) = moved[place.member as usize] {
                self.record(member as usize, place.begins, place.micros);
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
            placements.record(0, false, 0);
        }
        assert_eq!(placements.count(0), 64);
        for _ in 0..10 {
            placements.record(1, false, 0);
        }
        assert_eq!((placements.count(0), placements.count(1)), (54, 10));
    }

    #[test]
    fn placements_follow_members_that_move() {
        let mut placements = Placements::new(3);
        for member in [0, 1, 1, 2, 2, 2] {
            placements.record(member, member == 2, 0);
        }
        placements.remap(&[Some(1), None, Some(0)], 2);
        assert_eq!((placements.count(0), placements.count(1)), (3, 1));
        assert_eq!(placements.coming(1), 1.0);
        assert_eq!(placements.coming(0), 3.0 + 3.0 * 4.0 / 3.0);
    }

    #[test]
    fn a_session_that_began_counts_for_what_sessions_bring() {
        let mut placements = Placements::new(2);
        // Two sessions of four requests on the first member; then one that has only begun on the second.
        for at in 0..8 {
            placements.record(0, at % 4 == 0, 0);
        }
        placements.record(1, true, 0);
        assert_eq!((placements.coming(0), placements.coming(1)), (8.0 + 2.0 * 3.0, 1.0 + 3.0));
        // They age before they leave the window.
        (0..12).for_each(|_| placements.record(1, false, 0));
        assert_eq!((placements.coming(0), placements.coming(1)), (8.0, 13.0 + 7.0));
        (0..200).for_each(|_| placements.record(0, false, 0));
        assert_eq!((placements.coming(0), placements.coming(1)), (64.0, 0.0));
    }

    #[test]
    fn work_is_that_of_the_window() {
        let mut placements = Placements::new(2);
        (0..3).for_each(|_| placements.record(0, false, 500_000));
        placements.record(1, true, 4_000_000);
        assert_eq!((placements.work(0), placements.work(1)), (1.5, 4.0));
        (0..62).for_each(|_| placements.record(1, false, 0));
        assert_eq!((placements.work(0), placements.work(1)), (0.5, 4.0), "the oldest two have left");
        placements.remap(&[Some(1), Some(0)], 2);
        assert_eq!((placements.work(0), placements.work(1)), (4.0, 0.5));
    }
}
