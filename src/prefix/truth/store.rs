//! How events change what a replica holds, where the engine's blocks are as large as ours, or several times as large.
use super::super::hash::{self, BLOCK_TOKENS};
use super::super::slab::NONE;
use super::entries::{Entry, MOST_PARTS};
use super::life::{Copies, Life, Tier};
use super::pages;
use super::runs::{Place, Runs};
use super::table::{self, ENTRY_BYTES};
use super::{SWEPT_AT_ONCE, Stored, Truth, Unstored};

/// Bytes that an own block may take at most; with this many left, an event is stored.
const BLOCK_BYTES: usize = ENTRY_BYTES + 9;

impl Truth {
    /// The replica has these blocks now, or one more copy of them; how many own blocks are new. Of an engine that tells
    /// its hash for blocks that it stores again, each counts, and each removal takes one back.
    ///
    /// # Errors
    /// Why nothing, or for [`Unstored::Ambiguous`] not all, was stored; never credit that is not due.
    pub fn store(&mut self, at: usize, stored: &Stored<'_>) -> Result<usize, Unstored> {
        let life = self.life(at).ok_or(Unstored::NotFollowed)?;
        if stored.tokens.is_empty() && stored.block_size == 0 {
            return Ok(self.change(life, |truth| {
                let (life, runs) = (&mut truth.lives[usize::from(life)], &mut truth.runs);
                stored.hashes.iter().for_each(|&hash| life.give_known(runs, hash, stored.tier));
                0
            }));
        }
        let size = stored.block_size as usize;
        if stored.tokens.len() != stored.hashes.len() * size {
            return Err(Unstored::NotDense);
        }
        let small = size > 0 && size < BLOCK_TOKENS && BLOCK_TOKENS.is_multiple_of(size);
        let parts = size / BLOCK_TOKENS;
        if !small && (size == 0 || !size.is_multiple_of(BLOCK_TOKENS) || parts > MOST_PARTS) {
            return Err(Unstored::BlockSize);
        }
        if !self.has_room(life, stored, small) {
            return Err(Unstored::OverBudget);
        }
        self.change(life, |truth| {
            let (life, runs) = (&mut truth.lives[usize::from(life)], &mut truth.runs);
            if small {
                pages::store(life, runs, &mut truth.keeper, stored)
            } else if life.pages.is_some() {
                Err(Unstored::BlockSize)
            } else {
                life.give(runs, stored, parts)
            }
        })
    }

    /// Whether all that storing these may ask of the allocator is within the bytes.
    fn has_room(&mut self, life: u16, stored: &Stored<'_>, small: bool) -> bool {
        let blocks = stored.hashes.len().max(stored.tokens.len() / BLOCK_TOKENS);
        let parts = (stored.block_size as usize / BLOCK_TOKENS).max(1);
        let each = BLOCK_BYTES + if small { pages::BYTES } else { 0 };
        let keys = || stored.hashes.iter().flat_map(|&hash| (0..parts).map(move |part| table::key(hash, part)));
        let fits = |truth: &Self| {
            let life = &truth.lives[usize::from(life)];
            let rest = truth.bytes() + each * blocks + truth.runs.growth(blocks);
            // As a rule there is room for so much that the segments that would grow need not be counted.
            rest + life.most_growth() <= truth.max_bytes || rest + life.growth(blocks, keys()) <= truth.max_bytes
        };
        fits(self) || {
            self.sweep(SWEPT_AT_ONCE);
            fits(self)
        }
    }
}

impl Life {
    /// Stores engine's blocks of `parts` own ones each.
    fn give(&mut self, runs: &mut Runs, stored: &Stored<'_>, parts: usize) -> Result<usize, Unstored> {
        let first = stored.parent.and_then(|hash| self.engine.get(table::key(hash, 0)));
        // Before anything comes of the parent, since this need not wait for it.
        self.engine.warm(stored.hashes);
        let (parent, mut after) = match stored.parent {
            None => (stored.root, None),
            Some(hash) => {
                let first = first.filter(|entry| !entry.is_void());
                let last = first.and_then(|first| self.last_part(hash, &first)).ok_or(Unstored::UnknownParent)?;
                let place = place_of(runs, &last);
                (runs[place.run].hash(place.offset), Some(place))
            }
        };
        let is_known = |life: &Self, hash: u64| life.engine.get(table::key(hash, 0)).is_some();
        let own = chain(parent, stored, parts);
        let (mut at, mut new) = (0, 0);
        while at < own.len() {
            let hash = stored.hashes[at / parts];
            if at.is_multiple_of(parts) && is_known(self, hash) {
                let last = self.give_again(runs, hash, &own[at..at + parts], stored.tier)?;
                (at, after) = (at + parts, Some(last));
                continue;
            }
            let (place, len) = runs.stretch(after, &own[at..]);
            let holding = self.seat(runs, place);
            let (mut block, mut part) = (at / parts, at % parts);
            let entries = (place.offset..).take(len).map(|offset| {
                // The copies of all parts are with the first one.
                let mask = if part == 0 { 1 << stored.tier as u32 } else { 0 };
                let entry = Entry::new(table::key(stored.hashes[block], part), holding, offset, parts, mask);
                (block, part) = if part + 1 == parts { (block + 1, 0) } else { (block, part + 1) };
                entry
            });
            // One that is known now has come twice, as different blocks.
            let len = entries.take_while(|entry| self.engine.insert(*entry)).count();
            runs.extend(place, &own[at..at + len], own.len() - at - len);
            let end = place.offset + len as u32;
            new += self.cover_all(runs, holding, place.offset..end, stored.tier == Tier::Device);
            after = Some(Place { run: place.run, offset: end - 1 });
            at += len;
        }
        Ok(new)
    }

    /// One more copy of one of the engine's blocks, which has these own ones; the place of the last.
    fn give_again(&mut self, runs: &mut Runs, hash: u64, own: &[u64], tier: Tier) -> Result<Place, Unstored> {
        let entry = self.engine.get(table::key(hash, 0)).filter(|entry| !entry.is_void() && entry.parts() == own.len());
        let mut last = None;
        for (part, own) in own.iter().enumerate() {
            let there = if part == 0 { entry } else { self.engine.get(table::key(hash, part)) };
            let place = there.map(|entry| place_of(runs, &entry));
            last = place.filter(|place| runs[place.run].hashes()[place.offset as usize] == *own);
            if last.is_none() {
                break;
            }
        }
        match (entry, last) {
            (Some(entry), Some(last)) => {
                self.add_copy(runs, hash, &entry, tier);
                Ok(last)
            }
            _ => Err(self.refuse(runs, hash)),
        }
    }

    /// Another block has the hash of one that is there.
    fn refuse(&mut self, runs: &mut Runs, hash: u64) -> Unstored {
        let key = table::key(hash, 0);
        if let Some(entry) = self.engine.get(key).filter(|entry| !entry.is_void()) {
            self.drop_block(runs, hash, &entry);
            self.void(key);
        }
        Unstored::Ambiguous
    }

    fn add_copy(&mut self, runs: &mut Runs, hash: u64, entry: &Entry, tier: Tier) {
        if self.copy(entry, tier, true).is_some_and(|change| change.device) {
            self.turn(runs, hash, entry, true, true);
        }
    }

    /// One more copy of an engine's block that is held already; else nothing.
    fn give_known(&mut self, runs: &mut Runs, hash: u64, tier: Tier) {
        let entry = self.engine.get(table::key(hash, 0)).filter(|entry| !entry.is_void());
        let Some(entry) = entry.filter(|entry| self.copies(entry) != Copies::default()) else { return };
        if self.pages.is_some() {
            pages::add_copy(self, runs, &entry, tier);
        } else {
            self.add_copy(runs, hash, &entry, tier);
        }
    }

    /// Takes a copy of each of these blocks back; of how many there was one.
    pub(super) fn take(&mut self, runs: &mut Runs, keeper: &mut Self, hashes: &[u64], tier: Tier) -> usize {
        let mut taken = 0;
        self.engine.warm(hashes);
        // Own blocks that stand side by side, and are not in the table any more.
        let mut gone = (NONE, 0..0);
        let is_gone = |entry: &Entry| entry.parts() == 1 && entry.mask() == 1 << tier as u32;
        for &hash in hashes {
            let key = table::key(hash, 0);
            let last = if self.pages.is_none() { self.engine.take(key, is_gone) } else { None };
            if let Some(entry) = last {
                let (holding, at) = (entry.target, entry.offset());
                match &mut gone {
                    (of, offsets) if *of == holding && at + 1 == offsets.start => offsets.start = at,
                    (of, offsets) if *of == holding && at == offsets.end => offsets.end = at + 1,
                    other => {
                        let (of, offsets) = std::mem::replace(other, (holding, at..at + 1));
                        self.uncover_all(runs, of, offsets, tier == Tier::Device);
                    }
                }
                taken += 1;
            } else {
                let (of, offsets) = std::mem::replace(&mut gone, (NONE, 0..0));
                self.uncover_all(runs, of, offsets, tier == Tier::Device);
                taken += usize::from(self.take_copy(runs, keeper, hash, tier));
            }
        }
        self.uncover_all(runs, gone.0, gone.1, tier == Tier::Device);
        taken
    }

    /// Takes a copy of an engine's block back; whether there was one.
    fn take_copy(&mut self, runs: &mut Runs, keeper: &mut Self, hash: u64, tier: Tier) -> bool {
        let Some(entry) = self.engine.get(table::key(hash, 0)).filter(|entry| !entry.is_void()) else { return false };
        let Some(change) = self.copy(&entry, tier, false) else { return false };
        if self.pages.is_some() {
            pages::lost(self, runs, keeper, &entry, change);
            return true;
        }
        if change.device {
            self.turn(runs, hash, &entry, true, false);
        }
        if change.any {
            self.turn(runs, hash, &entry, false, false);
            (0..entry.parts()).for_each(|part| self.engine.remove(table::key(hash, part)));
        }
        true
    }

    /// Of a life that is over: takes one of its engine's blocks back; whether there was one.
    pub(super) fn give_back(&mut self, runs: &mut Runs, keeper: &mut Self) -> bool {
        let Some(entry) = self.engine.pop() else { return false };
        if entry.is_void() {
        } else if self.pages.is_some() {
            pages::give_back(self, runs, keeper, entry.target);
        } else {
            // Each part of a larger block is an entry of its own, so this needs no other.
            self.uncover(runs, entry.target, entry.offset(), false);
        }
        true
    }
}

/// The own hashes of what comes after `parent`.
fn chain(mut parent: u64, stored: &Stored<'_>, parts: usize) -> Vec<u64> {
    let (blocks, _) = stored.tokens.as_chunks::<BLOCK_TOKENS>();
    let own = blocks.iter().enumerate().map(|(block, tokens)| {
        parent = hash::next(parent, tokens);
        if !stored.extras.is_empty()
            && let (0, Some(&Some(extra))) = (block % parts, stored.extras.get(block / parts))
        {
            parent = hash::marked(parent, extra);
        }
        parent
    });
    own.collect()
}

fn place_of(runs: &Runs, entry: &Entry) -> Place {
    Place { run: runs.holding(entry.target).run, offset: entry.offset() }
}
