//! What a lookup found, for callers that have many replicas of which few hold anything.

/// Depths by place, most of them zero. Used again and again, it costs by what is found, not by the replicas there are.
#[derive(Debug, Clone, Default)]
pub struct Matches {
    /// By place; zero where not in `found`.
    depths: Vec<u32>,
    found: Vec<u16>,
}

impl Matches {
    /// How many leading blocks of the chain the replica at this place holds.
    pub fn depth(&self, at: usize) -> u32 {
        self.depths.get(at).copied().unwrap_or(0)
    }

    /// The replicas that hold any: place and depth, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u32)> {
        self.found.iter().map(|&at| (usize::from(at), self.depths[usize::from(at)]))
    }

    /// Forgets what was found, and makes room for so many places.
    pub(super) fn clear(&mut self, places: usize) {
        for at in self.found.drain(..) {
            self.depths[usize::from(at)] = 0;
        }
        if self.depths.len() < places {
            self.depths.resize(places, 0);
        }
    }

    pub(super) fn set(&mut self, at: u16, depth: u32) {
        let place = &mut self.depths[usize::from(at)];
        if *place == 0 {
            self.found.push(at);
        }
        *place = depth;
    }
}
