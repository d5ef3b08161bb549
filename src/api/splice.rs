//! What the router writes into a client's body: the model's name in an alias' place, and that a stream should report its
//! usage. Both go into the original bytes; no other byte changes.
use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::de::{Deserialize, Deserializer, IgnoredAny};

use super::endpoint::Endpoint;
use super::{Hints, ModelName};

/// Bytes of a body that give way to others; none of them where something is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    range: Range<usize>,
    text: Cow<'static, str>,
}

impl Edit {
    /// In a form, whose values are written as they are: the model takes the place of its alias.
    pub fn form_model(alias: &ModelName<'_>, model: &str) -> Self {
        Self { range: alias.range.clone(), text: Cow::Owned(model.to_owned()) }
    }

    /// The same in a JSON body.
    pub fn json_model(alias: &ModelName<'_>, model: &str) -> Self {
        Self { range: alias.range.clone(), text: Cow::Owned(serde_json::Value::from(model).to_string()) }
    }

    /// Has the stream that a body asks for report its usage: `stream_options.include_usage` is added where the client did
    /// not speak of it. `None` where it did, in whatever way, where its `stream_options` are no object, and where no stream
    /// is asked for.
    ///
    /// Who wrote `continuous_usage_stats` (vLLM, SGLang) has spoken of it, too: beside `include_usage` it would put usage
    /// into every event.
    pub fn include_usage(body: &[u8], hints: &Hints<'_>) -> Option<Self> {
        if !hints.streams {
            return None;
        }
        let added = |at: usize, text| Some(Self { range: at..at, text: Cow::Borrowed(text) });
        let Some(range) = &hints.stream_options else {
            // The first of several members: `stream` is there.
            let at = body.iter().position(|byte| *byte == b'{')? + 1;
            return added(at, r#""stream_options":{"include_usage":true},"#);
        };
        let options = body.get(range.clone())?;
        let inside = options.strip_prefix(b"{")?;
        if serde_json::from_slice::<Options>(options).ok()? != Options::default() {
            return None;
        }
        let only = inside.trim_ascii_start().starts_with(b"}");
        added(range.start + 1, if only { r#""include_usage":true"# } else { r#""include_usage":true,"# })
    }
}

/// Whether each was written, with whatever value. One that was written twice is an error.
#[derive(Default, PartialEq, serde::Deserialize)]
#[serde(default)]
struct Options {
    #[serde(deserialize_with = "written")]
    include_usage: bool,
    #[serde(deserialize_with = "written")]
    continuous_usage_stats: bool,
}

fn written<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

/// Whether requests there know `stream_options`. Streams of other APIs report their usage unasked.
pub fn takes_stream_options(endpoint: &Endpoint) -> bool {
    matches!(endpoint.path, "/v1/chat/completions" | "/v1/completions")
}

/// A body with some of its bytes replaced, in ranges that don't overlap; every other byte stays.
pub fn splice(body: &Bytes, mut edits: Vec<Edit>) -> Bytes {
    if edits.is_empty() {
        return body.clone();
    }
    edits.sort_unstable_by_key(|edit| edit.range.start);
    let mut spliced = BytesMut::with_capacity(body.len() + edits.iter().map(|edit| edit.text.len()).sum::<usize>());
    let mut at = 0;
    for Edit { range, text } in &edits {
        spliced.extend_from_slice(body.get(at..range.start).unwrap_or_default());
        spliced.extend_from_slice(text.as_bytes());
        at = range.end;
    }
    spliced.extend_from_slice(body.get(at..).unwrap_or_default());
    spliced.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::body::read;
    use super::*;

    fn asked(body: &str) -> Option<String> {
        let hints = read(body.as_bytes()).expect("an object");
        let edit = Edit::include_usage(body.as_bytes(), &hints)?;
        let spliced = splice(&Bytes::copy_from_slice(body.as_bytes()), vec![edit]);
        Some(String::from_utf8(spliced.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn an_alias_is_replaced_in_place() {
        let body = Bytes::from_static(br#"{ "x" : "fast", "model":  "fast" , "y":1e2}"#);
        let model = read(&body).unwrap().model.unwrap();
        let spliced = splice(&body, vec![Edit::json_model(&model, "org/\"q\"")]);
        assert_eq!(&spliced[..], br#"{ "x" : "fast", "model":  "org/\"q\"" , "y":1e2}"#);
    }

    #[test]
    fn usage_is_asked_for_in_streams_whose_client_says_nothing_of_it() {
        for (body, expected) in [
            (
                r#" { "stream" : true,"n":1e0}"#,
                r#" {"stream_options":{"include_usage":true}, "stream" : true,"n":1e0}"#,
            ),
            (r#"{"stream":true,"stream_options":{}}"#, r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
            (
                r#"{"stream_options": { } ,"stream":true}"#,
                r#"{"stream_options": {"include_usage":true } ,"stream":true}"#,
            ),
            (
                r#"{"stream_options":{ "include_obfuscation":false},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true, "include_obfuscation":false},"stream":true}"#,
            ),
            // The engine goes by the last one, and so do we.
            (
                r#"{"stream_options":{"include_usage":true},"stream\u005foptions":{},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream\u005foptions":{"include_usage":true},"stream":true}"#,
            ),
            // One that stands elsewhere is not it.
            (
                r#"{"x":{"stream_options":null,"include_usage":false},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"x":{"stream_options":null,"include_usage":false},"stream":true}"#,
            ),
        ] {
            assert_eq!(asked(body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn what_a_client_says_of_it_stands() {
        for options in [
            "null",
            "true",
            "[]",
            "\"x\"",
            "{\"include_usage\":true}",
            "{\"include_usage\":false}",
            "{\"include_usage\":null}",
            "{\"include\\u005fusage\":\"x\"}",
            "{\"include_usage\":1,\"include_usage\":true}",
            "{\"continuous_usage_stats\":true}",
        ] {
            assert_eq!(asked(&format!("{{\"stream\":true,\"stream_options\":{options}}}")), None, "{options}");
        }
        for body in ["{}", "{\"stream\":false}", "{\"stream\":\"true\",\"stream_options\":{}}"] {
            assert_eq!(asked(body), None, "{body}");
        }
        let body = b"{\"stream\":true,\"messages\":\"\xff\"}";
        assert_eq!(Edit::include_usage(body, &read(body).unwrap()), None, "where it is can't be told");
    }

    /// JSON that a client may have written: any order, spaces, escapes.
    fn member() -> impl Strategy<Value = String> {
        let value = prop_oneof![
            Just("1.50e+3".to_owned()),
            Just("\"\\u0041 { } , \\\" \"".to_owned()),
            Just("[ {\"stream_options\" : {} } ]".to_owned()),
            Just("null".to_owned()),
        ];
        ("[a-h]{1,3}", "[ \n\t]{0,2}", value).prop_map(|(key, space, value)| format!("\"{key}\"{space}:{space}{value}"))
    }

    proptest! {
        #[test]
        fn the_value_gains_one_member_and_every_byte_stays(
            mut members in proptest::collection::vec(member(), 0..5),
            options in proptest::option::of(proptest::collection::vec(member(), 0..3)),
            order in 0usize..6,
            spaces in "[ \r\n]{0,3}",
            alias in any::<bool>(),
        ) {
            let model = if alias { "short" } else { "real" };
            let mut own = vec![format!("\"stream\"{spaces}:true"), format!("\"model\":{spaces}\"{model}\"")];
            let empty = options.as_ref().is_some_and(Vec::is_empty);
            own.extend(options.map(|inner| format!("\"stream_options\":{{{spaces}{}}}", inner.join(","))));
            for (turn, each) in own.into_iter().enumerate() {
                members.insert((order + turn) % (members.len() + 1), each);
            }
            let body = format!("{spaces}{{{spaces}{}{spaces}}}{spaces}", members.join(&format!("{spaces},")));
            let hints = read(body.as_bytes()).unwrap();
            let mut edits = vec![Edit::include_usage(body.as_bytes(), &hints).expect("nothing was said of it")];
            if alias {
                edits.insert(order % 2, Edit::json_model(hints.model.as_ref().unwrap(), "real"));
            }
            let spliced = splice(&Bytes::from(body.clone()), edits);
            let mut expected: Value = serde_json::from_str(&body).unwrap();
            expected["stream_options"]["include_usage"] = json!(true);
            expected["model"] = json!("real");
            prop_assert_eq!(serde_json::from_slice::<Value>(&spliced).unwrap(), expected);
            // Without what was added, and the alias put back, it is the body.
            let mut back = String::from_utf8(spliced.to_vec()).unwrap();
            let added = match (hints.stream_options, empty) {
                (None, _) => "\"stream_options\":{\"include_usage\":true},",
                (_, true) => "\"include_usage\":true",
                (_, false) => "\"include_usage\":true,",
            };
            prop_assert!(back.contains(added));
            back = back.replacen(added, "", 1);
            if alias {
                back = back.replace("\"real\"", "\"short\"");
            }
            prop_assert_eq!(back, body);
        }
    }
}
