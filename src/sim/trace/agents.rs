//! Coding agents' sessions: each request waits for the answer before it, then for the tool or the human. Ids of blocks
//! are the session's own, so what sessions share is composed here: half of the tools' and system prompt's blocks.
use std::time::Duration;

use serde::Deserialize;

use crate::sim::call::{Call, Segment, mix};

/// Longest pause before a request, in seconds: someone who left for the day holds no replay up.
const LONGEST_THINK: f64 = 60.0;

#[derive(Debug, Deserialize)]
pub(super) struct Session {
    block_size: u32,
    #[serde(default)]
    tool_tokens: u32,
    #[serde(default)]
    system_tokens: u32,
    requests: Vec<Request>,
}

#[derive(Debug, Deserialize)]
struct Request {
    r#in: u32,
    out: u32,
    hash_ids: Vec<u64>,
    #[serde(default)]
    think_time: Option<f64>,
}

impl Session {
    /// Its calls, as the `number`th session.
    pub fn calls(self, number: u64) -> Result<Vec<(Duration, Call)>, String> {
        if self.block_size == 0 {
            return Err("block_size is 0".into());
        }
        if self.requests.is_empty() {
            return Err("it has no requests".into());
        }
        let head = self.tool_tokens.saturating_add(self.system_tokens);
        let shared = (head / self.block_size / 2) as usize;
        let calls = self.requests.iter().enumerate().map(|(at, request)| {
            let call = request.call(number, at as u64, self.block_size, shared);
            let think = request.think_time.filter(|think| think.is_finite()).unwrap_or(0.0);
            let pause = Duration::from_secs_f64(if at == 0 { 0.0 } else { think.clamp(0.0, LONGEST_THINK) });
            call.map(|call| (pause, call)).map_err(|error| format!("request {}: {error}", at + 1))
        });
        calls.collect()
    }
}

impl Request {
    fn call(&self, session: u64, at: u64, block: u32, shared: usize) -> Result<Call, String> {
        if self.r#in == 0 {
            return Err("\"in\" is 0: a prompt has a token at least".into());
        }
        let mut left = self.r#in;
        let mut segments = Vec::with_capacity(self.hash_ids.len() + 2);
        for (depth, id) in self.hash_ids.iter().enumerate() {
            let tokens = left.min(block);
            if tokens == 0 {
                break;
            }
            // Every session begins with the same blocks under the same ids, 1, 2, …; only its own ids say that this
            // request begins so, too.
            let common = depth < shared && *id == depth as u64 + 1;
            segments.push(Segment { seed: if common { mix(8, *id) } else { mix(mix(9, session), *id) }, tokens });
            left -= tokens;
        }
        // Tokens that no id speaks of are this request's own.
        let own = mix(mix(10, session), at);
        segments.extend((left > 0).then_some(Segment { seed: own, tokens: left }));
        segments.extend((self.out > 0).then_some(Segment { seed: mix(11, own), tokens: self.out }));
        Ok(Call {
            number: mix(session, at),
            key: session,
            session: Some(session),
            header: Some(session),
            segments,
            prompt_tokens: self.r#in,
            output_tokens: self.out,
            lasting_tokens: self.r#in,
            ..Call::default()
        })
    }
}
