//! One pool's core: joins policy, candidates, bindings and placements, and is the only place that books.
//!
//! A decision is: whom the request belongs to (stored state, binding) → else the candidates' table → the policy's choice
//! → reserve → record. If the reservation is lost to another pool that shares the replica, that candidate is dropped and
//! the policy chooses again, so a decision ends after as many rounds as there are candidates.
mod scores;

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use super::bindings::{Binding, Bindings};
use super::busy::Busy;
use super::candidates::{Candidates, FULL_SHARE, Home, Remembered, Row};
use super::placements::Placements;
use super::policy::{Aids, Choice, Policy, RoundRobin, Standing};
use super::prefixes::{Look, Prefixes, tokens};
use super::{
    CacheEvent, Effect, Expectation, Following, LastPrompt, Leg, Load, Member, Plan, Prompt, Reason, Refusal, Reported,
    Request, Reservation, Score, SessionKey, Settings, State, Taken, Tick, rendezvous,
};
use crate::config::{LoadPolicy, LoadUnit};
use crate::prefix;

/// How long a new or returned replica takes to reach its full share.
const RAMP_MICROS: u64 = 30_000_000;
/// Holdings of replicas that left that one decision sweeps, and one end of a request.
pub(super) const SWEEP: usize = 8;
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
    /// Those of it that are saturated, while it is filled.
    saturated: Vec<Row>,
    /// What is known of prompts.
    prefixes: Prefixes,
    /// What was found of the present request's.
    look: Look,
    /// How busy the members are.
    busy: Busy,
    /// Where a shadow reserves.
    shadow_load: Option<Arc<Load>>,
}

/// One call: when, and whether anything comes of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub now: Tick,
    /// Not so for a preview.
    pub acts: bool,
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
    prompt: Option<LastPrompt>,
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
            saturated: Vec::new(),
            prefixes: Prefixes::new(settings),
            look: Look::default(),
            busy: Busy::default(),
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

    /// Chooses a replica, reserves it, records the placement and puts the prompt into the index.
    ///
    /// A binding that the request uses is made young again; a new one is not written here but by [`Self::apply`], with
    /// the plan's `on_success`.
    ///
    /// # Errors
    /// [`Refusal`] when no replica can take the request.
    pub fn decide(&mut self, request: &Request<'_>, now: Tick) -> Result<Plan, Refusal> {
        self.bindings.sweep(now);
        self.prefixes.sweep(SWEEP);
        self.run(request, Call { now, acts: true })
    }

    /// What [`Self::decide`] would do, without doing it: nothing is reserved, recorded, placed or made young, and no turn
    /// is taken. The plan's reservation counts for nobody; its effects would be applied, and are not.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn preview(&mut self, request: &Request<'_>, now: Tick) -> Result<Plan, Refusal> {
        let (rng, busy) = (self.rng.clone(), self.busy);
        let plan = self.run(request, Call { now, acts: false });
        (self.rng, self.busy) = (rng, busy);
        plan
    }

    fn run(&mut self, request: &Request<'_>, call: Call) -> Result<Plan, Refusal> {
        let session = self.policy.session(request);
        let bound = session.and_then(|session| self.bound(session, request, call));
        self.look = self.prefixes.look(request, call.now);
        let rewrites = self.policy.reads_prompts();
        let home = bound.filter(|_| rewrites).map(|bound| self.home(bound, request));
        // As it was before anything is reserved.
        let scores = self.scores(request, home, call);
        // A binding that still serves stays; so does one whose replica is only full. Those by prefix follow their session.
        let unbound = session.filter(|_| rewrites || bound.is_none_or(|bound| bound.standing == Standing::Lost));
        let mut full = false;

        if let Some(member) = request.pinned.and_then(|id| self.index.get(id)).map(|&member| member as usize) {
            let standing = Standing::of(&self.entries[member].member, request);
            if let Some(reservation) = self.reserve_own(member, standing, request, call) {
                // Draining replicas get no new sessions, and stored state moves none.
                let draining = self.entries[member].member.status.get() == State::Draining;
                let lost = bound.is_none_or(|bound| bound.standing == Standing::Lost);
                let bind = unbound.filter(|_| !draining && lost);
                return Ok(self.book(member, reservation, Reason::Stored, bind, scores, request, call));
            }
            // Another has never seen what the request refers to: its answer would be that there is no such thing.
            if standing != Standing::Lost {
                return Err(Refusal::AllFull);
            }
        }
        if request.pinned_only {
            return Err(Refusal::NoneReady);
        }
        if let (Some(Bound { member, incarnation, standing, .. }), false) = (bound, rewrites) {
            if let Some(reservation) = self.reserve_own(member, standing, request, call) {
                let bind = session.filter(|_| self.entries[member].member.incarnation != incarnation);
                return Ok(self.book(member, reservation, Reason::Bound, bind, scores, request, call));
            }
            full |= standing != Standing::Lost;
        }

        self.fill_table(request, home, call);
        if let (Some(home), Some(bound)) = (home, bound)
            && bound.standing != Standing::Lost
            && request.state_of(&self.entries[bound.member].member) == State::Draining
            && self.policy.keeps(&self.table, home, self.prefixes.depth(bound.member, self.look))
        {
            if let Some(reservation) = self.reserve_own(bound.member, bound.standing, request, call) {
                return Ok(self.book(bound.member, reservation, Reason::Bound, session, scores, request, call));
            }
            full = true;
        }
        self.settle(request, unbound, scores, call).map_err(|refusal| if full { Refusal::AllFull } else { refusal })
    }

    /// Has the policy choose from the table until a reservation holds.
    pub(super) fn settle(
        &mut self,
        request: &Request<'_>,
        bind: Option<SessionKey>,
        scores: Vec<Score>,
        call: Call,
    ) -> Result<Plan, Refusal> {
        loop {
            let work = self.prefixes.work(self.look, self.busy.price());
            let mut aids = Aids { turns: &self.turns, rng: &mut self.rng, work: &work };
            let Some(choice) = self.policy.choose(request, &self.table, &mut aids) else {
                return Err(if self.table.full().is_empty() { Refusal::NoneReady } else { Refusal::AllFull });
            };
            let member = self.table.member(choice.row);
            let Some(reservation) = self.reserve(member, request, call) else {
                self.table.drop_full(choice.row);
                continue;
            };
            if call.acts {
                self.take_turn(choice);
            }
            return Ok(self.book(member, reservation, choice.reason, bind, scores, request, call));
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
                    self.placements.record(member as usize, false, 0);
                }
            }
            Effect::Bound { session, replica, incarnation, prompt } => {
                if let (true, Some(&member)) = (self.policy.binds(), self.index.get(replica)) {
                    let id = self.entries[member as usize].member.id.clone();
                    self.bindings.write(*session, id, *incarnation, *prompt, now);
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
        self.prefixes.set_members(&moved, entries.iter().map(|entry| &entry.member));
        self.cursor = moved.get(self.cursor as usize).copied().flatten().unwrap_or(0);
        self.entries = entries;
    }

    /// Takes new settings; members, placements, turns and bindings stay, and the index while it is wanted.
    ///
    /// Bindings stay under a policy that has none, too: they are there when the policy comes back, until their time to
    /// live is over. A new time to live counts from a binding's last use; a smaller table drops the least recently used.
    pub fn reconfigure(&mut self, settings: &Settings<'_>) {
        let Settings { policy, session, .. } = *settings;
        self.policy = Policy::new(policy);
        self.bindings.set_bounds(session.ttl, session.max_bindings);
        self.prefixes.configure(settings, self.entries.iter().map(|entry| &entry.member));
    }

    /// Frees a few steps' worth of what replicas that left still take up, and of what is over the index' bytes; whether
    /// there is more. Every decision does so, too: call it where none may come for long.
    pub fn sweep(&mut self, steps: usize) -> bool {
        self.prefixes.sweep(steps)
    }

    /// From now on a replica's events are followed so; nothing comes of it without an index, or for one that is no member.
    ///
    /// A replica that begins another life is not followed until this is called again.
    pub fn follow(&mut self, replica: &str, following: Following) {
        if let Some(&member) = self.index.get(replica) {
            self.prefixes.follow(member as usize, following);
        }
    }

    /// Takes what a replica says it holds, in the order in which it said so; `None` when it is not followed.
    pub fn cache_events(&mut self, replica: &str, events: &[CacheEvent<'_>]) -> Option<Taken> {
        self.prefixes.cache_events(*self.index.get(replica)? as usize, events)
    }

    /// The replica has begun to answer: the first event of the body has come.
    pub fn confirm(&mut self, expectation: &mut Expectation, now: Tick) {
        self.prefixes.confirm(expectation, now);
    }

    /// The engine has said of a whole request what it found in its cache. Call it before [`Self::finish`].
    ///
    /// A replica that keeps finding less than was known to be there is assumed to keep less; what a prefill taught is
    /// corrected.
    pub fn reported(&mut self, expectation: &Expectation, reported: Reported) {
        self.prefixes.reported(expectation, reported);
    }

    /// The request has ended, however.
    pub fn finish(&mut self, expectation: Expectation, now: Tick) {
        self.prefixes.finish(expectation, now);
    }

    /// The attempt failed before the replica computed anything.
    pub fn withdraw(&mut self, expectation: Expectation, now: Tick) {
        self.prefixes.withdraw(expectation, now);
    }

    /// Seconds to prefill a prompt of so many tokens, of which so many are cached, as is known so far.
    pub fn prefill_seconds(&self, tokens: u32, matched: u32) -> f64 {
        self.prefixes.prefill_seconds(tokens, matched)
    }

    /// Figures of the prefix index; `None` where none is kept.
    pub fn index_stats(&self) -> Option<prefix::Stats> {
        self.prefixes.stats()
    }

    /// Blocks of prompts that the index knows on a replica; 0 for one that is no member.
    pub fn index_held(&self, replica: &str) -> usize {
        self.index.get(replica).map_or(0, |&member| self.prefixes.held(member as usize))
    }

    /// Blocks that a replica is assumed to keep; 0 for one that is no member, and where no index is kept.
    pub fn index_capacity(&self, replica: &str) -> usize {
        self.index.get(replica).map_or(0, |&member| self.prefixes.capacity(member as usize))
    }

    /// The prefix index as it is, at most `limit` runs of it, for debugging; `None` where none is kept.
    pub fn index_dump(&self, limit: usize) -> Option<prefix::Dump> {
        self.prefixes.dump(limit)
    }

    /// Number of session bindings held. Some may have expired: they are swept a few a decision.
    pub fn bindings(&self) -> usize {
        self.bindings.len()
    }

    /// Looks a session's binding up and makes it young again.
    fn bound(&mut self, session: SessionKey, request: &Request<'_>, call: Call) -> Option<Bound> {
        let (index, entries) = (&self.index, &self.entries);
        let read = |binding: &Binding| {
            let member = *index.get(&binding.replica)? as usize;
            let standing = Standing::of(&entries[member].member, request);
            Some(Bound { member, incarnation: binding.incarnation, standing, prompt: binding.prompt })
        };
        if call.acts {
            self.bindings.touch(session, call.now, read).flatten()
        } else {
            self.bindings.peek(session, call.now).and_then(read)
        }
    }

    /// A bound replica, and what may be assumed that it holds of the prompt.
    fn home(&self, bound: Bound, request: &Request<'_>) -> Home {
        let same_life = self.entries[bound.member].member.incarnation == bound.incarnation;
        let remembers = match (request.prompt, bound.prompt) {
            _ if !same_life => None,
            (Some(prompt), Some(last)) if prompt.blocks.first() == Some(&last.first) => {
                Some(Remembered::Blocks(last.blocks.min(prompt.blocks.len() as u32)))
            }
            (None, _) => Some(Remembered::Unknown),
            _ => None,
        };
        Home { member: bound.member as u32, remembers }
    }

    /// Reserves a replica that the request belongs to. That can fail although it `Takes`: another pool was faster.
    fn reserve_own(&self, member: usize, standing: Standing, request: &Request<'_>, call: Call) -> Option<Reservation> {
        (standing == Standing::Takes).then(|| self.reserve(member, request, call)).flatten()
    }

    fn reserve(&self, member: usize, request: &Request<'_>, call: Call) -> Option<Reservation> {
        let sequences = request.sequences.max(1);
        match &self.shadow_load {
            _ if !call.acts => Arc::<Load>::default().reserve(sequences, None),
            Some(load) => load.reserve(sequences, None),
            None => {
                let member = &self.entries[member].member;
                member.load.reserve(sequences, member.max_in_flight)
            }
        }
    }

    /// Fills the table with the members that may take a request which belongs to none. One whose engine is saturated is full,
    /// unless all are.
    pub(super) fn fill_table(&mut self, request: &Request<'_>, home: Option<Home>, call: Call) {
        let unit = self.policy.load_unit(request);
        let costs = matches!(self.policy, Policy::LeastCost(_)) && !request.load_only;
        self.table.clear(self.cursor, unit, self.look.shared, home);
        let (mut ready, mut busy) = (0_u32, 0_u32);
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let state = request.state_of(&entry.member);
            let ramp = entry.ramp(state, call);
            let member = &entry.member;
            if !matches!(state, State::Ready | State::Warming) || request.tried.contains(&member.id) {
                continue;
            }
            let open = request.open_on(member);
            let weight = member.weight.max(1);
            let depth = self.prefixes.depth(at, self.look);
            let queued = if unit == LoadUnit::QueuedSeconds { request.queued_on(member, call.now) } else { 0.0 };
            (ready, busy) = (ready + 1, busy + u32::from(queued > 0.0));
            let row = Row {
                member: at as u32,
                id_hash: entry.id_hash,
                weight,
                share: u64::from(weight) * ramp,
                open,
                placed: self.placements.count(at),
                coming: self.placements.coming(at),
                work: self.placements.work(at),
                queued,
                depth,
            };
            if member.max_in_flight.is_some_and(|max| open >= max) {
                self.table.push_full(row.full());
            } else if member.load.saturated(call.now) {
                self.saturated.push(row);
            } else {
                self.table.push(row);
            }
        }
        let others = self.table.len() > 0;
        for row in self.saturated.drain(..) {
            if others { self.table.push_full(row.full()) } else { self.table.push(row) }
        }
        // Full ones, too: they are the busiest.
        if costs && ready > 0 {
            self.busy.see(f64::from(busy) / f64::from(ready), call.now);
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
    #[allow(clippy::too_many_arguments)]
    fn book(
        &mut self,
        member: usize,
        reservation: Reservation,
        reason: Reason,
        bind: Option<SessionKey>,
        scores: Vec<Score>,
        request: &Request<'_>,
        call: Call,
    ) -> Plan {
        let matched = tokens(self.prefixes.depth(member, self.look));
        let mut expectation = None;
        if call.acts {
            let load = self.shadow_load.is_none().then_some(&self.entries[member].member.load);
            let seconds = self.prefixes.seconds(member, self.look);
            self.placements.record(member, reason == Reason::NoMatch, (seconds * 1e6) as u64);
            expectation = self.prefixes.place(member, self.look, request, load, seconds, call.now);
        }
        let member = &self.entries[member].member;
        let (replica, incarnation) = (member.id.clone(), member.incarnation);
        let placed = Effect::Placed { replica: replica.clone(), incarnation, sequences: reservation.sequences() };
        let last = |prompt: &Arc<Prompt>| {
            let first = *prompt.blocks.first()?;
            Some(LastPrompt { first, blocks: prompt.blocks.len() as u32 })
        };
        let prompt = if self.policy.reads_prompts() { request.prompt.and_then(last) } else { None };
        let on_success = bind.map(|session| Effect::Bound { session, replica: replica.clone(), incarnation, prompt });
        Plan {
            leg: Leg { replica, reservation },
            reason,
            effects: vec![placed],
            on_success,
            matched,
            expectation,
            scores,
        }
    }
}

impl Entry {
    /// The part of its weight that a member counts for, in thousandths. A ramp begins with the first decision that sees
    /// the member warming, and lasts while it does, for [`RAMP_MICROS`] at most.
    fn ramp(&mut self, state: State, call: Call) -> u64 {
        let since = self.warming_since.filter(|_| state == State::Warming).unwrap_or(call.now);
        if call.acts {
            self.warming_since = (state == State::Warming).then_some(since);
        }
        if state != State::Warming {
            return FULL_SHARE;
        }
        let elapsed = call.now.0.saturating_sub(since.0).min(RAMP_MICROS);
        RAMP_START + (FULL_SHARE - RAMP_START) * elapsed / RAMP_MICROS
    }
}
