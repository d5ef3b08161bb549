//! A request's place on a replica: its reservation, and the word to those who wait when it is given back.
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::Replica;
use super::queue::Queue;
use crate::routing::Reservation;

/// A reservation whose end calls the next who waits. Given back once, by drop.
#[derive(Debug)]
pub struct Place {
    reservation: Option<Reservation>,
    replica: Arc<Replica>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // In this order: who is called must find the place free.
        self.reservation = None;
        self.replica.call_waiters();
    }
}

/// The lines in which requests wait for a replica, one a pool.
#[derive(Debug, Default)]
pub(super) struct Queues(RwLock<Vec<Weak<Queue>>>);

impl Replica {
    /// Keeps a reservation here, so that its end is told to those who wait.
    pub fn hold(self: &Arc<Self>, reservation: Reservation) -> Place {
        Place { reservation: Some(reservation), replica: self.clone() }
    }

    /// From now on, tells this line of places that come free.
    pub(super) fn tell(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues.0.write();
        queues.retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(queue)));
        queues.push(Arc::downgrade(queue));
    }

    /// It has begun another life: the cores of its pools will ask for it.
    pub(super) fn outdate_pools(&self) {
        self.queues.0.read().iter().filter_map(Weak::upgrade).for_each(|queue| queue.outdate());
    }

    /// Something came free here, or it came back.
    pub(super) fn call_waiters(&self) {
        for queue in self.queues.0.read().iter().filter_map(Weak::upgrade) {
            queue.call();
        }
    }
}
