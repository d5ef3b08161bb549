//! Mooncake's traces (FAST'25): a request a line, with its time in ms and the ids of its 512-token blocks. An id names a
//! block and all that stands before it.
use serde::Deserialize;

use crate::sim::call::{Call, Segment, mix};
use crate::sim::engine::VirtualTime;

/// Tokens of a block.
const BLOCK: u32 = 512;

#[derive(Debug, Deserialize)]
pub(super) struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

impl Line {
    /// The `index`th request.
    pub fn call(self, index: u64) -> Result<(VirtualTime, Call), String> {
        let Self { timestamp, input_length, output_length, hash_ids } = self;
        if !(timestamp.is_finite() && timestamp >= 0.0) {
            return Err(format!("timestamp {timestamp} is no time in ms"));
        }
        if input_length == 0 {
            return Err("input_length is 0: a prompt has a token at least".into());
        }
        if input_length.div_ceil(BLOCK) as usize != hash_ids.len() {
            return Err(format!(
                "{} hash_ids for {input_length} tokens: there should be {}, one for each {BLOCK}",
                hash_ids.len(),
                input_length.div_ceil(BLOCK)
            ));
        }
        let mut left = input_length;
        let mut segments = Vec::with_capacity(hash_ids.len() + 1);
        for id in hash_ids {
            let tokens = left.min(BLOCK);
            segments.push(Segment { seed: mix(6, id), tokens });
            left -= tokens;
        }
        if output_length > 0 {
            segments.push(Segment { seed: mix(7, index), tokens: output_length });
        }
        let call = Call {
            number: index,
            key: index,
            segments,
            prompt_tokens: input_length,
            output_tokens: output_length,
            lasting_tokens: input_length,
            ..Call::default()
        };
        Ok((VirtualTime::from_secs_f64(timestamp / 1e3), call))
    }
}
