//! How events change what a replica holds, where the engine's blocks are as large as ours, or several times as large.
use super::super::hash::{self, BLOCK_TOKENS};
use super::life::{Copies, Life, Tier};
use super::pages;
use super::runs::{Place, Runs};
use super::table::{self, Entry, MOST_PARTS};
use super::{SWEPT_AT_ONCE, Stored, Truth, Unstored};

/// Bytes that an own block may take at most; with this many left, an event is stored.
const BLOCK_BYTES: usize = 40;

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
        let each = BLOCK_BYTES + if small { pages::BYTES } else { 0 };
        let fits = |truth: &Self| {
            let growth = truth.runs.growth(blocks) + truth.lives[usize::from(life)].growth(blocks);
            truth.bytes() + each * blocks + growth <= truth.max_bytes
        };
        if !fits(self) {
            self.sweep(SWEPT_AT_ONCE);
        }
        fits(self)
    }
}

impl Life {
    /// Stores engine's blocks of `parts` own ones each.
    fn give(&mut self, runs: &mut Runs, stored: &Stored<'_>, parts: usize) -> Result<usize, Unstored> {
        let (parent, mut after) = match stored.parent {
            None => (stored.root, None),
            Some(hash) => {
                let first = self.engine.get(table::key(hash, 0)).filter(|entry| !entry.is_void());
                let last = first.and_then(|first| self.last_part(hash, &first)).ok_or(Unstored::UnknownParent)?;
                let place = place_of(runs, &last);
                (runs[place.run].hashes()[place.offset as usize], Some(place))
            }
        };
        self.engine.warm(stored.hashes);
        let own = chain(parent, stored, parts);
        runs.warm(&own);
        let mut seat = None;
        let (mut new, mut left) = (0, own.len());
        for (&hash, own_parts) in stored.hashes.iter().zip(own.chunks_exact(parts)) {
            let known = self.engine.get(table::key(hash, 0));
            if known.is_some_and(|entry| entry.is_void() || entry.parts() != parts) {
                return Err(self.refuse(runs, hash));
            }
            for (part, &own) in own_parts.iter().enumerate() {
                left -= 1;
                let key = table::key(hash, part);
                let place = if known.is_some() {
                    let place = self.engine.get(key).map(|entry| place_of(runs, &entry));
                    match place.filter(|place| runs[place.run].hashes()[place.offset as usize] == own) {
                        Some(place) => place,
                        None => return Err(self.refuse(runs, hash)),
                    }
                } else {
                    let place = runs.place(after, own, left);
                    let holding = match seat {
                        Some((run, holding)) if run == place.run => holding,
                        _ => self.seat(runs, place),
                    };
                    seat = Some((place.run, holding));
                    new += usize::from(self.cover(runs, holding, place.offset, false));
                    if stored.tier == Tier::Device {
                        self.cover(runs, holding, place.offset, true);
                    }
                    // The copies of all parts are with the first one.
                    let mask = if part == 0 { 1 << stored.tier as u32 } else { 0 };
                    self.engine.insert(Entry::new(key, holding, place.offset, parts, mask));
                    place
                };
                after = Some(place);
            }
            if let Some(entry) = known {
                self.add_copy(runs, hash, &entry, stored.tier);
            }
        }
        Ok(new)
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

    /// Takes a copy of an engine's block back; whether there was one.
    pub(super) fn take(&mut self, runs: &mut Runs, keeper: &mut Self, hash: u64, tier: Tier) -> bool {
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
        if let (0, Some(&Some(extra))) = (block % parts, stored.extras.get(block / parts)) {
            parent = hash::marked(parent, extra);
        }
        parent
    });
    own.collect()
}

fn place_of(runs: &Runs, entry: &Entry) -> Place {
    Place { run: runs.holding(entry.target).run, offset: entry.offset() }
}
