//! Durations, sizes and counts as they are written: `2s`, `64MiB`, `16_384`.
use std::time::Duration;

const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// A duration; the error completes "`TEXT` …".
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if is_bare_number(text) {
        return Err(format!("has no unit: is it {text}s or {text}ms?"));
    }
    humantime::parse_duration(text).map_err(|_| "is not a duration".into())
}

/// Units of [`seconds`], each a power of ten.
const FRACTIONS: [(&str, i32); 5] = [("s", 0), ("ms", -3), ("us", -6), ("µs", -6), ("ns", -9)];

/// Seconds, of one unit and with a fraction where it is wanted: `33.1us`. The error completes "`TEXT` …".
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    if is_bare_number(text) {
        return Err(format!("has no unit: is it {text}us or {text}ns?"));
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = FRACTIONS.iter().find(|(name, _)| *name == unit.trim_start());
    // Read as one decimal number, so that what is shown reads back as the same.
    let parsed = unit
        .filter(|_| number.starts_with(|c: char| c.is_ascii_digit()))
        .map(|(_, exponent)| format!("{number}e{exponent}").parse::<f64>());
    match parsed {
        Some(Ok(seconds)) if seconds.is_finite() => Ok(seconds),
        _ => Err("is not a time".into()),
    }
}

/// A number of bytes; the error completes "`TEXT` …".
pub(super) fn size(text: &str) -> Result<u64, String> {
    if is_bare_number(text) {
        return Err(format!("has no unit: is it {text}KiB or {text}MiB?"));
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim_start();
    let (Some(number), Some((_, scale))) =
        (digits(number), SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)))
    else {
        return Err("is not a size".into());
    };
    number.checked_mul(*scale).ok_or_else(|| "is too large".into())
}

/// A whole number; `_` may group its digits.
pub(super) fn count(text: &str) -> Result<u64, String> {
    digits(text).ok_or_else(|| "is not a whole number".into())
}

fn digits(text: &str) -> Option<u64> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) || text.ends_with('_') {
        return None;
    }
    text.replace('_', "").parse().ok()
}

fn is_bare_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.' || c == '_')
}

/// In the largest unit that divides it, so that [`duration`] reads the same back.
pub(super) fn show_duration(d: Duration) -> String {
    let ms = d.as_millis();
    if !d.subsec_nanos().is_multiple_of(1_000_000) {
        return humantime::format_duration(d).to_string();
    }
    for (unit, length) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms > 0 && ms.is_multiple_of(length) {
            return format!("{}{unit}", ms / length);
        }
    }
    format!("{ms}ms")
}

/// In the largest unit of which it is at least one, so that [`seconds`] reads the same back.
pub(super) fn show_seconds(seconds: f64) -> String {
    let (unit, power) = FRACTIONS.iter().find(|(_, power)| seconds >= 10f64.powi(*power)).unwrap_or(&FRACTIONS[4]);
    if seconds == 0.0 {
        return "0s".into();
    }
    // The shortest decimal that is this number, its point moved.
    let shortest = format!("{seconds:e}");
    let moved = shortest.split_once('e').and_then(|(digits, exponent)| {
        format!("{digits}e{}", exponent.parse::<i32>().ok()? - power).parse::<f64>().ok()
    });
    format!("{}{unit}", moved.unwrap_or(0.0))
}

/// In the largest binary unit that divides it.
pub(super) fn show_size(bytes: u64) -> String {
    for (unit, scale) in &SIZES[..3] {
        if bytes > 0 && bytes.is_multiple_of(*scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_shows() {
        for (text, ms, shown) in [
            ("2s", 2000, "2s"),
            ("300ms", 300, "300ms"),
            ("10m", 600_000, "10m"),
            ("1h 30m", 5_400_000, "90m"),
            ("75s", 75_000, "75s"),
            ("1d", 86_400_000, "1d"),
        ] {
            let d = duration(text).unwrap();
            assert_eq!((d.as_millis(), show_duration(d).as_str()), (ms, shown));
        }
        for (text, bytes, shown) in [
            ("64MiB", 64 << 20, "64MiB"),
            ("64MB", 64_000_000, "62500KiB"),
            ("16 kib", 16 << 10, "16KiB"),
            ("1_000B", 1000, "1000B"),
        ] {
            let n = size(text).unwrap();
            assert_eq!((n, show_size(n).as_str()), (bytes, shown));
        }
        for (text, shown) in [
            ("33.1us", "33.1us"),
            ("33.1 µs", "33.1us"),
            ("0.596ns", "0.596ns"),
            ("5ms", "5ms"),
            ("0.005s", "5ms"),
            ("1000us", "1ms"),
            ("0ns", "0s"),
        ] {
            let s = seconds(text).unwrap();
            assert_eq!((show_seconds(s).as_str(), seconds(shown)), (shown, Ok(s)), "{text}");
        }
        assert_eq!(seconds("33.1us"), Ok(33.1e-6));
        assert_eq!(count("16_384"), Ok(16_384));
    }

    #[test]
    fn refuses() {
        assert_eq!(duration("30").unwrap_err(), "has no unit: is it 30s or 30ms?");
        assert_eq!(duration("0").unwrap_err(), "has no unit: is it 0s or 0ms?");
        assert_eq!(duration("soon").unwrap_err(), "is not a duration");
        assert_eq!(seconds("33.1").unwrap_err(), "has no unit: is it 33.1us or 33.1ns?");
        for bad in ["", "us", ".5us", "1.2.3us", "5m", "-1us", "1e9s", "nans"] {
            assert_eq!(seconds(bad).unwrap_err(), "is not a time", "{bad}");
        }
        assert_eq!(size("64").unwrap_err(), "has no unit: is it 64KiB or 64MiB?");
        assert_eq!(size("64 mebibytes").unwrap_err(), "is not a size");
        assert_eq!(size("99999999999GiB").unwrap_err(), "is too large");
        for bad in ["", "-1", "1.5", "_1", "1_", "99999999999999999999"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }
}
