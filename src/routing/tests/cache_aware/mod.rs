//! `cache_aware`: a closed loop of clients on the pure core, and what each rule promises.
mod balance;
mod books;
mod quality;
mod rules;
mod switch;
mod trust;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};

use super::*;
use crate::config::{CacheAware, LoadUnit, Stay};
use crate::prefix::BLOCK_TOKENS;

/// Blocks of a prompt made of parts: (name, tokens). Equal names at equal places are equal text.
pub(super) fn prompt(parts: &[(u64, u32)]) -> Arc<Prompt> {
    let mut chain = crate::prefix::Chain::new(7);
    for &(name, tokens) in parts {
        let mut rng = fastrand::Rng::with_seed(name);
        chain.push(&(0..tokens).map(|_| rng.u32(..)).collect::<Vec<_>>());
    }
    let tokens = chain.tokens() as u32;
    Arc::new(Prompt { blocks: chain.finish(), tokens, answer: None })
}

pub(super) fn of_prompt(prompt: &Arc<Prompt>) -> Request<'_> {
    Request { prompt: Some(prompt), sequences: 1, streams: true, ..Request::default() }
}

fn cache_aware() -> CacheAware {
    CacheAware::default()
}

fn router_of(settings: CacheAware, members: &[Member], seed: u64) -> Router {
    let policy = Policy::CacheAware(settings);
    Router::new(&with_index(&policy, &Session::default()), members.to_vec(), seed)
}

pub(super) fn with_index<'a>(policy: &'a Policy, session: &'a Session) -> Settings<'a> {
    Settings { index_bytes: Some(1 << 30), ..super::settings(policy, session) }
}

/// A whole request: decided, answered, ended.
pub(super) fn serve(router: &mut Router, request: &Request<'_>, now: Tick) -> (Arc<str>, Reason, u32) {
    let mut plan = router.decide(request, now).expect("a replica is ready");
    if let Some(effect) = &plan.on_success {
        router.apply(effect, now);
    }
    if let Some(mut expectation) = plan.expectation.take() {
        router.confirm(&mut expectation, now);
        router.finish(expectation, now);
    }
    (plan.leg.replica, plan.reason, plan.matched)
}

/// A prompt of so many tokens that shares nothing with others.
pub(super) fn own(name: u64, tokens: u32) -> Arc<Prompt> {
    prompt(&[(name, tokens)])
}

/// Puts prompts into the index as served by a replica.
pub(super) fn warm(router: &mut Router, replica: &str, prompts: &[&Arc<Prompt>]) {
    for prompt in prompts {
        let request = Request { pinned: Some(replica), ..of_prompt(prompt) };
        assert_eq!(serve(router, &request, Tick(0)).1, Reason::Stored);
    }
}

pub(super) fn open(member: &Member, requests: u32) -> Vec<Reservation> {
    (0..requests).map(|_| member.load.reserve(1, None).expect("no limit")).collect()
}

pub(super) fn with_session<'a>(session: u128, prompt: &'a Arc<Prompt>) -> Request<'a> {
    Request { session: Some(SessionKey(session)), ..of_prompt(prompt) }
}

/// A session's prompts, in order.
pub(super) type Turns = VecDeque<Arc<Prompt>>;

/// A session: a head, then turns of its own.
pub(super) fn session(head: (u64, u32), name: u64, turns: u32, tokens: u32) -> Turns {
    let parts = |turn: u32| {
        let own = (0..=turn).map(|at| (1_000_000 + name * 1_000 + u64::from(at), tokens));
        std::iter::once(head).chain(own).collect::<Vec<_>>()
    };
    (0..turns).map(|turn| prompt(&parts(turn))).collect()
}

/// What a closed loop came to.
#[derive(Debug, Default)]
struct Outcome {
    /// Requests of each replica.
    requests: Vec<u32>,
    /// Blocks sent, and those of them that the replica had been sent before.
    blocks: usize,
    hits: usize,
}

impl Outcome {
    fn hit(&self) -> f64 {
        self.hits as f64 / self.blocks as f64
    }

    fn busiest(&self) -> f64 {
        let (most, all) = (self.requests.iter().max().unwrap(), self.requests.iter().sum::<u32>());
        f64::from(*most) * self.requests.len() as f64 / f64::from(all)
    }
}

/// How clients choose what they send next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    /// Each takes a session and plays it to its end.
    BySession,
    /// Each takes the next turn of whichever session has waited longest.
    ByTurn,
}

/// `clients` concurrent clients play all sessions; a request takes its uncached prefill and some decoding.
fn play(router: &mut Router, members: &[Member], sessions: Vec<Turns>, clients: usize, order: Order) -> Outcome {
    play_from(router, members, sessions, clients, order, Tick(0))
}

/// The same, from a time on.
fn play_from(
    router: &mut Router,
    members: &[Member],
    sessions: Vec<Turns>,
    clients: usize,
    order: Order,
    mut now: Tick,
) -> Outcome {
    let mut outcome = Outcome { requests: vec![0; members.len()], ..Outcome::default() };
    let mut caches: Vec<HashSet<u64>> = vec![HashSet::new(); members.len()];
    let mut rng = fastrand::Rng::with_seed(1);
    let mut waiting: VecDeque<Turns> = sessions.into();
    let mut events = BinaryHeap::new();
    let mut open: HashMap<usize, (Plan, Turns)> = HashMap::new();
    let mut sent = 0;
    loop {
        while open.len() < clients {
            let Some(mut turns) = waiting.pop_front() else { break };
            let prompt = turns.pop_front().expect("a turn");
            let plan = router.decide(&of_prompt(&prompt), now).expect("a replica is ready");
            let at = members.iter().position(|member| member.id == plan.leg.replica).expect("a member");
            outcome.requests[at] += 1;
            outcome.blocks += prompt.blocks.len();
            let cold = prompt.blocks.iter().filter(|&&block| caches[at].insert(block)).count();
            outcome.hits += prompt.blocks.len() - cold;
            let prefill = 5_000 + 50 * (cold * BLOCK_TOKENS) as u64;
            events.push(Reverse((now.0 + prefill, sent, false)));
            events.push(Reverse((now.0 + prefill + rng.u64(200_000..600_000), sent, true)));
            open.insert(sent, (plan, turns));
            sent += 1;
        }
        let Some(Reverse((at, which, ends))) = events.pop() else { return outcome };
        now = Tick(at);
        if !ends {
            let expectation = open.get_mut(&which).and_then(|(plan, _)| plan.expectation.as_mut());
            router.confirm(expectation.expect("an index"), now);
        } else if let Some((mut plan, turns)) = open.remove(&which) {
            router.finish(plan.expectation.take().expect("an index"), now);
            match order {
                _ if turns.is_empty() => {}
                Order::BySession => waiting.push_front(turns),
                Order::ByTurn => waiting.push_back(turns),
            }
        }
    }
}
