//! Replays: asked for, watched, judged.
//!
//! Each is asked from the last number that is known, so that one message comes again and shows whether the process is the
//! same. Answers may be slices: it is asked on until one brings nothing new, or what comes live continues it.
use xxhash_rust::xxh3::xxh3_64;

use super::recent::Seen;
use super::{Follower, Order, Why};
use crate::routing::Tick;

/// Answers in a row without what is known to be published, that show another process.
const DENIALS: u32 = 2;

/// Which replay a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplayId(u64);

/// Where replays of a rank stand.
#[derive(Debug, Default)]
pub(super) struct Replay {
    stage: Stage,
    asked: u64,
    /// In a row, without a message that was missing.
    failures: u32,
    /// Answers in a row that ended without what is known to be published.
    denials: u32,
    /// When to try again after giving up; `None` where that is of no use.
    again_at: Option<Tick>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    /// Until it is asked again.
    Paused(Tick),
    Asked(Ask),
}

#[derive(Debug)]
struct Ask {
    from: u64,
    /// The next number, as it was asked.
    known: u64,
    /// One past the highest number that was known to be published then: an answer has it if the process is the same.
    due: u64,
    /// One past the highest number that it brought.
    end: u64,
    /// When it last brought something.
    heard: Tick,
    answered: bool,
    /// From number 0, to replace what is known, if it still reaches there.
    full: bool,
}

impl Replay {
    /// Whether messages that come live have to wait for it.
    pub fn holds_back(&self) -> bool {
        match &self.stage {
            Stage::Idle => false,
            Stage::Paused(_) => true,
            Stage::Asked(ask) => !ask.full,
        }
    }

    /// Ends what is in progress.
    pub fn cancel(&mut self) {
        self.stage = Stage::Idle;
        (self.failures, self.denials) = (0, 0);
    }

    /// The process is another one.
    pub fn forget(&mut self) {
        self.cancel();
        self.again_at = None;
    }

    #[cfg(test)]
    pub fn current(&self) -> ReplayId {
        ReplayId(self.asked)
    }

    fn is_current(&self, id: ReplayId) -> bool {
        id.0 == self.asked && matches!(self.stage, Stage::Asked(_))
    }
}

impl<B: AsRef<[u8]>> Order<B> {
    /// A reply has come.
    pub fn replayed(
        &mut self,
        replay: ReplayId,
        sequence: u64,
        message: B,
        now: Tick,
        follower: &mut impl Follower<B>,
    ) {
        if self.replay.is_current(replay) {
            self.take_reply(sequence, message, now, follower);
        }
        self.tell(follower);
    }

    /// The engine has said that there are no more.
    pub fn replay_ended(&mut self, replay: ReplayId, now: Tick, follower: &mut impl Follower<B>) {
        if self.replay.is_current(replay)
            && let Stage::Asked(ask) = std::mem::take(&mut self.replay.stage)
            && !ask.full
        {
            self.judge(&ask, now, follower);
        }
        self.tell(follower);
    }

    /// It could not be asked, or the connection broke.
    pub fn replay_failed(&mut self, replay: ReplayId, now: Tick, follower: &mut impl Follower<B>) {
        if self.replay.is_current(replay) {
            self.fail(now, follower);
        }
        self.tell(follower);
    }

    /// Asks for what comes after the last number known.
    pub(super) fn catch_up(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        self.ask(self.next.saturating_sub(1), false, now, follower);
    }

    fn ask(&mut self, from: u64, full: bool, now: Tick, follower: &mut impl Follower<B>) {
        self.counts.replays += 1;
        self.replay.asked += 1;
        let (known, due) = (self.next, self.published);
        self.replay.stage = Stage::Asked(Ask { from, known, due, end: from, heard: now, answered: false, full });
        follower.ask(ReplayId(self.replay.asked), from);
    }

    fn take_reply(&mut self, sequence: u64, message: B, now: Tick, follower: &mut impl Follower<B>) {
        let Stage::Asked(ask) = &mut self.replay.stage else { return };
        let first = !std::mem::replace(&mut ask.answered, true);
        let late = first && sequence > ask.from;
        ask.heard = now;
        ask.end = ask.end.max(sequence.saturating_add(1));
        if std::mem::take(&mut ask.full) {
            if late {
                // The beginning is gone, and won't come back.
                self.replay.forget();
                return;
            }
            ask.known = 0;
            self.replay.again_at = None;
            self.loss = None;
            self.begin_anew(follower);
        }
        let hash = xxh3_64(message.as_ref());
        if self.seen(sequence, hash) == Seen::Other {
            return self.restart(now, follower);
        }
        self.published = self.published.max(sequence.saturating_add(1));
        if late && (sequence > self.next || self.doubt.is_some()) {
            // No longer there; whether the process is the same can't be seen either.
            self.replay.again_at = None;
            self.skip_to(Why::ReplayTruncated, sequence, follower);
        }
        self.doubt = None;
        if sequence > self.next {
            // A reply was lost on the way.
            self.held.hold(sequence, hash, message);
        } else if sequence == self.next {
            self.held.take(sequence);
            self.apply(hash, message, follower);
        }
        self.drain(follower);
    }

    /// What an answer means, now that it has ended.
    fn judge(&mut self, ask: &Ask, now: Tick, follower: &mut impl Follower<B>) {
        let missing = self.published > self.next;
        if self.next > ask.known {
            (self.replay.failures, self.replay.denials) = (0, 0);
            // Only what comes live shows that it was no slice.
            if missing || self.at_least < self.next {
                return self.catch_up(now, follower);
            }
        } else if ask.end <= ask.known && ask.end < ask.due {
            self.replay.denials += 1;
            if self.replay.denials < DENIALS {
                return self.catch_up(now, follower);
            }
            if self.believes {
                return self.restart(now, follower);
            }
            return self.give_up(Why::ReplayTruncated, now, follower);
        } else if missing {
            // Replies were lost on the way, or it came too late for what came live.
            self.replay.failures += 1;
            if self.replay.failures >= self.settings.tries {
                return self.give_up(Why::ReplayFailed, now, follower);
            }
            return self.catch_up(now, follower);
        }
        self.replay.cancel();
        self.doubt = None;
        self.synced = true;
    }

    fn fail(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        self.counts.failed_replays += 1;
        self.replay.failures += 1;
        if !self.replay.holds_back() {
            // A full one: nothing waits for it.
            self.replay.cancel();
            self.replay.again_at = Some(self.again(now));
        } else if self.replay.failures >= self.settings.tries {
            self.give_up(Why::ReplayFailed, now, follower);
        } else {
            self.replay.stage = Stage::Paused(Tick(now.0.saturating_add(self.settings.pause_micros)));
        }
    }

    /// Goes on without what no replay brings.
    fn give_up(&mut self, why: Why, now: Tick, follower: &mut impl Follower<B>) {
        self.replay.cancel();
        self.replay.again_at = Some(self.again(now));
        if self.published > self.next {
            self.skip_to(why, self.published, follower);
            self.doubt = None;
        } else if self.next == 0 {
            self.lose(why, 0);
        }
        self.synced = true;
    }

    /// Passes on what is held before a number, and gives up the rest of what is before it.
    fn skip_to(&mut self, why: Why, until: u64, follower: &mut impl Follower<B>) {
        loop {
            self.lose(why, self.held.first().map_or(until, |first| first.min(until)));
            self.drain(follower);
            if self.next >= until {
                return;
            }
        }
    }

    pub(super) fn tick_replay(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        match &self.replay.stage {
            Stage::Asked(ask) if now.0 >= ask.heard.0.saturating_add(self.settings.stall_micros) => {
                self.fail(now, follower);
            }
            Stage::Paused(until) if now >= *until => self.catch_up(now, follower),
            Stage::Idle if self.connected && self.replay.again_at.is_some_and(|at| now >= at) => {
                self.replay.again_at = Some(self.again(now));
                match (self.doubt, self.loss) {
                    (Some(_), _) => self.catch_up(now, follower),
                    (None, Some(_)) => self.ask(0, true, now, follower),
                    (None, None) => self.replay.again_at = None,
                }
            }
            _ => {}
        }
    }

    fn again(&self, now: Tick) -> Tick {
        Tick(now.0.saturating_add(self.settings.again_micros))
    }
}
