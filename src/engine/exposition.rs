//! Prometheus' text format, as far as it takes to read a few gauges out of a page of thousands of lines.
//!
//! A page comes from an engine, which may be anything that answers there: a line that is none is passed over, and nothing
//! is kept but what is asked for.
use memchr::{memchr, memchr2};

/// One sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample<'a> {
    /// Name, colons and suffix included.
    pub name: &'a [u8],
    /// What follows it: taken apart only when it is asked for, since most lines of a page are of no interest.
    rest: &'a [u8],
}

/// The samples of a page whose names begin with one of `prefixes`; of a histogram's buckets, which are most of a page and
/// of no interest, the first.
pub(super) fn samples<'a>(page: &'a [u8], prefixes: &'a [&'a str]) -> impl Iterator<Item = Sample<'a>> {
    let mut buckets: Option<&[u8]> = None;
    Lines(page).filter_map(move |line| {
        if buckets.is_some_and(|buckets| line.starts_with(buckets)) {
            return None;
        }
        let sample = prefixes.iter().any(|prefix| line.starts_with(prefix.as_bytes())).then(|| sample(line))??;
        if sample.name.ends_with(b"_bucket") {
            buckets = line.get(..=sample.name.len());
        }
        Some(sample)
    })
}

struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let (line, rest) = match memchr(b'\n', self.0) {
            Some(end) => (&self.0[..end], &self.0[end + 1..]),
            None => (self.0, &self.0[self.0.len()..]),
        };
        self.0 = rest;
        Some(line)
    }
}

/// `name{labels} value [timestamp]`.
fn sample(line: &[u8]) -> Option<Sample<'_>> {
    let (name, rest) = line.split_at(memchr2(b'{', b' ', line)?);
    Some(Sample { name, rest })
}

/// Where the labels end: at the first brace that is in no value.
fn close(labels: &[u8]) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    labels.iter().position(|&byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return true,
            _ => {}
        }
        false
    })
}

impl<'a> Sample<'a> {
    /// Labels, without their braces, and value; nothing of a broken line.
    fn parts(&self) -> (&'a [u8], &'a [u8]) {
        match self.rest.strip_prefix(b"{") {
            None => (&[], self.rest),
            Some(rest) => close(rest).map_or((&[], &[]), |end| (&rest[..end], &rest[end + 1..])),
        }
    }

    /// The value, if it is a finite number.
    pub fn value(&self) -> Option<f64> {
        let text = std::str::from_utf8(self.parts().1).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok().filter(|value: &f64| value.is_finite())
    }

    /// Its labels; the values as they are written, escapes and all.
    pub fn labels(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut rest = self.parts().0;
        std::iter::from_fn(move || {
            let equals = memchr(b'=', rest)?;
            let name = std::str::from_utf8(&rest[..equals]).ok()?;
            let value = rest[equals + 1..].strip_prefix(b"\"")?;
            let mut escaped = false;
            let end = value.iter().position(|&byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            })?;
            rest = &value[end + 1..];
            Some((name.trim_matches([',', ' ']), std::str::from_utf8(&value[..end]).ok()?))
        })
    }

    /// The value of one label.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        self.labels().find_map(|(each, value)| (each == name).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_all_else_is_passed_over() {
        let page = b"# HELP a:x help\n# TYPE a:x gauge\na:x 1\na:y{l=\"}\\\"=,\", m=\"2\",} 2.5 1700000000\nb:z 3\na:broken{l=\"\na:nan NaN\na:\n\na:last{} +Inf\na:h_bucket{le=\"1\"} 1\na:h_bucket{le=\"2\"} 2\na:h_buckets 3";
        let found: Vec<_> = samples(page, &["a:"]).collect();
        let name = |sample: &Sample<'_>| String::from_utf8(sample.name.to_vec()).unwrap();
        let names: Vec<_> = found.iter().map(|sample| (name(sample), sample.value())).collect();
        let expected = [
            ("a:x", Some(1.0)),
            ("a:y", Some(2.5)),
            ("a:broken", None),
            ("a:nan", None),
            ("a:last", None),
            ("a:h_bucket", Some(1.0)),
            ("a:h_buckets", Some(3.0)),
        ];
        assert_eq!(names, expected.map(|(name, value)| (name.into(), value)));
        assert_eq!(found[1].labels().collect::<Vec<_>>(), [("l", "}\\\"=,"), ("m", "2")]);
        assert_eq!((found[1].label("m"), found[1].label("n")), (Some("2"), None));
    }
}
