//! Replays side by side: the same again, within their floors, and what does not go together is said.
use super::*;

fn setup(workload: Generated, rules: &[&str], cache: CacheModel) -> Setup {
    Setup {
        workload: Workload::Generated(workload),
        rules: rules.iter().map(|name| Rule::named(name).expect("a rule")).collect(),
        replicas: vec![2, 4],
        cache_tokens: 100_000,
        believed_cache: 1.0,
        cache,
        prefill: PrefillModel::QWEN3_8B_H100,
        decode_tps: f64::INFINITY,
        noise: 0.0,
        reports: false,
        arrivals: Arrivals::Closed(1),
        speed: 1.0,
        seed: 1,
        seeds: 2,
        requests: 600,
        floors: true,
    }
}

fn run(setup: &Setup) -> Vec<Row> {
    setup.run(&|_| {}).expect("replicas are there")
}

const RULES: &[&str] = &["round_robin", "power_of_two", "session_sticky", "study_cache_aware"];

#[test]
fn the_same_seed_gives_the_same_and_another_something_else() {
    for arrivals in [Arrivals::Closed(1), Arrivals::Closed(8), Arrivals::Poisson(20.0)] {
        let setup = Setup { arrivals, ..setup(Generated::Chat, RULES, CacheModel::Blocks) };
        let first = run(&setup);
        assert_eq!(first.len(), 2 * RULES.len());
        assert_eq!(first, run(&setup));
        assert_ne!(first, run(&Setup { seed: 7, ..setup }));
    }
}

#[test]
fn no_policy_is_better_than_the_floors() {
    for workload in [Generated::Chat, Generated::Documents] {
        for row in run(&setup(workload, RULES, CacheModel::Blocks)) {
            let Floors { infinite, pooled_belady, .. } = row.floors;
            assert!(infinite <= pooled_belady && pooled_belady <= row.outcome.recompute + 1e-9, "{row:?}");
        }
    }
}

#[test]
fn one_replica_one_call_at_a_time_is_the_pooled_lru() {
    for workload in [Generated::Chat, Generated::Documents] {
        let setup = Setup { replicas: vec![1], ..setup(workload, &["round_robin"], CacheModel::Blocks) };
        for row in run(&setup) {
            assert!((row.outcome.recompute - row.floors.pooled_lru).abs() < 0.002, "{row:?}");
        }
    }
}

#[test]
fn a_queue_shows_in_the_first_tokens_and_not_in_the_cost() {
    let calm = setup(Generated::Documents, &["round_robin"], CacheModel::Blocks);
    let busy = Setup { arrivals: Arrivals::Poisson(50.0), ..calm.clone() };
    for (calm, busy) in run(&calm).into_iter().zip(run(&busy)) {
        assert!((calm.outcome.ttft_mean - calm.outcome.prefill_mean).abs() < 1e-6, "nobody waits: {calm:?}");
        assert!(busy.outcome.ttft_mean > 3.0 * busy.outcome.prefill_mean, "{busy:?}");
        assert!((busy.outcome.recompute - calm.outcome.recompute).abs() < 0.05);
    }
}

#[test]
fn noise_scatters_times_and_is_the_same_for_all() {
    let calm = Setup { replicas: vec![1], ..setup(Generated::Documents, RULES, CacheModel::Blocks) };
    let noisy = run(&Setup { noise: 0.5, ..calm.clone() });
    for (calm, noisy) in run(&calm).iter().zip(&noisy) {
        let (calm, noisy) = (&calm.outcome, &noisy.outcome);
        assert_eq!(calm.recompute, noisy.recompute, "one after the other on one replica: nothing else can change");
        assert!((noisy.prefill_mean / calm.prefill_mean - 1.0).abs() < 0.1, "{noisy:?} {calm:?}");
        assert!((noisy.ttft_mean - noisy.prefill_mean).abs() < 1e-6, "what is counted is the time taken: {noisy:?}");
        assert!(noisy.ttft_p99 > 1.5 * calm.ttft_p99, "{noisy:?} {calm:?}");
    }
    // Whoever chooses among one has no choice.
    assert!(noisy.iter().all(|row| row.outcome.ttft_p99 == noisy[0].outcome.ttft_p99));
}

#[test]
fn who_takes_caches_to_be_larger_expects_more_than_is_there() {
    let replicas = vec![2];
    let right = Setup { replicas, seeds: 1, ..setup(Generated::Documents, &["cache_aware"], CacheModel::Blocks) };
    let [small, right, large] = [0.5, 1.0, 2.0]
        .map(|believed_cache| run(&Setup { believed_cache, ..right.clone() }).remove(0).outcome.overpredicted);
    assert!(small < right - 0.01 && right + 0.05 < large, "{small} {right} {large}");
}

#[test]
fn what_is_longer_than_a_cache_is_counted_and_left_out() {
    let setup = Setup { cache_tokens: 10_000, ..setup(Generated::Documents, &["round_robin"], CacheModel::Blocks) };
    for row in run(&setup) {
        assert_eq!((row.outcome.requests, row.outcome.refused), (0, 1_200));
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_a_way_out() {
    let chat = || setup(Generated::Chat, RULES, CacheModel::Study);
    for (setup, needed) in [
        (Setup { arrivals: Arrivals::Poisson(1.0), ..chat() }, "--cache-model blocks"),
        (Setup { arrivals: Arrivals::Trace, cache: CacheModel::Blocks, ..chat() }, "poisson:RATE"),
        (Setup { speed: 2.0, ..chat() }, "--arrivals poisson:RATE"),
        (Setup { noise: 0.5, ..chat() }, "--cache-model blocks"),
        (Setup { decode_tps: 2_500.0, ..chat() }, "--cache-model blocks"),
        (Setup { believed_cache: 1e-6, ..chat() }, "--believed-cache"),
    ] {
        let error = setup.run(&|_| {}).expect_err("does not go together");
        assert!(error.contains(needed), "{error}");
    }
}

#[test]
fn jobs_come_back_in_order() {
    assert_eq!(side_by_side(100, |job| job * 2), (0..100).map(|job| job * 2).collect::<Vec<_>>());
    assert!(side_by_side(0, |job| job).is_empty());
}
