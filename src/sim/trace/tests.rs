//! What traces are read as, and what is said of those that are none.
use super::*;
use crate::sim::floors::floors;

const TWO: &str = r#"{"timestamp": 1500, "input_length": 1000, "output_length": 20, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 600, "output_length": 0, "hash_ids": [0, 2]}
"#;

fn parse(text: &str) -> Result<Trace, String> {
    Trace::parse("t", text.as_bytes().to_vec())
}

fn timed(trace: Trace) -> Vec<(VirtualTime, Call)> {
    match trace.calls {
        Calls::Timed(calls) => calls,
        Calls::Sessions(_) => panic!("timed"),
    }
}

fn session(id: u64) -> String {
    format!(
        r#"{{"id": "s{id}", "block_size": 64, "tool_tokens": 128, "system_tokens": 128, "requests": [
        {{"t": 0.0, "in": 400, "out": 10, "hash_ids": [1, 2, 3, 4, 5, 6, 7]}},
        {{"t": 9.0, "in": 500, "out": 10, "hash_ids": [1, 2, 3, 4, 5, 6, 8, 9], "think_time": 300.5}}]}}"#
    )
}

#[test]
fn a_request_has_its_time_and_shares_what_its_ids_say() {
    let calls = timed(parse(TWO).expect("a trace"));
    assert_eq!(calls.iter().map(|(at, _)| at.as_secs_f64()).collect::<Vec<_>>(), [0.0, 1.5], "in order of time");
    let (a, b) = (calls[0].1.blocks(), calls[1].1.blocks());
    assert_eq!(a.iter().zip(&b).take_while(|(a, b)| a == b).count(), 512 / 16);
    assert_eq!((calls[1].1.prompt_tokens, calls[1].1.output_tokens), (1_000, 20));
}

#[test]
fn a_bad_line_is_left_out_and_told_with_its_number() {
    let text = format!(
        "{TWO}\nnot json\n{TWO}{{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1]}}\n"
    );
    let trace = parse(&text).expect("a trace");
    let told = trace.left_out.clone();
    assert_eq!(timed(trace).len(), 4);
    assert!(told.contains("line 4 left out") && told.contains("line 7 left out: 1 hash_ids for 600"), "{told}");
}

#[test]
fn a_file_of_bad_lines_is_refused_and_the_forms_are_named() {
    let many = "x\n".repeat(MOST_BAD + 1);
    for text in [many.as_str(), "", "hello\n", "{}\n"] {
        let error = parse(text).expect_err("no trace");
        assert!(error.contains("input_length"), "{error}");
    }
    assert!(parse(&many).expect_err("no trace").contains("line 5 left out"));
    let mixed = format!("{TWO}{}\n", session(1).replace('\n', " "));
    assert!(parse(&mixed).expect_err("two kinds").contains("split"));
}

#[test]
fn sessions_share_half_of_their_tools_and_system_prompt_and_nothing_else() {
    let text = format!("{}\n{}\n", session(1).replace('\n', " "), session(2).replace('\n', " "));
    let Calls::Sessions(sessions) = parse(&text).expect("a trace").calls else { panic!("sessions") };
    let common = |a: &Call, b: &Call| a.blocks().iter().zip(&b.blocks()).take_while(|(a, b)| a == b).count();
    let [one, two] = sessions.as_slice() else { panic!("two") };
    assert_eq!(common(&one[0].1, &two[0].1), 2 * 64 / 16);
    assert_eq!(common(&one[0].1, &one[1].1), 6 * 64 / 16);
    assert_eq!((one[0].0, one[1].0), (Duration::ZERO, Duration::from_secs(60)), "nobody thinks longer");
    assert_eq!((one[1].1.prompt_tokens, one[1].1.session), (500, Some(0)));
    let one = parse(&session(1)).expect("a session printed over many lines");
    assert_eq!(one.requests(), 2);
}

#[test]
fn an_archive_that_is_cut_is_refused() {
    let mut header = vec![0_u8; 512];
    header[..6].copy_from_slice(b"a.json");
    header[124..135].copy_from_slice(b"00000001000");
    header[156] = b'0';
    header[257..262].copy_from_slice(b"ustar");
    let mut whole = header.clone();
    whole.extend(session(1).bytes().chain(std::iter::repeat(b' ')).take(512));
    assert_eq!(Trace::parse("a.tar", whole.clone()).expect("an archive").requests(), 2);
    whole.truncate(900);
    assert!(Trace::parse("a.tar", whole).expect_err("cut").contains("ends within a.json"));
    assert!(Trace::parse("a.gz", vec![0x1f, 0x8b, 1, 2, 3]).expect_err("no gzip").contains("gzip"));
}

/// The traces of others, which stand beside the repository where there are any.
fn shared(name: &str) -> Option<Trace> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces").join(name);
    if !path.exists() {
        println!("skipped: {name} is not here");
        return None;
    }
    Some(Trace::read(&path).expect("a sound trace"))
}

#[test]
fn mooncakes_conversations_can_hit_37_36_percent_at_most() {
    let Some(trace) = shared("mooncake-conversation.jsonl") else { return };
    assert_eq!((trace.requests(), trace.left_out.as_str()), (12_031, ""));
    let calls = timed(trace);
    let floor = floors(|| calls.iter().map(|(_, call)| call.clone()), &[u64::MAX])[0];
    assert!((100.0 * (1.0 - floor.infinite) - 37.36).abs() < 0.1, "{floor:?}");
}

#[test]
fn the_agents_sessions_are_read_from_their_archive() {
    let Some(trace) = shared("agents.tar.gz") else { return };
    assert_eq!((trace.requests(), trace.left_out.as_str()), (1_166, ""));
}
