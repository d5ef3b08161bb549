//! Traffic that someone recorded, as calls. Two forms: Mooncake's JSONL (a request a line, with its time) and the agents'
//! JSON (a session a file, or a line, or a member of a .tar.gz), told apart by what stands in them.
//!
//! A bad line or session is left out and told of, up to [`MOST_BAD`] of them; a file with more is another kind of file.
mod agents;
mod archive;
mod mooncake;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::call::Call;
use super::engine::VirtualTime;

/// Bad lines or sessions that are left out before the whole is refused.
pub const MOST_BAD: usize = 100;
/// Of those, how many are told in full.
const TOLD: usize = 5;

/// A recorded workload.
#[derive(Debug)]
pub struct Trace {
    /// What the file is called.
    pub name: String,
    /// What was asked.
    pub calls: Calls,
    /// What was left out and why, in words for the operator; empty when nothing was.
    pub left_out: String,
}

/// What was asked, by whom it waits for.
#[derive(Debug)]
pub enum Calls {
    /// Each at its time, in order.
    Timed(Vec<(VirtualTime, Call)>),
    /// Sessions, whose calls wait for the one before and then for a pause.
    Sessions(Vec<Vec<(Duration, Call)>>),
}

impl Trace {
    /// Reads the trace at `path`.
    ///
    /// # Errors
    /// What is wrong, where, and what to give instead.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let bytes = std::fs::read(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        let name = path.file_name().map_or_else(|| shown.to_string(), |name| name.to_string_lossy().into_owned());
        Self::parse(&name, bytes).map_err(|error| format!("{shown}: {error}"))
    }

    /// The trace in `bytes`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(name: &str, bytes: Vec<u8>) -> Result<Self, String> {
        let texts = archive::texts(bytes)?;
        let mut reader = Reader::default();
        for (member, text) in &texts {
            reader.read(member.as_deref(), text)?;
        }
        let calls = match (reader.timed.is_empty(), reader.sessions.is_empty()) {
            (true, true) => return Err(format!("no request in it{}; {FORMS}", reader.bad.first_reason())),
            (false, false) => return Err("some lines are requests, others sessions: split them into two files".into()),
            (false, true) => {
                reader.timed.sort_by_key(|(at, _)| *at);
                Calls::Timed(reader.timed)
            }
            (true, false) => Calls::Sessions(reader.sessions),
        };
        Ok(Self { name: name.to_owned(), calls, left_out: reader.bad.told() })
    }

    /// Requests in it.
    #[must_use]
    pub fn requests(&self) -> usize {
        match &self.calls {
            Calls::Timed(calls) => calls.len(),
            Calls::Sessions(sessions) => sessions.iter().map(Vec::len).sum(),
        }
    }
}

const FORMS: &str = "give Mooncake's JSONL ({\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"} a line) or \
                     agents' sessions ({\"id\", \"block_size\", \"requests\": [{\"in\", \"out\", \"hash_ids\", …}]} a file, \
                     a line, or a member of a .tar.gz)";

#[derive(Default)]
struct Reader {
    timed: Vec<(VirtualTime, Call)>,
    sessions: Vec<Vec<(Duration, Call)>>,
    bad: Bad,
}

impl Reader {
    fn read(&mut self, member: Option<&str>, text: &str) -> Result<(), String> {
        // A session may be printed over many lines.
        if let Ok(session) = serde_json::from_str::<agents::Session>(text) {
            let place = member.unwrap_or("the session").to_owned();
            return self.session(session, &place);
        }
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let place = match member {
                Some(member) => format!("{member}, line {}", number + 1),
                None => format!("line {}", number + 1),
            };
            // The field that only sessions have decides whose complaint is of use.
            if line.contains("\"requests\"") {
                match serde_json::from_str::<agents::Session>(line) {
                    Ok(session) => self.session(session, &place)?,
                    Err(error) => self.bad.add(&place, &reason(&error))?,
                }
                continue;
            }
            let index = self.timed.len() as u64;
            match serde_json::from_str::<mooncake::Line>(line).map_err(|e| reason(&e)).and_then(|line| line.call(index))
            {
                Ok(call) => self.timed.push(call),
                Err(error) => self.bad.add(&place, &error)?,
            }
        }
        Ok(())
    }

    fn session(&mut self, session: agents::Session, place: &str) -> Result<(), String> {
        match session.calls(self.sessions.len() as u64) {
            Ok(calls) => self.sessions.push(calls),
            Err(error) => self.bad.add(place, &error)?,
        }
        Ok(())
    }
}

/// serde's words without its "at line 1", which is not the file's.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} (column {})", error.column()),
        None => text,
    }
}

/// What was left out.
#[derive(Default)]
struct Bad {
    count: usize,
    told: String,
}

impl Bad {
    fn add(&mut self, place: &str, why: &str) -> Result<(), String> {
        self.count += 1;
        if self.count <= TOLD {
            let _ = writeln!(self.told, "{place} left out: {why}");
        }
        if self.count > MOST_BAD {
            return Err(format!("more than {MOST_BAD} bad lines, the first ones:\n{}{FORMS}", self.told));
        }
        Ok(())
    }

    fn first_reason(&self) -> String {
        self.told.lines().next().map_or_else(String::new, |line| format!(" ({line})"))
    }

    fn told(mut self) -> String {
        if self.count > TOLD {
            let _ = writeln!(self.told, "and {} more", self.count - TOLD);
        }
        self.told
    }
}

#[cfg(test)]
mod tests;
