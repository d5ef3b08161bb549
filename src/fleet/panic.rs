//! Who is let in although they are down: a pool never loses more than a share of its replicas to judgement.
//!
//! Judgement is a failing probe or an open breaker; both can be wrong, and a pool that believes them about everyone has
//! nobody left. A replica to which no connection can be opened is no matter of judgement, and is never let in.
//! Pure; asked by each decision while some replica is down.
use std::sync::Arc;
use std::time::Instant;

/// Why a replica is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Down {
    /// No connection can be opened.
    Unreachable,
    /// Its probes fail.
    Sick,
    /// Its breaker is open.
    Ejected(Instant),
}

/// Whom to let in, and whether this is panic: not enough replicas are well, so all that can be reached are used.
///
/// `total` replicas in the pool, those that drain left out, of which `down` are; `max_ejected` is the share of them that
/// may be left out, at least one if it isn't zero.
pub(super) fn readmitted(total: usize, mut down: Vec<(Arc<str>, Down)>, max_ejected: f64) -> (Vec<Arc<str>>, bool) {
    let least = if max_ejected >= 1.0 {
        0
    } else {
        let most = (total as f64 * max_ejected) as usize;
        let most = if max_ejected > 0.0 { most.max(1) } else { most };
        total.saturating_sub(most).max(1)
    };
    let missing = least.saturating_sub(total.saturating_sub(down.len()));
    if missing == 0 {
        return (Vec::new(), false);
    }
    down.retain(|(_, why)| *why != Down::Unreachable);
    let since = |why: &Down| if let Down::Ejected(since) = why { Some(*since) } else { None };
    // Breakers that opened when enough were open already do not count, the latest first: that is no panic yet.
    down.sort_by_key(|(_, why)| std::cmp::Reverse(since(why)));
    let ejected = down.iter().take_while(|(_, why)| *why != Down::Sick).count();
    let panic = ejected < missing && !down.is_empty();
    if !panic {
        down.truncate(missing);
    }
    (down.into_iter().map(|(id, _)| id).collect(), panic)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ask(total: usize, down: &[(&str, Down)], max_ejected: f64) -> (Vec<String>, bool) {
        let down = down.iter().map(|(id, why)| (Arc::from(*id), *why)).collect();
        let (ids, panic) = readmitted(total, down, max_ejected);
        (ids.iter().map(ToString::to_string).collect(), panic)
    }

    fn ids(ids: &[&str], panic: bool) -> (Vec<String>, bool) {
        (ids.iter().map(ToString::to_string).collect(), panic)
    }

    #[test]
    fn at_most_the_share_is_left_out() {
        let now = Instant::now();
        let at = |seconds| Down::Ejected(now + Duration::from_secs(seconds));
        assert_eq!(ask(4, &[("a", at(1)), ("b", at(2))], 0.5), ids(&[], false));
        assert_eq!(ask(4, &[("a", at(1)), ("c", at(3)), ("b", at(2))], 0.5), ids(&["c"], false), "the latest");
        assert_eq!(ask(4, &[("a", at(1)), ("b", Down::Unreachable), ("c", Down::Sick)], 0.5), ids(&["a"], false));
        assert_eq!(ask(3, &[("a", at(1))], 0.1), ids(&[], false), "one may always be left out");
        assert_eq!(ask(3, &[("a", at(1))], 0.0), ids(&["a"], false), "but for a share of nothing");
        assert_eq!(ask(1, &[("a", at(1))], 0.5), ids(&["a"], false), "the last one never is");
    }

    #[test]
    fn with_too_few_left_all_that_can_be_reached_are_used() {
        let now = Instant::now();
        let three = [("a", Down::Sick), ("b", Down::Unreachable), ("c", Down::Sick)];
        assert_eq!(ask(4, &three, 0.5), ids(&["a", "c"], true));
        assert_eq!(ask(4, &three, 0.8), ids(&[], false));
        assert_eq!(ask(1, &[("a", Down::Sick)], 0.5), ids(&["a"], true));
        assert_eq!(ask(2, &[("a", Down::Sick), ("b", Down::Ejected(now))], 0.5), ids(&["b"], false));
        let both = [("a", Down::Sick), ("b", Down::Sick), ("c", Down::Ejected(now)), ("d", Down::Ejected(now))];
        let (mut all, panic) = ask(5, &both, 0.2);
        all.sort();
        assert_eq!((all, panic), ids(&["a", "b", "c", "d"], true));
    }

    #[test]
    fn nobody_that_cannot_be_reached_is_let_in_and_all_may_be_left_out_if_so_wished() {
        let dead = [("a", Down::Unreachable), ("b", Down::Unreachable)];
        assert_eq!(ask(2, &dead, 0.5), ids(&[], false));
        assert_eq!(ask(2, &[("a", Down::Sick), ("b", Down::Sick)], 1.0), ids(&[], false));
    }
}
