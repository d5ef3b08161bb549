//! Things that are worth keeping from one use to the next, each used by one thread at a time.
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Threads that have a place of their own.
const PLACES: usize = 64;

/// There are as many as were ever used at once. A thread gets the one that it used last, whose memory its processor still
/// has at hand; if it has none, another's that is not in use.
#[derive(Debug)]
pub(super) struct Pool<T>(Box<[Mutex<Vec<Box<T>>>]>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self((0..PLACES).map(|_| Mutex::default()).collect())
    }
}

impl<T> Pool<T> {
    /// Calls `with` with a thing that was used before, or with one made by `new`.
    pub(super) fn with<R>(&self, new: impl FnOnce() -> T, with: impl FnOnce(&mut T) -> R) -> R {
        let own = place();
        let kept = self.0[own].lock().pop();
        let others = || (1..PLACES).find_map(|step| self.0[(own + step) % PLACES].try_lock()?.pop());
        let mut thing = kept.or_else(others).unwrap_or_else(|| Box::new(new()));
        // After a panic in here it is dropped: nobody knows its state.
        let result = with(&mut thing);
        self.0[own].lock().push(thing);
        result
    }
}

/// A thread's place.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PLACES;
    }
    PLACE.with(|place| *place)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn there_are_as_many_as_were_used_at_once() {
        let (pool, barrier) = (Pool::default(), Barrier::new(4));
        let made = AtomicUsize::new(0);
        let new = || made.fetch_add(1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2 {
                        pool.with(new, |_| barrier.wait());
                    }
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 4);
        std::thread::scope(|scope| scope.spawn(|| pool.with(new, |_| ())).join()).expect("it took another's");
        assert_eq!(made.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_thread_gets_its_own_again() {
        let (pool, made) = (Pool::default(), Cell::new(0));
        let new = || made.replace(made.get() + 1);
        let ids = [(); 3].map(|()| pool.with(new, |first| (*first, pool.with(new, |second| *second))));
        assert_eq!(ids, [(0, 1), (1, 0), (0, 1)].map(|_| ids[0]));
        assert_eq!(made.get(), 2);
    }
}
