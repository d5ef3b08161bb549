//! SGLang before 0.5.6 names a page by Python's `hash()` of its own tokens: pages that are equal have one name, wherever
//! they stand, and some of these versions name no parent. Such a name says nothing of a prefix.
//!
//! They are known by it: CPython's hash of a tuple of small integers is the same in every process (3.8 on,
//! `Objects/tupleobject.c`: xxHash64's rounds over the items, which hash to themselves).

const PRIME_1: u64 = 11_400_714_785_074_694_791;
const PRIME_2: u64 = 14_029_467_366_897_019_727;
const PRIME_5: u64 = 2_870_177_450_012_600_261;

/// Whether one block's hash is of its tokens alone. These versions write one page an event, and no medium.
pub(super) fn is(hashes: &[u64], tokens: &[u32], has_medium: bool) -> bool {
    matches!(hashes, [hash] if !has_medium && !tokens.is_empty() && *hash == of_tuple(tokens))
}

fn of_tuple(items: &[u32]) -> u64 {
    let hash = items.iter().fold(PRIME_5, |hash, &item| {
        hash.wrapping_add(u64::from(item).wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
    });
    match hash.wrapping_add(items.len() as u64 ^ PRIME_5 ^ 3_527_539) {
        // -1 means an error there.
        u64::MAX => 1_546_275_796,
        hash => hash,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As CPython 3.11 has them.
    #[test]
    fn a_tuple_hashes_as_in_python() {
        assert_eq!(of_tuple(&[1]), 11_802_529_618_835_948_721);
        assert_eq!(of_tuple(&(1..=16).collect::<Vec<_>>()), 1_038_132_129_680_416_093);
        assert!(
            is(&[11_802_529_618_835_948_721], &[1], false)
                && !is(&[11_802_529_618_835_948_721], &[1], true)
                && !is(&[11_802_529_618_835_948_721], &[2], false)
        );
    }
}
