use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::api::{Route, find};
use crate::tokens::{Chat, Messages};

fn endpoint(path: &str) -> &'static Endpoint {
    match find(&Method::POST, path) {
        Route::Endpoint(endpoint) => endpoint,
        _ => panic!("{path} is no endpoint"),
    }
}

fn with_chat<T>(path: &str, body: &Value, check: impl FnOnce(&Chat<'_>) -> T) -> T {
    let body = body.to_string();
    match prompt(endpoint(path), body.as_bytes()).content {
        Content::Chat(chat) => check(&chat),
        other => panic!("{other:?}"),
    }
}

/// The messages of a chat that another API's body became.
fn messages(path: &str, body: &Value) -> Value {
    with_chat(path, body, |chat| match &chat.messages {
        Messages::Built(messages) => Value::from(messages.clone()),
        Messages::Raw(raw) => serde_json::from_str(raw.get()).unwrap(),
    })
}

fn tools(path: &str, body: &Value) -> Option<String> {
    with_chat(path, body, |chat| chat.tools.as_ref().map(|tools| tools.get().to_owned()))
}

#[test]
fn a_chat_is_taken_out_of_the_body_as_it_stands() {
    let body = br#"{"messages": 7, "messages":[ {"role":"user","content":"\u00e9"} ],"cache_salt":"s","tools":[],
        "chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low","documents":[{"text":"d"}],
        "add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true,"chat_template":"t"}"#;
    let prompt = prompt(endpoint("/v1/chat/completions"), body);
    assert_eq!((prompt.salt.as_deref(), prompt.truncated), (Some("s"), false));
    let Content::Chat(chat) = prompt.content else { panic!("{:?}", prompt.content) };
    let Messages::Raw(raw) = chat.messages else { panic!("{:?}", chat.messages) };
    assert_eq!(raw.get(), r#"[ {"role":"user","content":"\u00e9"} ]"#, "the last of two counts");
    assert!(body.as_ptr_range().contains(&raw.get().as_ptr()), "not copied");
    assert!(chat.tools.is_none() && chat.documents.is_some() && chat.own_template);
    assert_eq!(Value::from(chat.kwargs), json!({"enable_thinking": false, "reasoning_effort": "low"}));
    assert_eq!((chat.add_generation_prompt, chat.continue_final_message, chat.add_special_tokens), (false, true, true));
    let plain = json!({"messages": [], "add_generation_prompt": null, "chat_template": null, "documents": null});
    with_chat("/v1/chat/completions", &plain, |chat| {
        assert!(chat.add_generation_prompt && !chat.continue_final_message && !chat.add_special_tokens);
        assert!(!chat.own_template && chat.documents.is_none());
    });
}

#[test]
fn tools_get_the_form_that_vllm_gives_them() {
    let of =
        |given: Value| tools("/v1/chat/completions", &json!({"messages": [], "tools": given, "tool_choice": "none"}));
    let whole =
        r#"[{"type":"function","function":{"name":"f","description":"d","parameters":{"b":1,"a":2},"strict":true}}]"#;
    assert_eq!(of(serde_json::from_str(whole).unwrap()).unwrap(), whole, "in form already, and kept under `none`");
    let partial = json!([{"function": {"strict": true, "parameters": {"b": 1, "a": 2}, "name": "f"}, "x": 1}]);
    let expected = r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b":1,"a":2}, "strict": true}, "x": 1}]"#;
    assert_eq!(of(partial).unwrap(), expected);
    assert_eq!(of(json!([])), None);
    assert_eq!(of(json!("odd")), None);
    assert_eq!(of(json!([1])).unwrap(), "[1]");
}

#[test]
fn completions_take_texts_and_ids() {
    let of = |path, body: Value| {
        let body = body.to_string();
        match prompt(endpoint(path), body.as_bytes()).content {
            Content::Text { prompts, add_special_tokens } => format!("{prompts:?} {add_special_tokens}"),
            Content::Ids(ids) => format!("{ids:?}"),
            Content::None => "none".into(),
            Content::Chat(_) => "chat".into(),
        }
    };
    let completions = |body| of("/v1/completions", body);
    assert_eq!(completions(json!({"prompt": "a\nb", "suffix": "s"})), r#"["a\nb"] true"#);
    assert_eq!(completions(json!({"prompt": ["a", "b"], "add_special_tokens": false})), r#"["a", "b"] false"#);
    assert_eq!(completions(json!({"prompt": [1, 2]})), "[[1, 2]]");
    assert_eq!(completions(json!({"prompt": [[1, 2], [3]]})), "[[1, 2], [3]]");
    for odd in
        [json!([]), json!([1, "a"]), json!(["a", 1]), json!([[1], "a"]), json!([-1]), json!({}), json!(3), Value::Null]
    {
        assert_eq!(completions(json!({"prompt": odd})), "none", "{odd}");
    }
    assert_eq!(of("/generate", json!({"text": ["a"]})), r#"["a"] true"#);
    assert_eq!(of("/generate", json!({"input_ids": [[5]]})), "[[5]]");
    assert_eq!(of("/generate", json!({"prompt": "p"})), r#"["p"] true"#);
    assert_eq!(of("/v1/embeddings", json!({"input": "p", "prompt": "p"})), "none");
}

#[test]
fn a_prompt_that_the_engine_cuts_is_marked() {
    for (given, truncated) in [("5", true), ("-1", false), ("null", false)] {
        let body = format!(r#"{{"prompt":"a","truncate_prompt_tokens":{given}}}"#);
        assert_eq!(prompt(endpoint("/v1/completions"), body.as_bytes()).truncated, truncated, "{given}");
    }
}

#[test]
fn responses_become_a_chat() {
    let path = "/v1/responses";
    let of = |body: Value| messages(path, &body);
    let user = |text: &str| json!({"role": "user", "content": text});
    assert_eq!(of(json!({"input": "hi"})), json!([user("hi")]));
    assert_eq!(
        of(json!({"input": "hi", "instructions": "i"})),
        json!([{"role": "system", "content": "i"}, user("hi")])
    );
    let items = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "think"}]},
        {"type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "r2"}]},
        {"type": "item_reference", "id": "x"},
        {"role": "user", "content": "end"},
    ]);
    let call =
        |id, name, arguments| json!({"id": id, "function": {"name": name, "arguments": arguments}, "type": "function"});
    let expected = json!([
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "reasoning": "think", "content": "b", "tool_calls": [call("c1", "f", "{\"x\":1}"), call("c2", "g", "{}")]},
        {"role": "tool", "content": "r1", "tool_call_id": "c1"},
        {"role": "tool", "content": [{"type": "text", "text": "r2"}], "tool_call_id": "c2"},
        {"role": "item_reference", "content": "{\"type\":\"item_reference\",\"id\":\"x\"}"},
        user("end"),
    ]);
    assert_eq!(of(json!({"input": items})), expected);
    let open = json!({"input": [{"type": "message", "role": "assistant", "status": "incomplete", "content": []}],
        "reasoning": {"effort": "high"}, "tools": [{"type": "function", "name": "f", "parameters": {"z": 1}}, {"type": "web_search"}]});
    with_chat(path, &open, |chat| {
        assert!(chat.continue_final_message && !chat.add_generation_prompt);
        assert_eq!(chat.kwargs["reasoning_effort"], "high");
    });
    let function = r#"{"name": "f", "description": null, "parameters": {"z":1}, "strict": null}"#;
    assert_eq!(tools(path, &open).unwrap(), format!(r#"[{{"type": "function", "function": {function}}}]"#));
    let continued = json!({"input": "hi", "previous_response_id": "r"}).to_string();
    assert!(
        matches!(prompt(endpoint(path), continued.as_bytes()).content, Content::None),
        "its head is not known here"
    );
}

#[test]
fn anthropic_messages_become_a_chat() {
    let path = "/v1/messages";
    let body = json!({
        "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}],
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "i", "name": "f", "input": {"x": [1]}}, {"type": "redacted_thinking", "data": "z"}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r1"}, {"type": "text", "text": "r2"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ"}}]},
                {"type": "text", "text": "more"}, {"type": "image", "source": {"type": "url", "url": "u"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "j", "content": "only"}]},
            {"role": "system", "content": "s3"},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
    });
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let call = json!({"id": "i", "type": "function", "function": {"name": "f", "arguments": "{\"x\":[1]}"}});
    let expected = json!([
        {"role": "system", "content": "s1s2s3"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "reasoning": "t", "tool_calls": [call], "content": "a"},
        {"role": "tool", "tool_call_id": "i", "content": "r1\nr2"},
        {"role": "user", "content": [image("data:image/png;base64,QQ")]},
        {"role": "user", "content": [{"type": "text", "text": "more"}, image("u")]},
        {"role": "tool", "tool_call_id": "j", "content": "only"},
    ]);
    assert_eq!(messages(path, &body), expected);
    let function = r#"{"name": "f", "description": null, "parameters": {"type":"object"}}"#;
    assert_eq!(tools(path, &body).unwrap(), format!(r#"[{{"type": "function", "function": {function}}}]"#));
}

#[test]
fn hostile_bodies_are_no_prompt_or_a_bounded_one() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let values = [
        "7",
        "null",
        "\"x\"",
        "{}",
        "[]",
        "[1]",
        "[null]",
        "[[]]",
        "[{}]",
        r#"[{"role":1,"content":{"a":[]}}]"#,
        &deep,
    ];
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"];
    for path in paths {
        for value in values {
            for fields in [["messages", "tools"], ["input", "instructions"], ["prompt", "text"], ["messages", "system"]]
            {
                let [first, second] = fields;
                let body = format!(
                    r#"{{"{first}":{value},"{second}":{value},"cache_salt":{value},"tools":{value},"input":[{{"type":"message","role":"user","content":{value}}}],"chat_template_kwargs":{value},"reasoning":{value}}}"#
                );
                let _ = prompt(endpoint(path), body.as_bytes());
            }
        }
        for body in [&b""[..], b"{", b"[]", b"{\"messages\":[\"\xff\"]}", b"{\"prompt\":\"\\ud800\"}"] {
            assert!(matches!(prompt(endpoint(path), body).content, Content::None), "{path} {body:?}");
        }
    }
    let messages =
        format!(r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","content":{deep}}}]}}]}}"#);
    assert!(matches!(prompt(endpoint("/v1/messages"), messages.as_bytes()).content, Content::Chat(_)));
}

#[test]
fn what_is_too_long_to_be_taken_apart_stays_as_it_stands() {
    let many = |item: &str, times: usize| format!("[{}{item}]", format!("{item},").repeat(times));
    for (path, field) in [("/v1/messages", "messages"), ("/v1/responses", "input")] {
        let body = format!(r#"{{"{field}":{}}}"#, many("\"123456789\"", LONGEST / 12));
        let Content::Chat(chat) = prompt(endpoint(path), body.as_bytes()).content else { panic!("{path}") };
        assert!(matches!(chat.messages, Messages::Raw(raw) if raw.get().len() > LONGEST), "{path}");
    }
    for (item, times) in [("123456789", LONGEST / 5), ("\"\"", 1 << 18), ("[]", 1 << 18), ("[1]", 1 << 18)] {
        let body = format!(r#"{{"prompt":{}}}"#, many(item, times));
        assert!(matches!(prompt(endpoint("/v1/completions"), body.as_bytes()).content, Content::None), "{item}");
    }
    let kwargs = format!(r#"{{"messages":[],"chat_template_kwargs":{{"x":{}}}}}"#, many("[]", 100_000));
    let Content::Chat(chat) = prompt(endpoint("/v1/chat/completions"), kwargs.as_bytes()).content else { panic!() };
    assert!(chat.kwargs.is_empty());
}

#[test]
fn every_recorded_request_for_text_has_a_prompt() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/http");
    let Ok(engines) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: {} is absent", folder.display());
        return;
    };
    let mut seen = 0;
    for engine in engines.filter_map(Result::ok) {
        for entry in std::fs::read_dir(engine.path().join("tiny-qwen3")).into_iter().flatten().filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".req") || name.starts_with("err-") {
                continue;
            }
            let request = std::fs::read(entry.path()).unwrap();
            let head_end = request.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4;
            let path = String::from_utf8_lossy(&request[..head_end]).split(' ').nth(1).unwrap_or_default().to_owned();
            let Route::Endpoint(endpoint) = find(&Method::POST, &path) else { continue };
            if !endpoint.load_only {
                seen += 1;
                assert!(!matches!(prompt(endpoint, &request[head_end..]).content, Content::None), "{name}");
            }
        }
    }
    assert!(seen > 20, "{seen}");
}
