//! `lmetric`: new prefill tokens times batch size.
//!
//! Source: Zhang et al., "Simple is Better: Multiplication May Be All You Need for LLM Request Scheduling" (LMetric),
//! OSDI 2026, arXiv 2603.15202, and its authors' router (blitz-router, policy `lmetric-q`):
//!
//! ```text
//! score = (prompt tokens still to compute there + prompt tokens − cached tokens) · (requests in flight there + 1)
//! ```
//!
//! The lowest score wins; of equal ones the first in the fleet's order, as in the authors' router. There is nothing to
//! tune. Caches are known from the engines' events.
//!
//! Left out: the paper's detector of hot prefixes, which takes the replicas that hold one out of the choice once its share
//! of the requests exceeds its share of the replicas; the authors found no real trace that needs it, and their router's
//! policy is without it.
use super::books::Books;
use super::reason;
use crate::sim::call::Call;
use crate::sim::choose::{Chooser, Holdings, Placed};
use crate::sim::engine::VirtualTime;

#[derive(Debug)]
pub(super) struct Lmetric {
    books: Books,
}

impl Lmetric {
    pub fn new(replicas: usize) -> Self {
        Self { books: Books::new(replicas) }
    }

    #[cfg(test)]
    pub fn at_rest(&self) -> bool {
        self.books.at_rest()
    }
}

impl Chooser for Lmetric {
    fn choose(
        &mut self,
        call: &Call,
        blocks: &[u64],
        holdings: &dyn Holdings,
        _: VirtualTime,
    ) -> Result<Placed, String> {
        let scored = self.books.loads().enumerate().map(|(replica, load)| {
            let held = holdings.held(replica, call, blocks);
            let prefill = load.prefill_tokens + u64::from(call.prompt_tokens - held);
            (prefill * (load.requests + 1), replica, held)
        });
        let (_, replica, held) = scored.min_by_key(|(score, ..)| *score).ok_or("there is no replica")?;
        let mut placed = Placed { expected: Some(held), ..Placed::plain(replica, reason(held)) };
        self.books.open(&mut placed, call.prompt_tokens - held);
        Ok(placed)
    }

    fn reads_blocks(&self) -> bool {
        true
    }

    fn first_token(&mut self, placed: &mut Placed, _: VirtualTime) {
        self.books.first_token(placed);
    }

    fn finished(&mut self, mut placed: Placed, _: VirtualTime) {
        self.books.close(&mut placed);
    }

    fn refused(&mut self, mut placed: Placed, _: VirtualTime) {
        self.books.close(&mut placed);
    }
}
