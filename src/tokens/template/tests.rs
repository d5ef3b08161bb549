use std::borrow::Cow;
use std::path::PathBuf;

use serde_json::json;

use super::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer")
}

/// A folder with a template, and the template of it.
fn template(source: &str) -> Template {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("chat_template.jinja"), source).unwrap();
    Template::load(dir.path()).unwrap().unwrap()
}

/// What a template makes of messages, with `continue_final_message` or without.
fn rendered(template: &Template, messages: &str, open: bool) -> Result<Rendered, TemplateError> {
    let raw: &RawValue = serde_json::from_str(messages).unwrap();
    template.render(&Chat { messages: Messages::Raw(raw), continue_final_message: open, ..Chat::default() })
}

fn text(source: &str, messages: &str) -> String {
    rendered(&template(source), messages, false).unwrap().text
}

const ONE: &str = r#"[{"role": "user", "content": "hi"}]"#;

#[test]
fn messages_tools_and_options_come_out_by_the_models_template() {
    let template = Template::load(&folder()).unwrap().unwrap();
    let messages = r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"b\":1.50,\"a\":[true,null,\"é</b>'\"]}"}}]},
        {"role": "tool", "content": [{"type": "text", "text": "12"}, {"type": "text", "text": "°C"}], "tool_call_id": "1"}]"#;
    let raw: &RawValue = serde_json::from_str(messages).unwrap();
    let tools = RawValue::from_string(
        r#"[{"function":{"strict":true,"parameters":{"z":1,"a":{}},"name":"weather"},"type":"function"}]"#.into(),
    )
    .unwrap();
    let chat = |messages| Chat {
        messages,
        tools: Some(Cow::Borrowed(&*tools)),
        kwargs: json!({"enable_thinking": false}).as_object().unwrap().clone(),
        add_generation_prompt: true,
        ..Chat::default()
    };
    let wanted = concat!(
        "<|begin|>system\nBe brief.\n\nTools:\n",
        r#"{"type": "function", "function": {"name": "weather", "description": null, "parameters": {"z": 1, "a": {}}, "strict": true}}<|end|>"#,
        "\n<|begin|>user\nOslo?<|end|>\n<|begin|>assistant\n\n<|call|>",
        r#"{"name": "weather", "arguments": {"b": 1.5, "a": [true, null, "é</b>'"]}}<|end|>"#,
        "\n<|begin|>tool\n12\n°C<|end|>\n<|begin|>assistant\n<think></think>",
    );
    assert_eq!(template.render(&chat(Messages::Raw(raw))).unwrap(), Rendered { text: wanted.into(), media: None });
    let built = serde_json::from_str::<Vec<serde_json::Value>>(messages).unwrap();
    assert_eq!(template.render(&chat(Messages::Built(built))).unwrap().text, wanted);
}

#[test]
fn a_template_is_found_in_each_of_its_places() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let shown = |tools: bool| {
        let list = RawValue::from_string("[]".into()).unwrap();
        let tools = tools.then_some(Cow::Owned(list));
        let chat = Chat { messages: Messages::Built(vec![json!({"role": "user"})]), tools, ..Chat::default() };
        Template::load(dir.path()).unwrap().map(|template| template.render(&chat).unwrap().text)
    };
    assert_eq!(shown(false), None);
    put("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(shown(false).unwrap(), "json");
    put(
        "tokenizer_config.json",
        r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
        "chat_template": [{"name": "default", "template": "{{ bos_token }}one{{ eos_token }}{{ pad_token }}"}, {"name": "tool_use", "template": "two"}]}"#,
    );
    put("special_tokens_map.json", r#"{"eos_token": "<other>", "pad_token": "<pad>"}"#);
    assert_eq!(shown(false).unwrap(), "<s>one</s><pad>");
    assert_eq!(shown(true).unwrap(), "two");
    put("chat_template.jinja", "jinja");
    assert_eq!(shown(true).unwrap(), "jinja");

    put("chat_template.jinja", "{% if %}");
    let message = Template::load(dir.path()).unwrap_err().to_string();
    assert!(message.contains("chat_template.jinja") && message.contains("syntax error"), "{message}");
    put("tokenizer_config.json", "{");
    let message = Template::load(dir.path()).unwrap_err().to_string();
    assert!(message.contains("tokenizer_config.json is not JSON"), "{message}");
}

/// Each right side is what Jinja2 3.1.6 in transformers' environment prints.
#[test]
fn values_are_printed_and_changed_as_python_does() {
    for (source, wanted) in [
        ("{{ [true, none, 1, 1.0, 'a', {'b': \"it's\"}] }}", "[True, None, 1, 1.0, 'a', {'b': \"it's\"}]"),
        (
            "{{ true }} {{ none }} {{ 1e16 }} {{ 0.00001 }} {{ 1.5e300 }} {{ 123456.75 }} {{ missing }}",
            "True None 1e+16 1e-05 1.5e+300 123456.75 ",
        ),
        (
            "{{ ['a', 1] | tojson }}{{ {'k': {'n': []}} | tojson(indent=2) }}",
            "[\"a\", 1]{\n  \"k\": {\n    \"n\": []\n  }\n}",
        ),
        ("{{ \"<a href='x'>&\u{1}\u{7f}é\\n\\\"\" | tojson }}", "\"<a href='x'>&\\u0001\u{7f}é\\n\\\"\""),
        (
            "{{ {'b': 1, 'a': 'é😀'} | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
            r#"{"a":"\u00e9\ud83d\ude00","b":1}"#,
        ),
        ("{{ messages[::-1][0].content }}{{ 'abc'[::-1] }}{{ 'abcdef'[1:-1] }}{{ 'abc'[-1] }}", "hicbabcdec"),
        (
            "{{ ' \u{1c}x\u{a0} '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'aXbXc'.split('X', 1) }}|{{ ' a  b '.split() }}",
            "x|a|['a', 'bXc']|['a', 'b']",
        ),
        (
            "{{ 'they\\'re here'.title() }} {{ 'aBc'.upper() }} {{ 'x'.startswith(('x', 'y')) }} {{ 'ab'.endswith('b') }}",
            "They'Re Here ABC True True",
        ),
        ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{{ ',' if not loop.last }}{% endfor %}", "b1,a2"),
        (
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "013",
        ),
        ("{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("a\n    {% if true %}\n  b\n    {% endif %}\nc\n", "a\n  b\nc"),
        ("{% generation %}x{% set y = 1 %}{% endgeneration -%}\n {{ y is defined }}", "xFalse"),
        ("{{ 'a' ~ 1 ~ true ~ none }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ 7 / 2 }}", "a1TrueNone 3 2 8 3.5"),
        (
            "{{ messages | length }} {{ 'x' in 'xyz' }} {{ messages[0].nope is defined }} {{ messages | map(attribute='role') | join(',') }}",
            "1 True False user",
        ),
        (
            "{{ messages[0]['content'] if messages[0]['content'] is string else 'list' }} {{ [1, 2] is iterable }} {{ {} is mapping }}",
            "hi True True",
        ),
        ("{{ 'a\\u00e9\\x41' }}{{ \"q\\\"\" }}", "aéAq\""),
        ("{{ 'a,b'.replace(',', ';') }} {{ 'xyz'.find('z') }} {{ 'a b'.partition(' ') }}", "a;b 2 ('a', ' ', 'b')"),
    ] {
        assert_eq!(text(source, ONE), wanted, "{source}");
    }
}

#[test]
fn content_is_one_text_or_a_list_by_what_the_template_reads() {
    let parts =
        r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}]"#;
    let one = "{% for m in messages %}{{ m.content }};{% endfor %}";
    let many = "{% set all = messages[0:] %}{% for m in all %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m['content'] | list %}[{{ p.text }}]{% endfor %}{% endif %};{% endfor %}";
    assert_eq!(text(one, parts), "a\nb;");
    assert_eq!(text(many, parts), "[a][b];");
    assert_eq!(text(one, ONE), "hi;");
    assert_eq!(text(many, ONE), "[hi];");
    for none in [
        r#"[{"role": "assistant", "content": null}]"#,
        r#"[{"role": "assistant"}]"#,
        r#"[{"role": "user", "content": []}]"#,
    ] {
        assert_eq!(text(one, none), ";");
    }
}

#[test]
fn text_before_the_first_medium_is_that_of_the_same_chat_without_it() {
    let image = r#"{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}"#;
    let with = format!(
        r#"[{{"role": "user", "content": "one"}}, {{"role": "user", "content": [{{"type": "text", "text": "see"}}, {image}, {{"type": "text", "text": "it"}}]}}]"#
    );
    let many = template(
        "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'image' %}[img]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}",
    );
    let shown = rendered(&many, &with, false).unwrap();
    assert_eq!((shown.text.as_str(), shown.media), ("<user>one<user>see[img]it", Some(18)));
    let one = template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    let shown = rendered(&one, &with, false).unwrap();
    assert_eq!((shown.text.as_str(), shown.media), ("<user>one<user>see\nit", Some(15)));
    // A template that doesn't show such content: nothing of the text is sure.
    let hides = template("{% for m in messages %}<{{ m.role }}>{% endfor %}content");
    assert_eq!(rendered(&hides, &with, false).unwrap().media, Some(0));
    let other = r#"[{"role": "user", "content": [{"type": "hologram", "x": 1}]}]"#;
    let refused = rendered(&one, other, false).unwrap_err().to_string();
    assert!(refused.contains("a part's type is not known"), "{refused}");
}

#[test]
fn the_last_message_is_left_open_where_that_is_asked_for() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    let messages = r#"[{"role": "user", "content": "q"}, {"role": "assistant", "content": "so "}]"#;
    assert_eq!(rendered(&template(source), messages, true).unwrap().text, "<user>q</><assistant>so ");
    let trims = source.replace("m.content", "m.content | trim");
    assert_eq!(rendered(&template(&trims), messages, true).unwrap().text, "<user>q</><assistant>so");
    let parts = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}</>{% endfor %}";
    assert_eq!(rendered(&template(parts), messages, true).unwrap().text, "<user>q</><assistant>so ");
    for (source, messages) in [("content {{ messages | length }}", messages), (source, "[]")] {
        assert!(matches!(rendered(&template(source), messages, true), Err(TemplateError::Failed(_))));
    }
    let both = Chat {
        add_generation_prompt: true,
        continue_final_message: true,
        messages: Messages::Built(vec![json!({"role": "user", "content": "x"})]),
        ..Chat::default()
    };
    assert!(matches!(template(source).render(&both), Err(TemplateError::Failed(_))));
}

#[test]
fn arguments_are_objects_or_the_text_where_the_template_needs_one() {
    let call = |arguments: &str| {
        format!(
            r#"[{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}]"#
        )
    };
    let object = "{{ messages[0].tool_calls[0].function.arguments.x }}";
    assert_eq!(text(object, &call(r#""{\"x\": 3}""#)), "3");
    assert_eq!(text(object, &call(r#"{"x": 3}"#)), "3");
    let joined = "{{ 'call ' + messages[0].tool_calls[0].function.arguments }}";
    assert_eq!(text(joined, &call(r#""{\"x\":3}""#)), r#"call {"x":3}"#);
    let json = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
    assert_eq!(text(json, &call("\"\"")), "{}");
    assert_eq!(text(json, &call("null")), "{}");
    assert_eq!(
        text("{{ messages[0].tool_calls is defined }}", r#"[{"role": "assistant", "tool_calls": []}]"#),
        "False"
    );
}

#[test]
fn failures_are_told_apart() {
    assert!(
        matches!(rendered(&template("{{ raise_exception('no ' ~ messages[0].role) }}"), ONE, false), Err(TemplateError::Refused(m)) if m == "no user")
    );
    assert!(matches!(rendered(&template("{{ messages[0].a.b }}"), ONE, false), Err(TemplateError::Failed(_))));
    assert!(matches!(rendered(&template("{{ 'a' + 1 }}"), ONE, false), Err(TemplateError::Failed(_))));
    let own = Chat { own_template: true, ..Chat::default() };
    assert!(matches!(template("x").render(&own), Err(TemplateError::NoTemplate)));
    for messages in [
        r#"{"role": "user"}"#,
        "[1]",
        r#"[{"content": "x"}]"#,
        r#"[{"role": "user", "content": [7]}]"#,
        r#"[{"role": "\ud800"}]"#,
    ] {
        let done = rendered(&template("{{ messages[0].content }}"), messages, false);
        assert!(matches!(done, Err(TemplateError::Failed(_))), "{messages}: {done:?}");
    }
}

#[test]
fn a_template_is_bounded_in_steps_and_in_bytes() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{{ 'x' * 90000000 }}",
    ] {
        let done = rendered(&template(source), ONE, false);
        assert!(
            matches!(done, Err(TemplateError::TooLong | TemplateError::Failed(_))),
            "{source}: {:?}",
            done.map(|r| r.text.len())
        );
    }
}

#[test]
fn deep_nesting_is_refused_and_does_not_overflow() {
    let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    let template = template("{{ messages | tojson }}{{ messages }}{{ tools | tojson }}");
    let in_message = |n| format!(r#"[{{"role": "user", "x": {}}}]"#, deep(n));
    assert!(rendered(&template, &in_message(50), false).is_ok());
    let arguments = format!(
        r#"[{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": "{}"}}}}]}}]"#,
        deep(90_000)
    );
    for messages in [in_message(1000), in_message(100_000), deep(100_000)] {
        assert!(matches!(rendered(&template, &messages, false), Err(TemplateError::Failed(_))));
    }
    // They are no object, so they stay a text.
    assert!(rendered(&template, &arguments, false).is_ok());
    let tools = RawValue::from_string(deep(100_000)).unwrap();
    let chat = Chat {
        tools: Some(Cow::Borrowed(&*tools)),
        messages: Messages::Built(vec![json!({"role": "user"})]),
        ..Chat::default()
    };
    assert!(matches!(template.render(&chat), Err(TemplateError::Failed(_))));
}

#[test]
fn a_message_is_an_object_whatever_its_keys() {
    let template = "{% for m in messages %}{{ m is mapping }} {{ m|length }} {{ m|list }} {{ m|items|list }} {{ m.items()|list }} {{ m|tojson }} \
                    {{ m == messages[0] }} {{ 'role' in m }} {{ 'x' in m }} {{ m.x is defined }} {{ m['role'] }} {{ m.get('y', 'no') }} {{ m }} \
                    {{ m.keys()|list }} {{ m|dictsort }} {{ dict(m, z=1) }}\n{% endfor %}";
    let few = r#"{"role":"user","content":"a","x":[1]}"#;
    let many: Vec<String> = (0..20).map(|at| format!(r#""k{at}":{at}"#)).collect();
    // The same with a key that comes twice, which makes it another kind of object to us.
    let twice = r#"{"role":"system","content":"a","x":2,"role":"user","x":[1]}"#;
    let many = format!(r#"{{"role":"user","content":"a","x":[1],{}}}"#, many.join(","));
    let text = text(template, &format!("[{few},{twice},{many}]"));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], lines[1]);
    assert!(
        lines[0].starts_with("True 3 ['role', 'content', 'x'] [('role', 'user'), ('content', 'a'), ('x', [1])] "),
        "{text}"
    );
    assert!(lines[2].starts_with("True 23 ['role', 'content', 'x', 'k0'"), "{text}");
}
