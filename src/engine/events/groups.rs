//! Cache groups of hybrid models: one of them tells how far a prompt's prefix is held.
//!
//! A model with sliding windows, Mamba layers and full attention keeps a cache group for each, and vLLM (from 0.20.0)
//! tells events of all of them apart by number. A window forgets blocks that the prefix still needs and recomputes, so
//! only full attention (plain, MLA, with sinks) counts: of several such groups the lowest. Where no kind is told, group 0,
//! or none, is taken for it. Removals name the group only: its kind is remembered from what was stored.
use super::wire::{Kind, Removed, Stored};

/// Numbers of groups that are told apart; models have a handful. A group beyond is never indexed.
const MOST: u32 = 64;

/// What to do with stored blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stores {
    /// They count.
    Count,
    /// They count, but what counted so far was of another group and has to be forgotten first. Only at the beginning of
    /// an engine's life, if at all: a group of full attention has shown up below the one that was followed.
    Afresh,
    /// They don't count.
    Ignore,
}

/// The groups of one rank of one engine; a new one for each life of it.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// Groups known to be of full attention, a bit each.
    full: u64,
    /// Groups known to be something else.
    other: u64,
    /// The one that was followed last.
    followed: Option<u32>,
}

impl Groups {
    /// Learns from what was stored, and tells whether it counts.
    pub fn stores(&mut self, stored: &Stored) -> Stores {
        let group = stored.group.unwrap_or(0);
        if group >= MOST {
            return Stores::Ignore;
        }
        // The first word stands: an engine's groups don't change.
        let known = (self.full | self.other) & (1 << group) != 0;
        match stored.kind {
            Some(Kind::Full | Kind::Mla | Kind::SinkFull) if !known => self.full |= 1 << group,
            Some(Kind::Other) if !known => self.other |= 1 << group,
            _ => {}
        }
        if self.counts() != Some(group) {
            return Stores::Ignore;
        }
        match self.followed.replace(group) {
            Some(before) if before != group => Stores::Afresh,
            _ => Stores::Count,
        }
    }

    /// Whether a removal counts.
    pub fn removes(&self, removed: &Removed) -> bool {
        self.counts() == Some(removed.group.unwrap_or(0))
    }

    /// The group that counts, if one does.
    fn counts(&self) -> Option<u32> {
        match self.full {
            0 => (self.other & 1 == 0).then_some(0),
            full => Some(full.trailing_zeros()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Tier;
    use super::*;

    fn stored(group: Option<u32>, kind: Option<Kind>) -> Stored {
        Stored {
            hashes: vec![1],
            parent: None,
            tokens: vec![1],
            block_size: 1,
            tier: Tier::Device,
            group,
            kind,
            adapter: None,
            salt: None,
            extras: Vec::new(),
        }
    }

    fn removes(groups: &Groups, group: Option<u32>) -> bool {
        groups.removes(&Removed { hashes: vec![1], tier: Tier::Device, group })
    }

    #[test]
    fn engines_without_groups_count() {
        let mut groups = Groups::default();
        assert!(removes(&groups, None));
        assert_eq!(groups.stores(&stored(None, None)), Stores::Count);
        assert!(removes(&groups, None) && removes(&groups, Some(0)) && !removes(&groups, Some(1)));
    }

    #[test]
    fn without_kinds_group_0_counts() {
        let mut groups = Groups::default();
        assert_eq!(groups.stores(&stored(Some(1), None)), Stores::Ignore);
        assert_eq!(groups.stores(&stored(Some(0), None)), Stores::Count);
        assert!(removes(&groups, Some(0)) && !removes(&groups, Some(1)));
    }

    #[test]
    fn windows_never_cut_what_full_attention_holds() {
        let mut groups = Groups::default();
        assert_eq!(groups.stores(&stored(Some(0), Some(Kind::Other))), Stores::Ignore);
        assert_eq!(groups.stores(&stored(Some(1), Some(Kind::Full))), Stores::Count);
        assert!(!removes(&groups, Some(0)), "the window's");
        assert!(removes(&groups, Some(1)), "its kind is remembered");
        assert_eq!(groups.stores(&stored(Some(0), None)), Stores::Ignore);
        assert_eq!(groups.stores(&stored(Some(1), None)), Stores::Count);
    }

    #[test]
    fn of_several_the_lowest_counts() {
        let mut groups = Groups::default();
        assert_eq!(groups.stores(&stored(Some(2), Some(Kind::Mla))), Stores::Count);
        assert_eq!(groups.stores(&stored(Some(3), Some(Kind::Full))), Stores::Ignore);
        assert_eq!(groups.stores(&stored(Some(1), Some(Kind::SinkFull))), Stores::Afresh);
        assert_eq!(groups.stores(&stored(Some(1), Some(Kind::SinkFull))), Stores::Count);
        assert_eq!(groups.stores(&stored(Some(2), Some(Kind::Mla))), Stores::Ignore);
        assert!(removes(&groups, Some(1)) && !removes(&groups, Some(2)));
    }

    #[test]
    fn numbers_out_of_range_are_ignored() {
        let mut groups = Groups::default();
        for group in [MOST, u32::MAX] {
            assert_eq!(groups.stores(&stored(Some(group), Some(Kind::Full))), Stores::Ignore);
            assert!(!removes(&groups, Some(group)));
        }
        assert_eq!(groups.stores(&stored(Some(MOST - 1), Some(Kind::Full))), Stores::Count);
    }
}
