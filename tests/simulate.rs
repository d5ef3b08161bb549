//! `warmroute simulate` as someone runs it: what comes out, and what is said of arguments that make no sense.
use std::process::{Command, Output};

use serde_json::Value;

fn simulate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmroute")).arg("simulate").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn rows(args: &[&str]) -> Vec<Value> {
    let out = simulate(&[args, &["--format", "json"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn json_has_a_row_for_each_policy_on_each_number_of_replicas() {
    let args =
        ["--workload", "chat", "--policy", "round_robin,session_sticky", "--replicas", "1,4", "--requests", "800"];
    let rows = rows(&args);
    let named: Vec<_> =
        rows.iter().map(|row| (row["policy"].as_str().unwrap(), row["replicas"].as_u64().unwrap())).collect();
    let expected = [("round_robin", 1), ("session_sticky", 1), ("round_robin", 4), ("session_sticky", 4)];
    assert_eq!(named, expected);
    for row in &rows {
        assert_eq!((&row["workload"], &row["requests"]), (&"chat".into(), &800.into()));
        for field in [
            "recompute_pct",
            "skew_requests",
            "skew_seconds",
            "ttft_mean_ms",
            "ttft_p50_ms",
            "ttft_p99_ms",
            "cost_per_million_usd",
            "floor_infinite_pct",
            "floor_pooled_lru_pct",
            "floor_pooled_belady_pct",
        ] {
            assert!(row[field].as_f64().is_some_and(|figure| figure > 0.0), "{field}: {row:#}");
        }
    }
    let recompute = |at: usize| rows[at]["recompute_pct"].as_f64().unwrap();
    assert!(recompute(3) < recompute(2) && recompute(0) == recompute(1), "{rows:#?}");
}

#[test]
fn rows_say_under_which_conditions_they_came_about() {
    let args = ["--workload", "drifting", "--policy", "cache_aware", "--requests", "200", "--seed", "4"];
    let plain = rows(&args).remove(0);
    for (field, value) in [
        ("arrivals", Value::from("closed")),
        ("speed", 1.0.into()),
        ("cache_model", "blocks".into()),
        ("cache_tokens", 300_000.into()),
        ("believed_cache", 1.0.into()),
        ("decode_tps", Value::Null),
        ("noise", 0.0.into()),
        ("reports", false.into()),
        ("seed", 4.into()),
        ("seeds", 1.into()),
    ] {
        assert_eq!(plain[field], value, "{field}");
    }
    let harsh = [
        "--arrivals",
        "poisson:2.5",
        "--believed-cache",
        "0.7",
        "--noise",
        "0.4",
        "--decode-tps",
        "2500",
        "--seeds",
        "2",
    ];
    let harsh = rows(&[&args[..], &harsh].concat()).remove(0);
    for (field, value) in [
        ("arrivals", Value::from("poisson:2.5")),
        ("believed_cache", 0.7.into()),
        ("decode_tps", 2_500.0.into()),
        ("noise", 0.4.into()),
        ("seeds", 2.into()),
    ] {
        assert_eq!(harsh[field], value, "{field}");
    }
    let fields = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&plain), fields(&harsh), "so that rows of both fit into one table");
}

#[test]
fn the_same_command_prints_the_same() {
    let args = ["--workload", "documents", "--arrivals", "poisson:20", "--requests", "300", "--seeds", "2", "--format"];
    let print = |format| {
        let out = simulate(&[&args[..], &[format]].concat());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    for format in ["table", "json", "csv"] {
        assert_eq!(print(format), print(format));
    }
    let (table, csv) = (print("table"), print("csv"));
    assert!(table.contains("| session_sticky") && table.contains("Floors of documents on 8"), "{table}");
    assert_eq!(csv.lines().next().unwrap().split(',').next(), Some("workload"));
    assert_eq!(csv.lines().count(), table.lines().filter(|line| line.starts_with("| ")).count(), "{csv}{table}");
}

#[test]
fn a_file_is_a_trace_and_its_bad_lines_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    let line = |at: u32| {
        format!(r#"{{"timestamp": {at}000, "input_length": 700, "output_length": 9, "hash_ids": [0, {at}]}}"#)
    };
    std::fs::write(&file, format!("{}\nnonsense\n{}\n", line(1), line(2))).unwrap();
    let file = file.to_str().unwrap();
    let out = simulate(&["--workload", file, "--policy", "round_robin", "--replicas", "1", "--format", "json"]);
    let rows: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&rows[0]["workload"], &rows[0]["requests"]), (&"trace.jsonl".into(), &2.into()));
    assert!(text(&out.stderr).contains("trace.jsonl: line 2 left out: "), "{}", text(&out.stderr));
}

#[test]
fn arguments_that_make_no_sense_are_refused_with_what_would() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.jsonl");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    for (args, needed) in [
        (&["--workload", "chats"][..], "did you mean `chat`"),
        (&["--workload", "no/such/file.jsonl"], "no file of this name"),
        (&["--workload", empty], "input_length"),
        (&[], "--workload"),
        (&["--workload", "chat", "--policy", "round_robbin"], "did you mean `round_robin`"),
        (&["--workload", "chat", "--policy", ""], "session_sticky"),
        (&["--workload", "chat", "--replicas", "0"], "from 1 to"),
        (&["--workload", "chat", "--replicas", "2,x"], "from 1 to"),
        (&["--workload", "chat", "--arrivals", "poison:3"], "poisson:RATE"),
        (&["--workload", "chat", "--arrivals", "trace"], "poisson:RATE"),
        (&["--workload", "chat", "--prefill-model", "qwen"], "qwen3-8b-h100"),
        (&["--workload", "chat", "--cache-model", "study", "--arrivals", "poisson:3"], "--cache-model blocks"),
        (&["--workload", "chat", "--speed", "0"], "above 0"),
        (&["--workload", "driftin"], "did you mean `drifting`"),
        (&["--workload", "chat", "--noise", "-0.1"], "from 0 (no noise) to 3"),
        (&["--workload", "chat", "--noise", "nan"], "from 0 (no noise) to 3"),
        (&["--workload", "chat", "--believed-cache", "0"], "30 % too little"),
        (&["--workload", "chat", "--believed-cache", "-30%"], "30 % too little"),
        (&["--workload", "chat", "--believed-cache", "1e-9"], "a block of 16"),
        (&["--workload", "chat", "--cache-model", "study", "--noise", "0.3"], "--cache-model blocks"),
        (&["--study", "--noise", "0.3"], "--noise"),
        (&["--workload", "chat", "--price-per-hour=-1"], "dollars"),
        (&["--study", "--seeds", "3"], "--seeds"),
    ] {
        let out = simulate(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(needed) && out.stdout.is_empty(), "{args:?}: {said}");
    }
}

/// What the policy is for, in figures: 8 replicas, open loop, three seeds.
#[test]
fn least_cost_lands_where_it_was_aimed_at() {
    let of = |workload: &str, rate: &str, requests: &str| {
        let args = ["--workload", workload, "--arrivals", rate, "--policy", "least_cost", "--seeds", "3"];
        let row = rows(&[&args[..], &["--requests", requests]].concat()).remove(0);
        ["recompute_pct", "skew_seconds", "ttft_mean_ms"].map(|field| row[field].as_f64().unwrap())
    };
    let [recompute, skew, ttft] = of("documents", "poisson:50", "30000");
    assert!(recompute <= 18.0 && skew <= 1.2 && ttft <= 500.0, "{recompute} % {skew} {ttft} ms");
    let [.., ttft] = of("chat", "poisson:700", "20000");
    assert!(ttft <= 25.0, "{ttft} ms");
}

/// The recorded conversations, where they are.
#[test]
fn least_cost_lands_where_it_was_aimed_at_on_mooncakes_conversations() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/traces/mooncake-conversation.jsonl");
    if !std::path::Path::new(trace).exists() {
        eprintln!("skipped: no traces");
        return;
    }
    let args = ["--workload", trace, "--speed", "5", "--cache-tokens", "3000000", "--policy", "least_cost"];
    let ttft = rows(&[&args[..], &["--seeds", "3"]].concat())[0]["ttft_mean_ms"].as_f64().unwrap();
    assert!(ttft <= 2_800.0, "{ttft} ms");
}

/// Where things are not as the policies believe: prefills that scatter, caches of another size, popularity that drifts,
/// answers that take time.
#[test]
fn least_cost_stays_ahead_of_cache_aware_when_things_are_not_as_believed() {
    let documents = ["--workload", "documents", "--arrivals", "poisson:40", "--requests", "40000"];
    let drifting = ["--workload", "drifting", "--arrivals", "poisson:40", "--requests", "20000"];
    let chat = ["--workload", "chat", "--arrivals", "poisson:30", "--requests", "10000", "--decode-tps", "2500"];
    for args in [
        [&documents[..], &["--noise", "0.5"]].concat(),
        [&documents[..], &["--believed-cache", "0.7"]].concat(),
        [&documents[..], &["--believed-cache", "1.5"]].concat(),
        drifting.to_vec(),
        chat.to_vec(),
    ] {
        let rows = rows(&[&args[..], &["--policy", "cache_aware,least_cost"]].concat());
        let [aware, cost] = [0, 1].map(|at| rows[at]["ttft_mean_ms"].as_f64().unwrap());
        assert!(cost <= aware, "{args:?}: {cost} ms, cache_aware {aware} ms");
    }
}
