//! The bindings table against a naive one.
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::routing::bindings::Bindings;

const TTL: u64 = 50;
const MAX: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    Touch(u8),
    Write(u8, u64),
    Sweep,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..8_u8).prop_map(Step::Touch),
        4 => (0..8_u8, 0..3_u64).prop_map(|(key, incarnation)| Step::Write(key, incarnation)),
        2 => Just(Step::Sweep),
        2 => (0..TTL).prop_map(Step::Wait),
    ]
}

/// A list in order of use, oldest first: (key, incarnation, used).
#[derive(Default)]
struct Naive(Vec<(u8, u64, u64)>);

impl Naive {
    fn take(&mut self, key: u8) -> Option<(u8, u64, u64)> {
        let at = self.0.iter().position(|entry| entry.0 == key)?;
        Some(self.0.remove(at))
    }

    fn touch(&mut self, key: u8, now: u64) -> Option<u64> {
        let (_, incarnation, used) = self.take(key)?;
        (now - used < TTL).then(|| {
            self.0.push((key, incarnation, now));
            incarnation
        })
    }

    fn write(&mut self, key: u8, incarnation: u64, now: u64) {
        self.take(key);
        self.0.push((key, incarnation, now));
        if self.0.len() > MAX {
            self.0.remove(0);
        }
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn bindings_equal_a_naive_table(steps in prop::collection::vec(step(), 1..100)) {
        let mut table = Bindings::new(Duration::from_micros(TTL), MAX);
        let mut naive = Naive::default();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Touch(key) => {
                    let found = table.touch(SessionKey(key.into()), Tick(now), |binding| binding.incarnation);
                    assert_eq!(found, naive.touch(key, now));
                }
                Step::Write(key, incarnation) => {
                    table.write(SessionKey(key.into()), "replica".into(), incarnation, None, Tick(now));
                    naive.write(key, incarnation, now);
                }
                Step::Sweep => {
                    table.sweep(Tick(now));
                    for _ in 0..2 {
                        if naive.0.first().is_some_and(|&(_, _, used)| now - used >= TTL) {
                            naive.0.remove(0);
                        }
                    }
                }
                Step::Wait(micros) => now += micros,
            }
            assert_eq!(table.len(), naive.0.len());
        }
    }
}

#[test]
fn no_bindings_are_kept_when_none_are_allowed() {
    let mut table = Bindings::new(Duration::from_secs(1), 0);
    table.write(SessionKey(1), "replica".into(), 1, None, Tick(0));
    assert_eq!(table.len(), 0);
}

#[test]
fn a_clock_that_steps_back_a_little_ends_no_binding() {
    let mut table = Bindings::new(Duration::from_micros(TTL), MAX);
    table.write(SessionKey(1), "replica".into(), 1, None, Tick(100));
    assert!(table.touch(SessionKey(1), Tick(90), |_| ()).is_some());
    assert!(table.touch(SessionKey(1), Tick(149), |_| ()).is_some(), "nor did the step back make it older");
}

#[test]
fn expired_bindings_are_swept_though_nobody_asks_for_them() {
    let members = fleet(&[1, 1]);
    let mut router = router(sticky(), &members);
    for key in 0..10 {
        succeed(&mut router, &of_session(key), Tick(0));
    }
    assert_eq!(router.bindings(), 10);
    let late = Tick(31 * 60 * SECOND);
    for _ in 0..5 {
        succeed(&mut router, &of_session(99), late);
    }
    assert_eq!(router.bindings(), 1);
}
