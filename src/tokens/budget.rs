//! What encoding may cost: a time for each prompt, and what a text will take.
//!
//! Of a text in many pieces each is asked for, at the rate of what was encoded before. One piece can't be stopped, so it
//! must fit even if it is of the worst kind. How slow that is was measured with the tokenizers in `../shared`, on texts
//! that were new to the library (it remembers words): `cargo bench --bench tokens` prints it (`one piece:`).
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The most bytes of a prompt that is taken apart, rendered and encoded: some two million tokens. A longer one is cut as
/// text, which takes little more memory than the text itself.
pub(crate) const LONGEST: usize = 8 << 20;
/// Nanoseconds that a KiB takes, until it is known: 100 MB/s.
const FIRST: u64 = 10_000;
/// Texts shorter than this teach nothing: bytes.
const TEACHES: usize = 4096;
/// Nanoseconds that a byte takes in the slowest text of short words (each another, of letters at random).
const SLOW: u64 = 80;
/// The same within one long word, which is merged as a whole (one sign or blank, megabytes of it).
const SLOWEST: u64 = 250;
/// How many times longer that is than what most text takes.
const LONG_TIMES: usize = 16;
/// Bytes of one class in a row that make a long word. No language writes such.
const LONG_WORD: usize = 2048;

/// How long encoding takes here: a moving mean over texts that were encoded.
#[derive(Debug)]
pub(super) struct Rate {
    nanos_per_kib: AtomicU64,
}

impl Rate {
    pub(super) fn new() -> Self {
        Self { nanos_per_kib: AtomicU64::new(FIRST) }
    }

    /// What `bytes` will take, at the mean rate.
    fn estimate(&self, bytes: usize) -> Duration {
        Duration::from_nanos(self.nanos_per_kib.load(Ordering::Relaxed).saturating_mul(bytes as u64) / 1024)
    }

    /// `bytes` took so long. One odd text moves the mean by an eighth of what it took longer; concurrent teachers may
    /// overwrite each other, which is as good.
    pub(super) fn learn(&self, bytes: usize, took: Duration) {
        if bytes >= TEACHES {
            let now = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1024) / bytes as u64;
            let mean = self.nanos_per_kib.load(Ordering::Relaxed);
            self.nanos_per_kib.store(
                (mean.saturating_mul(7).saturating_add(now.min(mean.saturating_mul(16)))) / 8,
                Ordering::Relaxed,
            );
        }
    }
}

/// What the text of a piece takes at worst.
fn worst(piece: &str, left: Duration) -> Duration {
    let nanos = |bytes: usize, each: u64| Duration::from_nanos((bytes as u64).saturating_mul(each));
    // Nearly every piece is so short that it need not be looked at.
    if nanos(piece.len(), SLOWEST) <= left {
        return Duration::ZERO;
    }
    let long = in_long_words(piece.as_bytes());
    nanos(long, SLOWEST) + nanos(piece.len() - long, SLOW)
}

/// Bytes that stand in long words. Pre-tokenizers part a text where the class of its characters changes, whatever else
/// they do; one that doesn't makes all texts slow, which the mean rate tells.
fn in_long_words(text: &[u8]) -> usize {
    // Wherever a long word stands, it fills one of these steps. Nearly always none is of one class, which shows at its start.
    let step = LONG_WORD / 2;
    let mut steps = (0..text.len() / step).map(|at| at * step..(at + 1) * step);
    if steps.any(|step| of_one_class(text, step)) { count_in_long_words(text) } else { 0 }
}

fn of_one_class(text: &[u8], mut part: Range<usize>) -> bool {
    let first = part.find_map(|at| class(text, at));
    part.filter_map(|at| class(text, at)).all(|class| Some(class) == first)
}

fn count_in_long_words(text: &[u8]) -> usize {
    let (mut long, mut start, mut before) = (0, 0, None);
    let mut end = |start: usize, at: usize| long += if at - start >= LONG_WORD { at - start } else { 0 };
    for at in 0..text.len() {
        let now = class(text, at);
        if now.is_some() && now != before {
            end(start, at);
            (start, before) = (at, now);
        }
    }
    end(start, text.len());
    long
}

#[derive(Debug, PartialEq, Clone, Copy)]
enum Class {
    Letter,
    Digit,
    Space,
    Sign,
}

/// The class of the character that begins here, about; `None` within a character.
fn class(text: &[u8], at: usize) -> Option<Class> {
    Some(match text[at] {
        b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
        b'0'..=b'9' => Class::Digit,
        b' ' | b'\t'..=b'\r' => Class::Space,
        0x80..0xc0 => return None,
        // General punctuation, symbols, and the full-width forms of both.
        0xe2 | 0xef => Class::Sign,
        0xe3 if text.get(at + 1) == Some(&0x80) => Class::Sign,
        0xc0.. => Class::Letter,
        _ => Class::Sign,
    })
}

/// What one prompt may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    start: Instant,
    budget: Duration,
    most: usize,
}

/// Why a piece is not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// More bytes are left than this caller may encode.
    Bytes,
    /// It would take too long.
    Time,
}

impl Budget {
    /// It begins now. No more than `most` bytes are encoded.
    pub(super) fn new(budget: Duration, most: usize) -> Self {
        Self { start: Instant::now(), budget, most }
    }

    /// Whether `piece` may be encoded, with which so many bytes are left.
    pub(super) fn allows(&self, rate: &Rate, piece: &str, left: usize) -> Result<(), Over> {
        // Who may encode a few bytes has little time.
        let few = self.most / LONG_TIMES;
        if left > self.most || (piece.len() > few && in_long_words(piece.as_bytes()) > few) {
            return Err(Over::Bytes);
        }
        let time = self.budget.checked_sub(self.start.elapsed()).filter(|time| !time.is_zero()).ok_or(Over::Time)?;
        if rate.estimate(left) > time || worst(piece, time) > time { Err(Over::Time) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_cannot_be_done_in_time_is_not_begun() {
        let rate = Rate::new();
        let budget = Budget::new(HOUR, usize::MAX);
        let allows = |bytes| budget.allows(&rate, "", bytes);
        assert_eq!(allows(1 << 20), Ok(()));
        (0..200).for_each(|_| rate.learn(1 << 20, HOUR));
        assert_eq!(allows(2 << 20), Err(Over::Time), "an hour for each MiB is too slow for two");
        assert_eq!(allows(1 << 10), Ok(()));
        (0..200).for_each(|_| rate.learn(1 << 20, Duration::from_millis(1)));
        assert_eq!(allows(2 << 20), Ok(()), "what is fast again is begun again");
        assert_eq!(Budget::new(Duration::ZERO, usize::MAX).allows(&rate, "", 0), Err(Over::Time));
        assert_eq!(Budget::new(HOUR, 9).allows(&rate, "", 10), Err(Over::Bytes));
    }

    #[test]
    fn a_piece_is_begun_if_its_worst_fits() {
        let long = |text: &str| in_long_words(text.as_bytes());
        for word in ["a", "7", " ", "=", "\u{e9}", "\u{4e00}", "\u{1f600}", "\u{301}", "\u{3002}"] {
            let text = format!("word {} word", word.repeat(LONG_WORD));
            assert!(long(&text) >= word.len() * LONG_WORD, "{word:?}");
        }
        assert_eq!(long(&"many short words, of letters123 and else\n".repeat(1000)), 0);
        assert_eq!(long(&"\u{4e00}\u{3002}\u{4e01}\u{ff0c}".repeat(10_000)), 0);
        let (word, text) = ("a".repeat(1 << 20), "some words ".repeat(1 << 16));
        let rate = Rate::new();
        let short = |piece: &str| worst(piece, Duration::from_millis(100)) <= Duration::from_millis(100);
        assert!(short(&text) && !short(&word) && short(&word[..1 << 18]));
        assert_eq!(Budget::new(HOUR, usize::MAX).allows(&rate, &word, word.len()), Ok(()));
        assert_eq!(
            Budget::new(Duration::from_millis(100), usize::MAX).allows(&rate, &word, word.len()),
            Err(Over::Time)
        );
    }

    #[test]
    fn short_texts_teach_nothing() {
        let rate = Rate::new();
        let before = rate.estimate(1 << 20);
        (0..100).for_each(|_| rate.learn(10, Duration::from_secs(1)));
        assert_eq!(rate.estimate(1 << 20), before);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(3), failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        #[test]
        fn no_long_word_is_overlooked(runs in prop::collection::vec((
            prop::sample::select(vec!["a", "7", " ", "=", "\u{e9}", "\u{4e00}", "\u{3002}", "\u{3042}", "\u{1f600}"]),
            prop_oneof![1..9_usize, LONG_WORD / 4 - 9..LONG_WORD / 4 + 9, LONG_WORD / 3 - 9..LONG_WORD + 9],
        ), 0..9)) {
            let text: String = runs.into_iter().map(|(word, times)| word.repeat(times)).collect();
            prop_assert_eq!(in_long_words(text.as_bytes()), count_in_long_words(text.as_bytes()));
        }
    }
}
