//! The table as a JSON schema (draft 2020-12), for editors. It is a little stricter than the check in places (a quoted
//! number) and knows less (what concerns several keys, the content of files); `warmroute check` has the last word.
use serde_json::{Map, Value, json};

use super::keys::{self, Default, Key, Kind, Scalar};
use super::node::{self, Data, Node};

/// The schema of a configuration file.
pub fn schema() -> Value {
    let mut root = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Warmroute's configuration",
    });
    if let (Value::Object(root), Value::Object(map)) = (&mut root, map("")) {
        root.extend(map);
    }
    root
}

fn map(inside: &str) -> Value {
    let properties: Map<_, _> = keys::under(inside).map(|key| (key.name().to_owned(), property(key))).collect();
    let required: Vec<_> =
        keys::under(inside).filter(|key| matches!(key.default, Default::Required)).map(Key::name).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
}

fn property(key: &Key) -> Value {
    let mut alternatives = Vec::new();
    value(key.kind, &key.inside(), &mut alternatives);
    if let Some(word) = key.off {
        alternatives.push(json!({ "enum": off_words(word) }));
    }
    let mut property = Map::new();
    property.insert("description".into(), format!("{} Write {}.", key.doc, key.expects()).into());
    if let Default::Value(default) = key.default {
        property.insert("default".into(), yaml(default));
    }
    property.insert("examples".into(), json!([yaml(key.example)]));
    match (alternatives.pop(), alternatives.is_empty()) {
        (Some(Value::Object(only)), true) => property.extend(only),
        (last, _) => {
            alternatives.extend(last);
            property.insert("anyOf".into(), alternatives.into());
        }
    }
    Value::Object(property)
}

fn value(kind: Kind, inside: &str, alternatives: &mut Vec<Value>) {
    match kind {
        Kind::Map => alternatives.push(map(inside)),
        Kind::MapOr(short) => {
            if let Some(key) = keys::find(inside, short) {
                value(key.kind, &key.inside(), alternatives);
                alternatives.extend(key.off.map(|word| json!({ "enum": off_words(word) })));
            }
            alternatives.push(map(inside));
        }
        Kind::List { of, min } => {
            if let Kind::Scalar(one) = of {
                scalar(*one, alternatives);
            }
            if let Kind::MapOr(short) = of
                && let Some(Key { kind: Kind::Scalar(one), .. }) = keys::find(inside, short)
            {
                scalar(*one, alternatives);
            }
            let mut items = Vec::new();
            value(*of, inside, &mut items);
            let items = if items.len() == 1 { items.remove(0) } else { json!({ "anyOf": items }) };
            alternatives.push(json!({ "type": "array", "minItems": min, "items": items }));
        }
        Kind::Scalar(one) => scalar(one, alternatives),
    }
}

/// Either of the words that switch off will do; others stand for themselves.
fn off_words(word: &'static str) -> Vec<&'static str> {
    if matches!(word, "none" | "off") { vec!["none", "off"] } else { vec![word] }
}

/// Any value but text may also be a string that holds a variable.
fn scalar(scalar: Scalar, alternatives: &mut Vec<Value>) {
    let text = |pattern: &str| json!({ "type": "string", "pattern": format!(r"{pattern}|\$\{{") });
    match scalar {
        Scalar::Bool => alternatives.extend([json!({ "type": "boolean" }), text("^(true|false)$")]),
        Scalar::Count(min, max) => {
            alternatives.extend([json!({ "type": "integer", "minimum": min, "maximum": max }), text("^[0-9][0-9_]*$")])
        }
        Scalar::Ratio(min, max) => alternatives
            .extend([json!({ "type": "number", "minimum": min, "maximum": max }), text("^[0-9]+([.][0-9]+)?$")]),
        Scalar::Time(..) => alternatives.push(text("^[0-9]+ *[a-zA-Z]+( *[0-9]+ *[a-zA-Z]+)*$")),
        Scalar::Seconds(..) => alternatives.push(text("^[0-9]+([.][0-9]+)? *(s|ms|us|µs|ns)$")),
        Scalar::Size(..) => alternatives.push(text("^[0-9][0-9_]* *([kKmMgG][iI]?)?[bB]$")),
        Scalar::Percent(..) => alternatives.push(text("^[0-9]+ *%$")),
        Scalar::OneOf(words) => {
            // `502` without quotes is a number to an editor.
            let numbers = words.iter().filter_map(|word| word.parse::<u64>().ok());
            let all: Vec<_> = words.iter().copied().map(Value::from).chain(numbers.map(Value::from)).collect();
            alternatives.extend([json!({ "enum": all }), text("^$")]);
        }
        Scalar::Url => alternatives.push(text("^[hH][tT][tT][pP][sS]?://")),
        Scalar::Tcp => alternatives.push(text("^tcp://")),
        Scalar::Path => alternatives.push(text("^/")),
        Scalar::SessionKey => alternatives.push(text("^(header:.|body:/)")),
        Scalar::Address => alternatives.push(text(":[0-9]+$")),
        Scalar::Name
        | Scalar::Id
        | Scalar::Header
        | Scalar::Filter
        | Scalar::Secret
        | Scalar::Tokenizer
        | Scalar::File
        | Scalar::DnsName
        | Scalar::Pem
        | Scalar::Authorities
        | Scalar::Network
        | Scalar::Peer
        | Scalar::ServerName => {
            alternatives.push(json!({ "type": "string", "minLength": 1 }));
        }
    }
}

/// A value of the table as JSON.
pub(super) fn yaml(text: &str) -> Value {
    node::read(text).ok().flatten().map_or(Value::Null, |node| to_json(&node))
}

/// YAML 1.2's core schema, which is what an editor hands to a JSON schema.
pub(super) fn to_json(node: &Node) -> Value {
    match &node.data {
        Data::Map(entries) => entries.iter().map(|e| (e.key.clone(), to_json(&e.node))).collect::<Map<_, _>>().into(),
        Data::List(items) => items.iter().map(to_json).collect(),
        Data::Scalar(_) if node.is_null() => Value::Null,
        Data::Scalar(scalar) if scalar.plain => match serde_json::from_str(&scalar.text) {
            Ok(value @ (Value::Bool(_) | Value::Number(_))) => value,
            _ => Value::String(scalar.text.clone()),
        },
        Data::Scalar(scalar) => Value::String(scalar.text.clone()),
    }
}
