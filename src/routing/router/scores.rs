//! What each member is judged by, for those who ask why.
use super::{Call, Entry, Router};
use crate::routing::candidates::Home;
use crate::routing::policy::{Policy, cache_aware, least_cost};
use crate::routing::prefixes::tokens;
use crate::routing::{Request, Score};

impl Router {
    /// What each member is judged by, if that is asked for.
    pub(super) fn scores(&mut self, request: &Request<'_>, home: Option<Home>, call: Call) -> Vec<Score> {
        if !request.explain {
            return Vec::new();
        }
        self.fill_table(request, home, call);
        let common = self.table.common();
        let work = self.prefixes.work(self.look, self.busy.price());
        let costs = match &self.policy {
            Policy::LeastCost(settings) if !request.load_only => {
                Some(least_cost::Costs::new(settings, &self.table, &work))
            }
            _ => None,
        };
        let score = |(at, entry): (usize, &Entry)| {
            let member = &entry.member;
            let row = (0..self.table.len()).find(|&row| self.table.member(row) == at);
            let depth = self.prefixes.depth(at, self.look);
            let counts = match &self.policy {
                Policy::CacheAware(settings) => cache_aware::is_worth(settings, depth, common),
                _ => depth > common,
            };
            let weight = member.weight.max(1);
            let in_flight = request.open_on(member);
            Score {
                replica: member.id.clone(),
                candidate: row.is_some(),
                saturated: member.load.saturated(call.now),
                state: request.state_of(member),
                weight,
                load: row.map_or(f64::from(in_flight) / f64::from(weight), |row| self.table.load(row)),
                in_flight,
                placed: self.placements.count(at),
                queued_seconds: request.queued_on(member, call.now),
                matched: tokens(depth),
                cost_seconds: row.and_then(|row| Some(costs.as_ref()?.of(row))),
                counted: if counts { tokens(depth - common) } else { 0 },
            }
        };
        self.entries.iter().enumerate().map(score).collect()
    }
}
