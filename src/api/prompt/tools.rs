//! Tools, in the form in which vLLM hands them to a template: every function has `name`, `description` and
//! `parameters`, in this order and `null` where the request says nothing, then what else it has.
use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::tokens::json::{field, fields, items};

const FUNCTION: [&str; 3] = ["name", "description", "parameters"];

type Fields<'a> = [(Cow<'a, str>, &'a RawValue)];

/// The tools of a chat request. The body's own bytes, if they have the form already; `None` if there are none.
pub(super) fn chat(raw: &RawValue) -> Option<Cow<'_, RawValue>> {
    let items = items(raw).filter(|items| !items.is_empty())?;
    let tools: Option<Vec<_>> = items.iter().map(|tool| fields(tool)).collect();
    // What is no list of objects is the engine's to refuse.
    let Some(tools) = tools else { return Some(Cow::Borrowed(raw)) };
    let functions: Vec<_> = tools.iter().map(|tool| field(tool, "function").and_then(fields)).collect();
    let in_form = tools.iter().zip(&functions).all(|(tool, function)| {
        let function = function.as_deref().unwrap_or_default();
        in_order(tool, &["type", "function"]) && in_order(function, &FUNCTION)
    });
    if in_form {
        return Some(Cow::Borrowed(raw));
    }
    let mut json = String::with_capacity(raw.get().len() + 64 * tools.len());
    for (tool, function) in tools.iter().zip(&functions) {
        open(&mut json);
        let Some(function) = function else {
            write_fields(&mut json, &[], tool);
            json.push('}');
            continue;
        };
        json.push_str("\"type\": ");
        json.push_str(field(tool, "type").map_or("\"function\"", RawValue::get));
        json.push_str(", \"function\": {");
        write_fields(&mut json, &FUNCTION, function);
        json.push('}');
        for (key, value) in tool.iter().filter(|(key, _)| key != "type" && key != "function") {
            json.push_str(", ");
            write_field(&mut json, key, value.get());
        }
        json.push('}');
    }
    close(json)
}

/// Tools whose functions stand flat in them, under these names for [`FUNCTION`]; `keep` are further fields that reach
/// the template, `null` where absent. Tools that are no functions (an engine's own) don't.
pub(super) fn flat(raw: &RawValue, names: [&str; 3], keep: &[&str]) -> Option<Cow<'static, RawValue>> {
    let mut json = String::with_capacity(raw.get().len());
    for tool in items(raw)?.into_iter().filter_map(fields) {
        let kind = field(&tool, "type").map(RawValue::get);
        if !matches!(kind, None | Some("\"function\"" | "\"custom\"")) {
            continue;
        }
        open(&mut json);
        json.push_str("\"type\": \"function\", \"function\": {");
        for (at, (name, key)) in FUNCTION.iter().zip(names).chain(keep.iter().map(|key| (key, *key))).enumerate() {
            if at > 0 {
                json.push_str(", ");
            }
            write_field(&mut json, name, field(&tool, key).map_or("null", RawValue::get));
        }
        json.push_str("}}");
    }
    close(json)
}

fn open(json: &mut String) {
    json.push_str(if json.is_empty() { "[{" } else { ", {" });
}

fn close(mut json: String) -> Option<Cow<'static, RawValue>> {
    if json.is_empty() {
        return None;
    }
    json.push(']');
    RawValue::from_string(json).ok().map(Cow::Owned)
}

fn in_order(fields: &Fields<'_>, names: &[&str]) -> bool {
    fields.len() >= names.len() && fields.iter().zip(names).all(|((key, _), name)| key == name)
}

/// The fields of these names, then the others.
fn write_fields(json: &mut String, names: &[&str], fields: &Fields<'_>) {
    let others = fields.iter().filter(|(key, _)| !names.contains(&&**key)).map(|(key, value)| (&**key, value.get()));
    let named = names.iter().map(|name| (*name, field(fields, name).map_or("null", RawValue::get)));
    for (at, (key, value)) in named.chain(others).enumerate() {
        if at > 0 {
            json.push_str(", ");
        }
        write_field(json, key, value);
    }
}

fn write_field(json: &mut String, key: &str, value: &str) {
    json.push_str(&serde_json::Value::from(key).to_string());
    json.push_str(": ");
    json.push_str(value);
}
