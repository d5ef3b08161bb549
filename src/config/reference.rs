//! The table as `docs/configuration.md`.
use std::fmt::Write as _;

use super::keys::{self, Default, Key, Kind};

const INTRODUCTION: &str = "\
# Configuration

<!-- Generated from the table of keys: cargo run -- schema --markdown > docs/configuration.md -->

One YAML file, given to `warmroute serve --config FILE`. `warmroute check FILE` says everything that is wrong with it,
`warmroute check --print-effective FILE` what holds once every default is filled in, and `warmroute schema` prints a
JSON schema for editors. The folder `config/` holds examples to start from. An unknown key is an error.

How values are written:

- **Durations** carry a unit: `300ms`, `2s`, `10m`, `1h 30m`, `1d`. A bare number is an error.
- **Sizes** carry a unit: `16KiB`, `64MiB`, `1GiB` (powers of 1024), `64KB`, `64MB`, `1GB` (powers of 1000), `512B`.
- **Whole numbers** may be grouped: `100_000`.
- **Variables**: `${NAME}` is filled in from the environment in any value, `${NAME:-default}` when it is unset or empty.
  An unset variable without a default is an error; `$$` is a dollar sign. Inside `{ }` and `[ ]`, YAML wants quotes:
  `[\"${NAME}\"]`.
- **Secrets** (`credential`, `token`) are best kept elsewhere: `${NAME}`, or `file:` and a path, relative to this
  file; white space round the content is cut off. They are never logged and show as `***`.
- **Words that switch off**: where the table says `none` or `off`, either will do.
- A list of single values may be one value without brackets.

\"Live\" says whether a reload changes the key in a running process; the others take a restart.
";

/// The text of `docs/configuration.md`.
pub fn markdown() -> String {
    let mut out = String::from(INTRODUCTION);
    section(&mut out, "", None);
    out
}

/// The keys under one map, then the maps below it.
fn section(out: &mut String, inside: &str, map: Option<&Key>) {
    match map {
        None => out.push_str("\n## The file\n"),
        Some(map) => {
            let _ = write!(out, "\n## `{inside}`\n\n{}\n", map.doc);
        }
    }
    out.push_str("\n| Key | Value | Default | Live | What it does |\n| --- | --- | --- | --- | --- |\n");
    for key in keys::under(inside) {
        let default = match key.default {
            Default::Required => "required".to_owned(),
            Default::Value(value) => format!("`{value}`"),
            Default::Words(words) => words.to_owned(),
        };
        let live = if key.live { "yes" } else { "no" };
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {live} | {} Example: `{}` |",
            key.name(),
            cell(&key.expects()),
            cell(&default),
            cell(key.doc),
            cell(key.example)
        );
    }
    for key in keys::under(inside) {
        if matches!(key.kind, Kind::Map | Kind::MapOr(_) | Kind::List { of: Kind::Map | Kind::MapOr(_), .. }) {
            section(out, &key.inside(), Some(key));
        }
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
