use std::path::PathBuf;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const TEMPLATE: &str = "{%- if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
    {%- for message in messages %}{% if message.role == 'refused' %}{{ raise_exception('no') }}{% endif %}\
    <|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}{% else %}\
    {%- for part in message.content %}{% if part.type == 'image_url' or part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}\
    {%- endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A tokenizer that makes each byte a token, and its special tokens; ids of bytes are 0 to 255 in the order in which
/// GPT-2 writes them.
fn folder(template: Option<&str>) -> TempDir {
    let printable = |byte: &u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..256).filter(|byte| !printable(byte)).zip(256..);
    let mut vocab: Vec<_> = (0..256).filter(printable).map(|byte| (byte, byte)).chain(others).collect();
    vocab.sort_unstable();
    let vocab: serde_json::Map<String, Value> =
        vocab.iter().map(|(byte, c)| (char::from_u32(*c).unwrap().to_string(), json!(byte))).collect();
    let special = ["<|im_start|>", "<|im_end|>", "<|image|>", "<|bos|>"];
    let added: Vec<_> = special
        .iter()
        .zip(256..)
        .map(|(content, id)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let bos = json!({"SpecialToken": {"id": "<|bos|>", "type_id": 0}});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "post_processor": {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [259], "tokens": ["<|bos|>"]}}},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({"chat_template": template});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

fn load(template: Option<&str>, budget: Duration) -> Encoder {
    Encoder::load("m", folder(template).path(), 1 << 20, budget).unwrap()
}

fn encoder() -> Encoder {
    load(Some(TEMPLATE), Duration::from_secs(3600))
}

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

fn with_chat<'a>(messages: &'a RawValue) -> Chat<'a> {
    Chat { messages: Messages::Raw(messages), add_generation_prompt: true, ..Chat::default() }
}

fn prompt(content: Content<'_>) -> Prompt<'_> {
    Prompt { content, ..Prompt::default() }
}

fn chat(encoder: &Encoder, messages: &Value) -> Encoded {
    encoder.encode(&prompt(Content::Chat(Box::new(with_chat(&raw(messages))))))
}

fn text(encoder: &Encoder, prompts: &[&str], add_special_tokens: bool) -> Encoded {
    let prompts = prompts.iter().map(|text| Cow::Borrowed(*text)).collect();
    encoder.encode(&prompt(Content::Text { prompts, add_special_tokens }))
}

fn message(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}

/// What the engine would have.
fn expected(ids: &[u32]) -> Encoded {
    let mut chain = Chain::new(root(Basis::Tokens, "m", None, None));
    chain.push(ids);
    Encoded { tokens: chain.tokens(), blocks: chain.finish(), basis: Basis::Tokens, fallback: None }
}

fn ids(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    Tokenizer::load(folder(None).path()).unwrap().encode(text, false, &mut ids).unwrap();
    ids
}

#[test]
fn a_chat_is_the_ids_of_its_rendered_text() {
    let encoder = encoder();
    let words = "words and words ".repeat(100);
    let messages = json!([message("system", &*words), message("user", "hi")]);
    let rendered =
        format!("<|im_start|>system\n{words}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    for _ in 0..3 {
        assert_eq!(chat(&encoder, &messages), expected(&ids(&rendered)));
    }
    let special = raw(&messages);
    let with_bos = Chat { add_special_tokens: true, ..with_chat(&special) };
    assert_eq!(
        encoder.encode(&prompt(Content::Chat(Box::new(with_bos)))),
        expected(&[&[259], &*ids(&rendered)].concat())
    );
    assert!(encoder.cache_stats().hits > 0);
}

#[test]
fn what_else_the_template_takes_makes_another_prompt() {
    let encoder = encoder();
    let messages = raw(&json!([message("user", "words and words ".repeat(10))]));
    let tools = raw(&json!([{"function": {"name": "f"}}]));
    let mut seen = Vec::new();
    let variants = [
        (prompt(Content::Chat(Box::new(with_chat(&messages)))), "plain"),
        (prompt(Content::Chat(Box::new(Chat { tools: Some(Cow::Borrowed(&tools)), ..with_chat(&messages) }))), "tools"),
        (Prompt { salt: Some("s".into()), ..prompt(Content::Chat(Box::new(with_chat(&messages)))) }, "salt"),
        (Prompt { adapter: Some("s".into()), ..prompt(Content::Chat(Box::new(with_chat(&messages)))) }, "adapter"),
    ];
    for (variant, name) in &variants {
        let encoded = encoder.encode(variant);
        assert_eq!(encoded, encoder.encode(variant), "{name}");
        assert!(encoded.fallback.is_none() && !seen.contains(&encoded.blocks[0]), "{name}");
        seen.push(encoded.blocks[0]);
    }
    let open = Chat { add_generation_prompt: false, ..with_chat(&messages) };
    let open = encoder.encode(&prompt(Content::Chat(Box::new(open))));
    assert_eq!(open.tokens + "Xassistant\n".len(), encoder.encode(&variants[0].0).tokens);
}

#[test]
fn texts_and_ids_are_taken_as_they_are() {
    let encoder = encoder();
    let one = "text <|im_start|> text ".repeat(200);
    for _ in 0..2 {
        assert_eq!(text(&encoder, &[&one], false), expected(&ids(&one)));
        assert_eq!(text(&encoder, &[&one], true), expected(&[&[259], &*ids(&one)].concat()));
    }
    let batch = text(&encoder, &[&one, "abc"], true);
    let alone = text(&encoder, &[&one], true);
    assert_eq!((batch.blocks, batch.tokens), (alone.blocks, alone.tokens + 4));
    for encoder in [encoder, Encoder::text("m")] {
        let given: Vec<u32> = (0..50).collect();
        let encoded = encoder.encode(&prompt(Content::Ids(vec![given.clone(), vec![1, 2]])));
        assert_eq!(encoded, Encoded { tokens: 52, ..expected(&given) }, "ids are the engine's, tokenizer or not");
    }
}

#[test]
fn what_cannot_be_exact_is_text_and_says_why() {
    let encoder = encoder();
    let plain = json!([message("user", "words and words ".repeat(10))]);
    let as_text =
        |messages: &Value, fallback| Encoded { fallback: Some(fallback), ..chat(&Encoder::text("m"), messages) };
    let messages = raw(&plain);
    let own = Chat { own_template: true, ..with_chat(&messages) };
    assert_eq!(encoder.encode(&prompt(Content::Chat(Box::new(own)))), as_text(&plain, Fallback::NoTemplate));
    assert_eq!(chat(&load(None, Duration::from_secs(3600)), &plain), as_text(&plain, Fallback::NoTemplate));
    let refused = json!([message("refused", "words and words ".repeat(10))]);
    assert_eq!(chat(&encoder, &refused), as_text(&refused, Fallback::Template));
    assert_eq!(chat(&load(Some(TEMPLATE), Duration::ZERO), &plain), as_text(&plain, Fallback::Budget));
    let truncated = Prompt { truncated: true, ..prompt(Content::Chat(Box::new(with_chat(&messages)))) };
    assert_eq!(encoder.encode(&truncated), as_text(&plain, Fallback::Shape));
    let none = encoder.encode(&Prompt::default());
    assert_eq!((none.blocks.len(), none.tokens, none.fallback), (0, 0, Some(Fallback::Shape)));
    assert_eq!(Encoder::text("m").encode(&Prompt::default()).fallback, None);
    let endless = load(
        Some("{% for i in range(100000) %}{% for i in range(100000) %}x{% endfor %}{% endfor %}"),
        Duration::from_secs(3600),
    );
    assert_eq!(chat(&endless, &plain).basis, Basis::Text);
}

#[test]
fn what_stands_before_a_medium_is_shared_and_what_follows_depends_on_it() {
    let encoder = encoder();
    let words = "words and words ".repeat(40);
    let image = |url: &str| json!([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]);
    let with = |url: &str, end: &str| {
        json!([message("system", &*words), message("user", image(url)), message("user", &*words), message("user", end)])
    };
    let one = chat(&encoder, &with("data:one", &words));
    assert_eq!((one.fallback, one.basis), (Some(Fallback::Media), Basis::Tokens));
    let other = chat(&encoder, &with("data:other", &words));
    let words_only = chat(&encoder, &json!([message("system", &*words), message("user", "see")]));
    let common = |a: &Encoded, b: &Encoded| a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b).count();
    let head = format!("<|im_start|>system\n{words}<|im_end|>\n<|im_start|>user\nsee");
    assert_eq!(common(&one, &other), ids(&head).len() / 16);
    assert_eq!(common(&one, &words_only), ids(&head).len() / 16);
    let longer = chat(&encoder, &with("data:one", &(words.clone() + "more")));
    assert!(common(&one, &longer) >= one.blocks.len() - 1, "the same image is the same");
    // A second medium counts where it stands, too.
    let second =
        |url: &str| json!([message("user", image("data:one")), message("user", &*words), message("user", image(url))]);
    let (a, b) = (chat(&encoder, &second("data:a")), chat(&encoder, &second("data:b")));
    assert!(common(&a, &b) >= words.len() / 64 && common(&a, &b) < a.blocks.len());
}

#[test]
fn a_long_prompt_is_bounded() {
    let encoder = load(Some(TEMPLATE), Duration::from_secs(3600));
    let huge = "x".repeat(LONGEST + 1);
    let encoded = text(&encoder, &[&huge], true);
    assert_eq!((encoded.basis, encoded.fallback), (Basis::Text, Some(Fallback::Budget)));
    assert_eq!(encoded.tokens, huge.len().div_ceil(4));
    let hint = |content| Encoder::cost_hint(&prompt(content));
    let messages = json!([message("user", "x".repeat(1000))]);
    let json = raw(&messages);
    let read = hint(Content::Chat(Box::new(with_chat(&json))));
    let built = Messages::Built(messages.as_array().unwrap().clone());
    let built = hint(Content::Chat(Box::new(Chat { messages: built, ..Chat::default() })));
    assert!((1000..1100).contains(&read) && (1000..1100).contains(&built), "{read} {built}");
    assert_eq!(hint(Content::Text { prompts: vec!["abc".into(), "de".into()], add_special_tokens: true }), 5);
    assert_eq!(hint(Content::Ids(vec![vec![1, 2], vec![3]])), 12);
    assert_eq!(hint(Content::None), 0);
}

#[test]
fn a_missing_file_is_named() {
    let error = Encoder::load("m", &PathBuf::from("/nowhere"), 0, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}

/// Recorded with vLLM 0.32.0, vLLM 0.22.1 and SGLang 0.5.23.
#[test]
fn after_each_load_memory_can_be_given_back() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    // Other tests load, too: it is called at least as often as this one does.
    let calls = || CALLS.load(Ordering::Relaxed);
    after_load(|| {
        CALLS.fetch_add(1, Ordering::Relaxed);
    });
    let load = |folder: &Path| Encoder::load("m", folder, 0, Duration::from_secs(3600));
    let dir = folder(None);
    assert!(load(dir.path()).is_ok() && calls() >= 1);
    let before = calls();
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    assert!(load(dir.path()).is_err() && calls() > before);
}

#[test]
fn recorded_requests_give_the_engines_ids() {
    let shared = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let qwen3 = shared.join("tokenizers/qwen3");
    if !qwen3.exists() {
        eprintln!("skipped: {} is absent", qwen3.display());
        return;
    }
    let encoder = Encoder::load("m", &qwen3, 1 << 20, Duration::from_secs(3600)).unwrap();
    for engine in ["vllm-0.32.0-cpu", "vllm-0.22.1-cpu", "sglang-0.5.23-cpu"] {
        let folder = shared.join("fixtures/http").join(engine).join("tiny-qwen3");
        let request = std::fs::read_to_string(folder.join("chat-return-token-ids.req")).unwrap();
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        let answer: Value =
            serde_json::from_slice(&std::fs::read(folder.join("chat-return-token-ids.body")).unwrap()).unwrap();
        let given = [&answer["prompt_token_ids"], &answer["choices"][0]["prompt_token_ids"]]
            .into_iter()
            .find_map(Value::as_array)
            .unwrap();
        let given: Vec<u32> = given.iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect();
        assert_eq!(chat(&encoder, &body["messages"]), expected(&given), "{engine}");
    }
}

#[test]
fn within_a_bound_is_encoded_what_is_left_to_do() {
    let encoder = encoder();
    let words = "words and words ".repeat(1000);
    let turn = |end: &str| raw(&json!([message("system", &*words), message("user", end)]));
    let within =
        |messages: &RawValue, most| encoder.encode_within(&prompt(Content::Chat(Box::new(with_chat(messages)))), most);
    let (one, other) = (turn("one"), turn("another"));
    assert!(within(&one, 2000).is_none(), "nothing of it is known");
    let whole = within(&one, 20_000).unwrap();
    assert_eq!(within(&one, 0), Some(whole), "all of it is known");
    assert_eq!(within(&other, 2000), Some(encoder.encode(&prompt(Content::Chat(Box::new(with_chat(&other)))))));
    assert_eq!(encoder.cache_stats().misses, 1, "what was not done counts for nothing");
    // A long word takes longer than its bytes say, and a batch is as long as all of it.
    let text = |texts: &[&str], most| {
        let prompts = texts.iter().map(|text| Cow::Borrowed(*text)).collect();
        encoder.encode_within(&prompt(Content::Text { prompts, add_special_tokens: false }), most).is_some()
    };
    let word = "w".repeat(words.len());
    assert!(text(&[&words], 20_000) && !text(&[&word], 20_000) && text(&[&word], usize::MAX));
    assert!(!text(&[&words, &words], 20_000) && text(&[&words, &words], 40_000));
}
