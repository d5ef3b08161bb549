//! What recorded answers report, whatever the chunks.
use proptest::prelude::*;

use super::*;

macro_rules! recorded {
    ($engine:literal, $name:literal) => {
        include_bytes!(concat!("../../../tests/fixtures/http/", $engine, "/tiny-qwen3/", $name, ".body")).as_slice()
    };
    ($name:literal) => {
        [
            recorded!("vllm-0.32.0-cpu", $name),
            recorded!("sglang-0.5.23-cpu", $name),
            recorded!("llamacpp-xllamacpp-2026.10.11549", $name),
        ]
    };
}

fn of(prompt_tokens: u32, cached_tokens: impl Into<Option<u32>>, completion_tokens: u32) -> Option<Usage> {
    Some(Usage { prompt_tokens, cached_tokens: cached_tokens.into(), completion_tokens })
}

/// What an answer reports that comes in these pieces.
fn observed<'a>(stream: bool, pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<Usage> {
    let mut observer = Observer::new(stream);
    pieces.into_iter().for_each(|piece| observer.feed(piece));
    observer.finish()
}

fn is_stream(body: &[u8]) -> bool {
    !body.starts_with(b"{")
}

/// In one piece, byte by byte, and in a few sizes between.
fn read(body: &[u8]) -> Option<Usage> {
    let whole = observed(is_stream(body), [body]);
    for size in [1, 2, 7, 100, 1_000, 16_384] {
        assert_eq!(observed(is_stream(body), body.chunks(size)), whole, "in pieces of {size}");
    }
    whole
}

fn all(bodies: [&[u8]; 3]) -> [Option<Usage>; 3] {
    bodies.map(read)
}

#[test]
fn recorded_answers_are_read_in_every_api() {
    assert_eq!(all(recorded!("chat")), [of(28, 0, 8), of(28, 0, 8), of(28, 0, 8)]);
    assert_eq!(all(recorded!("completions")), [of(121, 0, 8), of(121, 112, 8), of(121, 0, 8)]);
    assert_eq!(all(recorded!("responses")), [of(9, 0, 16), of(9, 0, 14), of(9, 1, 16)]);
    // SGLang does not say there what was cached; llama.cpp leaves it out of `input_tokens`.
    assert_eq!(all(recorded!("messages")), [of(9, 0, 8), of(9, None, 8), of(9, 8, 8)]);
}

#[test]
fn recorded_streams_are_read_where_they_report() {
    assert_eq!(all(recorded!("chat-stream-usage")), [of(28, 0, 8), of(28, 16, 8), of(28, 27, 8)]);
    assert_eq!(all(recorded!("completions-stream-usage")), [of(121, 96, 8), of(121, 112, 8), of(121, 120, 8)]);
    assert_eq!(all(recorded!("chat-tools-required-stream")), [of(189, 160, 80), of(194, 192, 80), of(189, 188, 80)]);
    // Nobody asked for usage; llama.cpp tells by its timings.
    assert_eq!(all(recorded!("chat-stream")), [None, None, of(28, 27, 8)]);
}

#[test]
fn what_is_absent_or_null_is_unknown() {
    let said = |usage: &str| read(format!("{{\"usage\":{usage}}}").as_bytes());
    assert_eq!(said(r#"{"prompt_tokens":7}"#), of(7, None, 0));
    assert_eq!(said(r#"{"prompt_tokens":7,"prompt_tokens_details":null,"completion_tokens":2}"#), of(7, None, 2));
    assert_eq!(said(r#"{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":null}}"#), of(7, None, 0));
    assert_eq!(said(r#"{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":9}}"#), of(7, 7, 0));
    for nothing in ["null", "{}", r#"{"completion_tokens":2}"#, r#""a string""#, r#"{"prompt_tokens":-1}"#] {
        assert_eq!(said(nothing), None, "{nothing}");
    }
    for nothing in ["", "{", "null", "[]", "data: {\"usage\":{", "<html>\"usage\":{</html>"] {
        assert_eq!((observed(false, [nothing.as_bytes()]), observed(true, [nothing.as_bytes()])), (None, None));
    }
}

#[test]
fn a_later_event_adds_to_what_an_earlier_one_said() {
    // Anthropic's own: the prompt at the start, the output at the end.
    let own = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,",
        "\"cache_creation_input_tokens\":3,\"cache_read_input_tokens\":32,\"output_tokens\":1}}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":9}}\n\n",
    );
    assert_eq!(read(own.as_bytes()), of(40, 32, 9));
    // vLLM's: at the start it does not know yet what was cached (vllm#40912).
    let vllm = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":40,\"output_tokens\":0}}}\r\n\r\n",
        "data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":8,\"output_tokens\":9,",
        "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":32}}\r\n\r\n",
    );
    assert_eq!(read(vllm.as_bytes()), of(40, 32, 9));
    let generate = concat!(
        "data: {\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":12,\"completion_tokens\":1,\"cached_tokens\":8}}\n\n",
        "data:{\"text\":\"ab\",\"meta_info\": {\"prompt_tokens\":12,\"completion_tokens\":2,\"cached_tokens\":8}}\n\n",
        "data: [DONE]\n\n",
    );
    assert_eq!(read(generate.as_bytes()), of(12, 8, 2));
    let responses = concat!(
        "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"output\":[],\"usage\":{\"input_tokens\":9,",
        "\"input_tokens_details\":{\"cached_tokens\":1},\"output_tokens\":16}}}\n\n",
    );
    assert_eq!(read(responses.as_bytes()), of(9, 1, 16));
}

#[test]
fn usage_that_is_no_usage_is_passed_over() {
    let tools = r#"{"tools":[{"usage":{"input_tokens":1}}],"text":"\"usage\":{\"input_tokens\":2}","a":{"usage":{"input_tokens":3}}}"#;
    assert_eq!(read(tools.as_bytes()), None);
    let stream = format!("data: {tools}\n\ndata: {{\"choices\":[{{\"usage\":{{\"prompt_tokens\":4}}}}]}}\n\n");
    assert_eq!(read(stream.as_bytes()), None);
}

const USAGE: &str = r#""usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":1},"output_tokens":16}"#;

#[test]
fn of_a_long_answer_the_end_is_enough() {
    let long = "x".repeat(3 * document::MOST);
    for (answer, expected) in [
        (format!("{{\"output\":\"{long}\",{USAGE},\"user\":null}}\n"), of(9, 1, 16)),
        // An echo that comes later, and deeper, is none.
        (format!("{{\"output\":\"{long}\",{USAGE},\"tools\":[{{\"usage\":{{\"input_tokens\":5}}}}]}}"), of(9, 1, 16)),
        (format!("{{\"output\":\"{long}\",\"tools\":[{{{USAGE}}}]}}"), None),
        (format!("{{{USAGE},\"output\":\"{long}\"}}"), None),
    ] {
        assert_eq!(read(answer.as_bytes()), expected);
    }
    let event = format!("data: {{\"response\":{{\"output\":\"{long}\",{USAGE},\"user\":null}}}}\n\n");
    assert_eq!(read(event.as_bytes()), of(9, 1, 16));
    let two = format!("data: {{\"delta\":\"{long}\"}}\n\ndata: {{\"response\":{{{USAGE}}}}}\n\n");
    assert_eq!(read(two.as_bytes()), of(9, 1, 16));
}

#[test]
fn no_more_is_kept_than_64_kib() {
    for (stream, size) in [(false, 1_000), (true, 1_000), (false, 100_000), (true, 65_537), (true, 40_000)] {
        let mut observer = Observer::new(stream);
        let piece = vec![b'x'; size];
        for _ in 0..200 {
            observer.feed(&piece);
            assert!(observer.open.capacity() <= document::MOST, "{} bytes", observer.open.capacity());
        }
        assert_eq!(observer.finish(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the cuts, and whatever stands before: the same usage.
    #[test]
    fn every_chunking_reports_the_same(
        (which, fill) in (0..6_usize, 0..2 * document::MOST),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let [vllm, sglang, llamacpp] = recorded!("chat-stream-usage");
        let [json, ..] = recorded!("completions");
        let text = "y".repeat(fill);
        let body = match which {
            0 => vllm.to_vec(),
            1 => sglang.to_vec(),
            2 => llamacpp.to_vec(),
            3 => json.to_vec(),
            4 => format!("{{\"output\":\"{text}\",{USAGE}}}").into_bytes(),
            _ => format!("data: {{\"response\":{{\"output\":\"{text}\",{USAGE}}}}}\r\n\r\n").into_bytes(),
        };
        let stream = is_stream(&body);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &body[cut[0]..cut[1]]);
        let whole = observed(stream, [&body[..]]);
        prop_assert!(whole.is_some());
        prop_assert_eq!(observed(stream, pieces), whole);
    }

    /// Bytes of any kind are no panic.
    #[test]
    fn nothing_panics(body in "(data: |\\{|\"usage\":|\"timings\": ?|\\{\"prompt_tokens\":[0-9]{1,12}|\\}|\n|\r|é|,){0,40}", stream: bool) {
        observed(stream, [body.as_bytes()]);
    }
}
