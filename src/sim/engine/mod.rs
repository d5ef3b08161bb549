//! A virtual inference engine in virtual time: what a replica does with requests, without computing anything.
//!
//! Pure: no I/O, no clock, no randomness; the same calls give the same events. The simulator and the mock server run it.
//!
//! The model: one GPU. A FIFO prefill queue, one prompt at a time in chunks, at `prefill_tps` uncached tokens a second
//! (and, where set, an overhead for each and attention's part, which grows with what stands before; a request may be
//! slower or faster by a factor of its own).
//! All sequences behind their first token share `decode_tps` evenly (each at most `sequence_tps`); while a prompt is
//! prefilled they get `decode_share` of it. The first token comes with the end of prefill. A request reserves its
//! blocks, prompt and output, when its prefill begins, and waits at the queue's head until they can be had: no
//! preemption, no deadlock. Blocks enter the cache chunk by chunk, generated ones when the request ends.
//! A prompt is never matched whole: at least its last token is computed, as in vLLM.
mod cache;
mod chain;
mod decode;
#[cfg(test)]
mod tests;
mod types;

use std::collections::VecDeque;

pub use cache::{BlockCache, Lease};
pub use chain::{block_hash, derived_hash, hash_blocks};
use decode::Decoder;
pub use types::{Event, Options, Request, RequestId, Stats, TooLarge, VirtualTime, What};

#[derive(Debug)]
enum Phase {
    Waiting,
    Prefill { lease: Lease, cached: u32, done: u32, chunk: u32, chunk_end: u64 },
    Decode { lease: Lease, since: f64, reported: u32 },
}

#[derive(Debug)]
struct Slot {
    id: RequestId,
    live: Option<(Request, Phase)>,
}

/// The engine; see the module's head.
#[derive(Debug)]
pub struct Engine {
    options: Options,
    cache: BlockCache,
    now: u64,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    submitted: u64,
    queue: VecDeque<RequestId>,
    prefilling: Option<RequestId>,
    decoder: Decoder,
    pending: Vec<Event>,
    stats: Stats,
}

impl Engine {
    /// An idle engine with an empty cache at time zero. Speeds below one token a second count as one.
    #[must_use]
    pub fn new(mut options: Options) -> Self {
        options.block_size = options.block_size.max(1);
        options.chunk_tokens = options.chunk_tokens.max(1);
        options.prefill_tps = options.prefill_tps.max(1.0);
        options.prefill_overhead = options.prefill_overhead.max(0.0);
        options.prefill_pair = options.prefill_pair.max(0.0);
        options.decode_tps = options.decode_tps.max(1.0);
        options.sequence_tps = options.sequence_tps.max(1.0);
        options.decode_share = options.decode_share.clamp(0.01, 1.0);
        options.max_running = options.max_running.max(1);
        let blocks = options.cache_tokens / u64::from(options.block_size);
        Self {
            cache: BlockCache::new(u32::try_from(blocks).unwrap_or(u32::MAX - 1).max(1)),
            options,
            now: 0,
            slots: Vec::new(),
            vacant: Vec::new(),
            submitted: 0,
            queue: VecDeque::new(),
            prefilling: None,
            decoder: Decoder::default(),
            pending: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Its shape and speed.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }
    /// Its cache, to look at.
    #[must_use]
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }
    /// Where its time stands.
    #[must_use]
    pub fn now(&self) -> VirtualTime {
        VirtualTime(self.now)
    }
    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            blocks_in_use: self.cache.in_use(),
            blocks_cached: self.cache.cached(),
            blocks_total: self.cache.capacity(),
            running: self.running(),
            ..self.stats
        }
    }
    /// Prompt tokens that a request with these blocks would find in the cache now.
    #[must_use]
    pub fn cached_tokens(&self, request: &Request) -> u32 {
        let limit = self.match_limit(request);
        self.cache.match_length(&request.blocks[..limit]) * self.options.block_size
    }

    /// Takes a request at `now`; earlier than the engine's time counts as the engine's time. What becomes due on the
    /// way is kept for the next `advance`.
    pub fn submit(&mut self, now: VirtualTime, mut request: Request) -> Result<RequestId, TooLarge> {
        request.prompt_tokens = request.prompt_tokens.max(1);
        request.prefill_factor = request.prefill_factor.max(0.0);
        let blocks = self.blocks_needed(&request);
        if blocks > u64::from(self.cache.capacity()) {
            return Err(TooLarge {
                tokens: u64::from(request.prompt_tokens) + u64::from(request.output_tokens),
                capacity: u64::from(self.cache.capacity()) * u64::from(self.options.block_size),
            });
        }
        self.run_to(now.0);
        let slot = self.vacant.pop().unwrap_or(self.slots.len() as u32);
        let id = RequestId::new(self.submitted, slot);
        self.submitted += 1;
        self.stats.waiting_tokens += u64::from(request.prompt_tokens);
        let entry = Slot { id, live: Some((request, Phase::Waiting)) };
        match self.slots.get_mut(slot as usize) {
            Some(old) => *old = entry,
            None => self.slots.push(entry),
        }
        self.stats.submitted += 1;
        self.stats.waiting += 1;
        self.queue.push_back(id);
        self.begin_prefill();
        Ok(id)
    }

    /// Stops a request at `now` and frees what it held; what it computed stays cached. False if it is not there.
    pub fn cancel(&mut self, now: VirtualTime, id: RequestId) -> bool {
        self.run_to(now.0);
        let Some((request, phase)) = self.take(id) else { return false };
        self.stats.cancelled += 1;
        match phase {
            Phase::Waiting => {
                self.stats.waiting -= 1;
                self.stats.waiting_tokens -= u64::from(request.prompt_tokens);
            }
            Phase::Prefill { lease, .. } => {
                self.prefilling = None;
                self.cache.release(lease);
            }
            Phase::Decode { lease, since, .. } => {
                self.decoder.leave();
                let step = self.rate() * 1e-9;
                let generated = (1 + self.decoder.tokens_since(since, step)).min(request.output_tokens);
                self.stats.generated_tokens += u64::from(generated - 1);
                self.keep_and_release(lease, &request, generated);
            }
        }
        self.pending.retain(|event| event.id != id);
        self.begin_prefill();
        self.prune();
        true
    }

    /// The next moment at which `advance` would report something or the engine's state changes.
    #[must_use]
    pub fn next_event_at(&self) -> Option<VirtualTime> {
        if !self.pending.is_empty() {
            return Some(VirtualTime(self.now));
        }
        let report = self.decoder.next_report(self.rate()).map(|seconds| self.after(seconds));
        [self.next_change(), report].into_iter().flatten().min().map(VirtualTime)
    }

    /// Lets time pass until `to` and appends what happened, in order.
    pub fn advance(&mut self, to: VirtualTime, events: &mut Vec<Event>) {
        self.run_to(to.0);
        self.report_tokens();
        events.append(&mut self.pending);
    }

    /// The engine dies and comes back at once, empty: the cache and all requests are gone, which are returned.
    pub fn restart(&mut self, now: VirtualTime) -> Vec<RequestId> {
        self.run_to(now.0);
        let lost: Vec<RequestId> = self.slots.iter().filter(|slot| slot.live.is_some()).map(|slot| slot.id).collect();
        for id in &lost {
            self.take(*id);
        }
        self.stats.cancelled += lost.len() as u64;
        self.stats.waiting = 0;
        self.stats.waiting_tokens = 0;
        self.queue.clear();
        self.prefilling = None;
        self.decoder = Decoder::default();
        self.cache.clear();
        lost
    }

    fn running(&self) -> u32 {
        self.decoder.active() + u32::from(self.prefilling.is_some())
    }
    fn alive(&self, id: RequestId) -> bool {
        self.slots.get(id.slot()).is_some_and(|slot| slot.id == id && slot.live.is_some())
    }
    fn take(&mut self, id: RequestId) -> Option<(Request, Phase)> {
        let slot = self.slots.get_mut(id.slot()).filter(|slot| slot.id == id)?;
        let live = slot.live.take()?;
        self.vacant.push(id.slot() as u32);
        Some(live)
    }
    fn blocks_needed(&self, request: &Request) -> u64 {
        (u64::from(request.prompt_tokens) + u64::from(request.output_tokens))
            .div_ceil(u64::from(self.options.block_size))
    }
    fn match_limit(&self, request: &Request) -> usize {
        ((request.prompt_tokens.max(1) - 1) / self.options.block_size).min(request.blocks.len() as u32) as usize
    }
    /// Tokens a second that each decoding sequence gets now.
    fn rate(&self) -> f64 {
        let share = if self.prefilling.is_some() { self.options.decode_share } else { 1.0 };
        (self.options.decode_tps * share / f64::from(self.decoder.active().max(1))).min(self.options.sequence_tps)
    }
    fn after(&self, seconds: f64) -> u64 {
        self.now.saturating_add((seconds * 1e9).ceil() as u64)
    }

    /// When the engine's state changes next: a chunk or a sequence ends.
    fn next_change(&self) -> Option<u64> {
        let chunk = self.prefilling.and_then(|id| match &self.slots[id.slot()].live {
            Some((_, Phase::Prefill { chunk_end, .. })) => Some(*chunk_end),
            _ => None,
        });
        let finish = self.decoder.next_finish(self.rate()).map(|seconds| self.after(seconds));
        [chunk, finish].into_iter().flatten().min()
    }

    fn run_to(&mut self, to: u64) {
        while let Some(at) = self.next_change().filter(|at| *at <= to) {
            self.pass(at);
            let step = self.rate() * 1e-9;
            while let Some(id) = self.decoder.pop_finished(step) {
                self.finish_decode(id);
                self.prune();
            }
            self.end_chunk();
            self.begin_prefill();
            self.prune();
        }
        self.pass(to);
    }

    fn pass(&mut self, to: u64) {
        if to > self.now {
            self.decoder.pass((to - self.now) as f64 / 1e9, self.rate());
            self.now = to;
        }
    }

    fn prune(&mut self) {
        let slots = &self.slots;
        self.decoder.prune(|id| slots[id.slot()].id == id && slots[id.slot()].live.is_some());
    }

    fn emit(&mut self, id: RequestId, what: What) {
        self.pending.push(Event { at: VirtualTime(self.now), id, what });
    }

    /// Starts the prompt at the queue's head if nothing is prefilling and its blocks can be had.
    fn begin_prefill(&mut self) {
        while self.prefilling.is_none() && self.decoder.active() < self.options.max_running {
            let Some(&id) = self.queue.front() else { return };
            if !self.alive(id) {
                self.queue.pop_front();
                continue;
            }
            let Some((request, _)) = &self.slots[id.slot()].live else { return };
            let blocks = self.blocks_needed(request) as u32;
            let limit = self.match_limit(request);
            let Some(lease) = self.cache.acquire(&request.blocks[..limit], blocks) else { return };
            self.queue.pop_front();
            let cached = lease.matched() * self.options.block_size;
            let prompt = request.prompt_tokens;
            self.stats.waiting -= 1;
            self.stats.waiting_tokens -= u64::from(prompt);
            self.stats.prompt_tokens += u64::from(prompt);
            self.stats.cached_tokens += u64::from(cached);
            let chunk = (prompt - cached).min(self.options.chunk_tokens);
            let seconds = self.options.prefill_overhead + chunk_seconds(&self.options, cached, chunk);
            let chunk_end = self.after(request.prefill_factor * seconds);
            let phase = Phase::Prefill { lease, cached, done: cached, chunk, chunk_end };
            self.prefilling = Some(id);
            if let Some((_, old)) = &mut self.slots[id.slot()].live {
                *old = phase;
            }
        }
    }

    /// Ends the running chunk if it is over, and the prefill with its last one.
    fn end_chunk(&mut self) {
        let Some(id) = self.prefilling else { return };
        let Some((request, Phase::Prefill { lease, cached, done, chunk, chunk_end })) = &mut self.slots[id.slot()].live
        else {
            return;
        };
        if *chunk_end > self.now {
            return;
        }
        *done += *chunk;
        let full = (*done / self.options.block_size).min(request.blocks.len() as u32);
        let fresh = lease.depth().min(full) as usize..full as usize;
        self.cache.extend(lease, &request.blocks[fresh]);
        if *done < request.prompt_tokens {
            *chunk = (request.prompt_tokens - *done).min(self.options.chunk_tokens);
            let seconds = request.prefill_factor * chunk_seconds(&self.options, *done, *chunk);
            *chunk_end = self.now + (seconds * 1e9).ceil() as u64;
            return;
        }
        let what = What::FirstToken { cached_tokens: *cached, prompt_tokens: request.prompt_tokens };
        self.prefilling = None;
        self.emit(id, what);
        self.begin_decode(id);
    }

    fn begin_decode(&mut self, id: RequestId) {
        let Some((request, phase)) = self.slots[id.slot()].live.take() else { return };
        let Phase::Prefill { lease, .. } = phase else { return };
        self.stats.generated_tokens += u64::from(request.output_tokens.min(1));
        if request.output_tokens <= 1 {
            self.vacant.push(id.slot() as u32);
            self.end(id, &request, lease);
            return;
        }
        let since = self.decoder.join(id, request.output_tokens - 1, request.report_tokens);
        self.slots[id.slot()].live = Some((request, Phase::Decode { lease, since, reported: 0 }));
    }

    fn finish_decode(&mut self, id: RequestId) {
        if !self.alive(id) {
            return;
        }
        let Some((request, Phase::Decode { lease, reported, .. })) = self.take(id) else { return };
        self.decoder.leave();
        let n = request.output_tokens - 1 - reported;
        if request.report_tokens && n > 0 {
            self.emit(id, What::Tokens { n });
        }
        self.stats.generated_tokens += u64::from(request.output_tokens - 1);
        self.end(id, &request, lease);
    }

    fn end(&mut self, id: RequestId, request: &Request, lease: Lease) {
        self.keep_and_release(lease, request, request.output_tokens);
        self.stats.finished += 1;
        self.emit(id, What::Finished);
    }

    /// Caches the blocks filled by `generated` tokens and gives the lease back.
    fn keep_and_release(&mut self, mut lease: Lease, request: &Request, generated: u32) {
        // The last token generated was never an input, so its key and value were never computed (vLLM: the same).
        let computed = u64::from(request.prompt_tokens) + u64::from(generated.saturating_sub(1));
        let full = (computed / u64::from(self.options.block_size)) as usize;
        let known = request.blocks.len();
        // A prompt shorter than a block has no hash that could tell its derived blocks from another's.
        if let Some(&(mut parent)) = request.blocks.last() {
            let derived = (known..full).map(|depth| {
                parent = derived_hash(parent, depth as u32);
                parent
            });
            let told = request.blocks.get(lease.depth() as usize..known.min(full)).unwrap_or_default();
            let hashes: Vec<u64> = told.iter().copied().chain(derived).collect();
            self.cache.extend(&mut lease, &hashes);
        }
        self.cache.release(lease);
    }

    /// Reports what streaming sequences generated since their last report.
    fn report_tokens(&mut self) {
        let step = self.rate() * 1e-9;
        while let Some(id) = self.decoder.pop_report(step) {
            let slot = &mut self.slots[id.slot()];
            let Some((request, Phase::Decode { since, reported, .. })) = slot.live.as_mut().filter(|_| slot.id == id)
            else {
                continue;
            };
            // Its mark was reached, so there is one more at least: the clock is a float, and may round the other way here.
            let total = self.decoder.tokens_since(*since, step).max(*reported + 1).min(request.output_tokens - 1);
            let n = total.saturating_sub(*reported);
            *reported = total;
            if total < request.output_tokens - 1 {
                self.decoder.report_again(id, *since + f64::from(total) + 1.0);
            }
            if n > 0 {
                self.emit(id, What::Tokens { n });
            }
        }
        self.prune();
    }
}

/// Seconds to compute `tokens` of a prompt of which `before` are there.
fn chunk_seconds(options: &Options, before: u32, tokens: u32) -> f64 {
    let (from, tokens) = (f64::from(before), f64::from(tokens));
    let to = from + tokens;
    tokens / options.prefill_tps + options.prefill_pair * (to * to - from * from)
}
