//! Streams of server-sent events: paced, one event a token, ended by what the API's encoder says.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Sleep;

use super::driver::Job;

/// Token counts of an answer, summed over its sequences; a prompt shared by several counts once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub prompt: u64,
    pub cached: u64,
    pub output: u64,
}

/// One sequence of an answer.
#[derive(Debug)]
pub(super) struct Sequence {
    pub job: Job,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// The first of those that share a prompt.
    pub counts_prompt: bool,
}

/// Finished events, ready to be sent.
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<Bytes>);

impl Events {
    /// `data: …`
    pub(super) fn data(&mut self, data: &str) {
        self.0.push_back(Bytes::from(["data: ", data, "\n\n"].concat()));
    }
    /// `event: …`, `data: …`
    pub(super) fn named(&mut self, name: &str, data: &str) {
        self.0.push_back(Bytes::from(["event: ", name, "\ndata: ", data, "\n\n"].concat()));
    }
}

/// How an API writes its stream.
pub(super) trait Encoder: Send {
    /// A sequence has its first token; `usage` is what is known of it.
    fn start(&mut self, choice: usize, usage: Usage, events: &mut Events);
    /// A sequence's token, from 0.
    fn token(&mut self, choice: usize, index: u32, events: &mut Events);
    /// Everything is generated.
    fn end(&mut self, usage: Usage, events: &mut Events);
}

/// Delays that faults ask for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    pub first: Duration,
    pub between: Duration,
}

/// Tokens written in one go; then what was written is sent before more is made.
const BATCH: u32 = 64;

struct Cursor {
    sequence: Sequence,
    started: bool,
    written: u32,
    over: bool,
    cached: u32,
}

/// The stream of one answer.
pub(super) struct EventStream {
    cursors: Vec<Cursor>,
    encoder: Box<dyn Encoder>,
    events: Events,
    pace: Pace,
    sleep: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl EventStream {
    pub(super) fn new(sequences: Vec<Sequence>, encoder: Box<dyn Encoder>, pace: Pace) -> Self {
        let cursor = |sequence| Cursor { sequence, started: false, written: 0, over: false, cached: 0 };
        let sleep = (!pace.first.is_zero()).then(|| Box::pin(tokio::time::sleep(pace.first)));
        Self {
            cursors: sequences.into_iter().map(cursor).collect(),
            encoder,
            events: Events::default(),
            pace,
            sleep,
            ended: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended && self.events.0.is_empty()
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            if let Some(event) = self.events.0.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(cx));
                self.sleep = None;
            }
            for choice in 0..self.cursors.len() {
                if let Err(error) = self.write(choice, cx) {
                    return Poll::Ready(Some(Err(error)));
                }
            }
            if self.cursors.iter().all(|cursor| cursor.over) {
                let usage = self.usage();
                self.encoder.end(usage, &mut self.events);
                self.ended = true;
            } else if self.events.0.is_empty() {
                return Poll::Pending;
            } else if !self.pace.between.is_zero() {
                self.sleep = Some(Box::pin(tokio::time::sleep(self.pace.between)));
            }
        }
    }

    /// Writes what a sequence has generated since it was last asked.
    fn write(&mut self, choice: usize, cx: &mut Context<'_>) -> io::Result<()> {
        let cursor = &mut self.cursors[choice];
        if cursor.over {
            return Ok(());
        }
        let (started, written) = (cursor.started, cursor.written);
        let Poll::Ready(progress) = cursor.sequence.job.poll(cx, |now| match started {
            false => now.cached.is_some(),
            true => now.tokens > written || now.finished,
        }) else {
            return Ok(());
        };
        if progress.lost {
            return Err(io::Error::other("the engine restarted"));
        }
        if !cursor.started {
            cursor.started = true;
            cursor.cached = progress.cached.unwrap_or_default();
            let usage =
                Usage { prompt: u64::from(cursor.sequence.prompt_tokens), cached: u64::from(cursor.cached), output: 0 };
            self.encoder.start(choice, usage, &mut self.events);
        }
        let grain = if self.pace.between.is_zero() { BATCH } else { 1 };
        let upto = progress.tokens.min(written + grain);
        for index in written..upto {
            self.encoder.token(choice, index, &mut self.events);
        }
        cursor.written = upto;
        cursor.over = progress.finished && upto == cursor.sequence.output_tokens;
        Ok(())
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for cursor in &self.cursors {
            if cursor.sequence.counts_prompt {
                usage.prompt += u64::from(cursor.sequence.prompt_tokens);
                usage.cached += u64::from(cursor.cached);
            }
            usage.output += u64::from(cursor.written);
        }
        usage
    }
}

/// Waits for all sequences of an answer that is sent whole; `None` if the engine lost one.
pub(super) async fn finish_all(sequences: &[Sequence]) -> Option<Usage> {
    let mut usage = Usage::default();
    for sequence in sequences {
        let progress = sequence.job.finished().await;
        if progress.lost {
            return None;
        }
        if sequence.counts_prompt {
            usage.prompt += u64::from(sequence.prompt_tokens);
            usage.cached += u64::from(progress.cached.unwrap_or_default());
        }
        usage.output += u64::from(progress.tokens);
    }
    Some(usage)
}
