//! What the operator writes, and what it means.
//!
//! YAML text comes in; a validated, immutable [`Config`] goes out, or every error in it with its line, column, key path
//! and remedy. One table of keys (`table.rs`) drives the checks, the JSON schema and `docs/configuration.md`.
//! The way: text → tree with places (`node`) → valid values (`check`, `scalar`) → meaning (`resolve`). Flags of the
//! command line go the same way. No error message shows a secret or the content of a variable.
mod args;
mod built_in;
mod check;
mod effective;
mod engine;
mod error;
mod events;
mod interpolate;
pub mod keys;
mod list;
mod listeners;
mod live;
mod model;
mod node;
mod prefix;
mod reference;
mod replica;
mod resilience;
mod resolve;
mod scalar;
mod schema;
mod sources;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod units;
mod watch;
mod words;

use std::io::Read as _;
use std::path::Path;

pub use args::ServeArgs;
pub use built_in::{BUILT_IN, is_built_in};
pub(crate) use check::did_you_mean;
pub use error::{Error, Errors, Place};
pub use list::load_replicas;
pub use model::*;
pub use reference::markdown;
pub use schema::schema;
pub use tls::*;
pub use watch::{Watch, fingerprint};

/// A configuration is text that someone wrote; more than this is some other file.
const MAX_FILE: u64 = 4 << 20;

/// Reads and checks the file at `path`. Relative paths in it start at its folder; `env` answers for `${VARIABLES}`.
pub fn load(path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, Errors> {
    let (text, name) = read(path, "a YAML file")?;
    let base_dir = path.parent().unwrap_or(Path::new(""));
    parse(&text, &name, base_dir, env)
}

/// The text of the file at `path`, and its name in messages.
fn read(path: &Path, what: &str) -> Result<(String, String), Errors> {
    let name = path.display().to_string();
    let fail = |problem: String, remedy: &str| {
        let mut errors = Errors::new(&name);
        errors.push(Error::new(Place::Text { line: 1, column: 1 }, "", problem, remedy));
        errors
    };
    let file = std::fs::File::open(path).map_err(|e| {
        fail(format!("cannot be read: {e}"), &format!("give the path of {what} that this user may read"))
    })?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| fail(format!("cannot be read: {e}"), &format!("give the path of {what}")))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(fail(
            format!("is larger than {}", units::show_size(MAX_FILE)),
            &format!("give the path of {what}"),
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, name)),
        Err(e) => Err(fail(format!("is not UTF-8 text: {e}"), "save the file as UTF-8")),
    }
}

/// Whether `text` is a level, or a filter in tracing's syntax; the error completes "`TEXT` …".
///
/// # Errors
/// What is wrong with it, for people.
pub fn check_filter(text: &str) -> Result<(), String> {
    scalar::filter(text).map(|_| ())
}

/// Checks `text`. `file_name` stands in messages; relative paths start at `base_dir`.
pub fn parse(
    text: &str,
    file_name: &str,
    base_dir: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, Errors> {
    let mut errors = Errors::new(file_name);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let start = Place::Text { line: 1, column: 1 };
    match node::read(text) {
        Ok(Some(root)) if !root.is_null() => from_tree(&root, text, base_dir, env, errors),
        Ok(_) => {
            let remedy = "write at least:\n  listen: 0.0.0.0:8080\n  pools: [{ model: NAME, replicas: [http://10.0.0.11:8000] }]";
            errors.push(Error::new(start, "", "the file is empty", remedy));
            Err(errors)
        }
        Err(error) => {
            errors.push(error);
            Err(errors.finish(text, &[]))
        }
    }
}

fn from_tree(
    root: &node::Node,
    source: &str,
    base_dir: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    mut errors: Errors,
) -> Result<Config, Errors> {
    let mut check = check::Check::new(env, base_dir, &mut errors);
    let checked = check.root(root);
    let secret_lines = std::mem::take(&mut check.secret_lines);
    let config = checked.and_then(|item| resolve::resolve(&item, &mut errors));
    match config {
        Some(mut config) if errors.is_empty() => {
            config.sources.file = errors.file().into();
            Ok(config)
        }
        _ => Err(errors.finish(source, &secret_lines)),
    }
}
