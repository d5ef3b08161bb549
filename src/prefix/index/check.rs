//! What is always true of an index, whatever was done to it.
use std::collections::HashMap;

use super::*;

impl Index {
    /// Panics where the parts do not fit each other.
    pub(in crate::prefix) fn check(&self) {
        self.runs.check();
        let mut children: HashMap<u32, u32> = HashMap::new();
        let mut held: HashMap<u16, usize> = HashMap::new();
        let mut seats = 0;
        for (id, run) in self.runs.iter() {
            for (seat, holder) in run.holders().iter().enumerate() {
                let holding = self.holdings.get(holder.holding).expect("a holder's holding exists");
                assert_eq!((holding.run, holding.seat, holding.at), (id, seat as u32, holder.at));
                assert!(holding.confirmed <= holder.cutoff && holder.cutoff as usize <= run.len());
                assert!(holding.pins == 0 || holder.cutoff as usize == run.len(), "a pin covers whole runs");
                assert_eq!(run.seat_of(holder.at), Some(seat as u32), "a replica holds a run once");
                *held.entry(holder.at).or_default() += holder.cutoff as usize;
                seats += 1;
                if let Some(parent) = self.holdings.get(holding.parent) {
                    *children.entry(holding.parent).or_default() += 1;
                    let before = &self.runs[parent.run];
                    assert_eq!(before.holders()[parent.seat as usize].cutoff as usize, before.len(), "no holes");
                    assert!(parent.at == holding.at && parent.pins >= holding.pins);
                    assert!(parent.confirmed as usize == before.len() || holding.confirmed == 0);
                } else {
                    assert_eq!(holding.parent, NONE);
                }
            }
        }
        assert_eq!(self.holdings.len(), seats, "each holding has one seat");
        for (id, holding) in self.holdings.iter() {
            assert_eq!(holding.children, children.get(&id).copied().unwrap_or(0));
        }
        self.check_lists();
        for (at, replica) in self.replicas.iter().enumerate() {
            let held = held.get(&(at as u16)).copied().unwrap_or(0);
            assert!(replica.present && held == replica.held || !replica.present && replica.held == 0);
            assert!(!self.vacant.contains(&(at as u16)) || held == 0, "a place is vacant when it is swept");
        }
        assert_eq!(self.replicas.iter().map(|replica| replica.held).sum::<usize>(), self.pairs);
        let inner = [&self.gone, &self.vacant].map(|list| list.capacity()).iter().sum::<usize>() * 2;
        let replicas = self.replicas.capacity() * size_of::<Replica>() + self.oldest.capacity() * 8;
        assert_eq!(self.stats().bytes, self.runs.bytes() + self.holdings.bytes() + replicas + inner);
    }

    fn check_lists(&self) {
        let mut listed = 0;
        for (at, replica) in self.replicas.iter().enumerate() {
            for (list, pinned) in [(&replica.free, false), (&replica.pinned, true)] {
                let order: Vec<u32> = list.iter(&self.holdings).collect();
                let places: HashMap<u32, usize> = order.iter().enumerate().map(|(place, &id)| (id, place)).collect();
                for (place, id) in order.iter().enumerate() {
                    let holding = &self.holdings[*id];
                    assert_eq!((usize::from(holding.at), holding.pins > 0), (at, pinned));
                    assert!(place == 0 || self.holdings[order[place - 1]].stamp <= holding.stamp, "oldest first");
                    let parent = places.get(&holding.parent);
                    assert!(parent.is_none_or(|&parent| parent > place), "what comes before is newer");
                    assert!(!pinned || holding.parent == NONE || parent.is_some(), "what comes before is pinned too");
                }
                listed += order.len();
            }
            let oldest = self.holdings.get(replica.free.oldest).filter(|_| replica.present);
            assert_eq!(self.oldest[at], oldest.map_or(u64::MAX, |holding| holding.stamp));
        }
        assert_eq!(listed, self.holdings.len(), "each holding stands in one list");
    }
}
