//! What would become of a request: the way of a real one as far as the decision, and nothing comes of it. No replica is
//! asked, nothing is booked or bound, and no metric counts.
use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::Serialize;

use super::Proxy;
use super::admit::admit;
use super::problem::Problem;
use crate::api::{self, Cause, Phase, Route};
use crate::fleet::{Pool, Replica};
use crate::routing::{Refusal, Score};

/// A decision and what it was made by.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The pool's name.
    pub pool: String,
    /// The model as the engine knows it.
    pub model: Option<String>,
    /// The LoRA adapter among that.
    pub adapter: Option<String>,
    /// The path it would be sent to.
    pub endpoint: &'static str,
    /// What the blocks of its prompt are made of, `tokens` or `text`, or `none` where there are none; nothing where the
    /// pool has no use for prompts.
    pub basis: Option<&'static str>,
    /// Why that is less than the pool could have.
    pub fallback: Option<&'static str>,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Whole blocks of it.
    pub blocks: usize,
    /// Where its session's key comes from, if it has one.
    pub session: Option<&'static str>,
    /// What would be decided.
    pub decision: Decision,
    /// Each replica of the pool, as the decision would see it.
    pub candidates: Vec<Candidate>,
}

/// What would be decided.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Decision {
    /// It would go there.
    Taken {
        /// The replica's id.
        replica: String,
        /// Why.
        reason: &'static str,
        /// Leading tokens of the prompt that it holds, or is expected to.
        matched_tokens: u32,
    },
    /// No replica would take it.
    Refused {
        /// `none_ready` or `all_full`.
        refused: &'static str,
    },
}

/// One replica. What is not known, because nothing could be decided, is `None`.
#[derive(Debug, Serialize)]
pub struct Candidate {
    /// Its id.
    pub replica: String,
    /// Its state.
    pub state: &'static str,
    /// Its share relative to others.
    pub weight: u32,
    /// Open requests.
    pub in_flight: u32,
    /// Requests placed there lately.
    pub placements: Option<u32>,
    /// Seconds of prefill that wait there.
    pub queued_seconds: Option<f64>,
    /// Leading tokens of the prompt that it holds, or is expected to.
    pub matched_tokens: Option<u32>,
    /// Those of them that speak for it.
    pub counted_tokens: Option<u32>,
    /// What the policy takes for its load.
    pub load: Option<f64>,
    /// What the request would cost there, in seconds, under `least_cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_seconds: Option<f64>,
    /// Whether it would be taken.
    pub chosen: bool,
    /// Why it could not be: `full`, `draining`, `down`.
    pub note: Option<&'static str>,
}

impl Proxy {
    /// What would become of a request to `path` with these headers and this body.
    ///
    /// # Errors
    /// The problem that such a request would be answered with before a decision.
    pub async fn explain(&self, path: &str, headers: &HeaderMap, body: Bytes) -> Result<Explained, Problem> {
        let Route::Endpoint(endpoint) = api::find(&Method::POST, path) else {
            let message = "no POST with a prompt is served on this path; write ?path=/v1/chat/completions, or another";
            return Err(Problem::new(Cause::PathNotFound, Phase::Head, message));
        };
        let snapshot = self.snapshot();
        let mut admitted = admit(self, &snapshot, endpoint, headers, body.into()).await?;
        let unread = std::mem::take(&mut admitted.prompt);
        let known = self.bench.read(&admitted.pool, endpoint, unread).await;
        let prompt = known.as_ref().and_then(|known| known.prompt.clone());
        let request = admitted.request(endpoint, headers, prompt.as_ref());
        let pool = &admitted.pool;
        let plan = pool.preview(&request, self.clock());
        let (decision, scores) = match &plan {
            Ok(plan) => {
                let (replica, reason) = (plan.leg.replica.to_string(), plan.reason.as_str());
                (Decision::Taken { replica, reason, matched_tokens: plan.matched }, &*plan.scores)
            }
            Err(Refusal::NoneReady) => (Decision::Refused { refused: "none_ready" }, &[][..]),
            Err(Refusal::AllFull) => (Decision::Refused { refused: "all_full" }, &[][..]),
        };
        let chosen = plan.as_ref().ok().map(|plan| &*plan.leg.replica);
        let adapter = admitted.model.as_deref().filter(|name| pool.is_adapter(name)).map(String::from);
        // An alias is replaced, an adapter's name is not.
        let model = match (&adapter, pool.model()) {
            (None, Some(model)) => Some(model.to_string()),
            _ => admitted.model.as_deref().map(String::from),
        };
        Ok(Explained {
            pool: pool.name().to_string(),
            // As the engine will know it.
            model,
            adapter,
            endpoint: endpoint.path,
            basis: known.as_ref().map(|known| known.basis),
            fallback: known.as_ref().and_then(|known| known.fallback),
            tokens: prompt.as_ref().map_or(0, |prompt| prompt.tokens),
            blocks: prompt.as_ref().map_or(0, |prompt| prompt.blocks.len()),
            session: admitted.session.map(|(_, source)| source.as_str()),
            decision,
            candidates: candidates(pool, scores, chosen),
        })
    }
}

fn candidates(pool: &Pool, scores: &[Score], chosen: Option<&str>) -> Vec<Candidate> {
    let one = |replica: &std::sync::Arc<Replica>| {
        let score = scores.iter().find(|score| score.replica == *replica.id());
        let state = score.map_or_else(|| replica.state(), |score| score.state).as_str();
        let in_flight = score.map_or_else(|| replica.load().requests(), |score| score.in_flight);
        let full = replica.max_in_flight().is_some_and(|max| in_flight >= max);
        Candidate {
            replica: replica.id().to_string(),
            state,
            weight: replica.weight(),
            in_flight,
            placements: score.map(|score| score.placed),
            queued_seconds: score.map(|score| score.queued_seconds),
            matched_tokens: score.map(|score| score.matched),
            counted_tokens: score.map(|score| score.counted),
            load: score.map(|score| score.load),
            cost_seconds: score.and_then(|score| score.cost_seconds),
            chosen: chosen == Some(&**replica.id()),
            note: match state {
                "down" | "draining" => Some(state),
                _ if full => Some("full"),
                _ => score.filter(|score| score.saturated && !score.candidate).map(|_| "saturated"),
            },
        }
    };
    pool.replicas().iter().map(one).collect()
}
