//! One fleet after another: what stays is the same object, what left is let go, and old requests decide among the new.
use std::path::Path;

use super::*;
use crate::routing::{self, Request, SessionKey, State};

fn config(pools: &str) -> Config {
    let text = format!("listen: 127.0.0.1:1\npools:\n{pools}");
    config::parse(&text, "test", Path::new(""), &|_| None).unwrap_or_else(|errors| panic!("{errors}"))
}

fn found(pool: &str, urls: &[&str]) -> Found {
    let replica =
        |url: &&str| config(&format!("  - {{ model: x, replicas: [\"{url}\"] }}\n")).pools[0].replicas[0].clone();
    Found::from([(pool.into(), urls.iter().map(replica).collect())])
}

fn of_session(key: u128) -> Request<'static> {
    Request { session: Some(SessionKey(key)), sequences: 1, ..Request::default() }
}

const TWO: &str = "  - { model: m, policy: session_sticky, replicas: [\"http://a:1\", \"http://b:1\"] }\n";

#[test]
fn what_stays_is_the_same_with_its_new_settings() {
    let metrics = Metrics::new().unwrap();
    let one = Fleet::new(&config(TWO), &Encoders::default(), &metrics);
    let reservation = one.replicas()[0].load().reserve(1, None);
    one.replicas()[1].set_drained(true);
    let text = "  - model: m\n    health: { interval: 7s }\n    replicas:\n      - http://c:1\n      \
                - { url: \"http://b:1\", weight: 3, credential: k, max_in_flight: 9 }\n      - http://a:1\n";
    let two = one.next(&config(text), &Found::new(), &Encoders::default(), &metrics);
    let (a, b) = (two.replica("a:1").unwrap(), two.replica("b:1").unwrap());
    assert!(Arc::ptr_eq(a, &one.replicas()[0]) && Arc::ptr_eq(b, &one.replicas()[1]));
    assert_eq!(a.load().requests(), 1);
    assert_eq!((b.weight(), b.max_in_flight(), b.health().interval.as_secs()), (3, Some(9), 7));
    assert_eq!(b.authorization().unwrap(), "Bearer k");
    assert_eq!(b.state(), State::Draining, "a drain outlives a reload");
    assert_eq!(two.replica("c:1").unwrap().state(), State::Warming, "it joins others, and ramps up");
    assert_eq!(a.state(), State::Ready);
    drop(reservation);
    assert_eq!(a.load().requests(), 0);
}

#[test]
fn another_address_or_incarnation_is_another_life() {
    let metrics = Metrics::new().unwrap();
    let text = |url: &str, more: &str| format!("  - {{ model: m, replicas: [{{ id: r, url: \"{url}\"{more} }}] }}\n");
    let one = Fleet::new(&config(&text("http://a:1", "")), &Encoders::default(), &metrics);
    one.replicas()[0].set_drained(true);
    let two = one.next(&config(&text("http://a:2", "")), &Found::new(), &Encoders::default(), &metrics);
    let three =
        two.next(&config(&text("http://a:2", ", incarnation: 1")), &Found::new(), &Encoders::default(), &metrics);
    let lives: Vec<_> = [&one, &two, &three].map(|fleet| fleet.replicas()[0].life()).into();
    assert!(lives.is_sorted_by(|a, b| a < b), "{lives:?}");
    assert!(three.replicas()[0].drained(), "the operator drained the id");
    // Left for one list and back: nothing of the old engine is believed any more.
    let away = three.next(
        &config("  - { model: m, replicas: [\"http://z:1\"] }\n"),
        &Found::new(),
        &Encoders::default(),
        &metrics,
    );
    let back =
        away.next(&config(&text("http://a:2", ", incarnation: 1")), &Found::new(), &Encoders::default(), &metrics);
    assert!(back.replicas()[0].life() > lives[2] && !back.replicas()[0].drained());
}

#[test]
fn a_request_under_an_old_snapshot_decides_among_the_replicas_of_now() {
    let clock = Clock::start();
    let metrics = Metrics::new().unwrap();
    let one = Fleet::new(&config(TWO), &Encoders::default(), &metrics);
    let old = one.pools()[0].clone();
    let mut homes = Vec::new();
    for key in 0..20 {
        let Decided { plan, replica, .. } = old.decide(&of_session(key), clock).unwrap();
        old.apply(plan.on_success.as_ref().unwrap(), clock.now());
        homes.push(replica.id().clone());
    }
    let three = TWO.replace("\"http://b:1\"", "\"http://b:1\", \"http://c:1\"");
    let two = one.next(&config(&three), &Found::new(), &Encoders::default(), &metrics);
    for (key, home) in homes.iter().enumerate() {
        for pool in [&old, &two.pools()[0]] {
            let Decided { replica, .. } = pool.decide(&of_session(key as u128), clock).unwrap();
            assert_eq!(replica.id(), home, "bindings go on, for old requests and new ones");
        }
    }
    let last = two.next(
        &config(&TWO.replace("\"http://b:1\"", "\"http://c:1\"")),
        &Found::new(),
        &Encoders::default(),
        &metrics,
    );
    for key in 0..40 {
        let Decided { replica, .. } = old.decide(&of_session(key), clock).unwrap();
        assert!(Arc::ptr_eq(&replica, last.replica(replica.id()).unwrap()), "{} has left", replica.id());
    }
}

#[test]
fn what_is_found_joins_what_is_written_and_never_replaces_it() {
    let metrics = Metrics::new().unwrap();
    let text = "  - { model: m, replicas: [\"http://a:1\"], discover: { file: f } }\n  \
                - { model: n, replicas: [{ id: x, url: \"http://b:1\" }] }\n";
    let config = config(text);
    let ids = |fleet: &Fleet| fleet.pools()[0].replicas().iter().map(|r| r.id().to_string()).collect::<Vec<_>>();
    let one = Fleet::new(&config, &Encoders::default(), &metrics);
    assert_eq!(ids(&one), ["a:1"]);
    let two =
        one.next(&config, &found("m", &["http://c:1", "http://a:1", "http://b:1"]), &Encoders::default(), &metrics);
    assert_eq!(ids(&two), ["a:1", "c:1"]);
    assert_eq!(two.conflicts().len(), 1, "b:1 is x already: {:?}", two.conflicts());
    assert!(two.conflicts()[0].contains("replica x is at http://b:1"), "{:?}", two.conflicts());
    let mut heavier = found("m", &["http://a:1"]);
    heavier.values_mut().flatten().for_each(|replica| replica.weight = 5);
    let heavier = two.next(&config, &heavier, &Encoders::default(), &metrics);
    assert_eq!(heavier.replicas()[0].weight(), 1);
    assert!(heavier.conflicts()[0].contains("a:1 keeps the weight"), "{:?}", heavier.conflicts());
    let three = two.next(&config, &found("m", &[]), &Encoders::default(), &metrics);
    assert_eq!(ids(&three), ["a:1"]);
    // What another pool had found is nobody's here.
    assert_eq!(ids(&three.next(&config, &found("n", &["http://d:1"]), &Encoders::default(), &metrics)), ["a:1"]);
}

#[test]
fn a_drained_replica_stays_so_whatever_health_finds() {
    let metrics = Metrics::new().unwrap();
    let fleet = Fleet::new(&config(TWO), &Encoders::default(), &metrics);
    let replica = &fleet.replicas()[0];
    replica.set_drained(true);
    replica.probe_succeeded();
    assert_eq!(replica.state(), State::Draining);
    (0..3).for_each(|_| replica.probe_failed(&super::probe::Fault::Sick("test".into())));
    assert_eq!(replica.state(), State::Down, "what is down takes not even its own sessions");
    replica.probe_succeeded();
    assert_eq!(replica.state(), State::Draining);
    assert!(replica.set_drained(false));
    assert_ne!(replica.state(), State::Draining);
}

#[test]
fn d6_series_go_when_what_left_is_idle() {
    let metrics = Metrics::new().unwrap();
    let one = Fleet::new(&config(TWO), &Encoders::default(), &metrics);
    let b = one.replica("b:1").unwrap().clone();
    let open = b.load().reserve(1, None);
    let two = one.next(&config(&TWO.replace(", \"http://b:1\"", "")), &Found::new(), &Encoders::default(), &metrics);
    let mut leaving = Leaving::default();
    assert_eq!(leaving.follow(&one, &two), ["b:1".into()]);
    let has_b = |leaving: &mut Leaving| {
        // A request that ends late writes its series once more.
        metrics.request("m", "b:1", "bound", "ok").inc();
        leaving.settle(&two, &metrics);
        let text = metrics.render().unwrap();
        assert!(text.contains("replica=\"a:1\""));
        text.contains("replica=\"b:1\"")
    };
    assert!(has_b(&mut leaving), "a request is open there");
    drop(open);
    assert!(!has_b(&mut leaving));
    assert!(!has_b(&mut leaving), "and again, for as long as someone holds it");
    drop((one, b));
    assert!(!has_b(&mut leaving));

    // A pool that left takes its own along.
    let other = two.next(&config(&TWO.replace("model: m", "model: n")), &Found::new(), &Encoders::default(), &metrics);
    leaving.follow(&two, &other);
    drop(two);
    leaving.settle(&other, &metrics);
    let text = metrics.render().unwrap();
    assert!(!text.contains("pool=\"m\"") && text.contains("pool=\"n\""), "{text}");
}

#[tokio::test]
async fn who_left_is_probed_no_more_and_let_go() {
    let metrics = Metrics::new().unwrap();
    let one = Fleet::new(&config(TWO), &Encoders::default(), &metrics);
    one.start_probes(&Handle::current());
    let two = one.next(&config(&TWO.replace(", \"http://b:1\"", "")), &Found::new(), &Encoders::default(), &metrics);
    let b = Arc::downgrade(one.replica("b:1").unwrap());
    Leaving::default().follow(&one, &two);
    drop(one);
    while b.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    // Fleet, pool, its line, the core by order and by name; the sixth is the prober.
    assert_eq!(Arc::strong_count(&two.replicas()[0]), 6, "the one that stays is still probed");
    two.stop_probes();
}

/// Two pools that share their replicas, under many threads and reloads that take the index away and bring another:
/// whatever ends however, nothing is left booked, queued or pinned.
#[test]
fn nothing_is_left_of_requests_of_many_threads_and_reloads() {
    let (metrics, clock) = (Metrics::new().unwrap(), Clock::start());
    let text = |policy: &str, replicas: &str| {
        let pool = |model| format!("  - {{ model: {model}, policy: {policy}, replicas: [{replicas}] }}\n");
        config(&(pool("m") + &pool("n")))
    };
    let (ab, abc) = ("\"http://a:1\", \"http://b:1\"", "\"http://a:1\", \"http://b:1\", \"http://c:1\"");
    let aware = "{ type: cache_aware, min_match_tokens: 32 }";
    let configs = [text(aware, abc), text("round_robin", abc), text(aware, ab), text("least_load", ab)];
    let first = Fleet::new(&configs[0], &Encoders::default(), &metrics);
    let current = arc_swap::ArcSwap::from_pointee(first);
    let mut seen: Vec<Arc<Replica>> = current.load().replicas().to_vec();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|seed| {
                let (current, clock) = (&current, &clock);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut open = Vec::new();
                    for _ in 0..1_500 {
                        let pool = current.load().pools()[random.usize(..2)].clone();
                        // A head, one of three ways on, and a tail of its own.
                        let way = random.u64(1..4);
                        let blocks = (0..4).chain((0..4).map(|at| way * 100 + at)).chain([random.u64(1_000..)]);
                        let prompt = Arc::new(routing::Prompt { blocks: blocks.collect(), tokens: 150, answer: None });
                        let session = random.bool().then(|| SessionKey(random.u128(..20)));
                        let request =
                            Request { session, prompt: Some(&prompt), streams: random.bool(), ..of_session(0) };
                        open.push(pool.decide(&request, *clock).expect("a replica is ready"));
                        while open.len() > random.usize(..12) {
                            let mut decided = open.swap_remove(random.usize(..open.len()));
                            let Some(mut expected) = decided.expected.take() else { continue };
                            match random.u32(..4) {
                                0 => expected.withdraw(),
                                1 => drop(expected),
                                _ => expected.confirm(),
                            }
                        }
                    }
                })
            })
            .collect();
        let reloader = scope.spawn(|| {
            let mut next = 0;
            while !ended.load(std::sync::atomic::Ordering::Acquire) {
                next = (next + 1) % configs.len();
                let fleet = current.load().next(&configs[next], &Found::new(), &Encoders::default(), &metrics);
                seen.extend(fleet.replicas().iter().cloned());
                current.store(Arc::new(fleet));
                current.load().pools().iter().for_each(|pool| _ = pool.sweep());
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ended.store(true, std::sync::atomic::Ordering::Release);
        reloader.join().expect("reloads end");
        assert!(results.iter().all(Result::is_ok));
    });
    for replica in &seen {
        let load = replica.load();
        assert_eq!((load.requests(), load.sequences(), load.queued_seconds(clock.now())), (0, 0, 0.0));
    }
    let last = current.load().next(&configs[0], &Found::new(), &Encoders::default(), &metrics);
    for pool in last.pools() {
        let dump = pool.index_dump(usize::MAX).expect("an index");
        assert!(dump.runs.iter().flat_map(|run| &run.holders).all(|holder| holder.pins == 0 || holder.gone));
    }
}
