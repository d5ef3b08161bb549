//! Where the entries of some keys are: a hash table of numbers, a cache line for twelve of them.
//!
//! A key belongs into its home line; where that is full, into the next that is not, and each line that it passes counts it.
//! A search ends in the first line that nothing has passed, so it reads one line as a rule, and so do adding and removing.
//! Of a key only one byte is kept here: whether a number is the right one is for the caller to say.

const SLOTS: usize = 12;
/// Numbers that a line has at most, in the mean of all.
const MOST: usize = 9;
/// Of a slot that is free.
const FREE: u8 = 0;
/// The lowest bit of each of eight tags.
const LOW: u64 = u64::from_le_bytes([1; 8]);
/// A line that so many have passed counts no more of them, and none back.
const MANY: u8 = u8::MAX;

/// One cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Line {
    /// A byte of the key of each.
    tags: [u8; SLOTS],
    /// How many have passed it.
    passed: u8,
    ids: [u32; SLOTS],
}

impl Line {
    /// The slots that have this tag.
    fn with(&self, tag: u8) -> Slots {
        let [a, b, c, d, e, f, g, h, last @ ..] = self.tags;
        let all = LOW * u64::from(tag);
        let eight = zeros(u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ all);
        let four = zeros((u64::from(u32::from_le_bytes(last)) | u64::MAX << 32) ^ all & u64::from(u32::MAX));
        Slots(eight | four << 1)
    }

    fn set(&mut self, slot: usize, tag: u8, id: u32) {
        (self.tags[slot], self.ids[slot]) = (tag, id);
    }
}

/// The bytes that are 0: the lowest bit of each.
fn zeros(bytes: u64) -> u64 {
    let seven = LOW * 0x7f;
    (!(((bytes & seven) + seven) | bytes) >> 7) & LOW
}

/// Slots: of the first eight a byte each, and the next bit of the leading bytes for the last four.
struct Slots(u64);

impl Iterator for Slots {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit / 8 + bit % 8 * 8)
    }
}

/// A slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    line: usize,
    slot: usize,
}

/// The table. It never grows by itself.
#[derive(Debug, Default)]
pub(super) struct Segment {
    lines: Vec<Line>,
    len: usize,
}

fn tag_of(key: u64) -> u8 {
    ((key >> 24) as u8).max(FREE + 1)
}

/// Lines for so many numbers, and some more.
fn lines_for(len: usize) -> usize {
    (len + len / 4 + 1).div_ceil(MOST)
}

impl Segment {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What it has asked of the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    /// By how much it may grow, at most, for so many more numbers.
    pub(super) fn growth(&self, more: usize) -> usize {
        let fits = self.len + more <= self.lines.len() * MOST;
        if fits { 0 } else { (lines_for(self.len + more) * size_of::<Line>()).saturating_sub(self.bytes()) }
    }

    /// Whether [`Segment::fit`] has to come before the next number.
    pub(super) fn is_full(&self) -> bool {
        self.len >= self.lines.len() * MOST
    }

    /// Whether it has far more lines than it needs.
    pub(super) fn is_sparse(&self) -> bool {
        self.lines.len() > 1 && self.len * 3 < self.lines.len() * MOST
    }

    /// Takes so many lines as it needs, and one more number at least; none where it has no number and had lines.
    pub(super) fn fit(&mut self, key_of: impl Fn(u32) -> u64) {
        let (before, len) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.len));
        if len == 0 && !before.is_empty() {
            return;
        }
        self.lines = vec![Line::default(); lines_for(len)];
        for (tag, id) in before.iter().flat_map(|line| line.tags.into_iter().zip(line.ids)) {
            if tag != FREE {
                self.insert(key_of(id), id);
            }
        }
    }

    /// Where the number of a key is, which `is` knows.
    #[inline]
    pub(super) fn find(&self, key: u64, is: impl Fn(u32) -> bool) -> Option<Spot> {
        let tag = tag_of(key);
        let mut at = self.home(key);
        loop {
            let line = self.lines.get(at)?;
            if let Some(slot) = line.with(tag).find(|&slot| is(line.ids[slot])) {
                return Some(Spot { line: at, slot });
            }
            if line.passed == 0 {
                return None;
            }
            at = self.next(at);
        }
    }

    /// The number that is there.
    pub(super) fn id(&self, spot: Spot) -> u32 {
        self.lines[spot.line].ids[spot.slot]
    }

    /// Something of a key's home line, that has been read.
    pub(super) fn warm(&self, key: u64) -> u32 {
        self.lines.get(self.home(key)).map_or(0, |line| line.ids[0])
    }

    /// Adds the number of a key that has none.
    #[inline]
    pub(super) fn insert(&mut self, key: u64, id: u32) {
        let mut at = self.home(key);
        self.len += 1;
        loop {
            let line = &mut self.lines[at];
            if let Some(slot) = line.with(FREE).next() {
                return line.set(slot, tag_of(key), id);
            }
            line.passed = line.passed.saturating_add(1);
            at = self.next(at);
        }
    }

    /// Takes a key's number out.
    pub(super) fn remove(&mut self, spot: Spot, key: u64) {
        self.lines[spot.line].set(spot.slot, FREE, 0);
        self.len -= 1;
        let mut at = self.home(key);
        while at != spot.line {
            let passed = &mut self.lines[at].passed;
            *passed -= u8::from(*passed < MANY);
            at = self.next(at);
        }
    }

    /// The last number in the leading lines up to `line`, if there is any.
    pub(super) fn last(&self, line: usize) -> Option<Spot> {
        (0..=line.min(self.lines.len().checked_sub(1)?)).rev().find_map(|line| {
            let slot = self.lines[line].tags.iter().rposition(|&tag| tag != FREE)?;
            Some(Spot { line, slot })
        })
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let slots = self.lines.iter().flat_map(|line| line.tags.into_iter().zip(line.ids));
        slots.filter(|&(tag, _)| tag != FREE).map(|(_, id)| id)
    }

    fn home(&self, key: u64) -> usize {
        (((key >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    fn next(&self, line: usize) -> usize {
        if line + 1 < self.lines.len() { line + 1 } else { 0 }
    }
}

impl Spot {
    /// Which of the lines it is in.
    pub(super) fn line(self) -> usize {
        self.line
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Keys of few homes and tags, so that lines are full and tags meet.
    fn key(number: u32, homes: u64) -> u64 {
        (u64::from(number % 7) % homes) << 61 | u64::from(number % 3) << 24 | u64::from(number)
    }

    proptest! {
        #[test]
        fn what_was_added_is_found_until_it_is_taken_out(steps in prop::collection::vec((any::<bool>(), 0..400_u32), 1..800), homes in 1..7_u64) {
            let (mut segment, mut known) = (Segment::default(), HashMap::new());
            for (adds, id) in steps {
                let key = key(id, homes);
                let found = segment.find(key, |other| other == id);
                prop_assert_eq!(found.map(|spot| segment.id(spot)), known.get(&key).copied());
                match found {
                    None if adds => {
                        let fits = segment.growth(1) == 0;
                        prop_assert_eq!(fits, !segment.is_full());
                        if !fits {
                            let most = segment.bytes() + segment.growth(1);
                            segment.fit(|id| super::tests::key(id, homes));
                            prop_assert!(segment.bytes() <= most);
                        }
                        segment.insert(key, id);
                        known.insert(key, id);
                    }
                    Some(spot) if !adds => {
                        segment.remove(spot, key);
                        known.remove(&key);
                        if segment.is_sparse() {
                            segment.fit(|id| super::tests::key(id, homes));
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!((segment.len(), segment.ids().count()), (known.len(), known.len()));
                prop_assert!(known.iter().all(|(&key, &id)| segment.find(key, |other| other == id).is_some()));
            }
            while let Some(spot) = segment.last(usize::MAX) {
                segment.remove(spot, key(segment.id(spot), homes));
            }
            prop_assert_eq!(segment.len(), 0);
            prop_assert!(segment.lines.iter().all(|line| line.passed == 0 || line.passed == MANY));
        }
    }

    #[test]
    fn tags_are_found_in_every_slot() {
        for slot in 0..SLOTS {
            for tag in [1, 2, 0x7f, 0x80, 0xff] {
                let mut line = Line { tags: [3; SLOTS], ..Line::default() };
                line.set(slot, tag, 9);
                assert_eq!(line.with(tag).next(), Some(slot));
                assert_eq!(line.with(FREE).next(), None);
                line.set(slot, FREE, 0);
                assert_eq!(line.with(FREE).next(), Some(slot));
            }
        }
    }
}
