//! Where each value of a configuration comes from: a place in the file, a flag, a variable there, or the default.
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::check::Item;
use super::error::{Error, Errors, Place};
use super::model::Config;
use super::scalar::Value;

/// Where the values that were written stand; what is not in it is a default.
#[derive(Debug, Clone)]
pub struct Sources {
    pub(super) file: Arc<str>,
    pub(super) written: BTreeMap<String, Written>,
}

#[derive(Debug, Clone)]
pub(super) struct Written {
    place: Place,
    /// It holds a `${VARIABLE}`.
    variable: bool,
}

impl Sources {
    /// Of a checked tree.
    pub(super) fn of(root: &Item) -> Self {
        let mut written = BTreeMap::new();
        walk(root, String::new(), &mut written);
        Self { file: "".into(), written }
    }

    fn describe(&self, path: &str) -> String {
        match self.written.get(path) {
            None => "default".into(),
            Some(Written { place: Place::Flag(flag), .. }) => format!("flag {flag}"),
            Some(Written { place: Place::Text { line, column }, variable }) => {
                let variable = if *variable { ", from the environment" } else { "" };
                format!("{}:{line}:{column}{variable}", self.file)
            }
        }
    }
}

fn walk(item: &Item, path: String, written: &mut BTreeMap<String, Written>) {
    match &item.value {
        Value::Map(entries) => {
            for (name, item) in entries {
                walk(item, if path.is_empty() { (*name).to_owned() } else { format!("{path}.{name}") }, written);
            }
        }
        Value::List(items) => {
            let place = Written { place: item.place, variable: false };
            items.iter().enumerate().for_each(|(i, item)| walk(item, format!("{path}[{i}]"), written));
            written.insert(path, place);
        }
        _ => {
            written.insert(path, Written { place: item.place, variable: item.shown.contains("${") });
        }
    }
}

impl Config {
    /// What turned out to be wrong with values when they were used: key's path and problem of each.
    pub fn refuse(&self, wrong: Vec<(String, String)>, remedy: &str) -> Errors {
        let mut errors = Errors::new(&self.sources.file);
        for (path, problem) in wrong {
            let written = self.sources.written.get(&path);
            let place = written.map_or(Place::Text { line: 1, column: 1 }, |written| written.place);
            errors.push(Error::new(place, &path, problem, remedy));
        }
        errors
    }

    /// [`Self::effective`], each value with its path and where it was written: `{"path", "value", "source"}`.
    pub fn sourced(&self) -> Json {
        let mut rows = Vec::new();
        self.rows(&self.effective(), String::new(), &mut rows);
        Json::Array(rows)
    }

    fn rows(&self, value: &Json, path: String, rows: &mut Vec<Json>) {
        match value {
            Json::Object(map) => {
                for (name, value) in map {
                    self.rows(value, if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, rows);
                }
            }
            Json::Array(items) if !items.is_empty() => {
                items.iter().enumerate().for_each(|(i, item)| self.rows(item, format!("{path}[{i}]"), rows));
            }
            value => rows.push(json!({ "path": path, "value": value, "source": self.sources.describe(&path) })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::{Config, ServeArgs, parse};

    fn source(config: &Config, path: &str) -> String {
        let rows = config.sourced();
        let row = rows.as_array().unwrap().iter().find(|row| row["path"] == path).cloned();
        row.unwrap_or_else(|| panic!("no {path} in {rows:#}"))["source"].as_str().unwrap().to_owned()
    }

    #[test]
    fn every_value_has_its_source() {
        let text = "listen: 127.0.0.1:1\npools:\n  - model: m\n    policy: least_load\n    replicas:\n      - http://a\n      \
                    - { url: \"http://b\", weight: \"${W}\" }\n";
        let config = parse(text, "c.yaml", Path::new(""), &|_| Some("3".into())).unwrap();
        for (path, expected) in [
            ("listen[0].address", "c.yaml:1:9"),
            ("pools[0].policy.type", "c.yaml:4:13"),
            ("pools[0].replicas[0].url", "c.yaml:6:9"),
            ("pools[0].replicas[0].weight", "default"),
            ("pools[0].replicas[1].weight", "c.yaml:7:36, from the environment"),
            ("timeouts.connect", "default"),
            ("admin.listen", "default"),
        ] {
            assert_eq!(source(&config, path), expected, "{path}");
        }
        let args = ServeArgs {
            listen: vec!["127.0.0.1:1".into()],
            replicas: vec!["http://a".into(), "http://b".into()],
            ..ServeArgs::default()
        };
        let config = Config::from_args(&args).unwrap();
        assert_eq!(source(&config, "pools[0].replicas[1].url"), "flag --replica");
    }
}
