use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// What comes out of a stream cut at these places, and how much of it after each piece.
fn shown(stream: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut hider = UsageHider::default();
    let (mut out, mut after, mut at) = (Vec::new(), Vec::new(), 0);
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (stream.len() + 1)).chain([stream.len()]).collect();
    cuts.sort_unstable();
    for cut in cuts {
        out.extend(hider.feed(Bytes::copy_from_slice(&stream[at..cut])));
        assert!(hider.held.len() <= MOST);
        at = cut;
        after.push((at, out.len()));
    }
    out.extend(hider.rest());
    (out, after)
}

fn text_of(stream: &str) -> String {
    String::from_utf8(shown(stream.as_bytes(), &[]).0).expect("UTF-8")
}

const USAGE: &str =
    r#"{"id":"x","choices":[],"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}"#;

/// Lines of events, without their ends, of which the first kinds are hidden.
const HIDDEN: &[&[&str]] = &[
    &["data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5},\"system_fingerprint\":\"x\"}"],
    &["data:{ \"usage\" : { \"a\": [ {} ] } , \"choices\" : [ ] , \"error\":null}"],
    &[": so", "event: message", "data: {\"choices\":[],", "data: \"usage\":", "data: {}}", "id: 7"],
    &["data: {\"x\":{\"usage\":null},\"choices\":[],\"usage\":{}}"],
];
const SHOWN: &[&[&str]] = &[
    &["data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\" {\"}}]}"],
    &["data: {\"choices\":[{\"text\":\"a\"}],\"usage\":null}"],
    &["data: {\"choices\":[],\"usage\":null}"],
    &["data: {\"choices\":[{\"text\":\"\"}],\"usage\":{\"prompt_tokens\":5}}"],
    &["data: {\"choices\":[],\"usage\":{},\"error\":{\"message\":\"x\"}}"],
    &["data: {\"choices\":[],\"prompt_filter_results\":[]}"],
    &["data: {\"usage\":{\"prompt_tokens\":5}}"],
    &["data: {\"x\":{\"choices\":[],\"usage\":{}}}"],
    &["data: [[],{\"usage\":{}}]"],
    &["data: {\"choices\":[],\"usage\":{}"],
    &[": {\"choices\":[],\"usage\":{}}"],
    &["datax: {\"choices\":[],\"usage\":{}}"],
    &[": keep-alive"],
    &["event: ping", "data"],
    &["data: [DONE]"],
    &[],
];

fn written(lines: &[&str], end: &str) -> String {
    lines.iter().chain(&[""]).map(|line| format!("{line}{end}")).collect()
}

#[test]
fn each_kind_of_event_is_judged_for_itself() {
    for end in ["\n", "\r\n", "\r"] {
        for lines in HIDDEN {
            assert_eq!(text_of(&written(lines, end)), "", "{lines:?}");
        }
        for lines in SHOWN {
            assert_eq!(text_of(&written(lines, end)), written(lines, end));
        }
    }
}

#[test]
fn an_event_that_is_whole_passes_at_once_and_uncopied() {
    let mut hider = UsageHider::default();
    for _ in 0..3 {
        let piece = Bytes::from("data: {\"choices\":[{}],\"usage\":null}\n\n: x\n\n");
        let out = hider.feed(piece.clone());
        assert_eq!((out.as_ptr(), out.len()), (piece.as_ptr(), piece.len()));
    }
    assert_eq!(hider.feed("data: a\n\ndata: {\"choi".into()), "data: a\n\n");
    assert_eq!(hider.feed("ces\":[{}]}\n".into()), "");
    assert_eq!(hider.feed("\ndata: b".into()), "data: {\"choices\":[{}]}\n\n");
    assert_eq!(hider.rest(), "data: b");
}

/// An event may be as long as it likes; what is held may not.
#[test]
fn what_is_too_long_to_be_held_passes_as_it_is() {
    for filler in [MOST - USAGE.len() - 20, MOST + 2000, 5 * MOST] {
        let event = format!("data: {}{USAGE}\n\n", " ".repeat(filler));
        let stream = format!("{event}data: {USAGE}\n\ndata: [DONE]\n\n");
        let cuts: Vec<_> = (0..stream.len() / 1000).map(|cut| cut * 1000).collect();
        let (out, _) = shown(stream.as_bytes(), &cuts);
        let expected = if event.len() <= MOST { "" } else { &event };
        assert!(out == [expected, "data: [DONE]\n\n"].concat().as_bytes(), "{filler}");
        // Whole in one piece, it need not be held.
        assert_eq!(text_of(&stream), "data: [DONE]\n\n");
    }
}

proptest! {
    #[test]
    fn what_comes_out_is_what_went_in_without_what_was_not_asked_for(
        events in vec((any::<bool>(), any::<proptest::sample::Index>()), 0..8),
        open in proptest::option::of((any::<bool>(), any::<proptest::sample::Index>(), any::<proptest::sample::Index>())),
        end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
        cuts in vec(0usize..2000, 0..12),
        bytewise in proptest::bool::weighted(0.1),
    ) {
        let lines = |hidden: bool, index: &proptest::sample::Index| *index.get(if hidden { HIDDEN } else { SHOWN });
        let (mut stream, mut expected, mut ended) = (String::new(), String::new(), vec![(0, 0)]);
        for (hidden, index) in &events {
            let event = written(lines(*hidden, index), end);
            stream += &event;
            expected += if *hidden { "" } else { &event };
            ended.push((stream.len(), expected.len()));
        }
        if let Some((hidden, index, at)) = &open {
            // One that the end of the body cuts off passes.
            let event = written(lines(*hidden, index), end);
            let whole = event.trim_end_matches(['\r', '\n']).len();
            let event = &event[..if whole == 0 { 0 } else { at.index(whole) }];
            stream += event;
            expected += event;
        }
        let cuts = if bytewise { (0..stream.len()).collect() } else { cuts };
        let (out, after) = shown(stream.as_bytes(), &cuts);
        prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        for (read, passed) in after {
            let due = ended.iter().rev().find(|(at, _)| *at <= read).map_or(0, |(_, due)| *due);
            prop_assert!(passed >= due, "{} of {} after {}", passed, due, read);
        }
    }

    #[test]
    fn bytes_of_any_kind_pass(stream in vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), any::<u8>()], 0..300), cuts in vec(0usize..300, 0..20)) {
        prop_assert_eq!(shown(&stream, &cuts).0, stream);
    }
}

/// Streams that were recorded with and without being asked for usage.
#[test]
fn recorded_streams_lose_that_event_alone() {
    for (engine, api, hidden) in [
        ("vllm-0.32.0-cpu", "chat", 1),
        ("vllm-0.32.0-cpu", "completions", 1),
        ("sglang-0.5.23-cpu", "chat", 1),
        ("sglang-0.5.23-cpu", "completions", 1),
        ("llamacpp-xllamacpp-2026.10.11549", "chat", 1),
        // Its completions report usage in the last event with a choice, asked or not.
        ("llamacpp-xllamacpp-2026.10.11549", "completions", 0),
    ] {
        let root = env!("CARGO_MANIFEST_DIR");
        let path = format!("{root}/tests/fixtures/http/{engine}/tiny-qwen3/{api}-stream-usage.body");
        let stream = std::fs::read_to_string(&path).expect("a recording");
        let events: Vec<_> = stream.split_inclusive("\n\n").collect();
        let at = events.len() - 2;
        let expected: String = [&events[..at], &events[at + hidden..]].concat().concat();
        for size in [1, 7, 1000, stream.len()] {
            let cuts: Vec<_> = (0..stream.len()).step_by(size).collect();
            assert!(shown(stream.as_bytes(), &cuts).0 == expected.as_bytes(), "{path} in pieces of {size}");
        }
    }
}
