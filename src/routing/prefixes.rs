//! What a pool's core knows of prompts: the index with a slot for each member's life, heads, and how long prefills take.
//!
//! A decision looks a prompt up, and places it in the same call; until the request has ended its [`Expectation`] pins the
//! blocks and holds its part of the replica's virtual queue. Without an index nothing here costs or knows anything.
use std::sync::Arc;

use super::followed::{CacheEvent, Followed, Following, Taken};
use super::heads::Heads;
use super::policy::least_cost::Work;
use super::prefill::Model;
use super::router::SWEEP;
use super::trust::{Reported, Trust};
use super::{Expectation, Load, Member, Request, Settings, Tick};
use crate::prefix::{BLOCK_TOKENS, Index, Slot, Stats};

#[derive(Debug)]
pub(super) struct Prefixes {
    kept: Option<Kept>,
    model: Model,
    /// Of how many indexes the present one is the last.
    indexes: u32,
}

#[derive(Debug)]
struct Kept {
    index: Index,
    /// Each member's, by position.
    slots: Vec<Slot>,
    /// What each is assumed to keep.
    trust: Vec<Trust>,
    heads: Heads,
    /// Those that say what they hold.
    followed: Followed,
    /// What each slot holds of the prompt that was looked at last.
    depths: Vec<u32>,
    /// The deepest of them.
    reach: u32,
}

/// What is known of a request's prompt.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    /// Whole blocks that count as a match at most: engines always compute the last token.
    limit: u32,
    /// Leading blocks that count for nobody.
    pub shared: u32,
    /// Leading blocks that too few hold for the requests that begin with them.
    pub seeded: u32,
    /// Its tokens.
    pub tokens: Option<u32>,
    /// Where the last answer in it begins and ends, in blocks.
    answer: Option<(u32, u32)>,
}

impl Look {
    /// What of the prompt a replica most likely holds that is known to hold so many leading blocks of it.
    pub fn with_answer(&self, depth: u32) -> u32 {
        match self.answer {
            Some((begin, end)) if depth >= begin => depth.max(end.min(self.limit)),
            _ => depth,
        }
    }
}

impl Prefixes {
    pub fn new(settings: &Settings<'_>) -> Self {
        let mut prefixes = Self { kept: None, model: Model::new(settings.prefill), indexes: 0 };
        prefixes.configure(settings, std::iter::empty());
        prefixes
    }

    /// Takes new settings: an index that both the old and the new want is kept.
    pub fn configure<'a>(&mut self, settings: &Settings<'_>, members: impl Iterator<Item = &'a Member>) {
        self.model.set(settings.prefill);
        match (settings.index_bytes, &mut self.kept) {
            (Some(bytes), Some(kept)) => {
                kept.index.set_max_bytes(bytes);
                kept.followed.set_max_bytes(bytes);
            }
            (Some(bytes), None) => {
                let mut index = Index::new(bytes);
                let trust: Vec<_> = members.map(|member| Trust::new(capacity(member))).collect();
                let slots = trust.iter().map(|trust| index.add(trust.capacity())).collect();
                let followed = Followed::new(trust.len(), bytes);
                let heads = Heads::default();
                self.indexes = self.indexes.wrapping_add(1);
                self.kept = Some(Kept { index, slots, trust, heads, followed, depths: Vec::new(), reach: 0 });
            }
            (None, _) => self.kept = None,
        }
    }

    /// Follows the members to their new positions (`moved[old]`): those that stay keep their slot, the others get one.
    pub fn set_members<'a>(&mut self, moved: &[Option<u32>], members: impl ExactSizeIterator<Item = &'a Member>) {
        let Some(Kept { index, slots, trust, followed, .. }) = &mut self.kept else { return };
        followed.set_members(moved, members.len());
        let mut stay = vec![None; members.len()];
        for ((&slot, &trust), moved) in slots.iter().zip(&*trust).zip(moved) {
            match moved {
                Some(new) => stay[*new as usize] = Some((slot, trust)),
                None => index.remove(slot),
            }
        }
        let place = |(stays, member): (Option<(Slot, Trust)>, &Member)| match stays {
            Some((slot, mut trust)) => {
                trust.configure(capacity(member));
                index.set_capacity(slot, trust.capacity());
                (slot, trust)
            }
            None => (index.add(capacity(member)), Trust::new(capacity(member))),
        };
        (*slots, *trust) = stay.into_iter().zip(members).map(place).unzip();
    }

    /// A few steps of what is left of replicas that left; whether there is more.
    pub fn sweep(&mut self, steps: usize) -> bool {
        self.kept.as_mut().is_some_and(|kept| kept.followed.sweep(steps) | kept.index.sweep(steps))
    }

    /// From now on a member's events are followed so.
    pub fn follow(&mut self, member: usize, following: Following) {
        let Some(Kept { index, slots, trust, followed, .. }) = &mut self.kept else { return };
        if following == Following::Exactly && followed.following(member) != following {
            // What was predicted, its events say, or it is not there.
            index.remove(slots[member]);
            slots[member] = index.add(trust[member].capacity());
        }
        followed.follow(member, following);
    }

    /// Takes events of a member; `None` when it is not followed.
    pub fn cache_events(&mut self, member: usize, events: &[CacheEvent<'_>]) -> Option<Taken> {
        self.kept.as_mut()?.followed.take(member, events)
    }

    /// Looks a request's prompt up.
    pub fn look(&mut self, request: &Request<'_>, now: Tick) -> Look {
        let Some(kept) = &mut self.kept else { return Look::default() };
        kept.followed.settle(&mut kept.index, now);
        let Some(prompt) = request.prompt.filter(|_| !request.load_only) else {
            kept.depths.clear();
            return Look::default();
        };
        kept.look(&prompt.blocks);
        kept.reach = kept.depths.iter().copied().max().unwrap_or(0);
        let limit = prompt.tokens.saturating_sub(1) / BLOCK_TOKENS as u32;
        Look {
            limit,
            shared: kept.heads.shared(&prompt.blocks, kept.slots.len()),
            seeded: kept.seeded().min(limit),
            tokens: Some(prompt.tokens),
            answer: prompt.answer.map(|(begin, end)| (begin / BLOCK_TOKENS as u32, end / BLOCK_TOKENS as u32)),
        }
    }

    /// Seconds to prefill the prompt that was looked up last on a member.
    pub fn seconds(&self, member: usize, look: Look) -> f64 {
        let held = tokens(look.with_answer(self.depth(member, look)));
        look.tokens.map_or(0.0, |prompt| self.model.seconds(prompt, held))
    }

    /// What a request asks of a replica, at a price of work.
    pub fn work(&self, look: Look, price: f64) -> Work<'_> {
        Work { look, model: &self.model, price }
    }

    /// Leading blocks of the prompt that was looked up last which a member holds.
    pub fn depth(&self, member: usize, look: Look) -> u32 {
        let depth = self.kept.as_ref().and_then(|kept| kept.depths.get(kept.slots[member].at()).copied());
        depth.unwrap_or(0).min(look.limit)
    }

    /// Places the prompt that was looked up last on a member, and books the seconds of its prefill with `load`, if that is
    /// given.
    pub fn place(
        &mut self,
        member: usize,
        look: Look,
        request: &Request<'_>,
        load: Option<&Arc<Load>>,
        seconds: f64,
        now: Tick,
    ) -> Option<Expectation> {
        let depth = self.depth(member, look);
        let Self { kept: Some(kept), indexes, .. } = self else { return None };
        let prompt = request.prompt.filter(|_| !request.load_only)?;
        // A second attempt is no second request.
        if request.tried.is_empty() {
            kept.heads.count(&prompt.blocks, kept.reach, kept.slots.len());
        }
        let slot = kept.slots[member];
        let held = prompt.blocks.get(..depth as usize).unwrap_or_default();
        let known = tokens(kept.index.confirmed(slot, held) as u32);
        let queued = load.map(|load| (load.clone(), load.queue.book(seconds, now)));
        Some(Expectation {
            placement: kept.index.place(slot, &prompt.blocks),
            prompt: prompt.clone(),
            confirmed: false,
            index: *indexes,
            queued,
            matched: tokens(look.with_answer(depth)),
            known,
            sample: None,
            repeat: kept.reach as usize == prompt.blocks.len(),
            streams: request.streams,
        })
    }

    /// The first output has come.
    pub fn confirm(&mut self, expectation: &mut Expectation, now: Tick) {
        if std::mem::replace(&mut expectation.confirmed, true) {
            return;
        }
        let Expectation { prompt, placement, queued, matched, streams, .. } = &*expectation;
        let mut sample = None;
        if let Some((load, ticket)) = queued {
            load.queue.confirm(ticket, *streams, now);
            if *streams && ticket.alone {
                let micros = now.0.saturating_sub(ticket.at().0);
                sample = self.model.learn(prompt.tokens, *matched, micros as f64 / 1e6);
            }
        }
        if let Some(kept) = self.of(expectation) {
            if !kept.is_exact(placement.slot()) {
                kept.index.confirm(placement, &prompt.blocks);
            }
            kept.answered(expectation);
        }
        expectation.sample = sample;
    }

    /// The engine has said what it found in its cache.
    pub fn reported(&mut self, expectation: &Expectation, reported: Reported) {
        let tokens = expectation.prompt.tokens;
        if let Some(sample) = expectation.sample {
            self.model.correct(sample, tokens, reported.cached_of(tokens));
        }
        if let Some(Kept { index, slots, trust, followed, .. }) = self.of(expectation) {
            let slot = expectation.placement.slot();
            let member = slots.iter().position(|&each| each == slot);
            // One that says what it holds needs no guess at how much that is.
            let guessed = member.filter(|&member| followed.following(member) != Following::Exactly);
            if let Some(trust) = guessed.and_then(|member| trust.get_mut(member))
                && trust.report(expectation.known, tokens, reported, index.held(slot))
            {
                index.set_capacity(slot, trust.capacity());
            }
        }
    }

    /// The request has ended.
    pub fn finish(&mut self, expectation: Expectation, now: Tick) {
        if let (false, Some((load, ticket))) = (expectation.confirmed, &expectation.queued) {
            load.queue.withdraw(ticket, now);
        }
        if let Some(kept) = self.of(&expectation) {
            if !expectation.confirmed {
                kept.answered(&expectation);
            }
            if kept.is_exact(expectation.placement.slot()) {
                kept.followed.linger(expectation.placement, expectation.prompt, now);
                kept.followed.settle(&mut kept.index, now);
            } else {
                kept.index.finish(expectation.placement, &expectation.prompt.blocks);
            }
        }
        self.sweep(SWEEP);
    }

    /// The replica never got it.
    pub fn withdraw(&mut self, expectation: Expectation, now: Tick) {
        if let Some((load, ticket)) = &expectation.queued {
            load.queue.withdraw(ticket, now);
        }
        if let Some(kept) = self.of(&expectation) {
            kept.index.withdraw(expectation.placement, &expectation.prompt.blocks);
        }
        self.sweep(SWEEP);
    }

    /// Seconds to prefill a prompt of so many tokens, of which so many are cached.
    pub fn prefill_seconds(&self, tokens: u32, matched: u32) -> f64 {
        self.model.seconds(tokens, matched)
    }

    /// The index as it is, at most `limit` runs of it.
    pub fn dump(&self, limit: usize) -> Option<crate::prefix::Dump> {
        self.kept.as_ref().map(|kept| kept.index.dump(limit))
    }

    /// Figures of the index; its bytes with those of what events said.
    pub fn stats(&self) -> Option<Stats> {
        self.kept.as_ref().map(|kept| {
            let stats = kept.index.stats();
            Stats { bytes: stats.bytes + kept.followed.bytes(), ..stats }
        })
    }

    /// Blocks that a member holds.
    pub fn held(&self, member: usize) -> usize {
        let held = |kept: &Kept| kept.followed.held(member) + kept.index.held(kept.slots[member]);
        self.kept.as_ref().map_or(0, held)
    }

    /// Blocks that a member is assumed to keep.
    pub fn capacity(&self, member: usize) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.trust[member].capacity())
    }

    /// The index that an expectation is of, if it is still kept.
    fn of(&mut self, expectation: &Expectation) -> Option<&mut Kept> {
        self.kept.as_mut().filter(|_| expectation.index == self.indexes)
    }
}

impl Kept {
    /// Looks a prompt up, in what is predicted and in what events said.
    fn look(&mut self, blocks: &[u64]) {
        self.index.lookup(blocks, &mut self.depths);
        self.followed.look(blocks);
        for (member, slot) in self.slots.iter().enumerate() {
            let depth = &mut self.depths[slot.at()];
            *depth = self.followed.depth(member).max(*depth);
        }
    }

    /// Whether a slot is that of a member which is followed exactly.
    fn is_exact(&self, slot: Slot) -> bool {
        let member = self.slots.iter().position(|&each| each == slot);
        member.is_some_and(|member| self.followed.following(member) == Following::Exactly)
    }

    /// The blocks of the head that the match of the prompt looked up last ends with, where fewer members hold it than its
    /// share of the requests asks for; else 0.
    fn seeded(&self) -> u32 {
        let wanted = |share: f64| (share * self.slots.len() as f64).ceil() as usize;
        let holders = |end| self.slots.iter().filter(|slot| self.depths[slot.at()] >= end).count();
        let few = |&(end, share): &(u32, f64)| end == self.reach && holders(end) < wanted(share);
        self.heads.shares().find(few).map_or(0, |(end, _)| end)
    }

    fn answered(&mut self, expectation: &Expectation) {
        if expectation.repeat {
            self.heads.repeated(&expectation.prompt.blocks, self.slots.len());
        }
    }
}

/// The tokens of so many blocks.
pub(super) fn tokens(blocks: u32) -> u32 {
    blocks.saturating_mul(BLOCK_TOKENS as u32)
}

fn capacity(member: &Member) -> usize {
    usize::try_from(member.cache_tokens).unwrap_or(usize::MAX) / BLOCK_TOKENS
}
