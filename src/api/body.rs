//! What routing reads from a JSON body, without building it.
//!
//! A field of an unexpected type is ignored, not refused: the engine judges it. Of a key that appears twice the last
//! one counts, as in the engines (Python's `json`). Values are skipped without recursion, so depth costs no stack.
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::tokens::reader::Reader;

/// A model's name and where its JSON string stands in the body (quotes included).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName<'a> {
    /// The name.
    pub name: Cow<'a, str>,
    /// Its bytes in the body.
    pub range: Range<usize>,
}

/// What routing reads from a body.
#[derive(Debug, Default, PartialEq)]
pub struct Hints<'a> {
    /// `model`, when it is a string.
    pub model: Option<ModelName<'a>>,
    /// `n` (or `best_of`, if larger) × number of prompts, at least 1.
    pub sequences: u32,
    /// `stream` is true: the answer is asked for in pieces.
    pub streams: bool,
    /// Where `stream_options` stands; an empty range where that can't be told.
    pub stream_options: Option<Range<usize>>,
    /// OpenAI's `prompt_cache_key`.
    pub prompt_cache_key: Option<Cow<'a, str>>,
    /// Responses API: the response this one continues.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// Anthropic's `metadata.user_id`.
    pub user_id: Option<Cow<'a, str>>,
    /// What the prompt is made of; nothing where the body is not UTF-8.
    pub parts: Parts<'a>,
}

impl Hints<'_> {
    /// The same, without the body and so without the prompt's parts.
    pub fn detached(self) -> Hints<'static> {
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        Hints {
            model: self.model.map(|model| ModelName { name: Cow::Owned(model.name.into_owned()), range: model.range }),
            sequences: self.sequences,
            streams: self.streams,
            stream_options: self.stream_options,
            prompt_cache_key: owned(self.prompt_cache_key),
            previous_response_id: owned(self.previous_response_id),
            user_id: owned(self.user_id),
            parts: Parts::default(),
        }
    }
}

/// The fields that a prompt is made of, in any of the APIs, as they stand in the body. `null` is as good as absent.
#[derive(Debug, Default, Clone, Copy)]
pub struct Parts<'a>([Option<&'a RawValue>; PARTS]);

impl PartialEq for Parts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(one, other)| one.map(RawValue::get) == other.map(RawValue::get))
    }
}

impl<'a> Parts<'a> {
    /// A field's value.
    pub fn get(&self, part: Part) -> Option<&'a RawValue> {
        self.0[part as usize].filter(|raw| raw.get() != "null")
    }
}

/// A field that a prompt is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the fields' own")]
pub enum Part {
    Messages,
    Tools,
    ToolChoice,
    Documents,
    ChatTemplate,
    ChatTemplateKwargs,
    AddGenerationPrompt,
    ContinueFinalMessage,
    AddSpecialTokens,
    TruncatePromptTokens,
    CacheSalt,
    ExtraKey,
    Prompt,
    Text,
    InputIds,
    Input,
    Instructions,
    Reasoning,
    ReasoningEffort,
    OutputConfig,
    System,
    PreviousResponseId,
}

const PARTS: usize = Part::PreviousResponseId as usize + 1;

#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    stream_options: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    best_of: Option<&'a RawValue>,
    prompt_cache_key: Option<&'a RawValue>,
    metadata: Option<&'a RawValue>,
    parts: Parts<'a>,
}

enum Field {
    Model,
    Stream,
    StreamOptions,
    N,
    BestOf,
    CacheKey,
    Metadata,
    Part(Part),
    Other,
}

impl<'de> serde::Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_identifier(FieldVisitor)
    }
}

struct FieldVisitor;

impl Visitor<'_> for FieldVisitor {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Field, E> {
        Ok(match key {
            "model" => Field::Model,
            "stream" => Field::Stream,
            "stream_options" => Field::StreamOptions,
            "n" => Field::N,
            "best_of" => Field::BestOf,
            "prompt_cache_key" => Field::CacheKey,
            "metadata" => Field::Metadata,
            "messages" => Field::Part(Part::Messages),
            "tools" => Field::Part(Part::Tools),
            "tool_choice" => Field::Part(Part::ToolChoice),
            "documents" => Field::Part(Part::Documents),
            "chat_template" => Field::Part(Part::ChatTemplate),
            "chat_template_kwargs" => Field::Part(Part::ChatTemplateKwargs),
            "add_generation_prompt" => Field::Part(Part::AddGenerationPrompt),
            "continue_final_message" => Field::Part(Part::ContinueFinalMessage),
            "add_special_tokens" => Field::Part(Part::AddSpecialTokens),
            "truncate_prompt_tokens" => Field::Part(Part::TruncatePromptTokens),
            "cache_salt" => Field::Part(Part::CacheSalt),
            "extra_key" => Field::Part(Part::ExtraKey),
            "prompt" => Field::Part(Part::Prompt),
            "text" => Field::Part(Part::Text),
            "input_ids" => Field::Part(Part::InputIds),
            "input" => Field::Part(Part::Input),
            "instructions" => Field::Part(Part::Instructions),
            "reasoning" => Field::Part(Part::Reasoning),
            "reasoning_effort" => Field::Part(Part::ReasoningEffort),
            "output_config" => Field::Part(Part::OutputConfig),
            "system" => Field::Part(Part::System),
            "previous_response_id" => Field::Part(Part::PreviousResponseId),
            _ => Field::Other,
        })
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Field, E> {
        Ok(Field::Other)
    }
}

/// Reads the fields; without `parts` their values are skipped unread, so that they need not be UTF-8.
struct FieldsVisitor {
    parts: bool,
}

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::default();
        while let Some(key) = map.next_key()? {
            let slot = match key {
                Field::Model => &mut fields.model,
                Field::Stream => &mut fields.stream,
                Field::N => &mut fields.n,
                Field::BestOf => &mut fields.best_of,
                Field::CacheKey => &mut fields.prompt_cache_key,
                Field::Metadata => &mut fields.metadata,
                Field::StreamOptions if self.parts => &mut fields.stream_options,
                // Two of them say where a request goes and how much it is.
                Field::Part(part) if self.parts || matches!(part, Part::Prompt | Part::PreviousResponseId) => {
                    &mut fields.parts.0[part as usize]
                }
                Field::Part(_) | Field::StreamOptions | Field::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *slot = Some(map.next_value()?);
        }
        Ok(fields)
    }
}

/// Reads a body.
///
/// # Errors
/// When it is not one JSON object; the message gives line and column.
pub fn read(body: &[u8]) -> Result<Hints<'_>, serde_json::Error> {
    // One look at all bytes lets every value be taken out of the body without another.
    let (fields, utf8) = match simdutf8::basic::from_utf8(body) {
        Ok(text) => match fields_of(text) {
            Some(fields) => (fields, true),
            None => (fields(serde_json::Deserializer::from_str(text), true)?, true),
        },
        Err(_) => (fields(serde_json::Deserializer::from_slice(body), false)?, false),
    };
    let options = fields.stream_options.map(|raw| range_of(body, raw));
    let number = |raw: Option<&RawValue>| raw.and_then(|raw| raw.get().parse::<u32>().ok()).unwrap_or(1);
    let sequences = number(fields.n).max(number(fields.best_of)).max(1);
    Ok(Hints {
        model: fields.model.and_then(|raw| Some(ModelName { name: string(raw)?, range: range_of(body, raw) })),
        sequences: sequences.saturating_mul(fields.parts.get(Part::Prompt).map_or(1, prompts)),
        streams: fields.stream.is_some_and(|raw| raw.get() == "true"),
        stream_options: if utf8 { options } else { Some(0..0) },
        prompt_cache_key: fields.prompt_cache_key.and_then(string),
        previous_response_id: fields.parts.get(Part::PreviousResponseId).and_then(string),
        user_id: fields.metadata.and_then(user_id),
        parts: fields.parts,
    })
}

/// The fields, if the quick reader takes the text.
fn fields_of(text: &str) -> Option<Fields<'_>> {
    let mut json = Reader::new(text);
    let fields = json.deserialize_map(FieldsVisitor { parts: true }).ok()?;
    json.end().ok().map(|()| fields)
}

fn fields<'a, R: serde_json::de::Read<'a>>(
    mut json: serde_json::Deserializer<R>,
    parts: bool,
) -> Result<Fields<'a>, serde_json::Error> {
    let fields = (&mut json).deserialize_map(FieldsVisitor { parts })?;
    json.end()?;
    Ok(fields)
}

/// A JSON string's value; `None` for any other type.
pub(super) fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

/// Number of prompts in a completions request: text, token ids, or a list of either.
fn prompts(raw: &RawValue) -> u32 {
    let text = raw.get();
    // A list of numbers is one prompt; a list of strings or lists is a batch.
    let batch = text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(['"', '[']));
    if !batch {
        return 1;
    }
    let count = serde_json::from_str::<Vec<IgnoredAny>>(text).map_or(1, |prompts| prompts.len());
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

fn user_id(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow)]
        user_id: Option<&'a RawValue>,
    }
    serde_json::from_str::<Metadata<'_>>(raw.get()).ok()?.user_id.and_then(string)
}

/// Where a value borrowed from the body stands in it.
fn range_of(body: &[u8], raw: &RawValue) -> Range<usize> {
    let start = (raw.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    start..start + raw.get().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_what_routing_needs() {
        let hints = read(
            br#"{"messages":[{"x":[1,{"model":"no"}]}],"model":"m\u0041","n":3,"prompt":["a","b"],
            "metadata":{"user_id":"u"},"prompt_cache_key":"k","previous_response_id":"r"}"#,
        )
        .unwrap();
        assert_eq!(hints.model.unwrap().name, "mA");
        assert_eq!(hints.sequences, 6);
        assert_eq!(hints.user_id.unwrap(), "u");
        assert_eq!(hints.prompt_cache_key.unwrap(), "k");
        assert_eq!(hints.previous_response_id.unwrap(), "r");
    }

    #[test]
    fn odd_types_are_ignored_and_the_last_duplicate_counts() {
        let hints = read(br#"{"model":7,"n":"x","metadata":[],"prompt":[1,2],"prompt_cache_key":null}"#).unwrap();
        assert_eq!(hints, Hints { sequences: 1, parts: hints.parts, ..Hints::default() });
        assert_eq!(read(br#"{"model":"a","model":"b"}"#).unwrap().model.unwrap().name, "b");
    }

    #[test]
    fn it_streams_when_the_last_word_of_the_body_is_true() {
        for (body, streams) in [
            (r#"{"stream": true}"#, true),
            (r#"{"stream":false,"messages":[{"stream":false}],"\u0073tream":true}"#, true),
            (r#"{"stream":true,"stream":null}"#, false),
            (r#"{"stream":"true"}"#, false),
            (r#"{"stream":[true]}"#, false),
            (r#"{"x":{"stream":true}}"#, false),
        ] {
            let hints = read(body.as_bytes()).unwrap();
            assert_eq!((hints.streams, hints.detached().streams), (streams, streams), "{body}");
        }
        assert!(read(b"{\"stream\":true,\"messages\":\"\xff\"}").unwrap().streams, "a prompt that is not UTF-8");
    }

    #[test]
    fn what_is_not_an_object_is_an_error_with_a_place() {
        for bad in ["", "[]", "{", "{} x", "{\"a\":}", "\u{feff}{}"] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(read(b"{\n\"a\" 1}").unwrap_err().to_string().contains("line 2 column"));
    }

    #[test]
    fn a_prompt_that_is_not_utf8_hides_no_model() {
        let hints = read(b"{\"messages\":[\"\xff\"],\"model\":\"m\"}").unwrap();
        assert_eq!(hints.model.unwrap().name, "m");
        assert!(hints.parts.get(Part::Messages).is_none());
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = format!("{{\"x\":{}{},\"model\":\"m\"}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(read(deep.as_bytes()).unwrap().model.unwrap().name, "m");
    }
}
