//! Cases by name: others' bugs, and the rules one by one.
use super::super::super::wire::{Event, decode};
use super::*;

/// What an order said, in a line each.
#[derive(Debug, Default)]
struct Said(Vec<String>);

impl Follower<Vec<u8>> for Said {
    fn apply(&mut self, message: Vec<u8>) -> Applied {
        self.0.push(format!("apply {}", name(&message)));
        match decode(&message) {
            Err(_) => Applied::Lost,
            Ok(batch) if batch.events.contains(&Event::Cleared) => Applied::Cleared,
            Ok(_) => Applied::Whole,
        }
    }

    fn clear(&mut self) {
        self.0.push("clear".to_owned());
    }

    fn ask(&mut self, _: ReplayId, from: u64) {
        self.0.push(format!("ask {from}"));
    }

    fn state(&mut self, state: State) {
        let why = state.why().map_or(String::new(), |why| format!(" {}", why.as_str()));
        self.0.push(format!("{}{why}", state.as_str()));
    }
}

/// An empty batch, published at a second that names it.
fn message(second: u32) -> Vec<u8> {
    batch(second, &[0x90])
}

fn cleared(second: u32) -> Vec<u8> {
    batch(second, &[&[0x91, 0x91, 0xb0][..], b"AllBlocksCleared"].concat())
}

fn unreadable(second: u32) -> Vec<u8> {
    batch(second, &[0xc1])
}

fn batch(second: u32, events: &[u8]) -> Vec<u8> {
    [&[0x92, 0xcb][..], &f64::from(second).to_be_bytes(), events].concat()
}

fn name(message: &[u8]) -> f64 {
    f64::from_be_bytes(message[2..10].try_into().unwrap())
}

struct Case {
    order: Order<Vec<u8>>,
    said: Said,
    now: Tick,
}

impl Case {
    fn new(replay: bool) -> Self {
        let mut case = Self { order: Order::new(Settings::new(replay)), said: Said::default(), now: Tick(0) };
        case.order.subscribed(case.now, &mut case.said);
        case
    }

    /// What was said since it was last asked.
    fn said(&mut self) -> String {
        std::mem::take(&mut self.said.0).join(", ")
    }

    /// Connected, with everything to number `last` known; second 100 names number 0.
    fn live_to(replay: bool, last: u64) -> Self {
        let mut case = Self::new(replay);
        if replay {
            case.end();
        }
        (0..=last).for_each(|sequence| case.live(sequence, message(100 + sequence as u32)));
        assert_eq!(case.order.state(), State::Live);
        case.said();
        case
    }

    fn live(&mut self, sequence: u64, message: Vec<u8>) {
        self.order.live(sequence, message, self.now, &mut self.said);
    }

    fn current(&self) -> ReplayId {
        self.order.replay.current()
    }

    fn replayed(&mut self, sequence: u64, message: Vec<u8>) {
        self.order.replayed(self.current(), sequence, message, self.now, &mut self.said);
    }

    fn end(&mut self) {
        self.order.replay_ended(self.current(), self.now, &mut self.said);
    }

    fn fail(&mut self) {
        self.order.replay_failed(self.current(), self.now, &mut self.said);
    }

    fn after(&mut self, seconds: u64) {
        self.now.0 += seconds * 1_000_000;
        self.order.tick(self.now, &mut self.said);
    }

    fn reconnect(&mut self) {
        self.order.disconnected(&mut self.said);
        self.order.subscribed(self.now, &mut self.said);
    }
}

#[test]
fn a_replay_from_the_beginning_joins_what_comes_live() {
    let mut case = Case::new(true);
    case.live(2, message(102));
    case.live(3, message(103));
    (0..=2).for_each(|sequence| case.replayed(sequence, message(100 + sequence as u32)));
    case.end();
    assert_eq!(case.said(), "ask 0, apply 100, apply 101, apply 102, apply 103, live");
    assert_eq!(case.order.counts().repeated, 0);
}

#[test]
fn slices_are_asked_on_until_one_brings_nothing_new() {
    let mut case = Case::new(true);
    case.replayed(0, message(100));
    case.replayed(1, message(101));
    case.end();
    assert_eq!(case.said(), "ask 0, apply 100, apply 101, ask 1");
    case.replayed(1, message(101));
    case.replayed(2, message(102));
    case.end();
    assert_eq!(case.said(), "apply 102, ask 2");
    case.replayed(2, message(102));
    case.end();
    assert_eq!(case.said(), "live");
}

/// llm-d-router#1737.
#[test]
fn a_gap_is_closed_by_replay() {
    let mut case = Case::live_to(true, 1);
    case.live(4, message(104));
    case.live(5, message(105));
    assert_eq!(case.said(), "ask 1, syncing");
    (1..=4).for_each(|sequence| case.replayed(sequence, message(100 + sequence as u32)));
    case.end();
    assert_eq!(case.said(), "apply 102, apply 103, apply 104, apply 105, live");
}

/// dynamo#14627: every gap wiped the rank.
#[test]
fn a_gap_without_replay_keeps_what_is_known() {
    let mut case = Case::live_to(false, 1);
    case.live(4, message(104));
    case.live(5, message(105));
    assert_eq!(case.said(), "apply 104, degraded missed, apply 105");
    assert_eq!(case.order.counts().lost, 2);
    case.live(6, cleared(106));
    assert_eq!(case.said(), "apply 106, live", "nothing wrong is left");
}

#[test]
fn a_replay_that_no_longer_reaches_back_keeps_what_is_known() {
    let mut case = Case::live_to(true, 1);
    case.live(7, message(107));
    case.replayed(5, message(105));
    case.replayed(6, message(106));
    case.end();
    assert_eq!(case.said(), "ask 1, syncing, apply 105, degraded replay_truncated, apply 106, apply 107");
    case.after(1000);
    assert_eq!(case.said(), "", "it won't get better");
}

/// vLLM without replay: what it published before is unknown, and nothing wrong is believed.
#[test]
fn who_comes_late_knows_less_and_nothing_wrong() {
    let mut case = Case::new(false);
    case.live(7, message(107));
    assert_eq!(case.said(), "apply 107, degraded late");
    let mut first = Case::new(false);
    first.live(0, message(100));
    assert_eq!(first.said(), "apply 100, live");
}

/// llm-d-router#2853: credit of the life before was kept where no replay is configured.
#[test]
fn a_lower_number_is_a_restart() {
    for replay in [false, true] {
        let mut case = Case::live_to(replay, 9);
        case.live(0, message(200));
        let said = case.said();
        assert!(said.starts_with("clear,") && said.contains("apply 200"), "{said}");
        assert_eq!(case.order.counts().restarts, 1);
    }
}

#[test]
fn a_lower_number_is_a_restart_though_none_like_it_was_seen() {
    let mut case = Case::new(false);
    case.live(7, message(107));
    case.live(3, message(203));
    assert_eq!(case.said(), "apply 107, degraded late, clear, apply 203");
}

#[test]
fn what_was_held_back_does_not_outlive_its_connection() {
    let mut case = Case::new(true);
    case.live(1, message(101));
    case.reconnect();
    case.said();
    // Another process answers.
    case.replayed(0, message(200));
    assert_eq!(case.said(), "apply 200");
}

#[test]
fn a_restart_with_a_higher_number_than_any_new_one_is_seen_by_content() {
    let mut case = Case::live_to(false, 3);
    case.live(3, message(203));
    assert_eq!(case.said(), "clear, apply 203, degraded late");
}

#[test]
fn repetitions_are_no_restart() {
    let mut case = Case::live_to(true, 9);
    (0..=9).for_each(|sequence| case.live(sequence, message(100 + sequence as u32)));
    assert_eq!((case.said(), case.order.counts().repeated), (String::new(), 10));
}

/// What a replay brought may still be on its way live.
#[test]
fn what_a_replay_overtook_is_no_restart() {
    let mut case = Case::new(true);
    (0..5000).for_each(|sequence| case.replayed(sequence, message(sequence as u32)));
    case.said();
    // Too long ago to compare, and not lower than what came live.
    (10..5000).for_each(|sequence| case.live(sequence, message(sequence as u32)));
    assert_eq!((case.said(), case.order.counts().restarts), (String::new(), 0));
}

/// Publishers count upwards: what one sends on a new connection is beyond all that was known before, live or by replay.
#[test]
fn a_new_connection_that_brings_less_than_a_replay_had_is_a_restart() {
    let mut case = Case::new(true);
    (0..5000).for_each(|sequence| case.replayed(sequence, message(sequence as u32)));
    case.reconnect();
    case.said();
    // Too long ago to compare.
    case.live(10, message(9000));
    assert_eq!((case.said().as_str(), case.order.counts().restarts), ("clear, ask 0, syncing", 1));
}

#[test]
fn a_dropped_connection_is_suspect_until_the_last_number_comes_again() {
    let mut case = Case::live_to(true, 3);
    case.reconnect();
    assert_eq!(case.said(), "suspect disconnected, ask 3");
    case.live(4, message(104));
    assert_eq!(case.said(), "", "it may be another process'");
    case.replayed(3, message(103));
    case.end();
    assert_eq!(case.said(), "apply 104, syncing, live");
}

#[test]
fn another_process_behind_a_dropped_connection_gives_itself_away() {
    let mut case = Case::live_to(true, 3);
    case.reconnect();
    case.live(4, message(204));
    case.said();
    case.replayed(3, message(203));
    assert_eq!(case.said(), "clear, ask 0, syncing", "the last number has other content");
    // Or it has not come so far.
    let mut case = Case::live_to(true, 3);
    case.reconnect();
    case.end();
    case.end();
    assert_eq!(case.said(), "suspect disconnected, ask 3, ask 3, clear, ask 0, syncing");
    // Or, without replay, it counts from the beginning.
    let mut case = Case::live_to(false, 3);
    case.reconnect();
    case.live(1, message(201));
    assert_eq!(case.said(), "suspect disconnected, clear, apply 201, degraded late");
}

/// The process may be another one, that has counted on: what is known of the one before is not whole.
#[test]
fn a_replay_that_lacks_the_number_in_doubt_leaves_a_mark() {
    let mut case = Case::live_to(true, 3);
    case.reconnect();
    case.replayed(4, message(204));
    assert_eq!(case.said(), "suspect disconnected, ask 3, apply 204, degraded replay_truncated");
    case.end();
    case.replayed(4, message(204));
    case.end();
    assert_eq!((case.said().as_str(), case.order.state()), ("ask 4", State::Degraded(Why::ReplayTruncated)));
}

/// What a slice brings beyond a lost reply shows that the process is the same.
#[test]
fn replies_lost_in_slices_are_no_restart() {
    let mut case = Case::live_to(true, 3);
    case.live(9, message(109));
    for _ in 0..3 {
        case.replayed(3, message(103));
        case.replayed(5, message(105));
        case.end();
    }
    assert_eq!(case.said(), "ask 3, syncing, ask 3, ask 3, apply 105, apply 109, degraded replay_failed");
}

#[test]
fn without_replay_the_next_number_ends_the_suspicion() {
    let mut case = Case::live_to(false, 3);
    case.reconnect();
    assert_eq!(case.said(), "suspect disconnected");
    case.live(4, message(104));
    assert_eq!(case.said(), "apply 104, live");
}

/// Mooncake#3616, and an endpoint that nobody serves.
#[test]
fn a_replay_that_fails_is_given_up_and_tried_again_later() {
    let mut case = Case::live_to(true, 1);
    case.live(4, message(104));
    case.said();
    case.fail();
    case.after(1);
    case.after(5);
    assert_eq!(case.said(), "ask 1", "stalled");
    case.after(1);
    case.fail();
    assert_eq!(case.said(), "ask 1, apply 104, degraded replay_failed");
    case.live(5, message(105));
    case.after(60);
    assert_eq!(case.said(), "apply 105, ask 0");
    case.live(6, message(106));
    case.replayed(0, message(100));
    assert_eq!(case.said(), "apply 106, clear, apply 100, syncing", "nothing is held back before it is worth it");
    (1..=6).for_each(|sequence| case.replayed(sequence, message(100 + sequence as u32)));
    case.end();
    assert!(case.said().ends_with("apply 106, live"));
}

#[test]
fn replies_to_an_earlier_question_are_ignored() {
    let mut case = Case::new(true);
    let before = case.current();
    case.reconnect();
    case.said();
    case.order.replayed(before, 7, message(107), case.now, &mut case.said);
    case.order.replay_ended(before, case.now, &mut case.said);
    case.order.replay_failed(before, case.now, &mut case.said);
    assert_eq!(case.said(), "");
}

#[test]
fn what_is_held_back_is_bounded() {
    let mut settings = Settings::new(true);
    (settings.held_messages, settings.held_bytes) = (3, 2 * message(0).len());
    let mut case = Case { order: Order::new(settings), said: Said::default(), now: Tick(0) };
    case.order.subscribed(case.now, &mut case.said);
    (1..100).for_each(|sequence| case.live(sequence, message(sequence as u32)));
    assert_eq!(case.order.held(), (2, 2 * message(0).len()));
    case.replayed(0, message(0));
    case.end();
    assert_eq!(case.said(), "ask 0, apply 0, apply 1, apply 2, ask 2", "the rest is asked for");
    assert_eq!(case.order.held(), (0, 0));
}

#[test]
fn an_unreadable_message_degrades_until_everything_is_cleared() {
    let mut case = Case::live_to(false, 1);
    case.live(2, unreadable(102));
    case.live(3, message(103));
    case.live(4, cleared(104));
    assert_eq!(case.said(), "apply 102, degraded unreadable, apply 103, apply 104, live");
}

#[test]
fn silence_is_asked_about() {
    let mut case = Case::live_to(true, 1);
    case.order.silent(case.now, &mut case.said);
    assert_eq!(case.said(), "ask 1, suspect silent");
    case.replayed(1, message(101));
    case.end();
    assert_eq!(case.said(), "syncing, live", "there was nothing");
    let mut case = Case::live_to(false, 1);
    case.order.silent(case.now, &mut case.said);
    case.live(2, message(102));
    assert_eq!(case.said(), "suspect silent, apply 102, live");
}

/// An endpoint whose replays are always empty must not make every message a restart.
#[test]
fn a_replay_that_knows_nothing_does_not_wipe_again_and_again() {
    let mut case = Case::new(true);
    for sequence in 5..50 {
        case.live(sequence, message(100 + sequence as u32));
        (0..3).for_each(|_| case.end());
    }
    assert_eq!(case.order.counts().restarts, 0);
    assert_eq!(case.order.state(), State::Degraded(Why::Late));
    assert_eq!(case.order.counts().applied, 45);
}
