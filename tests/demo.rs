//! `warmroute demo` as someone runs it first: exit code, and what goes to which stream.
use std::process::{Command, Output};

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmroute"))
        .args(["demo", "--sessions", "6", "--turns", "3"])
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn json_goes_to_standard_output_and_progress_does_not() {
    let out = demo(&["--policy", "round_robin", "--policy", "session_sticky", "--format", "json"]);
    let progress = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{progress}");
    assert!(progress.contains("session_sticky: 18 requests in "), "{progress}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["settings"]["replicas"], 4);
    let policies = report["policies"].as_array().unwrap();
    assert_eq!(policies.iter().map(|row| &row["policy"]).collect::<Vec<_>>(), ["round_robin", "session_sticky"]);
    let recompute = |row: &serde_json::Value| row["recompute_ratio"].as_f64().unwrap();
    assert!(recompute(&policies[1]) < recompute(&policies[0]), "{report:#}");
    assert!(recompute(&report["floor"]) <= recompute(&policies[1]), "{report:#}");
    for row in policies {
        assert_eq!((&row["errors"], &row["requests"]), (&0.into(), &18.into()));
        assert!(row["skew"].as_f64().unwrap() >= 1.0);
    }
}

#[test]
fn the_table_has_a_line_a_policy_and_says_what_to_do_next() {
    let out = demo(&["--policy", "session_sticky", "--replicas", "2"]);
    let (said, progress) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{progress}");
    let line = said.lines().find(|line| line.starts_with("| session_sticky")).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(line.split('|').count(), 9, "{line}");
    for needed in ["recompute %", "skew", "TTFT p50 ms", "TTFT p99 ms", "errors", "| ideal floor", "warmroute serve "] {
        assert!(said.contains(needed), "{needed} is missing:\n{said}");
    }
    assert!(!said.contains("round_robin"), "{said}");
}

#[test]
fn an_unknown_policy_is_refused_with_the_known_ones() {
    let out = demo(&["--policy", "round_robbin"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(out.stdout.is_empty());
    let said = text(&out.stderr);
    assert!(said.contains("session_sticky") && said.contains("similar"), "{said}");
}
