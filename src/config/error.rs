//! Errors that teach: where, which key, what is wrong, what to write instead. All of them, not the first.
use std::fmt::{self, Write as _};

/// Where in the operator's input something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A flag of the command line, with its dashes.
    Flag(&'static str),
    /// A line and column of the file, both from 1; columns count characters.
    Text {
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Text { line, .. } => write!(f, "line {line}"),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Where.
    pub place: Place,
    /// The key's path, such as `pools[0].replicas[1].weight`; empty for the file as a whole.
    pub path: String,
    /// What is wrong, in one line.
    pub problem: String,
    /// What to write instead; may be empty.
    pub remedy: String,
    /// The line of the file, unless it could show a secret.
    snippet: Option<String>,
}

impl Error {
    pub(super) fn new(place: Place, path: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { place, path: path.to_owned(), problem: problem.into(), remedy: remedy.into(), snippet: None }
    }
}

/// All that is wrong with one configuration, in the order of the file. Never empty when it is returned as an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors {
    file: String,
    list: Vec<Error>,
}

impl Errors {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), list: Vec::new() }
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Where an error of this list stands: `FILE:LINE:COLUMN`, or the flag.
    pub fn place_of(&self, error: &Error) -> String {
        match error.place {
            Place::Flag(flag) => flag.to_owned(),
            Place::Text { line, column } => format!("{}:{line}:{column}", self.file),
        }
    }

    pub(super) fn push(&mut self, error: Error) {
        self.list.push(error);
    }

    /// The errors, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Sorts, and shows each error's line of `source` unless the line holds a secret (`secret_lines`, or its looks).
    pub(super) fn finish(mut self, source: &str, secret_lines: &[std::ops::RangeInclusive<usize>]) -> Self {
        self.list.sort_by_key(|e| e.place);
        let lines: Vec<&str> = source.lines().collect();
        for error in &mut self.list {
            let Place::Text { line, column } = error.place else { continue };
            let Some(text) = line.checked_sub(1).and_then(|i| lines.get(i)) else { continue };
            let hidden = secret_lines.iter().any(|r| r.contains(&line)) || looks_secret(text);
            if hidden || text.trim().is_empty() || text.chars().count() > 160 {
                continue;
            }
            let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let number = line.to_string();
            error.snippet =
                Some(format!("{number} | {text}\n{:w$} | {:c$}^", "", "", w = number.len(), c = column.max(1) - 1));
        }
        self
    }
}

/// A line that may hold a secret even where the tree could not be read so far as to know.
fn looks_secret(line: &str) -> bool {
    line.replace("per_token:", "").contains("token:")
        || line.contains("credential")
        || (line.contains("://") && line.contains('@'))
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_char('\n')?;
            }
            match error.place {
                Place::Flag(flag) => write!(f, "{flag}: ")?,
                Place::Text { line, column } => write!(f, "{}:{line}:{column}: ", self.file)?,
            }
            if !error.path.is_empty() {
                write!(f, "{}: ", error.path)?;
            }
            f.write_str(&error.problem)?;
            for line in error.snippet.iter().flat_map(|s| s.lines()) {
                write!(f, "\n    {line}")?;
            }
            for line in error.remedy.lines() {
                write!(f, "\n    {line}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}
