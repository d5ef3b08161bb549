//! Where requests wait for a place on a replica: first in, first out, without a clock or a poll.
//!
//! - A place that comes free calls exactly one waiter of each queue that the replica belongs to: the first that isn't
//!   called yet. The waiter decides anew; one who finds no place after all keeps its position and passes the call on to
//!   those behind it, so that nobody who can't use a place keeps others from it.
//! - While anyone waits, newcomers wait behind them.
//! - A [`Ticket`] that is dropped (served, timed out, or its client left) leaves the line at once, and hands on the call
//!   that it may hold.
//!
//! No call is lost: who joins looks for a place after it stands in the line, and a place is given back before the line
//! is looked at.
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Replica;
use super::panic::{self, Down};
use crate::routing::State;

/// One pool's line.
#[derive(Debug, Default)]
pub(super) struct Queue {
    line: Mutex<Line>,
    members: ArcSwap<Members>,
    /// A member has begun another life since the core was told of its members.
    stale: AtomicBool,
}

/// Whose places are waited for.
#[derive(Debug, Default)]
pub(super) struct Members {
    replicas: Vec<Arc<Replica>>,
    /// The share of them that may be left out.
    max_ejected: f64,
}

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Waiter>,
    next: u64,
    /// A call found everyone called already: one of them must look again if it is refused.
    missed: bool,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    called: bool,
    call: Arc<Notify>,
}

/// A place in the line, given up by drop.
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<Queue>,
    id: u64,
    call: Arc<Notify>,
}

impl Line {
    /// Calls the first that isn't called, from a position on.
    fn call_from(&mut self, start: usize) -> bool {
        let next = self.waiting.iter_mut().skip(start).find(|waiter| !waiter.called);
        match next {
            Some(waiter) => {
                waiter.called = true;
                waiter.call.notify_one();
                true
            }
            None => false,
        }
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&id, |waiter| waiter.id).ok()
    }
}

impl Members {
    /// Replicas that count as up although they are down, and whether that is panic.
    pub fn readmitted(&self) -> (Vec<Arc<str>>, bool) {
        let down: Vec<(Arc<str>, Down)> = self
            .replicas
            .iter()
            .filter_map(|replica| replica.why_down().map(|why| (replica.id().clone(), why)))
            .collect();
        if down.is_empty() {
            return (Vec::new(), false);
        }
        let total = self.replicas.iter().filter(|replica| replica.state() != State::Draining).count();
        panic::readmitted(total, down, self.max_ejected)
    }

    /// Whether any member that requests may go to has a place. A draining one has for those whose state it holds.
    fn room(&self) -> bool {
        let free = |replica: &&Arc<Replica>| replica.max_in_flight().is_none_or(|max| replica.load().requests() < max);
        let mut free = self.replicas.iter().filter(free).peekable();
        if free.peek().is_none() {
            return false;
        }
        let (readmitted, _) = self.readmitted();
        free.any(|replica| replica.state() != State::Down || readmitted.contains(replica.id()))
    }
}

impl Queue {
    /// Names the replicas whose places are waited for, and the share of them that may be left out.
    pub fn set_members(self: &Arc<Self>, replicas: &[Arc<Replica>], max_ejected: f64) {
        for replica in replicas {
            replica.tell(self);
        }
        self.members.store(Arc::new(Members { replicas: replicas.to_vec(), max_ejected }));
        self.call();
    }

    /// A member has begun another life: the core must be told before it decides again.
    pub fn outdate(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Whether the core must be told; it is taken to be.
    pub fn take_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed) && self.stale.swap(false, Ordering::AcqRel)
    }

    /// The replicas of now.
    pub fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// Takes a place at the end of the line, unless `max` wait already. Wait for its call, then decide.
    pub fn join(self: &Arc<Self>, max: usize) -> Option<Ticket> {
        let mut line = self.line.lock();
        if line.waiting.len() >= max {
            return None;
        }
        let (id, call) = (line.next, Arc::<Notify>::default());
        line.next += 1;
        line.waiting.push_back(Waiter { id, called: false, call: call.clone() });
        drop(line);
        // The place it was refused may have come free before it stood here.
        self.offer();
        Some(Ticket { queue: self.clone(), id, call })
    }

    /// Calls the first if there is a place. Whether there is one is asked without the line's lock: who is told that a
    /// replica's condition has changed takes it under the lock of that condition.
    fn offer(&self) {
        if self.members.load().room() {
            self.line.lock().call_from(0);
        }
    }

    /// Something may have changed for the better: calls one waiter.
    pub fn call(&self) {
        let mut line = self.line.lock();
        if !line.waiting.is_empty() && !line.call_from(0) {
            line.missed = true;
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.line.lock().waiting.len()
    }
}

impl Ticket {
    /// Returns when it is this one's turn to decide.
    pub async fn called(&self) {
        self.call.notified().await;
    }

    /// The decision was a refusal: it goes on waiting, and others may look.
    pub fn refused(&self) {
        let mut line = self.queue.line.lock();
        let Some(at) = line.position(self.id) else { return };
        if std::mem::take(&mut line.missed) {
            self.call.notify_one();
            return;
        }
        line.waiting[at].called = false;
        drop(line);
        if self.queue.members.load().room() {
            let mut line = self.queue.line.lock();
            if let Some(at) = line.position(self.id) {
                line.call_from(at + 1);
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut line = self.queue.line.lock();
        if let Some(at) = line.position(self.id) {
            line.waiting.remove(at);
        }
        drop(line);
        self.queue.offer();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config;
    use crate::routing::Reservation;
    use crate::telemetry::Metrics;

    fn replica(max: u32) -> Arc<Replica> {
        let config = config::Config::from_args(&config::ServeArgs {
            listen: vec!["127.0.0.1:1".into()],
            model: None,
            replicas: vec!["http://a:1".into()],
            policy: None,
            tokenizer: None,
            admin: None,
        })
        .unwrap();
        let settings = config::Replica { max_in_flight: Some(max), ..config.pools[0].replicas[0].clone() };
        let metrics = Metrics::new().unwrap();
        Arc::new(Replica::new(
            &settings,
            &config.pools[0],
            &config.timeouts,
            &metrics,
            crate::fleet::replica::Arrival::default(),
        ))
    }

    fn reserve(replica: &Arc<Replica>) -> Option<Reservation> {
        replica.load().reserve(1, replica.max_in_flight())
    }

    fn is_called(ticket: &Ticket) -> bool {
        let line = ticket.queue.line.lock();
        line.position(ticket.id).is_some_and(|at| line.waiting[at].called)
    }

    fn line(replica: &Arc<Replica>) -> Arc<Queue> {
        let queue = Arc::<Queue>::default();
        queue.set_members(std::slice::from_ref(replica), 0.5);
        queue
    }

    #[tokio::test]
    async fn a_free_place_calls_the_first_and_nobody_else() {
        let replica = replica(1);
        let queue = line(&replica);
        let place = replica.hold(reserve(&replica).unwrap());
        let tickets: Vec<_> = (0..3).map(|_| queue.join(10).unwrap()).collect();
        assert!(!tickets.iter().any(is_called));
        drop(place);
        assert_eq!(tickets.iter().map(is_called).collect::<Vec<_>>(), [true, false, false]);
        tickets[0].called().await;
        assert_eq!(queue.len(), 3);
    }

    #[tokio::test]
    async fn who_joins_when_a_place_is_free_is_called_at_once() {
        let replica = replica(1);
        let queue = line(&replica);
        queue.join(1).unwrap().called().await;
    }

    #[test]
    fn a_called_one_that_leaves_hands_its_call_on() {
        let replica = replica(1);
        let queue = line(&replica);
        let place = replica.hold(reserve(&replica).unwrap());
        let (first, second) = (queue.join(10).unwrap(), queue.join(10).unwrap());
        drop(place);
        assert!(is_called(&first) && !is_called(&second));
        drop(first);
        assert!(is_called(&second));
        assert_eq!(queue.len(), 1);
        drop(second);
        assert_eq!(queue.len(), 0, "who leaves is forgotten");
    }

    #[test]
    fn one_that_cannot_use_a_place_does_not_keep_others_from_it() {
        let replica = replica(1);
        let queue = line(&replica);
        let place = replica.hold(reserve(&replica).unwrap());
        let (first, second) = (queue.join(10).unwrap(), queue.join(10).unwrap());
        drop(place);
        first.refused();
        assert!(!is_called(&first) && is_called(&second));
    }

    /// Those whose state it holds still go to it.
    #[test]
    fn a_place_on_a_draining_replica_is_offered_to_all_in_turn() {
        let replica = replica(1);
        let queue = line(&replica);
        let place = replica.hold(reserve(&replica).unwrap());
        replica.set_drained(true);
        let (first, second) = (queue.join(10).unwrap(), queue.join(10).unwrap());
        drop(place);
        first.refused();
        assert!(!is_called(&first) && is_called(&second));
    }

    #[tokio::test]
    async fn a_call_that_finds_all_called_is_not_lost() {
        let replica = replica(1);
        let queue = line(&replica);
        let place = replica.hold(reserve(&replica).unwrap());
        let only = queue.join(10).unwrap();
        drop(place);
        only.called().await;
        // Another pool took the place, and gave it back before the refusal was told.
        drop(replica.hold(reserve(&replica).unwrap()));
        only.refused();
        assert!(is_called(&only));
        only.called().await;
    }

    #[test]
    fn a_full_line_takes_nobody() {
        let replica = replica(1);
        let queue = line(&replica);
        let _place = reserve(&replica).unwrap();
        let _ticket = queue.join(1).unwrap();
        assert!(queue.join(1).is_none());
    }

    /// Many waiters, few places, some leaving: everyone who stays is served, in order, and nothing is left over.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_crowd_is_served_to_the_last() {
        let replica = replica(3);
        let queue = line(&replica);
        let mut crowd = tokio::task::JoinSet::new();
        for n in 0..2_000_u64 {
            let (replica, queue) = (replica.clone(), queue.clone());
            crowd.spawn(async move {
                let mut ticket = None::<Ticket>;
                loop {
                    let waits = ticket.is_none() && queue.len() > 0;
                    if let Some(reservation) = if waits { None } else { reserve(&replica) } {
                        drop(ticket);
                        let place = replica.hold(reservation);
                        tokio::task::yield_now().await;
                        drop(place);
                        return true;
                    }
                    match &ticket {
                        Some(ticket) => ticket.refused(),
                        None => ticket = queue.join(usize::MAX),
                    }
                    let called = ticket.as_ref().unwrap().called();
                    if n % 7 == 0 {
                        if tokio::time::timeout(Duration::from_micros(n), called).await.is_err() {
                            return false;
                        }
                    } else {
                        called.await;
                    }
                }
            });
        }
        let all = async {
            while let Some(end) = crowd.join_next().await {
                end.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("nobody is forgotten");
        assert_eq!((queue.len(), replica.load().requests()), (0, 0));
    }
}
