//! Messages and tools of a request → the values that a chat template is given.
//!
//! In the form that vLLM (0.22 to 0.32) gives them to `transformers`, which is the model's own practice: no key whose
//! value is null; content as one text, or as a list of parts, by what the template reads; arguments of tool calls as
//! objects. Built straight from the bytes, without a tree between.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::value::{Enumerator, Object, ObjectExt, Value, ValueKind};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::prompt::Messages;
use super::python::MAX_DEPTH;
use super::reader::Reader;

/// How a template reads a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentForm {
    /// As one text: parts are joined by a newline.
    Text,
    /// As a list of parts.
    Parts,
}

/// What messages are turned into.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub content: ContentForm,
    /// Whether arguments of tool calls become objects; else they stay the text that they came as.
    pub arguments_as_objects: bool,
}

/// Where in a rendered text media begin.
#[derive(Debug)]
pub(super) struct Media {
    /// Bytes written so far.
    pub written: AtomicUsize,
    /// Bytes written when a medium was first looked at; [`usize::MAX`]: none was.
    pub first: AtomicUsize,
    /// Whether a [`sentinel`] stands in a text.
    pub inlined: AtomicBool,
}

impl Default for Media {
    fn default() -> Self {
        Self { written: AtomicUsize::new(0), first: AtomicUsize::new(usize::MAX), inlined: AtomicBool::new(false) }
    }
}

/// Text that stands for a medium in content that is one text. Nobody writes it: the key is the process's own.
pub(super) fn sentinel() -> &'static str {
    static SENTINEL: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| format!("\u{1}medium-{:016x}\u{1}", fastrand::u64(..)));
    &SENTINEL
}

/// The messages as values, oldest first.
pub(super) fn messages(
    messages: &Messages<'_>,
    form: Form,
    media: &Arc<Media>,
) -> Result<Vec<Value>, serde_json::Error> {
    let node = |at| Node { at, depth: 0, form, media };
    match messages {
        Messages::Raw(raw) => read(List(node(At::Message)), raw),
        Messages::Built(built) => built.iter().map(|message| node(At::Message).deserialize(message)).collect(),
    }
}

/// Any JSON as a value.
pub(super) fn plain(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let form = Form { content: ContentForm::Text, arguments_as_objects: false };
    read(Node { at: At::Plain, depth: 0, form, media: &Arc::default() }, raw)
}

/// Reads a value, quickly if that can be.
fn read<'de, S: DeserializeSeed<'de> + Copy>(seed: S, raw: &'de RawValue) -> Result<S::Value, serde_json::Error> {
    let quick = seed.deserialize(&mut Reader::of(raw));
    quick.or_else(|_| seed.deserialize(&mut serde_json::Deserializer::from_str(raw.get())))
}

/// Tools as values, each with the keys that vLLM's request has, in their order (`FunctionDefinition`, 0.22 to 0.32): a
/// template prints a tool whole, so a missing description is printed as null.
pub(super) fn tools(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let form = Form { content: ContentForm::Text, arguments_as_objects: false };
    let node = Node { at: At::Tools, depth: 0, form, media: &Arc::default() };
    read(node, raw)
}

/// Puts pairs into the order of `fields`; those are there even where they came without a value, with their default.
fn in_order(mut pairs: Vec<(Value, Value)>, fields: &[(&str, Value)]) -> Vec<(Value, Value)> {
    let mut out = Vec::with_capacity(pairs.len() + fields.len());
    for (name, default) in fields {
        let at = pairs.iter().rposition(|(key, _)| key.as_str() == Some(name));
        out.push(at.map_or_else(|| (Value::from(*name), default.clone()), |at| pairs.remove(at)));
    }
    pairs.retain(|(key, value)| !(key.as_str() == Some("defer_loading") && value.is_none()));
    out.extend(pairs);
    out
}

/// A JSON tree as a value.
pub(super) fn tree(json: &serde_json::Value) -> Result<Value, serde_json::Error> {
    let form = Form { content: ContentForm::Text, arguments_as_objects: false };
    Node { at: At::Plain, depth: 0, form, media: &Arc::default() }.deserialize(json)
}

/// What a value is in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Message,
    Content,
    Part,
    Calls,
    Call,
    Function,
    Arguments,
    Tools,
    Tool,
    Definition,
    Plain,
}

/// A list of nodes, kept as a list.
#[derive(Clone, Copy)]
struct List<'a>(Node<'a>);

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = Vec<Value>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Vec<Value>, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Value>, A::Error> {
        let mut values = Vec::with_capacity(list.size_hint().unwrap_or(8).min(1024));
        while let Some(value) = list.next_element_seed(self.0)? {
            values.push(value);
        }
        Ok(values)
    }
}

/// A value, read with respect to where it stands.
#[derive(Clone, Copy)]
struct Node<'a> {
    at: At,
    depth: usize,
    form: Form,
    media: &'a Arc<Media>,
}

impl Node<'_> {
    fn below<E: serde::de::Error>(self, at: At) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom("nested too deeply"));
        }
        Ok(Self { at, depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        match self.at {
            At::Message => json.deserialize_map(self),
            _ => json.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.at == At::Message { "a message" } else { "any JSON" })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::from(()))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        match self.at {
            At::Arguments if self.form.arguments_as_objects => self.arguments(text).map_err(E::custom),
            _ => Ok(Value::from(text)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Value, A::Error> {
        let at = match self.at {
            At::Content => At::Part,
            At::Calls => At::Call,
            At::Tools => At::Tool,
            _ => At::Plain,
        };
        let values = List(self.below(at)?).visit_seq(list)?;
        if self.at == At::Content
            && values.iter().any(|part| !matches!(part.kind(), ValueKind::String | ValueKind::Map))
        {
            return Err(A::Error::custom("a part is neither a text nor an object"));
        }
        Ok(Value::from(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        if self.at == At::Message {
            return self.message(map);
        }
        if self.at == At::Part {
            return self.part(map);
        }
        let pairs = self.pairs(map)?;
        let none = || Value::from(());
        Ok(Value::from_pairs(match self.at {
            At::Tool if pairs.iter().any(|(key, _)| key.as_str() == Some("function")) => {
                in_order(pairs, &[("type", Value::from("function")), ("function", none())])
            }
            At::Definition => in_order(pairs, &[("name", none()), ("description", none()), ("parameters", none())]),
            _ => pairs,
        }))
    }
}

/// A key of an object.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Value, E> {
        Ok(Value::from(key))
    }
}

impl Node<'_> {
    /// The pairs of an object, in its order.
    fn pairs<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<(Value, Value)>, A::Error> {
        let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(4).min(256));
        while let Some(key) = map.next_key_seed(Key)? {
            let at = match (self.at, key.as_str().unwrap_or_default()) {
                (At::Message, "content") => At::Content,
                (At::Message, "tool_calls") => At::Calls,
                (At::Call, "function") => At::Function,
                (At::Function, "arguments") => At::Arguments,
                (At::Tool, "function") => At::Definition,
                _ => At::Plain,
            };
            pairs.push((key, map.next_value_seed(self.below(at)?)?));
        }
        // vLLM: no arguments are no arguments.
        if self.at == At::Function && self.form.arguments_as_objects {
            match pairs.iter_mut().find(|(key, _)| key.as_str() == Some("arguments")) {
                Some((_, value)) if value.is_none() => *value = empty(),
                Some(_) => {}
                None => pairs.push((Value::from("arguments"), empty())),
            }
        }
        Ok(pairs)
    }

    /// Arguments, which come as JSON in a text.
    fn arguments(self, text: &str) -> Result<Value, serde_json::Error> {
        if text.is_empty() {
            return Ok(empty());
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let value = self.below::<serde_json::Error>(At::Plain)?.deserialize(&mut json)?;
        json.end()?;
        Ok(value)
    }

    fn message<'de, A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        let mut pairs = self.pairs(map)?;
        pairs.retain(|(_, value)| !value.is_none());
        let find = |pairs: &[(Value, Value)], name: &str| pairs.iter().rposition(|(key, _)| key.as_str() == Some(name));
        let role = find(&pairs, "role").and_then(|at| pairs[at].1.as_str().map(str::to_owned));
        let Some(role) = role else { return Err(A::Error::custom("a message has no role")) };
        let content = match find(&pairs, "content") {
            Some(at) => self.content(&pairs[at].1, &role),
            None => self.content(&Value::from(""), &role),
        };
        match find(&pairs, "content") {
            Some(at) => pairs[at].1 = content,
            None => pairs.push((Value::from("content"), content)),
        }
        if role == "assistant" {
            // vLLM drops an empty list, so that templates take their ordinary way.
            if let Some(at) = find(&pairs, "tool_calls").filter(|at| pairs[*at].1.len() == Some(0)) {
                pairs.remove(at);
            }
            // As transformers (5.24) does: one reasoning under each of its names.
            let names = ["reasoning_content", "thinking", "reasoning"];
            if let Some(at) = names.iter().find_map(|name| find(&pairs, name)) {
                let reasoning = pairs[at].1.clone();
                match find(&pairs, "reasoning_content") {
                    Some(at) => pairs[at].1 = reasoning.clone(),
                    None => pairs.push((Value::from("reasoning_content"), reasoning.clone())),
                }
                if find(&pairs, "thinking").is_none() {
                    pairs.push((Value::from("thinking"), reasoning));
                }
            }
        }
        Ok(object(pairs))
    }

    /// A message's content in the template's form.
    fn content(self, content: &Value, role: &str) -> Value {
        let one_text = self.form.content == ContentForm::Text;
        if content.as_str().is_some() {
            // Templates that read parts are given parts, whatever the client wrote.
            let wrapped = !one_text && role != "tool";
            return if wrapped { Value::from(vec![text_part(content.clone())]) } else { content.clone() };
        }
        if content.kind() != ValueKind::Seq {
            return content.clone();
        }
        let Ok(parts) = content.try_iter().map(|parts| parts.collect::<Vec<_>>()) else { return content.clone() };
        let texts: Vec<Value> = parts.iter().filter_map(part_text).collect();
        if one_text || (role == "tool" && texts.len() == parts.len()) {
            let mut joined = String::new();
            // vLLM puts placeholders of media before the text; which ones is the model's matter.
            if texts.len() < parts.len() {
                joined.push_str(sentinel());
                self.media.inlined.store(true, Ordering::Relaxed);
            }
            for (at, text) in texts.iter().enumerate() {
                if at > 0 {
                    joined.push('\n');
                }
                joined.push_str(text.as_str().unwrap_or_default());
            }
            return Value::from(joined);
        }
        Value::from(parts)
    }

    /// A part of a content: a text, or a medium.
    fn part<'de, A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        let pairs = self.pairs(map)?;
        let get =
            |name: &str| pairs.iter().rfind(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value.clone());
        let kind = get("type");
        let kind = match kind.as_ref().and_then(|kind| kind.as_str()) {
            Some(kind) => kind,
            None => pairs.iter().filter_map(|(key, _)| key.as_str()).find(|key| *key != "uuid").unwrap_or_default(),
        };
        let modality = match kind {
            "text" | "input_text" | "output_text" | "refusal" | "thinking" => {
                let text = get(if matches!(kind, "refusal" | "thinking") { kind } else { "text" });
                return match text.filter(|text| text.as_str().is_some()) {
                    Some(text) => Ok(text_part(text)),
                    None => Err(A::Error::custom("a part has no text")),
                };
            }
            "image" | "image_url" | "input_image" | "image_pil" | "image_embeds" => "image",
            "audio" | "audio_url" | "input_audio" | "audio_embeds" => "audio",
            "video" | "video_url" | "input_video" => "video",
            _ => return Err(A::Error::custom("a part's type is not known")),
        };
        Ok(Value::from_object(Medium { modality, media: self.media.clone() }))
    }
}

/// Keys of an object that is searched from its start on. minijinja does so, too, up to there.
const FEW: usize = 12;

/// An object of few keys, each once: to make a table of them takes longer than all that is looked up in it.
#[derive(Debug)]
struct Few(Vec<(Value, Value)>);

impl Object for Few {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_rev_key_value_enumerator(|few| Box::new(few.0.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

/// A message's pairs as a value.
fn object(pairs: Vec<(Value, Value)>) -> Value {
    let twice = |at: usize| pairs[..at].iter().any(|(key, _)| *key == pairs[at].0);
    if pairs.len() <= FEW && !(1..pairs.len()).any(twice) {
        Value::from_object(Few(pairs))
    } else {
        Value::from_pairs(pairs)
    }
}

fn empty() -> Value {
    Value::from_pairs(std::iter::empty::<(Value, Value)>())
}

fn text_part(text: Value) -> Value {
    Value::from_pairs([("type", Value::from("text")), ("text", text)])
}

/// The text of a part, if it is one. To ask a medium for it would be to look at the medium.
pub(super) fn part_text(part: &Value) -> Option<Value> {
    if part.as_str().is_some() {
        return Some(part.clone());
    }
    // A medium would take the question for the template's.
    if part.downcast_object_ref::<Medium>().is_some() {
        return None;
    }
    part.get_attr("text").ok().filter(|text| text.as_str().is_some())
}

/// An image, audio or video, as `{"type": …}`. It notes where in the output it was first looked at: what was written
/// before is the same without it.
#[derive(Debug)]
struct Medium {
    modality: &'static str,
    media: Arc<Media>,
}

impl Medium {
    fn seen(&self) {
        let written = self.media.written.load(Ordering::Relaxed);
        self.media.first.fetch_min(written, Ordering::Relaxed);
    }
}

impl Object for Medium {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.seen();
        (key.as_str() == Some("type")).then(|| Value::from(self.modality))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.seen();
        Enumerator::Str(&["type"])
    }
}
