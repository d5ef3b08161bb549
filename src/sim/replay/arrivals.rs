//! When calls begin: one after the other, at a rate, when a trace says so, or as each session goes on.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use crate::sim::call::{Call, mix};
use crate::sim::engine::VirtualTime;

/// How the calls of a generated workload begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// So many are open at any time: a call begins when one has ended. With 1, as in the study, no queue ever forms.
    Closed(usize),
    /// At random times, so many a second on average, whatever becomes of them (open loop).
    Poisson(f64),
    /// When the trace says so.
    Trace,
}

impl Arrivals {
    /// `closed`, `closed:N`, `poisson:RATE` or `trace`.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub fn parse(word: &str) -> Result<Self, String> {
        let remedy = "write closed (one call at a time), closed:N (N open at any time), poisson:RATE (calls a second) or \
                      trace (as recorded)";
        match word.split_once(':') {
            None if word == "closed" => Ok(Self::Closed(1)),
            None if word == "trace" => Ok(Self::Trace),
            Some(("closed", number)) => match number.parse() {
                Ok(number @ 1..=1_000_000) => Ok(Self::Closed(number)),
                _ => Err(format!("closed:{number}: {number} is no number of calls from 1 to 1,000,000; {remedy}")),
            },
            Some(("poisson", rate)) => match rate.parse::<f64>() {
                Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(Self::Poisson(rate)),
                _ => Err(format!("poisson:{rate}: {rate} is no rate above 0; {remedy}")),
            },
            _ => Err(format!("{word} is no kind of arrivals; {remedy}")),
        }
    }
}

impl fmt::Display for Arrivals {
    /// As [`Arrivals::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(1) => write!(f, "closed"),
            Self::Closed(open) => write!(f, "closed:{open}"),
            Self::Poisson(rate) => write!(f, "poisson:{rate}"),
            Self::Trace => write!(f, "trace"),
        }
    }
}

/// A session of a trace: its calls in order, each with how long nothing is asked before it.
#[derive(Debug)]
pub struct Session {
    /// When it begins.
    pub start: VirtualTime,
    /// Its calls, and the pause between the end of the one before and their own beginning.
    pub calls: std::vec::IntoIter<(Duration, Call)>,
}

/// Calls and when they begin.
pub struct Source {
    kind: Kind,
}

enum Kind {
    Closed { calls: Box<dyn Iterator<Item = Call> + Send>, free: usize, at: VirtualTime },
    Open { calls: Box<dyn Iterator<Item = (VirtualTime, Call)> + Send>, next: Option<(VirtualTime, Call)> },
    Sessions { sessions: Vec<Session>, due: BinaryHeap<Reverse<(VirtualTime, usize)>>, next: usize },
}

impl Source {
    /// `open` calls are open at any time, until there are no more.
    pub fn closed(calls: impl Iterator<Item = Call> + Send + 'static, open: usize) -> Self {
        Self { kind: Kind::Closed { calls: Box::new(calls), free: open, at: VirtualTime(0) } }
    }

    /// Calls with their times, in order.
    pub fn open(calls: impl Iterator<Item = (VirtualTime, Call)> + Send + 'static) -> Self {
        let mut calls: Box<dyn Iterator<Item = (VirtualTime, Call)> + Send> = Box::new(calls);
        let next = calls.next();
        Self { kind: Kind::Open { calls, next } }
    }

    /// Calls at exponential distances, `rate` a second on average.
    pub fn poisson(calls: impl Iterator<Item = Call> + Send + 'static, rate: f64, seed: u64) -> Self {
        let mut rng = Rng::with_seed(mix(0x7015_5017, seed));
        let mut seconds = 0.0;
        Self::open(calls.map(move |call| {
            seconds -= (1.0 - rng.f64()).ln() / rate;
            (VirtualTime::from_secs_f64(seconds), call)
        }))
    }

    /// Sessions, each of which waits for its answers. Up to `at_once` begin when they say; each of the others begins
    /// when another has ended.
    #[must_use]
    pub fn sessions(sessions: Vec<Session>, at_once: usize) -> Self {
        let next = at_once.min(sessions.len());
        let due = sessions[..next].iter().enumerate().map(|(at, session)| Reverse((session.start, at))).collect();
        Self { kind: Kind::Sessions { sessions, due, next } }
    }

    /// When the next call begins, as far as is known.
    pub fn next_at(&mut self) -> Option<VirtualTime> {
        match &mut self.kind {
            Kind::Closed { free, at, .. } => (*free > 0).then_some(*at),
            Kind::Open { next, .. } => next.as_ref().map(|(at, _)| *at),
            Kind::Sessions { due, .. } => due.peek().map(|Reverse((at, _))| *at),
        }
    }

    /// The next call, and what to hand to [`Self::ended`] when it has ended.
    pub fn take(&mut self) -> Option<(Call, usize)> {
        match &mut self.kind {
            Kind::Closed { calls, free, .. } => {
                let call = calls.next();
                *free = if call.is_some() { *free - 1 } else { 0 };
                call.map(|call| (call, 0))
            }
            Kind::Open { calls, next } => std::mem::replace(next, calls.next()).map(|(_, call)| (call, 0)),
            Kind::Sessions { sessions, due, .. } => {
                let Reverse((_, at)) = due.pop()?;
                sessions[at].calls.next().map(|(_, call)| (call, at))
            }
        }
    }

    /// A call has ended (or could not be answered).
    pub fn ended(&mut self, ticket: usize, now: VirtualTime) {
        match &mut self.kind {
            Kind::Closed { free, at, .. } => (*free, *at) = (*free + 1, now),
            Kind::Open { .. } => {}
            Kind::Sessions { sessions, due, next } => {
                if let Some((pause, _)) = sessions[ticket].calls.as_slice().first() {
                    due.push(Reverse((now + *pause, ticket)));
                } else if *next < sessions.len() {
                    due.push(Reverse((now, *next)));
                    *next += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(number: u64) -> impl Iterator<Item = Call> + Send + 'static {
        (0..number).map(|key| Call { key, ..Call::default() })
    }

    #[test]
    fn words_are_kinds_and_others_are_told_what_to_write() {
        for (word, kind) in [
            ("closed", Arrivals::Closed(1)),
            ("closed:32", Arrivals::Closed(32)),
            ("poisson:2.5", Arrivals::Poisson(2.5)),
            ("trace", Arrivals::Trace),
        ] {
            assert_eq!((Arrivals::parse(word), kind.to_string().as_str()), (Ok(kind), word));
        }
        for wrong in ["", "open", "poisson", "poisson:0", "poisson:-1", "poisson:nan", "closed:0", "closed:x"] {
            let error = Arrivals::parse(wrong).expect_err(wrong);
            assert!(error.contains(wrong) && error.contains("poisson:RATE"), "{error}");
        }
    }

    #[test]
    fn a_closed_loop_has_so_many_open_and_goes_on_when_one_ends() {
        let mut source = Source::closed(calls(3), 2);
        assert!(source.take().is_some() && source.take().is_some());
        assert_eq!(source.next_at(), None);
        source.ended(0, VirtualTime(7));
        assert_eq!(source.next_at(), Some(VirtualTime(7)));
        assert_eq!(source.take().map(|(call, _)| call.key), Some(2));
        source.ended(0, VirtualTime(9));
        assert!(source.take().is_none() && source.next_at().is_none(), "there are no more");
    }

    #[test]
    fn poisson_arrivals_come_in_order_at_their_rate() {
        let mut source = Source::poisson(calls(20_000), 50.0, 1);
        let mut last = VirtualTime(0);
        while let Some(at) = source.next_at() {
            assert!(at >= last);
            last = at;
            source.take();
        }
        assert!((last.as_secs_f64() / 400.0 - 1.0).abs() < 0.05, "{last:?}");
    }

    #[test]
    fn a_session_waits_for_its_answer_and_then_thinks() {
        let second = Duration::from_secs(1);
        let pauses = [Duration::ZERO, second, second];
        let session: Vec<_> = pauses.into_iter().zip(calls(3)).collect();
        let start = VirtualTime::from_secs_f64(5.0);
        let mut source = Source::sessions(vec![Session { start, calls: session.into_iter() }], 1);
        assert_eq!(source.next_at(), Some(start));
        let (_, ticket) = source.take().expect("a call");
        assert_eq!(source.next_at(), None, "the answer is not there yet");
        source.ended(ticket, VirtualTime::from_secs_f64(8.0));
        assert_eq!(source.next_at(), Some(VirtualTime::from_secs_f64(9.0)));
    }

    #[test]
    fn a_session_that_may_not_begin_yet_begins_when_another_has_ended() {
        let session = |start| Session {
            start: VirtualTime(start),
            calls: calls(1).map(|call| (Duration::ZERO, call)).collect::<Vec<_>>().into_iter(),
        };
        let mut source = Source::sessions(vec![session(1), session(2)], 1);
        let (_, ticket) = source.take().expect("a call");
        assert_eq!(source.next_at(), None);
        source.ended(ticket, VirtualTime(40));
        assert_eq!(source.next_at(), Some(VirtualTime(40)));
        let (_, ticket) = source.take().expect("a call");
        source.ended(ticket, VirtualTime(50));
        assert_eq!(source.next_at(), None);
    }
}
