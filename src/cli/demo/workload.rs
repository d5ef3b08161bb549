//! The conversations: who asks what, how long the answer is, and how long people think in between.
//!
//! Everything is drawn from the seed and the session's number, so that every policy is asked the same; a session is
//! drawn as it goes, so that ten thousand of them cost no memory. Lengths are in the virtual engine's tokens, which
//! are four bytes of text.
use std::iter;
use std::ops::RangeInclusive;
use std::time::Duration;

use fastrand::Rng;

/// The prompt that all conversations begin with.
const SYSTEM_TOKENS: u32 = 1_000;
/// The first question brings a document along.
const DOCUMENT_TOKENS: RangeInclusive<u32> = 1_000..=2_000;
const QUESTION_TOKENS: RangeInclusive<u32> = 100..=300;
const ANSWER_TOKENS: RangeInclusive<u32> = 32..=64;
/// Conversations begin so far apart on average: no rush of cold prompts, which no policy could help…
const ARRIVAL_GAP: Duration = Duration::from_millis(40);
/// …pauses before later questions are exponential with this mean…
const MEAN_PAUSE: Duration = Duration::from_millis(200);
/// …and no longer than this many times it, so that no straggler holds a round up.
const LONGEST_PAUSE: f64 = 4.0;

/// Most conversations held at once.
pub const ACTIVE: u32 = 64;

const WORDS: &[&str] = &[
    "account", "after", "amount", "answer", "because", "before", "branch", "budget", "change", "column", "contract",
    "customer", "deadline", "deliver", "design", "detail", "discount", "draft", "engine", "error", "estimate", "every",
    "example", "field", "figure", "first", "function", "growth", "however", "index", "invoice", "issue", "item",
    "language", "letter", "limit", "market", "meeting", "message", "method", "minute", "model", "month", "number",
    "office", "order", "other", "package", "paper", "percent", "person", "policy", "price", "problem", "process",
    "product", "project", "quarter", "question", "rate", "reason", "record", "release", "report", "request", "result",
    "review", "sample", "schedule", "second", "section", "service", "share", "should", "source", "stock", "summary",
    "supplier", "system", "table", "target", "test", "their", "through", "ticket", "total", "under", "until", "update",
    "value", "version", "volume", "weekly", "which", "window", "within", "without", "would", "year", "yield",
];

/// How much is asked.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub sessions: u32,
    pub turns: u32,
    pub seed: u64,
}

impl Shape {
    /// Questions in all.
    pub fn requests(self) -> u64 {
        u64::from(self.sessions) * u64::from(self.turns)
    }

    /// Conversations held at once.
    fn open(self) -> u32 {
        self.sessions.min(ACTIVE)
    }

    /// Tokens of cache that each of `replicas` gets: its share of what all open conversations come to, and a quarter
    /// more, since no placement is even. One replica alone so holds them all, and several hold them only if each keeps
    /// to its own.
    pub fn share_of_cache(self, replicas: u32) -> u64 {
        let share = u64::from(self.open()) * self.tokens(mean) * 5 / (4 * u64::from(replicas.max(1)));
        // Conversations are answered side by side, and each needs its place while it is.
        share.max(4 * self.tokens(most))
    }

    /// Tokens of a conversation at its end.
    fn tokens(self, of: fn(&RangeInclusive<u32>) -> u32) -> u64 {
        let turns = u64::from(self.turns);
        let first = u64::from(SYSTEM_TOKENS) + u64::from(of(&DOCUMENT_TOKENS));
        // Each message stands between two markers.
        first + turns * (u64::from(of(&QUESTION_TOKENS)) + u64::from(of(&ANSWER_TOKENS)) + 4)
    }
}

fn mean(range: &RangeInclusive<u32>) -> u32 {
    (range.start() + range.end()) / 2
}

fn most(range: &RangeInclusive<u32>) -> u32 {
    *range.end()
}

/// One question.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// How long nothing is asked before it.
    pub pause: Duration,
    pub question: String,
    /// Tokens of the answer.
    pub answer_tokens: u32,
}

/// One conversation: an iterator over its questions.
#[derive(Debug)]
pub struct Session {
    /// Names it, in a header.
    pub id: String,
    rng: Rng,
    /// Within which all begin.
    arrivals: Duration,
    asked: u32,
    turns: u32,
}

impl Session {
    /// The conversation of this number.
    pub fn new(shape: Shape, number: u32) -> Self {
        // Neighbouring numbers must not draw alike.
        let seed = shape.seed ^ (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            id: format!("demo-{}-{number:05}", shape.seed),
            rng: Rng::with_seed(seed),
            arrivals: ARRIVAL_GAP * shape.open(),
            asked: 0,
            turns: shape.turns,
        }
    }
}

impl Iterator for Session {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        if self.asked == self.turns {
            return None;
        }
        let rng = &mut self.rng;
        let mut length = rng.u32(QUESTION_TOKENS);
        let pause = if self.asked == 0 {
            length += rng.u32(DOCUMENT_TOKENS);
            self.arrivals.mul_f64(rng.f64())
        } else {
            MEAN_PAUSE.mul_f64((-(1.0 - rng.f64()).ln()).min(LONGEST_PAUSE))
        };
        let question = text(rng, length);
        self.asked += 1;
        Some(Turn { pause, question, answer_tokens: rng.u32(ANSWER_TOKENS) })
    }
}

/// What every conversation begins with.
pub fn system_prompt(seed: u64) -> String {
    text(&mut Rng::with_seed(seed), SYSTEM_TOKENS)
}

/// Words of as many bytes as make `tokens`.
fn text(rng: &mut Rng, tokens: u32) -> String {
    let bytes = tokens as usize * 4;
    let mut text = String::with_capacity(bytes + 10);
    for word in iter::repeat_with(|| WORDS[rng.usize(..WORDS.len())]) {
        if text.len() >= bytes {
            break;
        }
        text.push_str(word);
        text.push(' ');
    }
    // The words are ASCII: any byte is a boundary.
    text.truncate(bytes);
    text
}
