//! The tree against the table: unknown and repeated keys, shapes, types and ranges; shorthands written out.
//!
//! What comes out holds valid values only; what was wrong is left out of it and stands in the errors.
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::Path;

use super::error::{Error, Errors, Place};
use super::interpolate::interpolate;
use super::keys::{self, Key, Kind, Scalar};
use super::node::{self, Data, Entry, Node};
use super::scalar::{self, Value};

/// A checked value and where it was written.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub place: Place,
    /// As it is shown: `pools[0].replicas[1]`.
    pub path: String,
    /// As it was written, before variables were filled in: what a message may quote.
    pub shown: String,
    pub value: Value,
}

pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) struct Check<'a> {
    env: Env<'a>,
    base_dir: &'a Path,
    errors: &'a mut Errors,
    /// Lines that no message may show.
    pub secret_lines: Vec<RangeInclusive<usize>>,
}

impl<'a> Check<'a> {
    pub fn new(env: Env<'a>, base_dir: &'a Path, errors: &'a mut Errors) -> Self {
        Self { env, base_dir, errors, secret_lines: Vec::new() }
    }

    /// The whole file.
    pub fn root(&mut self, node: &Node) -> Option<Item> {
        match &node.data {
            Data::Map(entries) => Some(self.map(node.place, "", "", entries)),
            _ => {
                let remedy = format!("begin lines with the keys known here: {}", keys::names(""));
                self.errors.push(Error::new(node.place, "", "this is not a list of `key: value`", remedy));
                None
            }
        }
    }

    /// A file that holds the value of one key alone.
    pub fn list_file(&mut self, key: &'static Key, node: &Node) -> Option<Item> {
        match (&key.kind, &node.data) {
            (Kind::List { of, .. }, Data::List(nodes)) => self.list(key, **of, 0, "", node.place, nodes),
            _ => {
                let remedy = "write a list, one `- http://host:port` a line; `[]` when there are none";
                self.errors.push(Error::new(node.place, "", "this is not a list", remedy));
                None
            }
        }
    }

    fn map(&mut self, place: Place, pattern: &str, path: &str, entries: &[Entry]) -> Item {
        let mut seen: HashMap<&str, Place> = HashMap::new();
        let mut found = Vec::new();
        for entry in entries {
            let full = join(path, &quote(&entry.key));
            if let Some(first) = seen.insert(&entry.key, entry.place) {
                let problem = format!("stands here twice; first at {first}");
                self.errors.push(Error::new(entry.place, &full, problem, "keep one of the two"));
                continue;
            }
            let Some(key) = keys::find(pattern, &entry.key) else {
                self.unknown(entry, pattern, &full);
                continue;
            };
            if entry.node.is_null() {
                let remedy = format!("{}; or remove the key", key.remedy());
                self.errors.push(Error::new(entry.place, &full, "has no value", remedy));
                continue;
            }
            found.extend(self.value(key, &full, &entry.node).map(|item| (key.name(), item)));
        }
        for key in keys::under(pattern) {
            if matches!(key.default, keys::Default::Required) && !seen.contains_key(key.name()) {
                self.errors.push(Error::new(place, &join(path, key.name()), "is missing", key.remedy()));
            }
        }
        Item { place, path: path.to_owned(), shown: String::new(), value: Value::Map(found) }
    }

    fn unknown(&mut self, entry: &Entry, pattern: &str, path: &str) {
        let guess = did_you_mean(&entry.key, keys::under(pattern).map(Key::name));
        let elsewhere: Vec<_> =
            keys::all().iter().filter(|k| k.name() == entry.key).map(|k| format!("`{}`", k.path)).collect();
        let known = format!("known here: {}", keys::names(pattern));
        let remedy = if entry.key == "<<" {
            "merge keys are not part of YAML 1.2: write the keys out".into()
        } else if guess.is_empty() && !elsewhere.is_empty() {
            format!("it belongs at {}; {known}", elsewhere.join(" or "))
        } else {
            known
        };
        self.errors.push(Error::new(entry.place, path, format!("unknown key{guess}"), remedy));
    }

    fn value(&mut self, key: &'static Key, path: &str, node: &Node) -> Option<Item> {
        match (key.kind, &node.data) {
            (Kind::Scalar(kind), Data::Scalar(text)) => self.scalar(key, key.off, kind, path, node.place, text),
            (Kind::List { of, min }, Data::List(nodes)) => self.list(key, *of, min, path, node.place, nodes),
            // One scalar may stand for a list of one.
            (Kind::List { of: Kind::Scalar(kind), .. }, Data::Scalar(text)) => {
                self.scalar(key, key.off, *kind, path, node.place, text).map(Item::alone)
            }
            (Kind::List { of: Kind::MapOr(short), .. }, Data::Scalar(_)) => {
                self.map_or(key, Kind::MapOr(short), path, node).map(Item::alone)
            }
            (Kind::Map | Kind::MapOr(_), _) => self.map_or(key, key.kind, path, node),
            _ => self.wrong_shape(key, path, node),
        }
    }

    fn list(
        &mut self,
        key: &'static Key,
        of: Kind,
        min: usize,
        path: &str,
        place: Place,
        nodes: &[Node],
    ) -> Option<Item> {
        if nodes.len() < min {
            self.errors.push(Error::new(place, path, "is empty", key.remedy()));
            return None;
        }
        let mut items = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let path = format!("{path}[{i}]");
            items.extend(match (of, &node.data) {
                _ if node.is_null() => {
                    self.errors.push(Error::new(node.place, &path, "has no value", key.remedy()));
                    None
                }
                (Kind::Scalar(kind), Data::Scalar(text)) => self.scalar(key, key.off, kind, &path, node.place, text),
                (Kind::Scalar(_) | Kind::List { .. }, _) => self.wrong_shape(key, &path, node),
                (Kind::Map | Kind::MapOr(_), _) => self.map_or(key, of, &path, node),
            });
        }
        Some(Item { place, path: path.to_owned(), shown: String::new(), value: Value::List(items) })
    }

    fn map_or(&mut self, key: &'static Key, kind: Kind, path: &str, node: &Node) -> Option<Item> {
        let pattern = key.inside();
        match (&node.data, kind) {
            (Data::Map(entries), _) => Some(self.map(node.place, &pattern, path, entries)),
            (Data::Scalar(text), Kind::MapOr(short)) => {
                let short = keys::find(&pattern, short)?;
                let Kind::Scalar(scalar) = short.kind else { return None };
                // Messages speak of the key that was written; a list speaks of its item's key.
                let told = if matches!(key.kind, Kind::MapOr(_)) { key } else { short };
                let item = self.scalar(told, short.off, scalar, path, node.place, text)?;
                let shown = item.shown.clone();
                Some(Item {
                    place: node.place,
                    path: path.to_owned(),
                    shown,
                    value: Value::Map(vec![(short.name(), item)]),
                })
            }
            // Of a map that may be switched off, or left to Warmroute.
            (Data::Scalar(text), Kind::Map) if key.off.is_some() => {
                self.scalar(key, key.off, Scalar::OneOf(&[]), path, node.place, text)
            }
            _ => self.wrong_shape(key, path, node),
        }
    }

    fn wrong_shape(&mut self, key: &Key, path: &str, node: &Node) -> Option<Item> {
        let problem = match &node.data {
            Data::Scalar(_) => "a single value cannot stand here",
            Data::List(_) => "a list cannot stand here",
            Data::Map(_) => "keys cannot stand here",
        };
        self.errors.push(Error::new(node.place, path, problem, key.remedy()));
        None
    }

    fn scalar(
        &mut self,
        key: &Key,
        off: Option<&str>,
        kind: Scalar,
        path: &str,
        place: Place,
        scalar: &node::Scalar,
    ) -> Option<Item> {
        let secret = matches!(kind, Scalar::Secret);
        if let (true, Place::Text { line, .. }) = (secret, place) {
            self.secret_lines.push(line..=scalar.last_line.max(line));
        }
        let filled = match place {
            Place::Text { .. } => interpolate(&scalar.text, self.env),
            Place::Flag(_) => Ok(scalar.text.clone()), // the shell has done it
        };
        let text = match filled {
            Ok(text) => text,
            Err(problem) => {
                let remedy = "set it, or give a default: `${NAME:-default}`; a dollar sign itself is written `$$`";
                self.errors.push(Error::new(place, path, problem, remedy));
                return None;
            }
        };
        let switched_off = matches!(text.as_str(), "off" | "none");
        let parsed = match off {
            // Either of the two will do; a word such as `detect` or `learned` switches nothing off.
            Some(word) if text == word || (switched_off && matches!(word, "off" | "none")) => Ok(Value::Off),
            None if switched_off && matches!(kind, Scalar::Time(..) | Scalar::Size(..) | Scalar::Count(..)) => {
                Err("is not possible here: this cannot be switched off".into())
            }
            _ => scalar::parse(kind, &text, self.base_dir),
        };
        let shown = quote(&scalar.text);
        match parsed {
            Ok(value) => Some(Item { place, path: path.to_owned(), shown, value }),
            Err(problem) => {
                // The path of a secret is none; a password in a URL is one.
                let hide = (secret && !scalar.text.starts_with("file:"))
                    || (matches!(kind, Scalar::Url) && scalar.text.contains('@'));
                let problem = if hide { format!("the value {problem}") } else { format!("`{shown}` {problem}") };
                self.errors.push(Error::new(place, path, problem, key.remedy()));
                None
            }
        }
    }
}

impl Item {
    /// A list of this alone.
    fn alone(self) -> Self {
        Self { value: Value::List(vec![self.clone()]), ..self }
    }

    /// The value under `name`, if it was given and is valid.
    pub fn get(&self, name: &str) -> Option<&Item> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(key, _)| *key == name).map(|(_, item)| item),
            _ => None,
        }
    }

    /// The items of the list under `name`; none if it was not given.
    pub fn items(&self, name: &str) -> &[Item] {
        match self.get(name).map(|item| &item.value) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Text of the operator's, fit for one line of a message.
fn quote(text: &str) -> String {
    let mut shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().count() > 80 {
        shown.push('…');
    }
    shown.replace("\\\"", "\"").replace("\\'", "'")
}

/// "; did you mean `…`?" when one of `known` is near, else nothing.
pub(crate) fn did_you_mean<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> String {
    if word.len() > 64 {
        return String::new();
    }
    let nearest = known.map(|k| (strsim::damerau_levenshtein(&word.to_lowercase(), k), k)).min_by_key(|(d, _)| *d);
    match nearest {
        Some((distance, known)) if distance <= 2.max(known.len() / 3) && distance < known.len() => {
            format!("; did you mean `{known}`?")
        }
        _ => String::new(),
    }
}
