//! Readers of JSON values that stand in a body. None of them recurses, but for [`value`], which serde_json bounds.
use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// Items of a list, or fields of an object, that are looked at: bounds the memory that a list of nothing takes.
const MOST: usize = 1 << 18;

/// An object's fields in their order; of a key that appears twice the last value counts, at the first one's place, as
/// in Python. `None` for any other type, and for one of very many fields.
pub(crate) fn fields(raw: &RawValue) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    struct Fields;
    #[derive(serde::Deserialize)]
    struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
    impl<'de> Visitor<'de> for Fields {
        type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut fields = Vec::with_capacity(4);
            while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                if fields.len() == MOST {
                    return Err(serde::de::Error::custom("too many fields"));
                }
                fields.push((key, value));
            }
            Ok(fields)
        }
    }
    let mut fields = serde_json::Deserializer::from_str(raw.get()).deserialize_map(Fields).ok()?;
    // Objects of this kind are small. One that is not has no reader who would mind a key twice.
    if fields.len() <= 32 {
        let mut at = 0;
        while at < fields.len() {
            if let Some(first) = fields[..at].iter().position(|(key, _)| *key == fields[at].0) {
                fields[first].1 = fields[at].1;
                fields.remove(at);
            } else {
                at += 1;
            }
        }
    }
    Some(fields)
}

/// The last of the fields with this name.
pub(crate) fn field<'a>(fields: &[(Cow<'a, str>, &'a RawValue)], name: &str) -> Option<&'a RawValue> {
    fields.iter().rev().find(|(key, _)| key == name).map(|(_, value)| *value).filter(|raw| raw.get() != "null")
}

/// A list's items; `None` for any other type, and for one of very many items.
pub(crate) fn items(raw: &RawValue) -> Option<Vec<&RawValue>> {
    struct Items;
    impl<'de> Visitor<'de> for Items {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = list.next_element()? {
                if items.len() == MOST {
                    return Err(serde::de::Error::custom("too many items"));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    serde_json::Deserializer::from_str(raw.get()).deserialize_seq(Items).ok()
}

/// A value as a tree; `null` if it is too deep for one.
pub(crate) fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

/// A string's value; `None` for any other type, and for one that is no Unicode (half a surrogate pair).
pub(crate) fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    raw.get().starts_with('"').then(|| serde_json::from_str::<Text<'_>>(raw.get()).ok()).flatten().map(|text| text.0)
}

/// Writes a JSON text without what makes no difference: whitespace between values, and how a character is escaped.
pub(crate) fn tidy(json: &str, out: &mut impl FnMut(&str)) {
    let mut rest = json;
    while let Some(at) = rest.find(|c: char| c.is_ascii_whitespace() || c == '"') {
        out(&rest[..at]);
        rest = &rest[at..];
        if !rest.starts_with('"') {
            rest = rest.trim_ascii_start();
            continue;
        }
        let (text, after) = rest.split_at(string_end(rest.as_bytes()));
        rest = after;
        match text.contains('\\').then(|| serde_json::from_str::<String>(text)) {
            Some(Ok(plain)) => out(&Value::from(plain).to_string()),
            // Half a surrogate pair, or nothing to escape.
            Some(Err(_)) | None => out(text),
        }
    }
    out(rest);
}

/// Where the string at the start of `text` ends.
fn string_end(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = memchr::memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        at += found + 1;
        if text[at - 1] == b'"' {
            return at;
        }
        at += 1;
    }
    text.len()
}
