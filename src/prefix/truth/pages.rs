//! Engines whose blocks are smaller than ours, such as SGLang's pages of one token.
//!
//! A page names all before it by its parent, so pages make a tree; where one ends one of our blocks, the way up gives the
//! block's tokens. Such a block is held while all pages of it are there. A page that is gone stays in the tree as long
//! as others come after it, so that it is found when it is there again. Whatever is in the tree begins with whole own
//! blocks, held or not, and the keeper holds those, lest their places go.
use super::super::hash::{self, BLOCK_TOKENS};
use super::super::slab::{NONE, Slab};
use super::entries::Entry;
use super::life::{Change, Life, Tier};
use super::runs::{Place, Runs};
use super::table;
use super::{Stored, Unstored};

/// Tokens of the largest page that is smaller than a block.
const MOST: usize = BLOCK_TOKENS / 2;
/// Bytes of a page, beside its entry in the table.
pub(super) const BYTES: usize = size_of::<Page>();

#[derive(Debug)]
struct Page {
    key: u64,
    /// Where the chain begins, for a page without another before it.
    root: u64,
    /// The page before it.
    up: u32,
    /// One of those after it.
    child: u32,
    /// Others after the same page.
    next: u32,
    previous: u32,
    tokens: [u32; MOST],
    extra: Option<u64>,
    /// Which page of its own block it is.
    at: u8,
    /// Whether it is there, in any tier and on the device.
    held: [bool; 2],
    /// The own block that it ends.
    block: Option<Place>,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            key: 0,
            root: 0,
            up: NONE,
            child: NONE,
            next: NONE,
            previous: NONE,
            tokens: [0; MOST],
            extra: None,
            at: 0,
            held: [false; 2],
            block: None,
        }
    }
}

/// The pages of one life.
#[derive(Debug)]
pub(super) struct Pages {
    pages: Slab<Page>,
    /// Tokens of one.
    size: usize,
}

/// Stores pages; how many own blocks are held by that, and were not before.
pub(super) fn store(
    life: &mut Life,
    runs: &mut Runs,
    keeper: &mut Life,
    stored: &Stored<'_>,
) -> Result<usize, Unstored> {
    let size = stored.block_size as usize;
    if life.pages.is_none() && life.engine.len() == 0 {
        life.pages = Some(Box::new(Pages { pages: Slab::new(), size }));
    }
    let mut pages = life.pages.take_if(|pages| pages.size == size).ok_or(Unstored::BlockSize)?;
    let result = pages.store(life, runs, keeper, stored);
    life.pages = Some(pages);
    result
}

/// One more copy of a page that is in the table; how many own blocks are held by that, and were not before.
pub(super) fn add_copy(life: &mut Life, runs: &mut Runs, entry: &Entry, tier: Tier) -> usize {
    let Some(mut pages) = life.pages.take() else { return 0 };
    let new = pages.add_copy(life, runs, entry, tier);
    life.pages = Some(pages);
    new
}

/// A page has lost a copy.
pub(super) fn lost(life: &mut Life, runs: &mut Runs, keeper: &mut Life, entry: &Entry, change: Change) {
    let Some(mut pages) = life.pages.take() else { return };
    if change.device {
        pages.set(life, runs, entry.target, true, false);
    }
    if change.any {
        pages.set(life, runs, entry.target, false, false);
        pages.prune(life, runs, keeper, entry.target);
    }
    life.pages = Some(pages);
}

/// A page's entry was taken out of the table of a life that is over.
pub(super) fn give_back(life: &mut Life, runs: &mut Runs, keeper: &mut Life, page: u32) {
    lost(life, runs, keeper, &Entry::new(0, page, 0, 1, 0), Change { any: true, device: true });
}

impl Pages {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.pages.bytes()
    }

    fn store(
        &mut self,
        life: &mut Life,
        runs: &mut Runs,
        keeper: &mut Life,
        stored: &Stored<'_>,
    ) -> Result<usize, Unstored> {
        let mut up = match stored.parent {
            None => NONE,
            Some(hash) => {
                let entry = life.engine.get(table::key(hash, 0)).filter(|entry| !entry.is_void());
                let held = entry.filter(|entry| self.pages[entry.target].held[0]);
                held.ok_or(Unstored::UnknownParent)?.target
            }
        };
        let mut new = 0;
        for (at, (&hash, tokens)) in stored.hashes.iter().zip(stored.tokens.chunks_exact(self.size)).enumerate() {
            let key = table::key(hash, 0);
            let mut page = Page {
                key,
                root: if up == NONE { stored.root } else { 0 },
                up,
                extra: stored.extras.get(at).copied().flatten(),
                ..Page::default()
            };
            page.tokens[..self.size].copy_from_slice(tokens);
            let entry = match life.engine.get(key) {
                Some(entry) if entry.is_void() => return Err(Unstored::Ambiguous),
                Some(entry) if self.pages[entry.target].equals(&page) => entry,
                Some(entry) => {
                    self.set(life, runs, entry.target, true, false);
                    self.set(life, runs, entry.target, false, false);
                    life.void(key);
                    self.prune(life, runs, keeper, entry.target);
                    return Err(Unstored::Ambiguous);
                }
                None => {
                    let more = (stored.hashes.len() - at) * self.size / BLOCK_TOKENS;
                    let entry = Entry::new(key, self.insert(runs, keeper, page, more), 0, 1, 0);
                    life.engine.insert(entry);
                    entry
                }
            };
            new += self.add_copy(life, runs, &entry, stored.tier);
            up = entry.target;
        }
        Ok(new)
    }

    fn add_copy(&mut self, life: &mut Life, runs: &mut Runs, entry: &Entry, tier: Tier) -> usize {
        let mut new = 0;
        if let Some(change) = life.copy(entry, tier, true) {
            if change.any {
                new = self.set(life, runs, entry.target, false, true);
            }
            if change.device {
                self.set(life, runs, entry.target, true, true);
            }
        }
        new
    }

    /// Puts a page into the tree, with the place of the block that it ends; it is not held yet.
    fn insert(&mut self, runs: &mut Runs, keeper: &mut Life, mut page: Page, more: usize) -> u32 {
        let up = page.up;
        if up != NONE {
            page.at = (self.pages[up].at + 1) % (BLOCK_TOKENS / self.size) as u8;
            page.next = self.pages[up].child;
        }
        let next = page.next;
        let id = self.pages.insert(page);
        if up != NONE {
            self.pages[up].child = id;
        }
        if next != NONE {
            self.pages[next].previous = id;
        }
        if usize::from(self.pages[id].at) + 1 == BLOCK_TOKENS / self.size {
            let (own, after) = self.block(runs, id);
            let (place, _) = runs.stretch(after, &[own]);
            runs.extend(place, &[own], more);
            let holding = keeper.seat(runs, place);
            keeper.cover(runs, holding, place.offset, false);
            self.pages[id].block = Some(place);
        }
        id
    }

    /// The hash of the own block that a page ends, and the place of the one before it.
    fn block(&self, runs: &Runs, last: u32) -> (u64, Option<Place>) {
        let mut tokens = [0; BLOCK_TOKENS];
        let mut extras = [None; BLOCK_TOKENS];
        let mut id = last;
        loop {
            let page = &self.pages[id];
            let from = usize::from(page.at) * self.size;
            tokens[from..from + self.size].copy_from_slice(&page.tokens[..self.size]);
            extras[from] = page.extra;
            if page.at == 0 {
                break;
            }
            id = page.up;
        }
        let after = if self.pages[id].up == NONE { None } else { self.pages[self.pages[id].up].block };
        let parent = after.map_or(self.pages[id].root, |place| runs[place.run].hashes()[place.offset as usize]);
        let own = hash::next(parent, &tokens);
        let marks = extras.iter().enumerate().filter_map(|(at, extra)| Some((at as u64, (*extra)?)));
        // The first token's needs no place: so larger blocks of the engine's with one there have the same hash.
        let marked = |own, (at, extra)| hash::marked(if at == 0 { own } else { hash::marked(own, at) }, extra);
        (marks.fold(own, marked), after)
    }

    /// A page is there, or not any more. The number of own blocks that are thereby held, or not any more.
    fn set(&mut self, life: &mut Life, runs: &mut Runs, id: u32, device: bool, on: bool) -> usize {
        let kind = usize::from(device);
        if self.pages[id].held[kind] == on {
            return 0;
        }
        self.pages[id].held[kind] = true;
        let mut places = Vec::new();
        if self.are_held_before(id, kind) {
            self.blocks_from(id, kind, &mut places);
        }
        self.pages[id].held[kind] = on;
        let turned = places.into_iter().filter(|&place| {
            let holding = life.seat(runs, place);
            match on {
                true => life.cover(runs, holding, place.offset, device),
                false => life.uncover(runs, holding, place.offset, device),
            }
        });
        turned.count()
    }

    fn are_held_before(&self, id: u32, kind: usize) -> bool {
        let page = &self.pages[id];
        page.at == 0 || self.pages[page.up].held[kind] && self.are_held_before(page.up, kind)
    }

    /// The own blocks that a page is of, as far as all pages from it on are there.
    fn blocks_from(&self, id: u32, kind: usize, places: &mut Vec<Place>) {
        let page = &self.pages[id];
        if page.block.is_some() {
            places.extend(page.block);
            return;
        }
        let mut child = page.child;
        while child != NONE {
            if self.pages[child].held[kind] {
                self.blocks_from(child, kind, places);
            }
            child = self.pages[child].next;
        }
    }

    /// Takes a page out of the tree that is not there and has none after it; then the one before it, if that was only
    /// kept for its sake.
    fn prune(&mut self, life: &mut Life, runs: &mut Runs, keeper: &mut Life, mut id: u32) {
        while id != NONE && !self.pages[id].held[0] && self.pages[id].child == NONE {
            let page = self.pages.remove(id);
            if page.next != NONE {
                self.pages[page.next].previous = page.previous;
            }
            if page.previous != NONE {
                self.pages[page.previous].next = page.next;
            } else if page.up != NONE {
                self.pages[page.up].child = page.next;
            }
            if let Some(place) = page.block {
                let holding = keeper.seat(runs, place);
                keeper.uncover(runs, holding, place.offset, false);
            }
            if let Some(entry) = life.engine.get(page.key).filter(|entry| entry.target == id) {
                life.forget(&entry);
            }
            id = page.up;
        }
    }
}

impl Page {
    /// Whether another one that may come in its place says the same.
    fn equals(&self, other: &Self) -> bool {
        (self.up, self.root, self.tokens, self.extra) == (other.up, other.root, other.tokens, other.extra)
    }
}

/// What `check` needs to know of a page.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub key: u64,
    pub held: [bool; 2],
    /// The block that it ends, and whether all pages of that are there.
    pub block: Option<(Place, [bool; 2])>,
}

#[cfg(test)]
impl Pages {
    /// All of them; panics where the tree is none.
    pub(super) fn check(&self) -> std::collections::HashMap<u32, Seen> {
        let seen = self.pages.iter().map(|(id, page)| {
            assert!(page.held[0] || page.child != NONE, "who is not there is kept for others only");
            assert!(page.held[0] || !page.held[1]);
            if page.up != NONE {
                let (mut child, mut found) = (self.pages[page.up].child, false);
                while child != NONE {
                    found |= child == id;
                    child = self.pages[child].next;
                }
                assert!(found, "a page is among those after the one before it");
            }
            let all = |kind: usize| page.held[kind] && self.are_held_before(id, kind);
            (id, Seen { key: page.key, held: page.held, block: page.block.map(|place| (place, [all(0), all(1)])) })
        });
        seen.collect()
    }
}
