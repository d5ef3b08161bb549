use serde_json::{Value, json};

use super::*;

fn with_chat<T>(messages: &str, tools: Option<&str>, check: impl FnOnce(&Chat<'_>) -> T) -> T {
    let raw: &RawValue = serde_json::from_str(messages).unwrap();
    let tools = tools.map(|tools| Cow::Owned(RawValue::from_string(tools.to_owned()).unwrap()));
    check(&Chat { messages: Messages::Raw(raw), tools, ..Chat::default() })
}

fn chain(messages: &str, tools: Option<&str>) -> Chain {
    with_chat(messages, tools, |chat| {
        let mut chain = Chain::new(1);
        push(&mut chain, chat);
        chain
    })
}

fn of(messages: &Value) -> Chain {
    let raw = chain(&messages.to_string(), None);
    let mut built = Chain::new(1);
    let messages = Messages::Built(messages.as_array().unwrap().clone());
    push(&mut built, &Chat { messages, ..Chat::default() });
    assert_eq!(raw, built, "where messages come from makes no difference");
    raw
}

#[test]
fn what_an_engine_does_not_see_makes_no_difference() {
    let text = json!([{"role": "user", "content": "a \u{e9} \"b\""}]);
    assert_eq!(of(&text), of(&json!([{"content": [{"type": "text", "text": "a \u{e9} \"b\""}], "role": "user"}])));
    let marked = json!([{"type": "text", "text": "a \u{e9} \"b\"", "cache_control": {"type": "ephemeral"}}]);
    assert_eq!(of(&text), of(&json!([{"role": "user", "content": marked}])));
    let spaced = "[ {\n\"role\" : \"us\\u0065r\" , \"content\":\"a \\u00e9 \\\"b\\\"\" } ]";
    assert_eq!(of(&text), chain(spaced, None));
    let call = |arguments: Value| {
        json!([{"role": "assistant", "content": null, "tool_calls": [
            {"type": "function", "id": "i", "function": {"name": "f", "arguments": arguments}}]}])
    };
    assert_eq!(of(&call(json!("{ \"x\": [1, 2] }"))), of(&call(json!({"x": [1, 2]}))));
    let tools = r#"[{"type":"function","function":{"name":"caf\u00e9"}}]"#;
    assert_eq!(
        chain("[]", Some(tools)),
        chain("[]", Some("[ {\"type\": \"function\", \"function\": {\"name\": \"café\"}}]"))
    );
}

#[test]
fn what_an_engine_sees_makes_a_difference() {
    let image = |url: &str| json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]);
    let call = |name: &str, id: &str| json!([{"role": "assistant", "tool_calls": [{"id": id, "function": {"name": name, "arguments": "{}"}}]}]);
    let chats = [
        json!([{"role": "user", "content": "a"}]),
        json!([{"role": "user", "content": "a "}]),
        json!([{"role": "system", "content": "a"}]),
        json!([{"role": "developer", "content": "a"}]),
        json!([{"role": "user", "content": ["a", "b"]}]),
        json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
        json!([{"role": "user", "content": "b"}, {"role": "user", "content": "a"}]),
        json!([{"role": "user", "content": "a", "name": "n"}]),
        json!([{"role": "user", "content": "a", "reasoning_content": "n"}]),
        json!([{"role": "tool", "content": "a", "tool_call_id": "1"}]),
        json!([{"role": "tool", "content": "a", "tool_call_id": "2"}]),
        image("u"),
        image("v"),
        call("f", "1"),
        call("g", "1"),
        call("f", "2"),
        json!([{"role": "user", "content": 7}]),
        json!([{"role": "user", "content": {"odd": []}}]),
        json!([7]),
    ];
    for (at, one) in chats.iter().enumerate() {
        for other in &chats[..at] {
            assert_ne!(of(one), of(other), "{one} {other}");
        }
    }
    let messages = chats[0].to_string();
    let tools = [None, Some("[1]"), Some("[2]"), Some("[1,2]"), Some("[\"1\"]")].map(|tools| chain(&messages, tools));
    for (at, one) in tools.iter().enumerate() {
        assert!(!tools[..at].contains(one), "tools {at}");
    }
}

#[test]
fn a_next_turn_goes_on_where_this_one_ends() {
    let long = "words and words, ".repeat(20);
    let mut messages = vec![json!({"role": "system", "content": long})];
    let turns = [
        json!({"role": "user", "content": [{"type": "text", "text": long}, {"type": "image_url", "image_url": {"url": "u"}}]}),
        json!({"role": "assistant", "reasoning": "r", "content": "c", "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"role": "tool", "tool_call_id": "i", "content": long}),
        json!({"role": "assistant", "content": long}),
    ];
    for turn in turns {
        let before = of(&Value::from(messages.clone()));
        messages.push(turn);
        let after = of(&Value::from(messages.clone()));
        assert!(after.hashes().starts_with(before.hashes()));
        assert!(after.tokens() > before.tokens());
    }
}

#[test]
fn from_a_medium_on_all_of_its_message_counts() {
    let from_medium = |messages: Value| {
        with_chat(&messages.to_string(), Some("[1]"), |chat| {
            let mut chain = Chain::new(1);
            push_from_medium(&mut chain, chat);
            chain
        })
    };
    let (before, after) = (json!({"role": "user", "content": "a"}), json!({"role": "user", "content": "b"}));
    let image = |url: &str| json!({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": url}}]});
    assert_eq!(from_medium(json!([before, image("u"), after])), of(&json!([image("u"), after])));
    assert_ne!(from_medium(json!([image("u"), image("v")])), from_medium(json!([image("u"), image("w")])));
    assert_eq!(from_medium(json!([before])), of(&json!([before])), "a medium that only the template knows");
}

#[test]
fn any_json_has_a_text() {
    let deep = format!("{}\"x\"{}", "[".repeat(50_000), "]".repeat(50_000));
    for content in ["\"\\ud800\"", &deep, "[{\"type\":1,\"text\":[]}]", "-0.0e1", "[[],{},null]"] {
        let messages =
            format!(r#"[{{"role":"user","content":{content},"tool_calls":{content},"name":{content}}},{content}]"#);
        assert!(chain(&messages, Some(content)).tokens() > 4, "{content}");
    }
}
