//! The product's policies: the routing core that `serve` runs, given the same facts in virtual time.
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use xxhash_rust::xxh3::xxh3_64;

use super::{Booked, Chooser, Holdings, Placed};
use crate::api;
use crate::config::{Policy, Prefill, Session};
use crate::routing::{Member, Prompt, Refusal, Request, Router, SessionKey, Settings, State, Status, Tick};
use crate::sim::call::Call;
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
        let uses_prompts = policy.uses_prompts();
        let settings = Settings {
            policy,
            session: &Session::default(),
            index_bytes: uses_prompts.then_some(INDEX_BYTES),
            prefill: &Prefill::Learned,
        };
        Self { router: Router::new(&settings, members.collect(), seed), ids, uses_prompts }
    }
}

/// What the client of a session sends as `x-session-id`.
#[must_use]
pub fn session_name(session: u64) -> String {
    format!("session-{session}")
}

/// What a client sends in the header that `header_hash` looks at.
fn header_value(key: u64) -> String {
    format!("key-{key}")
}

/// The key that `serve` makes of it: sessions go where they would go there.
fn session_key(session: u64) -> Option<SessionKey> {
    let value = HeaderValue::try_from(session_name(session)).ok()?;
    let headers = HeaderMap::from_iter([(HeaderName::from_static("x-session-id"), value)]);
    Some(api::key_from_head(&Session::default(), 0, &headers)?.0)
}

fn tick(now: VirtualTime) -> Tick {
    Tick(now.0 / 1_000)
}

impl Chooser for Product {
    fn choose(&mut self, call: &Call, blocks: &[u64], _: &dyn Holdings, now: VirtualTime) -> Result<Placed, String> {
        let prompt = self.uses_prompts.then(|| {
            let count = call.prompt_blocks().min(blocks.len());
            Arc::new(Prompt { blocks: blocks[..count].to_vec(), tokens: call.prompt_tokens, answer: call.answer })
        });
        let request = Request {
            session: call.session.and_then(session_key),
            header: call.header.map(|header| xxh3_64(header_value(header).as_bytes())),
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
            reported: None,
            leg: Some(plan.leg),
            expectation: plan.expectation,
            booked: Booked::default(),
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
            if let Some(reported) = placed.reported {
                self.router.reported(&expectation, reported);
            }
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
