//! Which blocks of a run a replica holds: so many leading ones, and a bitmap of those beyond, where there is a gap.
//!
//! Engines give blocks back from the end, so that there are no gaps as a rule, and the bitmaps are empty.

/// The bitmaps of one replica and one run, a bit a block from the run's first on; set ones are beyond the leading ones.
#[derive(Debug, Default)]
pub(super) struct Beyond {
    pub any: Vec<u64>,
    pub device: Vec<u64>,
}

const BITS: u32 = u64::BITS;

/// Adds block `at`; whether it is new. What now has no gap before it is leading at once.
pub(super) fn add(leading: &mut u32, beyond: &mut Vec<u64>, at: u32) -> bool {
    if at < *leading {
        return false;
    }
    if at > *leading {
        let word = (at / BITS) as usize;
        if beyond.len() <= word {
            beyond.resize(word + 1, 0);
        }
        let before = beyond[word];
        beyond[word] |= 1 << (at % BITS);
        return beyond[word] != before;
    }
    *leading += 1;
    while let Some(word) = beyond.get_mut((*leading / BITS) as usize) {
        let from = *leading % BITS;
        let more = (*word >> from).trailing_ones();
        if more == 0 {
            break;
        }
        *word &= !(u64::MAX >> (BITS - more) << from);
        *leading += more;
    }
    trim(beyond);
    true
}

/// Takes block `at` out; whether it was in. Those after it stay, beyond a gap.
pub(super) fn remove(leading: &mut u32, beyond: &mut Vec<u64>, at: u32) -> bool {
    if at >= *leading {
        let Some(word) = beyond.get_mut((at / BITS) as usize) else { return false };
        let before = *word;
        *word &= !(1 << (at % BITS));
        let removed = *word != before;
        trim(beyond);
        return removed;
    }
    let end = std::mem::replace(leading, at);
    let mut from = at + 1;
    while from < end {
        let word = (from / BITS) as usize;
        let to = end.min((from / BITS + 1) * BITS);
        if beyond.len() <= word {
            beyond.resize(word + 1, 0);
        }
        beyond[word] |= u64::MAX >> (BITS - (to - from)) << (from % BITS);
        from = to;
    }
    true
}

/// One more than the last block that is in.
pub(super) fn extent(leading: u32, beyond: &[u64]) -> u32 {
    let last = beyond.last().map_or(0, |word| beyond.len() as u32 * BITS - word.leading_zeros());
    leading.max(last)
}

fn trim(beyond: &mut Vec<u64>) {
    while beyond.last() == Some(&0) {
        beyond.pop();
    }
}
