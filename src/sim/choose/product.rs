//! The product's policies: the routing core that `serve` runs, given the same facts in virtual time.
use std::sync::Arc;

use super::{Chooser, Holdings, Placed};
use crate::config::{Policy, Prefill, Session};
use crate::routing::{Member, Prompt, Refusal, Request, Router, SessionKey, Settings, State, Status, Tick};
use crate::sim::call::{Call, mix};
use crate::sim::engine::VirtualTime;

/// Bytes of the index: as much as any fleet here can fill.
const INDEX_BYTES: usize = 4 << 30;

pub(super) struct Product {
    router: Router,
    ids: Vec<Arc<str>>,
    uses_prompts: bool,
}

impl Product {
    pub fn new(policy: &Policy, replicas: usize, cache_tokens: u64, seed: u64) -> Self {
        let ids: Vec<Arc<str>> = (1..=replicas).map(|number| format!("replica-{number}").into()).collect();
        let members = ids.iter().map(|id| Member {
            id: id.clone(),
            weight: 1,
            max_in_flight: None,
            incarnation: 1,
            cache_tokens,
            load: Arc::default(),
            status: Arc::new(Status::new(State::Ready)),
        });
        let uses_prompts = matches!(policy, Policy::CacheAware(_));
        let settings = Settings {
            policy,
            session: &Session::default(),
            index_bytes: uses_prompts.then_some(INDEX_BYTES),
            prefill: &Prefill::Learned,
        };
        Self { router: Router::new(&settings, members.collect(), seed), ids, uses_prompts }
    }
}

fn tick(now: VirtualTime) -> Tick {
    Tick(now.0 / 1_000)
}

impl Chooser for Product {
    fn choose(&mut self, call: &Call, blocks: &[u64], _: &dyn Holdings, now: VirtualTime) -> Result<Placed, String> {
        let prompt = self.uses_prompts.then(|| {
            let count = call.prompt_blocks().min(blocks.len());
            Arc::new(Prompt { blocks: blocks[..count].to_vec(), tokens: call.prompt_tokens })
        });
        let request = Request {
            session: call.session.map(|session| SessionKey(mix(1, session).into())),
            header: call.header.map(|header| mix(2, header)),
            sequences: 1,
            streams: true,
            prompt: prompt.as_ref(),
            ..Request::default()
        };
        let plan = self.router.decide(&request, tick(now)).map_err(|refusal| match refusal {
            Refusal::NoneReady => "no replica is ready".to_owned(),
            Refusal::AllFull => "all replicas are full".to_owned(),
        })?;
        // An attempt in here succeeds.
        if let Some(effect) = &plan.on_success {
            self.router.apply(effect, tick(now));
        }
        let replica = self.ids.iter().position(|id| *id == plan.leg.replica);
        Ok(Placed {
            replica: replica.ok_or_else(|| format!("{} is no replica of this fleet", plan.leg.replica))?,
            reason: plan.reason,
            expected: plan.expectation.is_some().then_some(plan.matched),
            leg: Some(plan.leg),
            expectation: plan.expectation,
        })
    }

    fn reads_blocks(&self) -> bool {
        self.uses_prompts
    }

    fn first_token(&mut self, placed: &mut Placed, now: VirtualTime) {
        if let Some(expectation) = &mut placed.expectation {
            self.router.confirm(expectation, tick(now));
        }
    }

    fn finished(&mut self, placed: Placed, now: VirtualTime) {
        drop(placed.leg);
        if let Some(expectation) = placed.expectation {
            self.router.finish(expectation, tick(now));
        }
    }

    fn refused(&mut self, placed: Placed, now: VirtualTime) {
        drop(placed.leg);
        if let Some(expectation) = placed.expectation {
            self.router.withdraw(expectation, tick(now));
        }
    }
}
