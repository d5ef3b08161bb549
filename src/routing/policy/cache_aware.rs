//! `cache_aware`: the replica that holds the longest prefix, unless it is too busy; where none does, by load.
//!
//! A match is worth following when it is at least `min_match_tokens` long and longer than what counts for nobody: what
//! all who are ready hold, or are about to ([`crate::routing::heads`]).
//!
//! | worth following | the session's binding | the request goes | reason |
//! | --- | --- | --- | --- |
//! | one replica holds the most | any | there | `prefix` |
//! | several hold the most | to one of them | there | `bound`, if load would have chosen another |
//! | several hold the most | to none of them | to the least loaded of them | `prefix` |
//! | none | same life, same first block as the last prompt, which was long enough | there | `bound` |
//! | none | same life, and there is no prompt to look at | there | `bound` |
//! | none | other | by `fallback` | `no_match` |
//! | the first choice is full, or too busy (`balanced`) | any | to the next that holds a match worth following and is neither; to the least loaded if they are too busy; by `fallback` if they are full | `prefix_overflow` |
//!
//! A session whose replica drains stays there while no other holds more. A binding follows its session: it is written
//! with each success, wherever that was. *Too busy* is over `max_load_ratio` × the least loaded candidate's load **and**
//! so much above it, in what `load` counts; loads are compared for the weight (and ramp) of each.
use super::{Aids, Choice, by_load, least_load};
use crate::config::{CacheAware, LoadPolicy, LoadUnit, Stay};
use crate::routing::Reason;
use crate::routing::candidates::{Candidates, FULL_SHARE, Home, Remembered};
use crate::routing::prefixes::tokens;

/// Whether a match of so many blocks is worth following, where `common` blocks count for nobody.
pub(in crate::routing) fn is_worth(settings: &CacheAware, blocks: u32, common: u32) -> bool {
    blocks > common && tokens(blocks) >= settings.min_match_tokens
}

/// Whether a session's home that is no candidate, as it drains, still serves it.
pub(super) fn keeps(settings: &CacheAware, table: &Candidates, home: Home, depth: u32) -> bool {
    let common = table.common();
    let others = (0..table.len()).map(|row| table.depth(row)).filter(|&depth| is_worth(settings, depth, common)).max();
    match others {
        Some(others) => depth >= others,
        None => is_worth(settings, depth, common) || answers(settings, home, common),
    }
}

/// Whether the binding speaks for its replica where the index cannot answer.
fn answers(settings: &CacheAware, home: Home, common: u32) -> bool {
    match home.remembers {
        Some(Remembered::Blocks(blocks)) => is_worth(settings, blocks, common),
        Some(Remembered::Unknown) => true,
        None => false,
    }
}

pub(super) fn choose(settings: &CacheAware, table: &Candidates, aids: &mut Aids<'_>) -> Option<Choice> {
    let least = least_load::choose(table)?;
    let common = table.common();
    let worth = |row: usize| is_worth(settings, table.depth(row), common);
    let stays = |row: usize| settings.affinity == Stay::Prefer || !too_busy(settings, table, row, least);
    let by_fallback =
        |reason, aids: &mut Aids<'_>| fallback(settings, table, aids).map(|choice| Choice { reason, ..choice });
    let to_least = Choice { row: least, reason: Reason::PrefixOverflow, by: Some(LoadPolicy::LeastLoad) };
    let home = table.home();
    let home_row = home.and_then(|home| (0..table.len()).find(|&row| table.member(row) == home.member as usize));

    let held = (0..table.len()).filter(|&row| worth(row)).map(|row| table.depth(row)).max();
    let held_full = table.full().iter().map(|full| full.depth).filter(|&depth| is_worth(settings, depth, common)).max();
    let Some(longest) = held.max(held_full) else {
        let Some(home) = home.filter(|&home| answers(settings, home, common)) else {
            return by_fallback(Reason::NoMatch, aids);
        };
        return match home_row {
            Some(row) if stays(row) => Some(Choice { row, reason: Reason::Bound, by: None }),
            Some(_) => Some(to_least),
            None if table.full().iter().any(|full| full.member == home.member) => {
                by_fallback(Reason::PrefixOverflow, aids)
            }
            None => by_fallback(Reason::NoMatch, aids),
        };
    };

    let takes = |row: &usize| worth(*row) && stays(*row);
    let deepest = |a: &usize, b: &usize| table.depth(*b).cmp(&table.depth(*a)).then_with(|| table.compare(*a, *b));
    let Some(row) = (0..table.len()).filter(takes).min_by(deepest) else {
        return if held.is_some() { Some(to_least) } else { by_fallback(Reason::PrefixOverflow, aids) };
    };
    let reason = if table.depth(row) < longest { Reason::PrefixOverflow } else { Reason::Prefix };
    match home_row {
        Some(home) if home != row && table.depth(home) == table.depth(row) && takes(&home) => {
            let reason = if reason == Reason::Prefix { Reason::Bound } else { reason };
            Some(Choice { row: home, reason, by: None })
        }
        _ => Some(Choice { row, reason, by: None }),
    }
}

/// What load alone says. Requests that follow a prefix ask for no balance, so those that follow none must make up for
/// it: two drawn at random would do that only roughly. Whoever got the least lately, counting what the sessions begun
/// there will bring, is taken in the place of the drawn one, if it is hardly busier ([`hardly_busier`]).
fn fallback(settings: &CacheAware, table: &Candidates, aids: &mut Aids<'_>) -> Option<Choice> {
    let choice = by_load(settings.fallback, table, aids)?;
    if settings.fallback != LoadPolicy::PowerOfTwo {
        return Some(choice);
    }
    let rarest = (0..table.len()).min_by(|&a, &b| table.compare_coming(a, b))?;
    let (ratio, gap) = above(settings, table, rarest, choice.row);
    Some(if hardly_busier(ratio, gap) { Choice { row: rarest, ..choice } } else { choice })
}

/// Whether a row that is so much [`above`] another is hardly busier: by a quarter of the gap that a prefix is left for,
/// whatever multiple that is (where few requests are under way, a difference of one is a large one, and as likely as
/// none); or by half of it, and half of the other's load.
fn hardly_busier(ratio: f64, gap: f64) -> bool {
    gap <= 0.25 || (gap <= 0.5 && ratio <= 1.5)
}

/// Whether a row is so much busier than the least loaded that its prefix is not worth the wait.
fn too_busy(settings: &CacheAware, table: &Candidates, row: usize, least: usize) -> bool {
    let (ratio, gap) = above(settings, table, row, least);
    ratio > settings.max_load_ratio && gap >= 1.0
}

/// How much busier a row is than another: as a multiple, and in gaps that are to be left for. Compared in what the row
/// itself has, not per unit of weight: a gap of 8 requests means the same whatever unit weights have.
fn above(settings: &CacheAware, table: &Candidates, row: usize, other: usize) -> (f64, f64) {
    let gap = match settings.load {
        LoadUnit::Requests | LoadUnit::Placements => settings.min_load_gap.into(),
        LoadUnit::QueuedSeconds => settings.min_queue_gap.as_secs_f64(),
    };
    let own = table.amount(row);
    let others = table.load(other) * table.shares()[row] as f64 / FULL_SHARE as f64;
    // No load is no multiple of another; any is an endless multiple of none. A gap of 0 is reached by all.
    let ratio = if own > 0.0 { own / others } else { 0.0 };
    (ratio, if gap > 0.0 { (own - others) / gap } else { 1.0 })
}
