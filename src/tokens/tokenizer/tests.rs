use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer")
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, false, &mut ids).unwrap();
    ids
}

/// A tokenizer made from the small one by a change of its JSON.
fn changed(change: impl FnOnce(&mut serde_json::Value)) -> Tokenizer {
    let text = std::fs::read_to_string(folder().join("tokenizer.json")).unwrap();
    let mut json = serde_json::from_str(&text).unwrap();
    change(&mut json);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::load(dir.path()).unwrap()
}

#[test]
fn it_appends_what_the_older_library_gives() {
    let tokenizer = Tokenizer::load(&folder()).unwrap();
    let oracle = tokenizers_oracle::Tokenizer::from_file(folder().join("tokenizer.json")).unwrap();
    let mut all = vec![7];
    let mut wanted = vec![7];
    for text in [
        "",
        "hello world",
        "<|begin|>user\nWo ist Oslo? 世界 👩‍👩‍👧 e\u{301}\u{0}\u{7f}<|end|>\n",
        "a <pad>  b<think></think><|begin|<|begin|>>",
        "مرحبا العالم \u{202e}",
    ] {
        tokenizer.encode(text, true, &mut all).unwrap();
        wanted.extend(oracle.encode_fast(text, true).unwrap().get_ids());
    }
    assert_eq!(all, wanted);
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokenizer.json");
    let load = || Tokenizer::load(dir.path()).unwrap_err().to_string();
    let whole = std::fs::read_to_string(folder().join("tokenizer.json")).unwrap();
    let mut seen = vec![load()];
    for text in [
        &whole[..whole.len() / 2],
        "[1, 2]",
        "{}",
        "hello",
        r#"{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}"#,
        r#"{"model": {"type": "Mystery"}}"#,
        &format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)),
    ] {
        std::fs::write(&file, text).unwrap();
        seen.push(load());
    }
    for message in &seen {
        assert!(message.starts_with(&file.display().to_string()), "{message}");
    }
    let causes =
        ["cannot be read", "ends too early", "not a tokenizer", "not a tokenizer", "not JSON", "not a tokenizer"];
    for (message, cause) in seen.iter().zip(causes) {
        assert!(message.contains(cause), "{cause}: {message}");
    }
}

#[test]
fn special_tokens_stand_around_a_text_where_they_are_asked_for() {
    let tokenizer = changed(|json| {
        json["post_processor"] = serde_json::json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [0], "tokens": ["<|begin|>"]},
                               "<|end|>": {"id": "<|end|>", "ids": [1], "tokens": ["<|end|>"]}}});
        json["truncation"] =
            serde_json::json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    });
    assert_eq!((tokenizer.prefix(), tokenizer.suffix()), (&[0][..], &[1][..]));
    let text = "hello world, this is more than four tokens";
    let mut with = Vec::new();
    tokenizer.encode(text, true, &mut with).unwrap();
    assert_eq!(with, [&[0], &*ids(&tokenizer, text), &[1]].concat());
    assert!(with.len() > 8, "the file's truncation is an engine's matter: {with:?}");
}

#[test]
fn a_text_is_cut_only_where_no_token_looks_across() {
    let cuts = |tokenizer: &Tokenizer, text: &str| tokenizer.cut_points().find(text).collect::<Vec<_>>();
    let tokenizer = Tokenizer::load(&folder()).unwrap();
    assert_eq!(cuts(&tokenizer, "<|begin|>a<|end|>\n<|begin|>b"), [10, 18]);
    assert_eq!(cuts(&tokenizer, "a <pad> b"), [0usize; 0], "a token that strips what stands before it");
    assert_eq!(cuts(&tokenizer, "<|begin|<|begin|>>"), [8]);
    assert_eq!(cuts(&tokenizer, ""), [0usize; 0]);

    let normalized = changed(|json| json["added_tokens"][0]["normalized"] = true.into());
    assert_eq!(cuts(&normalized, "x<|begin|>a<|end|>"), [11]);
    // A whole word before a token that opens with a letter would look whole once it is cut there.
    let words = changed(|json| {
        json["added_tokens"][0]["content"] = "begin".into();
        json["added_tokens"][1]["content"] = "dog".into();
        json["added_tokens"][1]["single_word"] = true.into();
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        vocab.insert("begin".into(), 5000.into());
        vocab.insert("dog".into(), 5001.into());
        json["added_tokens"][0]["id"] = 5000.into();
        json["added_tokens"][1]["id"] = 5001.into();
    });
    assert_eq!(cuts(&words, "a dogbegin<|call|>"), [10]);
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(11), failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn it_gives_what_the_library_gives(parts in prop::collection::vec(prop_oneof![
        Just("<|begin|>"), Just("<|end|>"), Just("<|END|>"), Just("<pad>"), Just(" "), Just("hello "), Just("\u{301}"), Just("e\u{301}"), Just("\u{308}\u{323}"),
        Just("\u{e9}"), Just("\u{212b}"), Just("\u{37e}"), Just("ﬁ"), Just("\u{1100}\u{1161}"), Just("\u{11a8}"), Just("世界"), Just("👩\u{200d}👩"), Just("<|end\u{ff5c}>"),
        Just("words and words and words and words and words and words and words, more than a step of them"),
    ], 0..12)) {
        let text = parts.concat();
        for tokenizer in normalizing() {
            let options = tokenizers::pipeline::EncodeOptions {
                add_special_tokens: false,
                encode_special_tokens: false,
                padding: tokenizers::pipeline::Override::Off,
                truncation: tokenizers::pipeline::Override::Off,
            };
            let mut wanted = Vec::new();
            tokenizer.inner.encode_into(&text, &options, &mut wanted).unwrap();
            prop_assert_eq!(ids(tokenizer, &text), PipelineToken::cast_slice(&wanted), "{:?}", &text);
        }
    }

    #[test]
    fn pieces_encode_to_the_ids_of_the_whole(parts in prop::collection::vec(prop_oneof![
        Just("<|begin|>"), Just("<|end|>"), Just("<|call|>"), Just("<think>"), Just("<pad>"), Just(" "), Just("\n\n"),
        Just("<|"), Just("begin|>"), Just("e"), Just("\u{301}"), Just("世界"), Just("hello"), Just("it's 12"), Just("👩‍👩‍👧"), Just("\u{0}"),
    ], 0..40)) {
        let text = parts.concat();
        let tokenizer = small();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in tokenizer.cut_points().find(&text).chain([text.len()]) {
            tokenizer.encode(&text[from..cut], false, &mut pieces).unwrap();
            from = cut;
        }
        prop_assert_eq!(pieces, ids(tokenizer, &text));
    }
}

/// The small tokenizer with other normalizers, and a token that is looked for after them.
fn normalizing() -> &'static [Tokenizer] {
    static ALL: std::sync::LazyLock<Vec<Tokenizer>> = std::sync::LazyLock::new(|| {
        let all = [
            r#"{"type": "NFC"}"#,
            r#"{"type": "NFKD"}"#,
            r#"{"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "NFD"}]}"#,
            r#"{"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}"#,
            "null",
        ];
        let with = |json: &mut serde_json::Value, normalizer: &str| {
            json["normalizer"] = serde_json::from_str(normalizer).unwrap();
            json["added_tokens"][1]["normalized"] = true.into();
        };
        all.iter().map(|normalizer| changed(|json| with(json, normalizer))).collect()
    });
    &ALL
}

#[test]
fn forms_are_asked_only_where_they_may_change_something() {
    let forms: Vec<bool> = normalizing().iter().map(|tokenizer| tokenizer.forms_only).collect();
    assert_eq!(forms, [true, true, true, false, true]);
    let nfc = normalizing()[0].inner.get_normalizers();
    for (text, has) in [
        ("", true),
        ("plain", true),
        ("gr\u{fc}n, 世界", true),
        ("e\u{301}", false),
        ("\u{212b}", false),
        ("a\u{301}", false),
    ] {
        assert_eq!(has_form(nfc, &format!("{}{text}{}", "a ".repeat(100), " z".repeat(100))), has, "{text:?}");
    }
}

fn small() -> &'static Tokenizer {
    static SMALL: std::sync::LazyLock<Tokenizer> = std::sync::LazyLock::new(|| Tokenizer::load(&folder()).unwrap());
    &SMALL
}
