use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

use super::*;

/// What the reader makes of a text, if it takes it.
fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    let mut reader = Reader::new(text);
    let value = T::deserialize(&mut reader).ok()?;
    reader.end().ok().map(|()| value)
}

/// Skips the value of a text, and gives it as it stands.
fn raw(text: &str) -> Option<&str> {
    read::<&RawValue>(text).map(RawValue::get)
}

/// Compares with serde_json; both must take it, or none. (But for depth, and numbers out of range, which only skipping takes.)
fn agree(text: &str) {
    let expected = serde_json::from_str::<Value>(text);
    assert_eq!(read::<Value>(text), expected.ok(), "{text:?}");
    let expected = serde_json::from_str::<&RawValue>(text);
    assert_eq!(raw(text), expected.map(RawValue::get).ok(), "{text:?}");
    assert_eq!(read::<serde::de::IgnoredAny>(text).is_some(), raw(text).is_some(), "{text:?}");
}

#[test]
fn it_takes_what_serde_json_takes() {
    for text in [
        "",
        " ",
        "null",
        " null ",
        "nul",
        "nulL",
        "nullx",
        "true",
        "tru",
        "false",
        "falsey",
        "0",
        "-0",
        "-",
        "01",
        "-01",
        "1.",
        ".5",
        "1.5",
        "1e",
        "1e5",
        "1E+5",
        "1e-5",
        "1e+",
        "1.e5",
        "1 2",
        "--1",
        "1-2",
        "+1",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "1e308",
        "0.1",
        "123456789.123456789e-7",
        "[]",
        "[ ]",
        "[,]",
        "[1,]",
        "[1 2]",
        "[1,2",
        "[1,2]]",
        "[[],[[]]]",
        "[}",
        "{]",
        "{}",
        "{ }",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\" : 1 , \"a\":2}",
        "{a:1}",
        "{1:1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":[{\"b\":null}],\"c\":{}}",
        "\"",
        "\"a",
        "\"a\"",
        "\"a\"b",
        "\"\\\"\"",
        "\"\\",
        "\"\\\"",
        "\"\\n\\t\\r\\b\\f\\/\\\\\"",
        "\"\\x\"",
        "\"\\u0041\"",
        "\"\\u004\"",
        "\"\\u00g1\"",
        "\"\\uD83D\\uDE00\"",
        "\"\\ud83d\"",
        "\"\\ud83dx\"",
        "\"\\ud83d\\n\"",
        "\"\\ud83d\\u0041\"",
        "\"\\ude00\"",
        "\"\\ud83d\\ud83d\\ude00\"",
        "\"\\u0000\"",
        "\"a\nb\"",
        "\"a\tb\"",
        "\"\u{7f}\"",
        "\"\u{0}\"",
        "\n\"a\"\n",
        "[\n\"a\"\t,\r\"b\\n\" ]",
        "[\n\"a\tb\"]",
        "\u{feff}1",
        "\u{a0}1",
        "\u{b}1",
        "\"gr\u{fc}n \u{4e00}\\u4e00\u{1f600}\"",
        "\"\\u+041\"",
        "\"\\u 041\"",
        "'a'",
        "[1]x",
        "/**/1",
        "NaN",
        "Infinity",
    ] {
        agree(text);
    }
}

#[test]
fn a_value_is_given_as_it_stands() {
    for value in ["null", "\"a\\n\"", "[ 1, {} ]", "{\"a\" : [\"]\"]}", "-1.5e3"] {
        let text = format!(" {{ \"x\" : {value} , \"y\":{value}}}");
        let fields: std::collections::BTreeMap<&str, &RawValue> = read(&text).expect("JSON");
        assert_eq!([fields["x"].get(), fields["y"].get()], [value; 2]);
        assert_eq!(fields["x"].get().as_ptr(), text[text.find(value).expect("it is there")..].as_ptr());
    }
}

#[test]
fn who_asks_for_a_type_gets_that_or_nothing() {
    struct Any;
    impl Visitor<'_> for Any {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("anything")
        }

        fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
            Ok(())
        }
    }
    assert!(Reader::new("1").deserialize_any(Any).is_ok());
    assert!(Reader::new("1").deserialize_map(Any).is_err());
    assert!(Reader::new("1").deserialize_seq(Any).is_err());
    assert!(Reader::new("1").deserialize_str(Any).is_err());
    assert!(Reader::new("1").deserialize_identifier(Any).is_err());
}

#[test]
fn depth_costs_no_stack() {
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(raw(&deep(1_000_000)).is_some());
    assert!(read::<Value>(&deep(MOST_DEPTH)).is_some());
    assert!(read::<Value>(&deep(MOST_DEPTH + 1)).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::with_cases(4096) })]

    #[test]
    fn it_agrees_with_serde_json(pieces in prop::collection::vec(prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"b\\n\"", "\\", "\\u00e9", "\\ud83d", "\\ude00", "\\\"", "1", "0", "-", ".", "e", "true",
        "null", " ", "\n", "\u{1}", "\u{e9}", "\"role\":", "\"k\":", "long text of a string, with no end to it",
    ]), 0..12)) {
        agree(&pieces.concat());
    }

    #[test]
    fn it_reads_what_was_written(text in "(\\PC|[\"\\\\\u{0}-\u{1f}]){0,60}", indent: bool) {
        let value = serde_json::json!({ "a": [&text, { &text: [1.5, -3, null, true, &text] }], "b": {} });
        let json = if indent { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.expect("JSON");
        prop_assert_eq!(read::<Value>(&json), Some(value));
        prop_assert_eq!(raw(&json), Some(&*json));
    }
}
