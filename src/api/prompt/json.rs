//! Small readers of JSON values that stand in a body.
use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// An object's fields in their order; of a key that appears twice the last value counts, at the first one's place, as
/// in Python. `None` for any other type.
pub(super) fn fields(raw: &RawValue) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
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
pub(super) fn field<'a>(fields: &[(Cow<'a, str>, &'a RawValue)], name: &str) -> Option<&'a RawValue> {
    fields.iter().rev().find(|(key, _)| key == name).map(|(_, value)| *value).filter(|raw| raw.get() != "null")
}

/// A list's items; `None` for any other type.
pub(super) fn items(raw: &RawValue) -> Option<Vec<&RawValue>> {
    raw.get().starts_with('[').then(|| serde_json::from_str(raw.get()).ok()).flatten()
}

/// A value as a tree; `null` if it is too deep for one.
pub(super) fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}
