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

/// A field's name as either form has it, with what goes before it and behind it.
macro_rules! name {
    ($name:literal) => {
        Name { text: concat!(" ", $name, "="), json: concat!(",\"", $name, "\":") }
    };
}

struct Name {
    text: &'static str,
    json: &'static str,
}

impl Record {
    fn write(&self, json: bool, clock: &mut Clock, out: &mut Vec<u8>) {
        // Both forms come from this one list, so that they can't differ in their fields.
        let mut line = Line { json, begun: false, out };
        line.time(name!("time"), clock, self.time);
        line.text(name!("request_id"), self.request_id.to_str().unwrap_or("-"));
        line.text(name!("client"), &self.client);
        line.text(name!("method"), self.method);
        line.text(name!("path"), self.path);
        self.pool.iter().for_each(|pool| line.text(name!("pool"), pool));
        self.replica.iter().for_each(|replica| line.text(name!("replica"), replica));
        self.reason.iter().for_each(|reason| line.text(name!("reason"), reason));
        self.session.iter().for_each(|session| line.text(name!("session"), session));
        self.prompt_tokens.iter().for_each(|tokens| line.number(name!("prompt_tokens"), *tokens));
        self.matched_tokens.iter().for_each(|tokens| line.number(name!("matched_tokens"), *tokens));
        self.cached_tokens.iter().for_each(|tokens| line.number(name!("cached_tokens"), *tokens));
        self.basis.iter().for_each(|basis| line.text(name!("basis"), basis));
        self.fallback.iter().for_each(|fallback| line.text(name!("fallback"), fallback));
        line.number(name!("attempts"), self.attempts);
        self.status.iter().for_each(|status| line.number(name!("status"), *status));
        line.text(name!("outcome"), self.outcome);
        line.text(name!("phase"), self.phase);
        line.number(name!("bytes_in"), self.bytes_in);
        line.number(name!("bytes_out"), self.bytes_out);
        self.first_byte.iter().for_each(|time| line.millis(name!("first_byte_ms"), *time));
        line.millis(name!("duration_ms"), self.duration);
        self.error.iter().for_each(|error| line.text(name!("error"), error));
        line.end();
    }
}

/// The second that was written last, as RFC 3339 has it, up to its fraction.
#[derive(Debug, Default)]
struct Clock {
    second: Option<u64>,
    text: String,
}

impl Clock {
    /// `2026-01-02T03:04:05.` and the milliseconds.
    fn at(&mut self, time: SystemTime) -> (&str, u32) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if self.second != Some(since.as_secs()) {
            self.second = Some(since.as_secs());
            self.text = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string();
            self.text.pop();
            self.text.push('.');
        }
        (&self.text, since.subsec_millis())
    }
}

/// A line being written: `{"name":value,…}` or `name=value …`.
struct Line<'a> {
    json: bool,
    begun: bool,
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn name(&mut self, name: Name) {
        let name = if self.json { name.json } else { name.text }.as_bytes();
        if std::mem::replace(&mut self.begun, true) {
            return self.out.extend_from_slice(name);
        }
        if self.json {
            self.out.push(b'{');
        }
        self.out.extend_from_slice(&name[1..]);
    }

    fn text(&mut self, name: Name, value: &str) {
        self.name(name);
        let plain = |byte: u8| !(byte < 0x20 || byte == b'"' || byte == b'\\');
        let bare = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'=';
        if self.json && every(value, plain) {
            self.out.push(b'"');
            self.out.extend_from_slice(value.as_bytes());
            self.out.push(b'"');
        } else if self.json || value.is_empty() || !every(value, bare) {
            // A vector takes all.
            let _ = serde_json::to_writer(&mut *self.out, value);
        } else {
            self.out.extend_from_slice(value.as_bytes());
        }
    }

    fn time(&mut self, name: Name, clock: &mut Clock, time: SystemTime) {
        self.name(name);
        let quote: &[u8] = if self.json { b"\"" } else { b"" };
        let (second, millis) = clock.at(time);
        self.out.extend_from_slice(quote);
        self.out.extend_from_slice(second.as_bytes());
        self.thousandths(millis);
        self.out.push(b'Z');
        self.out.extend_from_slice(quote);
    }

    fn number(&mut self, name: Name, value: impl Into<u64>) {
        self.name(name);
        self.whole(value.into());
    }

    fn whole(&mut self, value: u64) {
        let _ = serde_json::to_writer(&mut *self.out, &value);
    }

    fn thousandths(&mut self, value: u32) {
        self.out.extend([100, 10, 1].map(|unit| b'0' + (value / unit % 10) as u8));
    }

    /// To the microsecond.
    fn millis(&mut self, name: Name, value: Duration) {
        self.name(name);
        let micros = u64::try_from((value.as_nanos() + 500) / 1_000).unwrap_or(u64::MAX);
        self.whole(micros / 1_000);
        self.out.push(b'.');
        self.thousandths((micros % 1_000) as u32);
        // A digit stands behind the point, as JSON has it of numbers that may have a fraction.
        for _ in 0..2 {
            if self.out.last() == Some(&b'0') {
                self.out.pop();
            }
        }
    }

    fn end(self) {
        self.out.extend_from_slice(if self.json { b"}\n" } else { b"\n" });
    }
}

/// Whether all bytes are of a kind. No early exit: most are, and whole vectors are looked at then.
fn every(value: &str, is: impl Fn(u8) -> bool) -> bool {
    value.bytes().fold(true, |all, byte| all & is(byte))
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
            let mut clock = Clock::default();
            while let Ok(first) = entries.recv() {
                std::thread::sleep(GATHER);
                lines.clear();
                let mut next = Some(first);
                let mut flush = None;
                while let Some(entry) = next.take() {
                    match entry {
                        Entry::Line(record) => record.write(json, &mut clock, &mut lines),
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
        let mut clock = Clock::default();
        record().write(false, &mut clock, &mut text);
        record().write(true, &mut clock, &mut json);
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

    #[test]
    fn times_are_written_as_libraries_write_them() {
        let mut clock = Clock::default();
        let mut written = |record: Record| {
            let mut line = Vec::new();
            record.write(true, &mut clock, &mut line);
            serde_json::from_slice::<serde_json::Value>(&line).unwrap()
        };
        for nanos in [0, 499, 500, 1_000, 10_000, 999_999, 1_000_000, 1_500_000, 59_999_999_999, 86_400_007_050_000] {
            let (duration, time) = (Duration::from_nanos(nanos), SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos));
            let value = written(Record { time, duration, ..record() });
            assert_eq!(value["duration_ms"], (duration.as_secs_f64() * 1e6).round() / 1e3, "{nanos}");
            assert_eq!(value["time"], humantime::format_rfc3339_millis(time).to_string());
        }
        for client in ["", "a=b", "ü", "a\u{1}", "\\", "[::1]:5"] {
            assert_eq!(written(Record { client: client.into(), ..record() })["client"], client);
        }
    }
}
