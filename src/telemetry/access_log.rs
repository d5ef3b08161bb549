//! The access log: one line a request, written when the request ends.
//!
//! Lines go through a bounded queue to a thread of their own, so that a slow terminal or pipe never holds up a
//! request; when the queue is full the line is dropped and counted. The field list is a contract (`docs/access-log.md`).
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use prometheus::IntCounter;
use serde::Serialize;

/// Lines that may wait for the writer.
const QUEUE: usize = 8_192;
/// Bytes gathered for one write.
const WRITE: usize = 64 * 1024;
/// How long they gather: whoever sends a line meanwhile has nobody to wake.
const GATHER: Duration = Duration::from_millis(10);

/// What is written of one request. Durations are in milliseconds. Absent values are left out.
#[derive(Debug, Clone)]
pub struct Record {
    /// When the request ended; written as RFC 3339, in UTC.
    pub time: SystemTime,
    /// The `x-request-id` it went by.
    pub request_id: HeaderValue,
    /// Client's address.
    pub client: Arc<str>,
    /// Request method.
    pub method: &'static str,
    /// The endpoint's path, or `other` for a path we don't know (a client's string is never a field's value here).
    pub path: &'static str,
    /// Pool's name.
    pub pool: Option<Arc<str>>,
    /// Replica that answered, or the last one tried.
    pub replica: Option<Arc<str>>,
    /// Why the policy chose it.
    pub reason: Option<&'static str>,
    /// Where the session key came from; `none` when there was none.
    pub session: Option<&'static str>,
    /// Tokens of its prompt, where that was read; estimated where `basis` is text.
    pub prompt_tokens: Option<u32>,
    /// Of these, the leading ones that the replica was expected to hold.
    pub matched_tokens: Option<u32>,
    /// Tokens of the prompt that the engine found in its cache, where its answer says so.
    pub cached_tokens: Option<u32>,
    /// What the prompt's blocks are made of.
    pub basis: Option<&'static str>,
    /// Why that is less than the pool could have.
    pub fallback: Option<&'static str>,
    /// Replicas asked.
    pub attempts: u32,
    /// Status sent to the client; absent when it left before there was one.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: &'static str,
    /// The phase it ended in.
    pub phase: &'static str,
    /// Bytes of the request body as received.
    pub bytes_in: u64,
    /// Bytes of the response body as sent.
    pub bytes_out: u64,
    /// From the head's arrival to the first body byte of the answer.
    pub first_byte: Option<Duration>,
    /// From the head's arrival to the end.
    pub duration: Duration,
    /// What went wrong, for people.
    pub error: Option<Box<str>>,
}

impl Record {
    fn write(&self, json: bool, out: &mut Vec<u8>) {
        // Both forms come from this one list, so that they can't differ in their fields.
        let mut line = Line { json, begun: false, out };
        line.text("time", &humantime::format_rfc3339_millis(self.time).to_string());
        line.text("request_id", self.request_id.to_str().unwrap_or("-"));
        line.text("client", &self.client);
        line.text("method", self.method);
        line.text("path", self.path);
        self.pool.iter().for_each(|pool| line.text("pool", pool));
        self.replica.iter().for_each(|replica| line.text("replica", replica));
        self.reason.iter().for_each(|reason| line.text("reason", reason));
        self.session.iter().for_each(|session| line.text("session", session));
        self.prompt_tokens.iter().for_each(|tokens| line.number("prompt_tokens", tokens));
        self.matched_tokens.iter().for_each(|tokens| line.number("matched_tokens", tokens));
        self.cached_tokens.iter().for_each(|tokens| line.number("cached_tokens", tokens));
        self.basis.iter().for_each(|basis| line.text("basis", basis));
        self.fallback.iter().for_each(|fallback| line.text("fallback", fallback));
        line.number("attempts", self.attempts);
        self.status.iter().for_each(|status| line.number("status", status));
        line.text("outcome", self.outcome);
        line.text("phase", self.phase);
        line.number("bytes_in", self.bytes_in);
        line.number("bytes_out", self.bytes_out);
        self.first_byte.iter().for_each(|time| line.millis("first_byte_ms", *time));
        line.millis("duration_ms", self.duration);
        self.error.iter().for_each(|error| line.text("error", error));
        line.end();
    }
}

/// A line being written: `{"name":value,…}` or `name=value …`.
struct Line<'a> {
    json: bool,
    begun: bool,
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn name(&mut self, name: &'static str) {
        let begun = std::mem::replace(&mut self.begun, true);
        let [before, between, after]: [&[u8]; 3] = match (self.json, begun) {
            (true, false) => [b"{", b"\"", b"\":"],
            (true, true) => [b",", b"\"", b"\":"],
            (false, false) => [b"", b"", b"="],
            (false, true) => [b" ", b"", b"="],
        };
        for part in [before, between, name.as_bytes(), after] {
            self.out.extend_from_slice(part);
        }
    }

    fn text(&mut self, name: &'static str, value: &str) {
        self.name(name);
        let bare = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'=';
        if self.json || value.is_empty() || !value.bytes().all(bare) {
            // A vector takes all.
            let _ = serde_json::to_writer(&mut *self.out, value);
        } else {
            self.out.extend_from_slice(value.as_bytes());
        }
    }

    fn number(&mut self, name: &'static str, value: impl Serialize) {
        self.name(name);
        let _ = serde_json::to_writer(&mut *self.out, &value);
    }

    /// To the microsecond.
    fn millis(&mut self, name: &'static str, value: Duration) {
        self.number(name, (value.as_secs_f64() * 1e6).round() / 1e3);
    }

    fn end(self) {
        self.out.extend_from_slice(if self.json { b"}\n" } else { b"\n" });
    }
}

/// What goes through the queue.
#[derive(Debug)]
enum Entry {
    Line(Box<Record>),
    /// Everything before it has been written when this sender is dropped.
    Flush(SyncSender<()>),
}

/// Where records are sent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AccessLog {
    queue: Option<SyncSender<Entry>>,
    dropped: Option<IntCounter>,
}

impl AccessLog {
    /// No access log.
    pub fn off() -> Self {
        Self { queue: None, dropped: None }
    }

    /// Starts the writing thread. `dropped` counts lines that found the queue full.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub fn start(json: bool, dropped: IntCounter, mut out: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (queue, entries) = sync_channel::<Entry>(QUEUE);
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            let mut lines = Vec::with_capacity(4096);
            while let Ok(first) = entries.recv() {
                std::thread::sleep(GATHER);
                lines.clear();
                let mut next = Some(first);
                let mut flush = None;
                while let Some(entry) = next.take() {
                    match entry {
                        Entry::Line(record) => record.write(json, &mut lines),
                        Entry::Flush(done) => {
                            flush = Some(done);
                            break;
                        }
                    }
                    if lines.len() < WRITE {
                        next = entries.try_recv().ok();
                    }
                }
                // A closed stdout must not end the proxy.
                let _ = out.write_all(&lines).and_then(|()| out.flush());
                drop(flush);
            }
        })?;
        Ok(Self { queue: Some(queue), dropped: Some(dropped) })
    }

    /// Whether anyone will read a record (so that none need be built).
    pub fn enabled(&self) -> bool {
        self.queue.is_some()
    }

    /// Waits until everything handed over so far is written, `patience` at most. For the process's end: it blocks.
    pub fn flush(&self, patience: Duration) {
        let (done, flushed) = sync_channel(0);
        if let Some(queue) = &self.queue
            && queue.try_send(Entry::Flush(done)).is_ok()
        {
            // Nothing is ever sent: the sender's end is the signal.
            let _ = flushed.recv_timeout(patience);
        }
    }

    /// Hands a record over; never waits.
    pub fn send(&self, record: Record) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            queue.try_send(Entry::Line(Box::new(record)))
            && let Some(dropped) = &self.dropped
        {
            dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            time: SystemTime::UNIX_EPOCH,
            request_id: HeaderValue::from_static("abc"),
            client: "127.0.0.1:1".into(),
            method: "POST",
            path: "/v1/chat/completions",
            pool: Some("m".into()),
            replica: None,
            reason: Some("bound"),
            session: Some("header"),
            prompt_tokens: Some(2_000),
            matched_tokens: Some(1_008),
            cached_tokens: Some(1_040),
            basis: Some("text"),
            fallback: Some("media"),
            attempts: 1,
            status: Some(200),
            outcome: "ok",
            phase: "finish",
            bytes_in: 2,
            bytes_out: 3,
            first_byte: Some(Duration::from_micros(1500)),
            duration: Duration::from_millis(2),
            error: Some("a \"quoted\"\nline".into()),
        }
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<parking_lot::Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_flush_waits_for_every_line_before_it() {
        let out = Shared::default();
        let dropped = IntCounter::new("dropped", "lines").unwrap();
        let log = AccessLog::start(true, dropped, out.clone()).unwrap();
        for _ in 0..1_000 {
            log.send(record());
        }
        log.flush(Duration::from_secs(30));
        assert_eq!(out.0.lock().iter().filter(|byte| **byte == b'\n').count(), 1_000);
    }

    #[test]
    fn text_and_json_have_the_same_fields_and_stay_on_one_line() {
        let (mut text, mut json) = (Vec::new(), Vec::new());
        record().write(false, &mut text);
        record().write(true, &mut json);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        assert!(text.contains(r#"error="a \"quoted\"\nline""#), "{text}");
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        for name in value.as_object().unwrap().keys() {
            assert!(text.contains(&format!("{name}=")), "{name} missing in {text}");
        }
        assert!(
            text.starts_with("time=1970-01-01T00:00:00.000Z request_id=abc client=127.0.0.1:1 method=POST "),
            "{text}"
        );
        assert_eq!(value["first_byte_ms"], 1.5);
        assert_eq!(value["duration_ms"], 2.0);
        assert_eq!(value["error"], "a \"quoted\"\nline");
        assert!(value.get("replica").is_none());
    }
}
