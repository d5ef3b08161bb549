//! Where events end in a stream of server-sent events (WHATWG HTML, section 9.2.6), whatever the chunks.
//!
//! Lines end in LF, CR or CRLF; a blank line ends an event. Nothing is kept but a few flags, so a stream of any length
//! costs the same.
use memchr::memchr2;

/// Follows a stream from chunk to chunk.
#[derive(Debug, Default, Clone)]
pub struct Scanner {
    events: u64,
    /// The present line has bytes.
    in_line: bool,
    /// The present event has a line.
    in_event: bool,
    /// The last byte was a CR: a LF that follows belongs to it.
    after_cr: bool,
}

impl Scanner {
    /// Takes the next bytes; returns the offset just after the first event that ends in them.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let first = self.event(bytes);
        let mut rest = bytes.get(first?..).unwrap_or_default();
        while let Some(end) = self.event(rest) {
            rest = rest.get(end..).unwrap_or_default();
        }
        first
    }

    /// Takes the next bytes up to the end of the first event that ends in them, and returns the offset just after it; all
    /// of them where none does.
    pub fn event(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
                at += 1;
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', rest) else {
                self.in_line = true;
                return None;
            };
            at += end + 1;
            self.after_cr = rest.get(end) == Some(&b'\r');
            if end > 0 || std::mem::take(&mut self.in_line) {
                self.in_line = false;
                self.in_event = true;
            } else if std::mem::take(&mut self.in_event) {
                self.events += 1;
                return Some(at);
            }
        }
        None
    }

    /// Whole events seen.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether the stream stands in the middle of an event.
    pub fn open_event(&self) -> bool {
        self.in_event || self.in_line
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_line_ending_ends_an_event() {
        for stream in
            ["data: a\n\ndata:b\n\n", "data: a\r\n\r\ndata:b\r\n\r\n", "data: a\r\rdata:b\r\r", ": c\n\n\n\ndata\n\n"]
        {
            let mut scanner = Scanner::default();
            scanner.feed(stream.as_bytes());
            assert_eq!((scanner.events(), scanner.open_event()), (2, false), "{stream:?}");
        }
        let mut scanner = Scanner::default();
        assert_eq!(scanner.feed(b"data: a\n\nda"), Some(9));
        assert!(scanner.open_event());
    }

    proptest! {
        /// Envoy AI Gateway #2162: an event split over two chunks must not be lost.
        #[test]
        fn every_split_gives_the_same_events(stream in "(data: x|\r\n|\n|\r){0,12}", split in 0usize..64) {
            let mut whole = Scanner::default();
            whole.feed(stream.as_bytes());
            let mut parts = Scanner::default();
            let (left, right) = stream.as_bytes().split_at(split.min(stream.len()));
            parts.feed(left);
            parts.feed(right);
            prop_assert_eq!(whole.events(), parts.events());
            prop_assert_eq!(whole.open_event(), parts.open_event());
        }
    }
}
