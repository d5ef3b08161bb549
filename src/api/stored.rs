//! The id of a stored response, learned from the answer beside the relay.
//!
//! A Responses answer names itself near its beginning: as `id` in a JSON body, as `response.id` in the first event of a
//! stream. At most 64 KiB are kept to find it; then observation ends and the relay goes on.
use std::cell::RefCell;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Most that is kept of an answer.
const KEEP: usize = 64 * 1024;
/// Most that is read of it in all. What is kept is read again with each chunk, so many small ones would cost the square
/// of their sum; an id that is where it should be is found long before.
const EFFORT: usize = 64 * KEEP;

/// Watches one answer until its id is known.
#[derive(Debug)]
pub struct IdObserver {
    stream: bool,
    seen: Vec<u8>,
    effort: usize,
    done: bool,
}

impl IdObserver {
    /// For a JSON body, or (`stream`) for an event stream.
    pub fn new(stream: bool) -> Self {
        Self { stream, seen: Vec::new(), effort: 0, done: false }
    }

    /// Takes the next bytes; returns the id once, when it has been read.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<String> {
        if self.done {
            return None;
        }
        self.seen.extend_from_slice(bytes.get(..KEEP.saturating_sub(self.seen.len())).unwrap_or(bytes));
        let id = if self.stream { self.in_events() } else { field(&self.seen, &["id"]) };
        self.effort += self.seen.len();
        if id.is_some() || self.seen.len() >= KEEP || self.effort >= EFFORT {
            self.done = true;
            self.seen = Vec::new();
        }
        id
    }

    fn in_events(&self) -> Option<String> {
        self.seen
            .split(|byte| *byte == b'\n' || *byte == b'\r')
            .filter_map(|line| line.strip_prefix(b"data:"))
            .find_map(|data| field(data, &["response", "id"]))
    }
}

/// The string at a path of keys in the beginning of a JSON text, which may be cut off behind it.
fn field(json: &[u8], path: &[&str]) -> Option<String> {
    struct At<'a> {
        path: &'a [&'a str],
        found: &'a RefCell<Option<String>>,
    }
    impl<'de> Visitor<'de> for At<'_> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                match self.path {
                    [last] if *last == key => *self.found.borrow_mut() = Some(map.next_value()?),
                    [first, rest @ ..] if *first == key && !rest.is_empty() => {
                        map.next_value_seed(At { path: rest, found: self.found })?;
                    }
                    _ => {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                if self.found.borrow().is_some() {
                    break;
                }
            }
            Ok(())
        }
    }
    impl<'de> serde::de::DeserializeSeed<'de> for At<'_> {
        type Value = ();
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
            deserializer.deserialize_map(self)
        }
    }
    let found = RefCell::new(None);
    // A text that is cut off ends in an error; what was read before it stands.
    let _ = serde_json::Deserializer::from_slice(json).deserialize_map(At { path, found: &found });
    found.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(stream: bool, text: &str, at: usize) -> Option<String> {
        let mut observer = IdObserver::new(stream);
        let (left, right) = text.as_bytes().split_at(at);
        observer.feed(left).or_else(|| observer.feed(right))
    }

    #[test]
    fn the_id_is_found_at_every_split() {
        let json = r#"{"object":"response","x":{"id":"no"},"id":"resp_1","output":[{"id":"no"}]}"#;
        let stream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"a\":[],\"id\":\"resp_1\",\"o\":1}}\n\n";
        for at in 0..json.len() {
            assert_eq!(split(false, json, at).as_deref(), Some("resp_1"));
        }
        for at in 0..stream.len() {
            assert_eq!(split(true, stream, at).as_deref(), Some("resp_1"));
        }
    }

    #[test]
    fn small_chunks_do_not_cost_their_square() {
        let mut observer = IdObserver::new(true);
        let fed = (1..=KEEP).find(|_| {
            observer.feed(b"x");
            observer.done
        });
        assert!(fed.is_some_and(|fed| fed * fed <= 2 * EFFORT + 2 * KEEP), "{fed:?} bytes were read one by one");
        let event = b"data: {\"response\":{\"id\":\"resp_1\"}}\n\n";
        let mut observer = IdObserver::new(true);
        let id = event.chunks(1).find_map(|byte| observer.feed(byte));
        assert_eq!(id.as_deref(), Some("resp_1"));
    }

    #[test]
    fn observation_ends_at_its_bound() {
        let mut observer = IdObserver::new(false);
        let long = format!("{{\"x\":\"{}\"", "y".repeat(KEEP));
        assert_eq!(observer.feed(long.as_bytes()), None);
        assert_eq!(observer.feed(b",\"id\":\"resp_1\"}"), None);
        assert!(observer.seen.is_empty());
    }
}
