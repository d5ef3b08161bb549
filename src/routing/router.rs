//! One pool's core: joins policy, candidates, bindings and placements, and is the only place that books.
//!
//! A decision is: whom the request belongs to (stored state, binding) → else the candidates' table → the policy's choice
//! → reserve → record. If the reservation is lost to another pool that shares the replica, that candidate is dropped and
//! the policy chooses again, so a decision ends after as many rounds as there are candidates.
use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use super::bindings::Bindings;
use super::candidates::{Candidates, FULL_SHARE, Row};
use super::placements::Placements;
use super::policy::{Aids, Choice, Policy, RoundRobin, Standing};
use super::{
    Effect, Expectation, Leg, Load, Member, Plan, Reason, Refusal, Request, Reservation, Score, SessionKey, Settings,
    State, Tick, rendezvous,
};
use crate::config::LoadPolicy;

/// How long a new or returned replica takes to reach its full share.
const RAMP_MICROS: u64 = 30_000_000;
/// The share a ramp starts with, in thousandths.
const RAMP_START: u64 = FULL_SHARE / 10;

/// One pool's routing core.
#[derive(Debug)]
pub struct Router {
    policy: Policy,
    entries: Vec<Entry>,
    index: HashMap<Arc<str>, u32, Xxh3DefaultBuilder>,
    bindings: Bindings,
    placements: Placements,
    turns: RoundRobin,
    /// The member that wins a perfect tie: the one after the last that a load policy chose.
    cursor: u32,
    rng: fastrand::Rng,
    /// The last decision's table, kept for its memory.
    table: Candidates,
    /// Where a shadow reserves.
    shadow_load: Option<Arc<Load>>,
}

/// A member and what the router knows of it.
#[derive(Debug)]
struct Entry {
    member: Member,
    id_hash: u64,
    warming_since: Option<Tick>,
}

/// A session's binding as a request finds it.
#[derive(Debug, Clone, Copy)]
struct Bound {
    member: usize,
    incarnation: u64,
    standing: Standing,
}

impl Router {
    /// A core for one pool. The same `seed` and the same calls give the same decisions; the seed also decides who has
    /// the first turn, so that routers started together do not all begin with the same replica.
    pub fn new(settings: &Settings<'_>, members: Vec<Member>, seed: u64) -> Self {
        let Settings { policy, session, .. } = *settings;
        let mut router = Self {
            policy: Policy::new(policy),
            entries: Vec::new(),
            index: HashMap::with_hasher(Xxh3DefaultBuilder::new()),
            bindings: Bindings::new(session.ttl, session.max_bindings),
            placements: Placements::default(),
            turns: RoundRobin::default(),
            cursor: 0,
            rng: fastrand::Rng::with_seed(seed),
            table: Candidates::default(),
            shadow_load: None,
        };
        router.set_members(members);
        router.cursor = (seed % router.entries.len().max(1) as u64) as u32;
        router
    }

    /// The same core, to decide beside another one: it sees the same loads and states, and what it reserves counts for
    /// nobody. Apply each plan's `on_success` at once, and it keeps bindings as if it were obeyed.
    pub fn into_shadow(mut self) -> Self {
        self.shadow_load = Some(Arc::default());
        self
    }

    /// Chooses a replica, reserves it and records the placement.
    ///
    /// A binding that the request uses is made young again; a new one is not written here but by [`Self::apply`], with
    /// the plan's `on_success`.
    pub fn decide(&mut self, request: &Request<'_>, now: Tick) -> Result<Plan, Refusal> {
        self.bindings.sweep(now);
        let session = self.policy.session(request);
        let bound = session.and_then(|session| self.bound(session, request, now));
        // A binding that still serves stays; so does one whose replica is only full.
        let unbound = session.filter(|_| bound.is_none_or(|bound| bound.standing == Standing::Lost));
        let mut full = false;

        if let Some(member) = request.pinned.and_then(|id| self.index.get(id)).map(|&member| member as usize) {
            let standing = Standing::of(&self.entries[member].member, request);
            if let Some(reservation) = self.reserve_own(member, standing, request) {
                let scores = self.explain(request, now);
                // Draining replicas get no new sessions.
                let draining = self.entries[member].member.status.get() == State::Draining;
                let bind = unbound.filter(|_| !draining);
                return Ok(self.book(member, reservation, Reason::Stored, bind, scores));
            }
            // Another has never seen what the request refers to: its answer would be that there is no such thing.
            if standing != Standing::Lost {
                return Err(Refusal::AllFull);
            }
        }
        if request.pinned_only {
            return Err(Refusal::NoneReady);
        }
        if let Some(Bound { member, incarnation, standing }) = bound {
            if let Some(reservation) = self.reserve_own(member, standing, request) {
                let scores = self.explain(request, now);
                let bind = session.filter(|_| self.entries[member].member.incarnation != incarnation);
                return Ok(self.book(member, reservation, Reason::Bound, bind, scores));
            }
            full |= standing != Standing::Lost;
        }

        self.fill_table(request, now);
        self.settle(request, unbound).map_err(|refusal| if full { Refusal::AllFull } else { refusal })
    }

    /// Has the policy choose from the table until a reservation holds.
    pub(super) fn settle(&mut self, request: &Request<'_>, bind: Option<SessionKey>) -> Result<Plan, Refusal> {
        let scores = if request.explain { self.scores() } else { Vec::new() };
        loop {
            let mut aids = Aids { turns: &self.turns, rng: &mut self.rng };
            let Some(choice) = self.policy.choose(request, &self.table, &mut aids) else {
                return Err(if self.table.full().is_empty() { Refusal::NoneReady } else { Refusal::AllFull });
            };
            let member = self.table.member(choice.row);
            let Some(reservation) = self.reserve(member, request) else {
                self.table.drop_full(choice.row);
                continue;
            };
            self.take_turn(choice);
            return Ok(self.book(member, reservation, choice.reason, bind, scores));
        }
    }

    /// Applies an effect: its own when an attempt succeeds, or one replayed from elsewhere.
    ///
    /// The effects in [`Plan::effects`] are already applied here. Effects that name a replica this router does not have
    /// are ignored; so are bindings under a policy that has none.
    pub fn apply(&mut self, effect: &Effect, now: Tick) {
        match effect {
            Effect::Placed { replica, incarnation, .. } => {
                if let Some(&member) = self.index.get(replica)
                    && self.entries[member as usize].member.incarnation == *incarnation
                {
                    self.placements.record(member as usize);
                }
            }
            Effect::Bound { session, replica, incarnation } => {
                if let (Policy::SessionSticky(_), Some(&member)) = (&self.policy, self.index.get(replica)) {
                    let id = self.entries[member as usize].member.id.clone();
                    self.bindings.write(*session, id, *incarnation, now);
                }
            }
        }
    }

    /// Replaces the members, keeping placements, turns and ramps of those that stay (same id and incarnation).
    ///
    /// Bindings are kept by id: one whose replica is gone costs its session a hash at the next request, and is rewritten
    /// when that succeeds.
    pub fn set_members(&mut self, members: Vec<Member>) {
        let mut old = std::mem::take(&mut self.entries);
        let mut moved = vec![None; old.len()];
        let mut entries = Vec::with_capacity(members.len());
        for (new, member) in members.into_iter().enumerate() {
            let before = self.index.get(&member.id).map(|&before| before as usize);
            let before = before.filter(|&before| old[before].member.incarnation == member.incarnation);
            if let Some(before) = before {
                moved[before] = Some(new as u32);
            }
            let warming_since = before.and_then(|before| old[before].warming_since.take());
            entries.push(Entry { id_hash: rendezvous::id_hash(&member.id), member, warming_since });
        }
        self.index.clear();
        self.index.extend(entries.iter().enumerate().map(|(at, entry)| (entry.member.id.clone(), at as u32)));
        self.placements.remap(&moved, entries.len());
        self.turns.remap(&moved, entries.len());
        self.cursor = moved.get(self.cursor as usize).copied().flatten().unwrap_or(0);
        self.entries = entries;
    }

    /// Takes a new policy and new session settings; members, placements, turns and bindings stay.
    ///
    /// Bindings stay under a policy that has none, too: they are there when the policy comes back, until their time to
    /// live is over. A new time to live counts from a binding's last use; a smaller table drops the least recently used.
    pub fn reconfigure(&mut self, settings: &Settings<'_>) {
        let Settings { policy, session, .. } = *settings;
        self.policy = Policy::new(policy);
        self.bindings.set_bounds(session.ttl, session.max_bindings);
    }

    /// The replica has begun to answer: the first event of the body has come.
    pub fn confirm(&mut self, expectation: &mut Expectation, now: Tick) {
        let _ = now;
        expectation.confirmed = true;
    }

    /// The request has ended, however.
    pub fn finish(&mut self, expectation: Expectation, now: Tick) {
        let _ = (expectation, now);
    }

    /// The attempt failed before the replica computed anything.
    pub fn withdraw(&mut self, expectation: Expectation, now: Tick) {
        let _ = (expectation, now);
    }

    /// What [`Self::decide`] would do, without doing it: nothing is reserved, recorded or made young. The plan's
    /// reservation counts for nobody.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn preview(&mut self, request: &Request<'_>, now: Tick) -> Result<Plan, Refusal> {
        let _ = (request, now);
        Err(Refusal::NoneReady)
    }

    /// Number of session bindings held. Some may have expired: they are swept a few a decision.
    pub fn bindings(&self) -> usize {
        self.bindings.len()
    }

    /// Looks a session's binding up and makes it young again.
    fn bound(&mut self, session: SessionKey, request: &Request<'_>, now: Tick) -> Option<Bound> {
        let (index, entries) = (&self.index, &self.entries);
        self.bindings
            .touch(session, now, |binding| {
                let member = *index.get(&binding.replica)? as usize;
                let standing = Standing::of(&entries[member].member, request);
                Some(Bound { member, incarnation: binding.incarnation, standing })
            })
            .flatten()
    }

    /// Reserves a replica that the request belongs to. That can fail although it `Takes`: another pool was faster.
    fn reserve_own(&self, member: usize, standing: Standing, request: &Request<'_>) -> Option<Reservation> {
        (standing == Standing::Takes).then(|| self.reserve(member, request)).flatten()
    }

    fn reserve(&self, member: usize, request: &Request<'_>) -> Option<Reservation> {
        let sequences = request.sequences.max(1);
        if let Some(load) = &self.shadow_load {
            return load.reserve(sequences, None);
        }
        let member = &self.entries[member].member;
        member.load.reserve(sequences, member.max_in_flight)
    }

    /// Fills the table with the members that may take a request which belongs to none.
    pub(super) fn fill_table(&mut self, request: &Request<'_>, now: Tick) {
        self.table.clear(self.cursor);
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let state = request.state_of(&entry.member);
            let ramp = entry.ramp(state, now);
            let member = &entry.member;
            if !matches!(state, State::Ready | State::Warming) || request.tried.contains(&member.id) {
                continue;
            }
            let open = request.open_on(member);
            let weight = member.weight.max(1);
            if member.max_in_flight.is_some_and(|max| open >= max) {
                self.table.push_full(entry.id_hash, weight);
                continue;
            }
            self.table.push(Row {
                member: at as u32,
                id_hash: entry.id_hash,
                weight,
                share: u64::from(weight) * ramp,
                open,
                placed: self.placements.count(at),
            });
        }
    }

    /// Books the turn that a load policy took.
    fn take_turn(&mut self, choice: Choice) {
        if let Some(policy) = choice.by {
            if policy == LoadPolicy::RoundRobin {
                self.turns.commit(&self.table, choice.row);
            }
            self.cursor = (self.table.member(choice.row) as u32 + 1) % self.entries.len() as u32;
        }
    }

    /// Records a placement that is reserved, and words the plan.
    fn book(
        &mut self,
        member: usize,
        reservation: Reservation,
        reason: Reason,
        bind: Option<SessionKey>,
        scores: Vec<Score>,
    ) -> Plan {
        self.placements.record(member);
        let member = &self.entries[member].member;
        let (replica, incarnation) = (member.id.clone(), member.incarnation);
        let placed = Effect::Placed { replica: replica.clone(), incarnation, sequences: reservation.sequences() };
        let on_success = bind.map(|session| Effect::Bound { session, replica: replica.clone(), incarnation });
        Plan {
            leg: Leg { replica, reservation },
            reason,
            effects: vec![placed],
            on_success,
            matched: 0,
            expectation: None,
            scores,
        }
    }

    /// What others would have scored, for a request that went to its own replica.
    fn explain(&mut self, request: &Request<'_>, now: Tick) -> Vec<Score> {
        if !request.explain {
            return Vec::new();
        }
        self.fill_table(request, now);
        self.scores()
    }

    fn scores(&self) -> Vec<Score> {
        let score = |row| Score {
            replica: self.entries[self.table.member(row)].member.id.clone(),
            load: self.table.load(row),
            matched: 0,
        };
        (0..self.table.len()).map(score).collect()
    }
}

impl Entry {
    /// The part of its weight that a member counts for, in thousandths. A ramp begins with the first decision that sees
    /// the member warming, and lasts while it does, for [`RAMP_MICROS`] at most.
    fn ramp(&mut self, state: State, now: Tick) -> u64 {
        if state != State::Warming {
            self.warming_since = None;
            return FULL_SHARE;
        }
        let since = *self.warming_since.get_or_insert(now);
        let elapsed = now.0.saturating_sub(since.0).min(RAMP_MICROS);
        RAMP_START + (FULL_SHARE - RAMP_START) * elapsed / RAMP_MICROS
    }
}
