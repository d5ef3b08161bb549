//! Schedules of faults, drawn by seed, between a model engine and an order.
//!
//! Rounds of trouble, each followed by quiet. In trouble: messages dropped, late and twice; connections that break, seen
//! or not; restarts, seen or not; replays that are refused, stall, come in slices, lose replies, or no longer reach back;
//! unreadable messages. In quiet everything works (but replay, if the engine has none) and the engine goes on.
//!
//! After each quiet the order has settled, and:
//! - **live** means that the mirror is the engine's cache, block for block;
//! - **degraded**: each block that is wrongly believed had its removal in a message of this life that no one could
//!   deliver, each that is unknown had itself or a block before it stored in one; nothing is of an earlier life;
//! - with a ring that reaches back to the beginning, and nothing unreadable, it is live;
//! - it never took anything for a restart that was none.
//!
//! Where the process' start time isn't known (in a quarter of the worlds) a restart may stay unseen, as `order` says.
//! Elsewhere the fleet learns of it, and begins anew with an order that knows nothing.
use std::collections::VecDeque;

use fastrand::Rng;

use super::engine::{Engine, Message};
use super::mirror::Mirror;
use super::*;

const SEEDS: u64 = 2_000;

#[derive(Debug)]
enum Reply {
    Message(Message),
    End,
    Failed,
}

struct World {
    rng: Rng,
    now: Tick,
    engine: Engine,
    order: Order<Message>,
    mirror: Mirror,
    /// The engine's side of the connection.
    up: bool,
    /// On their way, in order.
    live: VecDeque<Message>,
    /// Copies that are still to come, after so many more messages.
    copies: Vec<(usize, Message)>,
    replies: VecDeque<(ReplayId, Reply)>,
    /// Faults are possible now.
    trouble: bool,
    /// How often each fault comes in this world.
    rates: [u32; 12],
    /// A message of an earlier life may be somewhere in the order: a restart would be right.
    stale: bool,
    restarts: u64,
    ring_reaches: bool,
    /// Whether the process' start time is known.
    start_known: bool,
    /// The life that it was last told of.
    life_known: u32,
    /// Of all orders before this one.
    counts: Counts,
    /// A restart went unseen for good.
    fooled: bool,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Drop,
    Copy,
    Break,
    BreakUnseen,
    Restart,
    RestartUnseen,
    Clear,
    Unreadable,
    Refuse,
    Stall,
    Slice,
    LoseReply,
}

/// How often each comes at most, in a thousand steps, messages or replays.
const FAULTS: [(Fault, u32); 12] = [
    (Fault::Drop, 200),
    (Fault::Copy, 200),
    (Fault::Break, 30),
    (Fault::BreakUnseen, 30),
    (Fault::Restart, 20),
    (Fault::RestartUnseen, 20),
    (Fault::Clear, 20),
    (Fault::Unreadable, 30),
    (Fault::Refuse, 700),
    (Fault::Stall, 700),
    (Fault::Slice, 700),
    (Fault::LoseReply, 700),
];

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ring_reaches = rng.bool();
        let ring_size = if ring_reaches { usize::MAX } else { rng.usize(1..40) };
        let engine = Engine::new(rng.usize(4..40), ring_size);
        let mut settings = Settings::new(rng.u32(0..4) > 0);
        settings.held_messages = rng.usize(1..60);
        settings.held_bytes = rng.usize(200..20_000);
        settings.again_micros = 20_000_000;
        let rates = FAULTS.map(|(_, most)| if rng.bool() { 0 } else { rng.u32(1..most) });
        Self {
            now: Tick(1_000_000),
            engine,
            order: Order::new(settings),
            mirror: Mirror::default(),
            up: false,
            live: VecDeque::new(),
            copies: Vec::new(),
            replies: VecDeque::new(),
            trouble: true,
            rates,
            stale: false,
            restarts: 0,
            ring_reaches,
            start_known: rng.u32(0..4) > 0,
            life_known: 0,
            counts: Counts::default(),
            fooled: false,
            rng,
        }
    }

    fn run(&mut self) {
        // Engines run before anyone listens.
        for _ in 0..self.rng.usize(0..30) {
            self.serve();
        }
        for _ in 0..3 {
            self.trouble = true;
            for _ in 0..self.rng.usize(10..150) {
                self.step();
            }
            self.settle();
        }
    }

    fn happens(&mut self, fault: Fault) -> bool {
        self.trouble && self.rng.u32(0..1000) < self.rates[fault as usize]
    }

    fn seconds(&self) -> f64 {
        self.now.0 as f64 / 1e6
    }

    fn step(&mut self) {
        self.now.0 += self.rng.u64(1_000..200_000);
        match self.rng.u32(0..10) {
            0..=2 => self.serve(),
            3..=5 => self.deliver(),
            6 => self.answer(),
            7 | 8 => self.reply(),
            _ => self.order.tick(self.now, &mut self.mirror),
        }
        if self.happens(Fault::Clear) {
            let message = self.engine.clear(self.seconds());
            self.publish(message);
        }
        if self.happens(Fault::Break) {
            self.disconnect(true);
        }
        if self.happens(Fault::BreakUnseen) {
            self.disconnect(false);
        }
        if self.happens(Fault::Restart) {
            self.restart(true);
        }
        if self.happens(Fault::RestartUnseen) {
            self.restart(false);
        }
        if !self.up && self.rng.u32(0..6) == 0 {
            self.connect();
        }
        self.check();
    }

    fn serve(&mut self) {
        if let Some(message) = self.engine.serve(self.seconds(), &mut self.rng) {
            self.publish(message);
        }
    }

    fn publish(&mut self, message: Message) {
        if self.happens(Fault::Unreadable) {
            self.mirror.unreadable.insert((message.life, message.sequence));
        }
        if self.up && !self.happens(Fault::Drop) {
            if self.happens(Fault::Copy) {
                self.copies.push((self.rng.usize(0..20), message.clone()));
            }
            self.live.push_back(message);
        }
        let (due, later) = std::mem::take(&mut self.copies).into_iter().partition(|copy| copy.0 == 0);
        self.copies = later;
        self.copies.iter_mut().for_each(|copy| copy.0 -= 1);
        let due: Vec<(usize, Message)> = due;
        self.live.extend(due.into_iter().map(|copy| copy.1));
    }

    fn deliver(&mut self) {
        if let Some(message) = self.live.pop_front() {
            let old = message.life != self.engine.life;
            self.stale |= old;
            self.order.live(message.sequence, message, self.now, &mut self.mirror);
            self.check();
            self.stale |= old;
        }
    }

    /// The engine answers a replay.
    fn answer(&mut self) {
        let Some((id, from)) = self.mirror.asked.pop_front() else { return };
        if self.happens(Fault::Refuse) {
            return self.replies.push_back((id, Reply::Failed));
        }
        if self.happens(Fault::Stall) {
            return;
        }
        let mut answer: Vec<_> = self.engine.ring.iter().filter(|message| message.sequence >= from).cloned().collect();
        if self.happens(Fault::Slice) {
            answer.truncate(self.rng.usize(2..6));
        }
        if self.happens(Fault::LoseReply) && answer.len() > 1 {
            answer.remove(self.rng.usize(1..answer.len()));
        }
        let stalls = self.happens(Fault::Stall);
        if stalls {
            answer.truncate(self.rng.usize(0..=answer.len()));
        }
        self.replies.extend(answer.into_iter().map(|message| (id, Reply::Message(message))));
        if !stalls {
            self.replies.push_back((id, Reply::End));
        }
    }

    fn reply(&mut self) {
        let Some((id, reply)) = self.replies.pop_front() else { return };
        match reply {
            Reply::Message(message) => {
                self.stale |= message.life != self.engine.life;
                self.order.replayed(id, message.sequence, message, self.now, &mut self.mirror);
            }
            Reply::End => self.order.replay_ended(id, self.now, &mut self.mirror),
            Reply::Failed => self.order.replay_failed(id, self.now, &mut self.mirror),
        }
        self.check();
    }

    fn connect(&mut self) {
        self.up = true;
        self.order.subscribed(self.now, &mut self.mirror);
    }

    /// The connection breaks; what is on its way may still arrive.
    fn disconnect(&mut self, seen: bool) {
        let arrive = self.rng.usize(0..=self.live.len());
        self.live.truncate(arrive);
        self.copies.clear();
        if seen && self.up {
            while !self.live.is_empty() {
                self.deliver();
            }
            self.up = false;
            self.order.disconnected(&mut self.mirror);
        }
    }

    fn restart(&mut self, seen: bool) {
        let arrive = self.rng.usize(0..=self.replies.len());
        self.replies.truncate(arrive);
        self.now.0 += 1_000;
        self.engine.restart();
        self.now.0 += 1_000;
        self.stale = true;
        self.disconnect(seen);
        let most = 1 << self.rng.u32(0..6);
        for _ in 0..self.rng.usize(0..most) {
            self.serve();
        }
    }

    /// The fleet has found that the process is another one.
    fn begin_anew(&mut self) {
        self.life_known = self.engine.life;
        self.counts = self.all_counts();
        self.restarts = 0;
        self.order = Order::new(self.order.settings);
        self.mirror = Mirror { unreadable: std::mem::take(&mut self.mirror.unreadable), ..Mirror::default() };
        self.order.subscribed(self.now, &mut self.mirror);
    }

    fn all_counts(&self) -> Counts {
        let (before, now) = (self.counts, self.order.counts());
        Counts {
            applied: before.applied + now.applied,
            repeated: before.repeated + now.repeated,
            gaps: before.gaps + now.gaps,
            lost: before.lost + now.lost,
            restarts: before.restarts + now.restarts,
            replays: before.replays + now.replays,
            failed_replays: before.failed_replays + now.failed_replays,
        }
    }

    fn check(&mut self) {
        let (messages, bytes) = self.order.held();
        assert!(messages <= self.order.settings.held_messages && bytes <= self.order.settings.held_bytes);
        assert_eq!(self.mirror.state.unwrap_or(State::Syncing), self.order.state());
        let caught_up = self.order.next == self.order.published;
        assert!(caught_up || !self.up || self.order.replay.holds_back(), "something is missing and nobody asks for it");
        let restarts = self.order.counts().restarts;
        if restarts > self.restarts {
            assert!(self.stale, "a restart that was none");
            self.restarts = restarts;
            self.stale = !self.live.iter().all(|message| message.life == self.engine.life);
        }
    }

    /// Faults end; everything arrives, and the engine goes on for a while.
    fn settle(&mut self) {
        self.trouble = false;
        self.copies.clear();
        for turn in 0..60 {
            self.now.0 += 1_000_000;
            if !self.up {
                self.connect();
            }
            if turn % 10 < 2 {
                self.serve();
            }
            // By when a process says when it started, nothing of the one before is on its way any more.
            if turn == 10 && self.start_known && self.life_known != self.engine.life {
                self.begin_anew();
            }
            while !(self.live.is_empty() && self.mirror.asked.is_empty() && self.replies.is_empty()) {
                self.deliver();
                self.answer();
                self.reply();
            }
            self.order.tick(self.now, &mut self.mirror);
        }
        self.check();
        let state = self.order.state();
        assert!(matches!(state, State::Live | State::Degraded(_)), "settled as {state:?}");
        if !self.start_known && self.mirror.believes_earlier_life(&self.engine) {
            // Only then possible, and hardly ever where there is a replay to ask.
            self.fooled |= self.order.settings.replay && self.ring_reaches;
            return;
        }
        self.mirror.check(&self.engine, state);
        let unreadable = self.mirror.unreadable.iter().any(|&(life, _)| life == self.engine.life);
        if self.order.settings.replay && self.ring_reaches && !unreadable {
            assert_eq!(state, State::Live, "though a replay has everything");
        }
    }
}

#[test]
fn no_schedule_of_faults_makes_it_lie() {
    let first = std::env::var("WARMROUTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(0..SEEDS, |seed| seed..seed + 1);
    let (mut total, mut fooled) = (Counts::default(), 0);
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.run();
            (world.all_counts(), world.fooled)
        });
        let Ok((counts, was_fooled)) = run else { panic!("seed {seed} fails; WARMROUTE_SEED={seed} runs it alone") };
        fooled += u64::from(was_fooled);
        total.gaps += counts.gaps;
        total.lost += counts.lost;
        total.restarts += counts.restarts;
        total.repeated += counts.repeated;
        total.failed_replays += counts.failed_replays;
        total.applied += counts.applied;
    }
    println!("{total:?}, {fooled} fooled");
    assert!(fooled <= SEEDS / 200, "{fooled} restarts unseen though a replay would have told");
    if first.is_none() {
        // The schedules do hold what they are about.
        let seen = [total.gaps, total.lost, total.restarts, total.repeated, total.failed_replays];
        assert!(seen.iter().all(|&seen| seen > SEEDS / 2), "{total:?}");
    }
}
