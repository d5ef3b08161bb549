//! Sequence and trust: one [`Order`] for each rank of each replica, between its sockets and the index.
//!
//! An engine numbers its messages from 0, drops what a slow subscriber does not take, keeps the last few for replay, and
//! says nothing when it restarts. The order passes each message on once, in sequence, and knows what that is worth:
//! [`State::Live`] means that the index is the engine's cache; in any other state it says why not.
//!
//! **Loss.** A gap is closed by replay, with later messages held back meanwhile. What no replay has is lost: the rest is
//! kept and passed on, and the state is *degraded* until everything is cleared, or the engine restarts, or a replay from
//! number 0 succeeds. Until then a block is wrongly believed only if the message that removed it was lost. Blocks that
//! follow lost ones have an unknown parent; the index drops those.
//!
//! **Restart.** A late or repeated message must not be taken for a restart, nor a restart for a gap. What tells:
//! - a number that is known with other content was given by another process; with the same content it is a repetition;
//! - a live message below the last live one of the same connection, or below everything published before the
//!   connection was made: publishers count upwards and don't repeat themselves;
//! - a replay, asked from the last number known (so that one message comes again), that twice ends without what is
//!   known to be published.
//!
//! None of these sees a restart that hides behind a dropped connection *and* has counted beyond the old number *and* can't
//! be asked (no replay, or it no longer has the old number). Such an order is degraded, or suspect, or has met exactly
//! the next number. What is learned of a restart beside messages (the process' start time, an address that refuses) is
//! for the fleet to judge: the replica's life ends with it, and this order too.
mod held;
mod recent;
mod replay;

use xxhash_rust::xxh3::xxh3_64;

use crate::routing::Tick;
use held::Held;
use recent::{Recent, Seen};
use replay::Replay;
pub use replay::ReplayId;

/// What acts on an order's word. Called in sequence, within the call that brought the news.
pub trait Follower<B> {
    /// The next message.
    fn apply(&mut self, message: B) -> Applied;
    /// Everything that is known of the rank is void: it restarted, or all of it comes again.
    fn clear(&mut self);
    /// Ask the engine for all messages from a number on, over a connection of its own. Replies go to
    /// [`Order::replayed`] and then [`Order::replay_ended`], or to [`Order::replay_failed`]; an earlier replay is void.
    fn ask(&mut self, replay: ReplayId, from: u64);
    /// What is known is worth something else from here on.
    fn state(&mut self, state: State);
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// All of it counts.
    Whole,
    /// All of it counts, and it cleared everything from before.
    Cleared,
    /// Of what it removed something was lost: it could not be read, or a removal in it was skipped.
    Lost,
}

/// What is known of a rank is worth this much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The beginning, or a gap, is being caught up on: what is known is true but late.
    Syncing,
    /// What is known is what the engine holds.
    Live,
    /// Messages were lost for good. New ones count.
    Degraded(Why),
    /// It isn't known whether the process is the one that was followed, or whether it still talks to us.
    Suspect(Why),
}

impl State {
    /// Its name, as a metric's label has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::Live => "live",
            Self::Degraded(_) => "degraded",
            Self::Suspect(_) => "suspect",
        }
    }

    /// Why, where it is neither live nor on its way there.
    pub fn why(self) -> Option<Why> {
        match self {
            Self::Degraded(why) | Self::Suspect(why) => Some(why),
            Self::Syncing | Self::Live => None,
        }
    }
}

/// Why a rank is degraded or suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The engine had published before anyone listened. Blocks are unknown, but none is believed that is gone.
    Late,
    /// A gap, and no replay to ask.
    Missed,
    /// A gap, and the replay failed.
    ReplayFailed,
    /// A gap, and the replay no longer reaches so far back.
    ReplayTruncated,
    /// A message, or a removal in it, could not be read.
    Unreadable,
    /// The connection is down, or is up again and has not brought anything yet.
    Disconnected,
    /// The engine works and publishes nothing.
    Silent,
}

impl Why {
    /// Its name, as a metric's label has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Missed => "missed",
            Self::ReplayFailed => "replay_failed",
            Self::ReplayTruncated => "replay_truncated",
            Self::Unreadable => "unreadable",
            Self::Disconnected => "disconnected",
            Self::Silent => "silent",
        }
    }
}

/// Bounds of an order.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Whether the engine has a replay endpoint.
    pub replay: bool,
    /// Messages held back at most.
    pub held_messages: usize,
    /// Bytes of them at most.
    pub held_bytes: usize,
    /// A replay that brings nothing for so long has failed; microseconds. Engines serve it between other work.
    pub stall_micros: u64,
    /// Failures in a row after which a gap is given up.
    pub tries: u32,
    /// Between two of them; microseconds.
    pub pause_micros: u64,
    /// After giving up, the engine is asked again so often; microseconds.
    pub again_micros: u64,
}

impl Settings {
    /// The usual bounds.
    pub fn new(replay: bool) -> Self {
        let second = 1_000_000;
        Self {
            replay,
            held_messages: 4096,
            held_bytes: 16 << 20,
            stall_micros: 5 * second,
            tries: 3,
            pause_micros: second,
            again_micros: 60 * second,
        }
    }
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages passed on.
    pub applied: u64,
    /// Messages that came again.
    pub repeated: u64,
    /// Gaps in what came live.
    pub gaps: u64,
    /// Messages lost for good.
    pub lost: u64,
    /// Restarts of the engine.
    pub restarts: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Replays that failed.
    pub failed_replays: u64,
}

impl Counts {
    /// What has come since, with the names that a metric's label has.
    pub fn since(&self, before: &Self) -> [(&'static str, u64); 7] {
        [
            ("applied", self.applied - before.applied),
            ("repeated", self.repeated - before.repeated),
            ("gap", self.gaps - before.gaps),
            ("lost", self.lost - before.lost),
            ("restart", self.restarts - before.restarts),
            ("replay", self.replays - before.replays),
            ("failed_replay", self.failed_replays - before.failed_replays),
        ]
    }
}

/// The order of one rank's messages.
#[derive(Debug)]
pub struct Order<B> {
    settings: Settings,
    connected: bool,
    /// Whether everything that was there when we began has been asked for.
    synced: bool,
    /// The number of the next message to pass on.
    next: u64,
    /// Numbers below are known to be published: `next` at least.
    published: u64,
    /// The process that we follow can't send a lower number live.
    at_least: u64,
    held: Held<B>,
    recent: Recent,
    /// Whether something of this process may be believed.
    believes: bool,
    loss: Option<Why>,
    doubt: Option<Why>,
    replay: Replay,
    /// State that the follower knows of.
    told: State,
    counts: Counts,
}

impl<B: AsRef<[u8]>> Order<B> {
    /// For a rank that nothing is known of.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            connected: false,
            synced: false,
            next: 0,
            published: 0,
            at_least: 0,
            held: Held::new(settings.held_messages, settings.held_bytes),
            recent: Recent::default(),
            believes: false,
            loss: None,
            doubt: None,
            replay: Replay::default(),
            told: State::Syncing,
            counts: Counts::default(),
        }
    }

    /// What is known is worth this much.
    pub fn state(&self) -> State {
        match (self.doubt, self.loss) {
            (Some(why), _) => State::Suspect(why),
            (None, Some(why)) => State::Degraded(why),
            (None, None) if self.synced && !self.replay.holds_back() => State::Live,
            (None, None) => State::Syncing,
        }
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Messages held back, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held.bytes())
    }

    /// The subscription is in force: from here on nothing is missed but what the engine drops.
    pub fn subscribed(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        self.connect(now, follower);
        self.tell(follower);
    }

    /// The connection is gone.
    pub fn disconnected(&mut self, follower: &mut impl Follower<B>) {
        self.connected = false;
        // What was held may be another process' by the time that its turn comes; a replay has it.
        self.held.clear();
        self.replay.cancel();
        if self.synced || self.next > 0 {
            self.doubt = Some(Why::Disconnected);
        }
        self.tell(follower);
    }

    /// The engine works (answers report tokens) and nothing has come for longer than it should.
    pub fn silent(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        if self.connected && !self.replay.holds_back() {
            self.doubt = self.doubt.or(Some(Why::Silent));
            if self.settings.replay {
                self.catch_up(now, follower);
            }
        }
        self.tell(follower);
    }

    /// A message has come live.
    pub fn live(&mut self, sequence: u64, message: B, now: Tick, follower: &mut impl Follower<B>) {
        if !self.connected {
            self.connect(now, follower);
        }
        let hash = xxh3_64(message.as_ref());
        match self.seen(sequence, hash) {
            Seen::Same => self.counts.repeated += 1,
            Seen::Never if sequence >= self.next => self.take_live(sequence, hash, message, now, follower),
            // A replay brought it before; it is too long ago to compare.
            Seen::Never if sequence >= self.at_least => self.counts.repeated += 1,
            Seen::Never | Seen::Other => {
                self.restart(now, follower);
                self.take_live(sequence, hash, message, now, follower);
            }
        }
        self.tell(follower);
    }

    /// Time has passed: to be called every second or so.
    pub fn tick(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        self.tick_replay(now, follower);
        self.tell(follower);
    }

    fn connect(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        self.connected = true;
        self.at_least = self.published;
        if self.settings.replay {
            self.catch_up(now, follower);
        }
    }

    /// A live message that isn't known.
    fn take_live(&mut self, sequence: u64, hash: u64, message: B, now: Tick, follower: &mut impl Follower<B>) {
        self.at_least = self.at_least.max(sequence.saturating_add(1));
        self.published = self.published.max(self.at_least);
        // Even if it can't be kept: it may come twice.
        self.recent.remember(sequence, hash);
        if sequence == self.next && !(self.doubt.is_some() && self.replay.holds_back()) {
            self.doubt = None;
            self.synced = true;
            self.apply(hash, message, follower);
            return self.drain(follower);
        }
        if !self.replay.holds_back() {
            self.counts.gaps += u64::from(self.synced);
            if !self.settings.replay {
                self.lose(Why::Missed, sequence);
                self.doubt = None;
                self.synced = true;
                return self.apply(hash, message, follower);
            }
            self.catch_up(now, follower);
        }
        self.held.hold(sequence, hash, message);
    }

    /// Whether a message has come before, to be passed on or held back.
    fn seen(&self, sequence: u64, hash: u64) -> Seen {
        match self.held.hash(sequence) {
            Some(held) if held == hash => Seen::Same,
            Some(_) => Seen::Other,
            None => self.recent.seen(sequence, hash),
        }
    }

    /// Passes on the next message.
    fn apply(&mut self, hash: u64, message: B, follower: &mut impl Follower<B>) {
        self.recent.remember(self.next, hash);
        if self.next == 0 {
            // Everything from the beginning on.
            self.loss = None;
        }
        self.next = self.next.saturating_add(1);
        self.published = self.published.max(self.next);
        self.counts.applied += 1;
        self.believes = true;
        match follower.apply(message) {
            Applied::Whole => {}
            Applied::Cleared => self.loss = None,
            Applied::Lost => self.loss = Some(Why::Unreadable),
        }
    }

    /// Passes on what is held and has its turn.
    fn drain(&mut self, follower: &mut impl Follower<B>) {
        while let Some((hash, message)) = self.held.take(self.next) {
            self.apply(hash, message, follower);
        }
    }

    /// Gives up everything before a number.
    fn lose(&mut self, why: Why, until: u64) {
        // Nothing is believed yet, so nothing can be wrong.
        let why = if self.believes { why } else { Why::Late };
        self.counts.lost += until.saturating_sub(self.next);
        self.loss = self.loss.filter(|&loss| loss != Why::Late).or(Some(why));
        self.next = self.next.max(until);
        self.published = self.published.max(self.next);
    }

    /// Another process has taken over.
    fn restart(&mut self, now: Tick, follower: &mut impl Follower<B>) {
        self.counts.restarts += 1;
        self.synced = false;
        (self.loss, self.doubt) = (None, None);
        self.begin_anew(follower);
        self.recent.next_process();
        (self.published, self.at_least) = (0, 0);
        self.replay.forget();
        if self.connected && self.settings.replay {
            self.catch_up(now, follower);
        }
    }

    /// Forgets what is known, to take it in from number 0 on.
    fn begin_anew(&mut self, follower: &mut impl Follower<B>) {
        follower.clear();
        self.next = 0;
        self.believes = false;
        self.held.clear();
    }

    fn tell(&mut self, follower: &mut impl Follower<B>) {
        let state = self.state();
        if std::mem::replace(&mut self.told, state) != state {
            follower.state(state);
        }
    }
}

#[cfg(test)]
mod tests;
