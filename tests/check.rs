//! `warmroute check` and `warmroute schema` as a script sees them: exit codes, and what goes to which stream.
use std::process::{Command, Output};

fn warmroute(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmroute"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(args)
        .env("ENGINE_KEY", "s3cret")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_good_file_is_summed_up_in_one_line() {
    let out = warmroute(&["check", "config/full.yaml"]);
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(
        text(&out.stdout),
        "config/full.yaml: valid: 4 pools, 10 replicas and what discovery finds; clients on [::1]:8080, 0.0.0.0:8443; admin 127.0.0.1:9090\n"
    );
    assert!(out.stderr.is_empty());
}

#[test]
fn a_bad_file_is_exit_code_1_and_nothing_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.yaml");
    std::fs::write(&path, "listen: 0.0.0.0:80\npools: [{ model: m, replica: [http://a] }]\n").unwrap();
    let out = warmroute(&["check", path.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    assert!(out.stdout.is_empty());
    let said = text(&out.stderr);
    let expected = format!("{}:2:21: pools[0].replica: unknown key; did you mean `replicas`?\n", path.display());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn the_effective_configuration_shows_defaults_and_no_secret() {
    let out = warmroute(&["check", "--print-effective", "config/full.yaml"]);
    assert_eq!(out.status.code(), Some(0));
    let said = text(&out.stdout);
    assert!(said.contains("credential: \"***\"") && said.contains("weight: 1") && !said.contains("s3cret"), "{said}");
}

#[test]
fn the_schema_is_json_and_the_reference_is_the_committed_one() {
    let out = warmroute(&["schema"]);
    let schema: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    let out = warmroute(&["schema", "--markdown"]);
    assert_eq!(text(&out.stdout), include_str!("../docs/configuration.md"));
}
