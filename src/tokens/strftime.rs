//! `strftime_now` of chat templates.
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The time now by Python's `strftime` format. In UTC, as engines' containers are; directives that it doesn't know are
/// left as they stand.
pub(super) fn now(format: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    strftime(format, since.as_secs(), since.subsec_micros())
}

/// A time, in seconds since 1970, by Python's `strftime` format.
fn strftime(format: &str, seconds: u64, micros: u32) -> String {
    let days = seconds / 86400;
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let weekday = DAYS[(days % 7) as usize];
    let first = |text: &'static str| &text[..3];
    let name = MONTHS[month as usize - 1];
    let of_year = (0..month - 1).map(|month| length(year, month + 1)).sum::<u64>() + day;
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (plain, directive) = match rest.next() {
            Some('-') => (true, rest.next()),
            directive => (false, directive),
        };
        let number = |value: u64, width: usize| if plain { value.to_string() } else { format!("{value:0width$}") };
        out += &match directive {
            Some('d') => number(day, 2),
            Some('e') => format!("{day:2}"),
            Some('m') => number(month, 2),
            Some('y') => number(year % 100, 2),
            Some('Y') => year.to_string(),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(of_year, 3),
            Some('f') => format!("{micros:06}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('A') => weekday.into(),
            Some('a') => first(weekday).into(),
            Some('B') => name.into(),
            Some('b' | 'h') => first(name).into(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('s') => seconds.to_string(),
            Some('Z' | 'z') => String::new(),
            Some('n') => "\n".into(),
            Some('t') => "\t".into(),
            Some('%') => "%".into(),
            Some(other) => format!("%{other}"),
            None => "%".into(),
        };
    }
    out
}

/// Days of a month.
fn length(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Year, month and day of a day since 1970 (H. Hinnant, "chrono-compatible low-level date algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn times_are_written_as_python_writes_them() {
        // datetime(2024, 2, 29, 13, 5, 9, 42): what Python 3.11 prints.
        let at = |format| strftime(format, 1_709_211_909, 42);
        assert_eq!(at("%d %b %Y"), "29 Feb 2024");
        assert_eq!(at("%A, %B %d, %Y %I:%M %p"), "Thursday, February 29, 2024 01:05 PM");
        assert_eq!(at("%Y-%m-%d %H:%M:%S.%f %j %a %y %%"), "2024-02-29 13:05:09.000042 060 Thu 24 %");
        assert_eq!(strftime("%F %j %A", 0, 0), "1970-01-01 001 Thursday");
        assert_eq!(strftime("%F %j %A", 978_220_800, 0), "2000-12-31 366 Sunday");
    }
}
