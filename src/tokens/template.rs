//! A model's own chat template: messages → the text that its engine encodes.
//!
//! As Python `transformers` renders it: [`environment`](super::environment) is its Jinja, and
//! [`messages`](super::messages) the form in which engines hand messages to it. What a template may use is bounded, in
//! steps and in bytes.
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::value::RawValue;

use super::concat::apart;
use super::encoder::LoadError;
use super::environment::{NAME, Refusal, environment, source, syntax};
use super::form::content_form;
use super::messages::{self, Form, Media};
use super::prompt::{Chat, Messages};
use super::python::is_space;

/// Steps of a template for a request up to [`SMALL`] bytes: some 20 ms of work. Templates need about a hundred a
/// message, and one per 64 bytes.
const FUEL: u64 = 2_000_000;
/// Steps for a larger request.
const MUCH_FUEL: u64 = 100_000_000;
/// Bytes of a small request.
const SMALL: usize = 512 * 1024;
/// A rendered text may be this many times as long as its request, …
const MOST_TIMES: usize = 8;
/// … and so many bytes more.
const MOST_MORE: usize = 4 << 20;
/// The most bytes of a file beside the tokenizer.
const MOST_FILE: u64 = 16 << 20;
/// transformers' mark at the end of a message that is to be continued.
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Why there is no rendered text.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The request brought a template of its own.
    #[error("the request has a chat template of its own")]
    NoTemplate,
    /// The template refused the messages (`raise_exception`); its words.
    #[error("the chat template refused the messages: {0}")]
    Refused(String),
    /// The messages aren't what the template can work with.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// It ran, or wrote, beyond its bounds.
    #[error("the chat template ran or wrote beyond its bounds")]
    TooLong,
}

/// A rendered chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// What is encoded, without the tokenizer's special tokens around it.
    pub text: String,
    /// Byte offset in `text` of the first image, audio or video: what stands before it is exact, what stands after it
    /// isn't what the engine has, which puts the medium's tokens there.
    pub media: Option<usize>,
}

/// The chat template of a model, compiled.
#[derive(Debug)]
pub struct Template {
    default: Program,
    tool_use: Option<Program>,
    /// `bos_token` and the like.
    tokens: Vec<(String, Value)>,
}

/// A compiled template, once for each bound of its steps.
#[derive(Debug)]
struct Program {
    small: Environment<'static>,
    large: Environment<'static>,
    form: Form,
    /// Whether it speaks of a message's content, which can then be continued.
    continues: bool,
    /// Whether it may render the time.
    reads_clock: bool,
}

impl Template {
    /// Reads a model's chat template from a folder: `chat_template.jinja`, else `chat_template` in
    /// `tokenizer_config.json` (a text, or a list of named ones), else in `chat_template.json`. `None`: it has none.
    ///
    /// # Errors
    /// When a file can't be read, or the template can't be compiled; the text names file and cause.
    pub fn load(folder: &Path) -> Result<Option<Self>, LoadError> {
        let config = json(folder, "tokenizer_config.json")?;
        let mut found = Vec::new();
        if let Some(text) = read(folder, "chat_template.jinja")? {
            found.push(("chat_template.jinja", "default".to_owned(), text));
        } else {
            for name in ["tokenizer_config.json", "chat_template.json"] {
                let json = if name == "tokenizer_config.json" { config.clone() } else { json(folder, name)? };
                if let Some(template) = json.as_ref().and_then(|json| json.get("chat_template")) {
                    found.extend(named(template).into_iter().map(|(title, text)| (name, title, text)));
                }
                if !found.is_empty() {
                    break;
                }
            }
        }
        let compile = |wanted: &str| -> Result<Option<Program>, LoadError> {
            let Some((file, title, text)) = found.iter().find(|(_, title, _)| title == wanted) else { return Ok(None) };
            let named =
                |e| LoadError(format!("{}: the template {title:?} is not one: {e}", folder.join(file).display()));
            Program::compile(text).map(Some).map_err(named)
        };
        let (default, tool_use) = (compile("default")?, compile("tool_use")?);
        let legacy = json(folder, "special_tokens_map.json")?;
        let tokens = special_tokens([config, legacy].into_iter().flatten());
        Ok(default.map(|default| Self { default, tool_use, tokens }))
    }

    /// Whether the same chat may have another text at another time.
    pub fn reads_clock(&self) -> bool {
        self.default.reads_clock || self.tool_use.as_ref().is_some_and(|program| program.reads_clock)
    }

    /// The text of a chat.
    ///
    /// # Errors
    /// Each kind is one of [`TemplateError`].
    pub fn render(&self, chat: &Chat<'_>) -> Result<Rendered, TemplateError> {
        if chat.own_template {
            return Err(TemplateError::NoTemplate);
        }
        if chat.continue_final_message && chat.add_generation_prompt {
            return Err(TemplateError::Failed("the last message can't be continued and answered at once".into()));
        }
        let program = match &self.tool_use {
            Some(program) if chat.tools.is_some() => program,
            _ => &self.default,
        };
        match self.attempt(program, program.form, chat) {
            // Some templates put the arguments' text into theirs, and take no object.
            Err(TemplateError::Failed(_)) if calls(&chat.messages) => {
                self.attempt(program, Form { arguments_as_objects: false, ..program.form }, chat)
            }
            done => done,
        }
    }

    fn attempt(&self, program: &Program, form: Form, chat: &Chat<'_>) -> Result<Rendered, TemplateError> {
        let media = Arc::new(Media::default());
        let mut values = messages::messages(&chat.messages, form, &media).map_err(failed)?;
        let last = if chat.continue_final_message { Some(leave_open(&mut values)?) } else { None };
        if last.is_some() && !program.continues {
            return Err(TemplateError::Failed("the template knows no content to continue".into()));
        }
        let documents =
            chat.documents.as_deref().map_or_else(|| Ok(Value::from(())), messages::plain).map_err(failed)?;
        let mut context = self.tokens.clone();
        for (name, value) in &chat.kwargs {
            context.push((name.clone(), messages::tree(value).map_err(failed)?));
        }
        context.push(("messages".into(), Value::from(values)));
        let tools = chat.tools.as_deref().map_or_else(|| Ok(Value::from(())), messages::tools).map_err(failed)?;
        context.push(("tools".into(), tools));
        context.push(("documents".into(), documents));
        context.push(("add_generation_prompt".into(), Value::from(chat.add_generation_prompt)));

        let size = size(chat);
        let env = if size <= SMALL { &program.small } else { &program.large };
        let most = size.saturating_mul(MOST_TIMES).saturating_add(MOST_MORE);
        let mut out = Out { text: String::with_capacity(size + size / 8 + 1024), most, media: &media };
        let template = env.get_template(NAME).map_err(|e| error(&e))?;
        template.render_captured_to(Value::from_pairs(context), &mut out).map_err(|e| error(&e))?;
        let mut text = out.text;
        if let Some(last) = last {
            cut(&mut text, &last)?;
        }
        let media = begin_of_media(&mut text, &media);
        Ok(Rendered { text, media })
    }
}

impl Program {
    fn compile(text: &str) -> Result<Self, Error> {
        let text = source(text);
        let apart = apart(&text, syntax()?);
        let quick = |fuel| environment(apart.clone(), fuel).or_else(|_| environment(text.clone(), fuel));
        Ok(Self {
            form: Form { content: content_form(&text, syntax()?), arguments_as_objects: true },
            continues: text.contains("content"),
            reads_clock: text.contains("strftime_now"),
            small: quick(FUEL)?,
            large: quick(MUCH_FUEL)?,
        })
    }
}

/// Templates by name, of a text or of a list of `{name, template}`.
fn named(template: &serde_json::Value) -> Vec<(String, String)> {
    let pair = |item: &serde_json::Value| {
        Some((item.get("name")?.as_str()?.to_owned(), item.get("template")?.as_str()?.to_owned()))
    };
    match template {
        serde_json::Value::String(text) => vec![("default".into(), text.clone())],
        serde_json::Value::Array(list) => list.iter().filter_map(pair).collect(),
        _ => Vec::new(),
    }
}

/// Variables of the special tokens. Of two files the first is right.
fn special_tokens(files: impl Iterator<Item = serde_json::Value>) -> Vec<(String, Value)> {
    let mut tokens: Vec<(String, Value)> = Vec::new();
    for file in files {
        for name in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"] {
            let name = format!("{name}_token");
            let token = file.get(&name).and_then(|token| token.get("content").unwrap_or(token).as_str());
            if let Some(token) = token.filter(|_| tokens.iter().all(|(known, _)| *known != name)) {
                tokens.push((name, Value::from(token)));
            }
        }
    }
    tokens
}

/// A file's text; `None` where it doesn't exist.
fn read(folder: &Path, name: &str) -> Result<Option<String>, LoadError> {
    let file = folder.join(name);
    let named = |cause: String| LoadError(format!("{} {cause}", file.display()));
    match std::fs::metadata(&file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(meta) if meta.len() > MOST_FILE => return Err(named(format!("is larger than {} MiB", MOST_FILE >> 20))),
        _ => {}
    }
    std::fs::read_to_string(&file).map(Some).map_err(|e| named(format!("cannot be read: {e}")))
}

fn json(folder: &Path, name: &str) -> Result<Option<serde_json::Value>, LoadError> {
    let Some(text) = read(folder, name)? else { return Ok(None) };
    let named = |e| LoadError(format!("{} is not JSON: {e}", folder.join(name).display()));
    serde_json::from_str(&text).map(Some).map_err(named)
}

/// Whether messages hold calls of tools.
fn calls(messages: &Messages<'_>) -> bool {
    match messages {
        Messages::Raw(raw) => memchr::memmem::find(raw.get().as_bytes(), b"tool_calls").is_some(),
        Messages::Built(built) => built.iter().any(|message| message.get("tool_calls").is_some()),
    }
}

/// Bytes of a chat, about.
fn size(chat: &Chat<'_>) -> usize {
    let messages = match &chat.messages {
        Messages::Raw(raw) => raw.get().len(),
        Messages::Built(built) => built.iter().map(weight).sum(),
    };
    let raw = |raw: Option<&RawValue>| raw.map_or(0, |raw| raw.get().len());
    messages + raw(chat.tools.as_deref()) + raw(chat.documents.as_deref())
}

/// Bytes of a JSON tree, about.
fn weight(json: &serde_json::Value) -> usize {
    match json {
        serde_json::Value::String(text) => text.len() + 2,
        serde_json::Value::Array(list) => list.iter().map(weight).sum::<usize>() + 2,
        serde_json::Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() + 4 + weight(value)).sum::<usize>() + 2
        }
        _ => 8,
    }
}

/// Marks the end of the last message's content, and gives the content as it was.
fn leave_open(messages: &mut [Value]) -> Result<String, TemplateError> {
    let nothing = || TemplateError::Failed("the last message has no text to continue".into());
    let with = |map: &Value, name: &str, new: Value| -> Result<Value, TemplateError> {
        let keys = map.try_iter().map_err(failed)?;
        let value =
            |key: &Value| if key.as_str() == Some(name) { new.clone() } else { map.get_item(key).unwrap_or_default() };
        Ok(Value::from_pairs(keys.map(|key| (key.clone(), value(&key))).collect::<Vec<_>>()))
    };
    let message = messages.last_mut().ok_or_else(nothing)?;
    let content = message.get_attr("content").map_err(failed)?;
    if let Some(text) = content.as_str() {
        *message = with(message, "content", Value::from(format!("{text}{CONTINUE}")))?;
        return Ok(text.to_owned());
    }
    let mut parts: Vec<Value> = content.try_iter().map_err(failed)?.collect();
    let text_of = |part: &Value| messages::part_text(part).and_then(|text| text.as_str().map(str::to_owned));
    let (part, text) =
        parts.iter_mut().rev().find_map(|part| text_of(part).map(|text| (part, text))).ok_or_else(nothing)?;
    *part = with(part, "text", Value::from(format!("{text}{CONTINUE}")))?;
    *message = with(message, "content", Value::from(parts))?;
    Ok(text)
}

/// Cuts a text where the content of its last message ends, as transformers does.
fn cut(text: &mut String, last: &str) -> Result<(), TemplateError> {
    let mark = CONTINUE.trim_end();
    let end = text.rfind(mark).filter(|_| text.contains(last.trim_matches(is_space)));
    let end =
        end.ok_or_else(|| TemplateError::Failed("the template changes the message that is to be continued".into()))?;
    // A template that trims took the mark's blank, and the message's own with it.
    let kept = text[end..].starts_with(CONTINUE);
    text.truncate(end);
    if !kept {
        text.truncate(text.trim_end_matches(is_space).len());
    }
    Ok(())
}

/// Takes the marks of media out of a text, and finds where the first medium stands.
fn begin_of_media(text: &mut String, media: &Media) -> Option<usize> {
    let first = Some(media.first.load(Ordering::Relaxed)).filter(|first| *first != usize::MAX);
    let first = first.map(|first| first.min(text.len()));
    if !media.inlined.load(Ordering::Relaxed) {
        return first;
    }
    // A template that doesn't show the mark may show the medium anywhere.
    let marked = text.find(messages::sentinel()).unwrap_or(0);
    *text = text.replace(messages::sentinel(), "");
    Some(first.map_or(marked, |first| first.min(marked)))
}

fn failed(e: impl std::fmt::Display) -> TemplateError {
    TemplateError::Failed(e.to_string())
}

/// What an error of minijinja means.
fn error(e: &Error) -> TemplateError {
    let mut cause: Option<&dyn std::error::Error> = Some(e);
    while let Some(e) = cause {
        if let Some(refusal) = e.downcast_ref::<Refusal>() {
            return TemplateError::Refused(refusal.0.clone());
        }
        if e.downcast_ref::<Error>().is_some_and(|e| matches!(e.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure))
        {
            return TemplateError::TooLong;
        }
        cause = e.source();
    }
    failed(e)
}

/// A bounded output that says how far it is.
struct Out<'a> {
    text: String,
    most: usize,
    media: &'a Media,
}

impl io::Write for &mut Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.most {
            return Err(io::Error::other("the rendered text is too long"));
        }
        // It only ever gets whole texts.
        self.text.push_str(simdutf8::basic::from_utf8(bytes).map_err(io::Error::other)?);
        self.media.written.store(self.text.len(), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
