//! The room as a whole: the table against the model, the examples, the documents, and what is refused.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::keys::{Default, Key, Kind, Scalar};
use super::*;

/// Bad configurations and the messages they must give, as data.
mod refusals;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn examples() -> Vec<(PathBuf, String)> {
    let mut files: Vec<_> = std::fs::read_dir(repository().join("config"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap()))
        .collect();
    files.sort();
    files
}

fn no_env(_: &str) -> Option<String> {
    None
}

/// A folder in which the examples of the table hold: it has a tokenizer.
fn base_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("qwen3")).unwrap();
    std::fs::write(dir.path().join("qwen3/tokenizer.json"), r#"{"model":{"type":"BPE"}}"#).unwrap();
    let folder = dir.path().join("tls");
    std::fs::create_dir(&folder).unwrap();
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for name in ["cert.pem", "old.pem", "ca.pem"] {
        std::fs::write(folder.join(name), pair.cert.pem()).unwrap();
    }
    for name in ["key.pem", "old-key.pem"] {
        std::fs::write(folder.join(name), pair.signing_key.serialize_pem()).unwrap();
    }
    let other = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap();
    std::fs::write(folder.join("other-key.pem"), other.signing_key.serialize_pem()).unwrap();
    dir
}

fn effective(document: &Value, dir: &Path) -> Value {
    match parse(&document.to_string(), "test", dir, &|_| Some("s3cret".into())) {
        Ok(config) => config.effective(),
        Err(errors) => panic!("{document}\n{errors}"),
    }
}

/// The least document in which `key` has a meaning.
fn around(key: &Key) -> Value {
    let mut document = json!({ "listen": [{ "address": "127.0.0.1:1" }], "pools": [{ "model": "m", "replicas": [{ "url": "http://a" }] }] });
    if key.path.starts_with("listen[].tls.") {
        document["listen"][0]["tls"] = json!({ "certificate": "./tls/old.pem", "key": "./tls/old-key.pem" });
    }
    if key.path.ends_with("client_certificates") {
        document["listen"][0]["tls"]["client_ca"] = json!("./tls/ca.pem");
    }
    let pool = &mut document["pools"][0];
    if key.path.split('.').any(|part| part == "tls") {
        pool["replicas"][0]["url"] = json!("https://a");
    }
    match key.path.strip_prefix("pools[].").unwrap_or_default() {
        "models" => drop(pool.as_object_mut().unwrap().remove("model")),
        "shadow.header" => pool["shadow"] = json!({ "type": "header_hash", "header": "x-a" }),
        "shadow.fallback" | "shadow.max_load_ratio" | "shadow.min_load_gap" => {
            pool["shadow"] = json!({ "type": "session_sticky" });
        }
        "shadow.min_queue_gap" => pool["shadow"] = json!({ "type": "cache_aware", "load": "queued_seconds" }),
        "shadow.affinity" | "shadow.min_match_tokens" | "shadow.load" => {
            pool["shadow"] = json!({ "type": "cache_aware" });
        }
        "shadow.request_cost" => pool["shadow"] = json!({ "type": "least_cost" }),
        "policy.request_cost" => pool["policy"] = json!({ "type": "least_cost" }),
        "policy.min_queue_gap" => pool["policy"] = json!({ "type": "cache_aware", "load": "queued_seconds" }),
        "policy.affinity" | "policy.min_match_tokens" | "policy.load" => {
            pool["policy"] = json!({ "type": "cache_aware" });
        }
        path if path.starts_with("prefill.") => pool["prefill"] = json!({ "per_token": "1us" }),
        "queue.max" => pool["queue"] = json!({ "timeout": "30s" }),
        "queue.timeout" | "queue.wait_for_ready" => pool["queue"] = json!({ "max": 100 }),
        "replicas[].kv_events.replay" | "replicas[].kv_events.topic" => {
            pool["replicas"][0]["kv_events"] = json!({ "endpoint": "tcp://b:1" });
        }
        "kv_events.replay_port" | "kv_events.topic" => pool["kv_events"] = json!({ "port": 1 }),
        "policy.header" => pool["policy"] = json!({ "type": "header_hash", "header": "x-a" }),
        "policy.fallback" | "policy.max_load_ratio" | "policy.min_load_gap" => {
            pool["policy"] = json!({ "type": "session_sticky" });
        }
        "discover.file" => pool["discover"] = json!({ "file": "other.yaml" }),
        path if path.starts_with("discover.") => pool["discover"] = json!({ "dns": "other.name", "port": 1 }),
        "session.tenant_header" => pool["session"] = json!({ "scope": "tenant", "tenant_header": "x-a" }),
        _ => {}
    }
    document
}

/// `document` with `value` at the key's path, in the first item of each list.
fn with(mut document: Value, key: &Key, value: Value) -> Value {
    let mut at = &mut document;
    for part in key.path.split('.') {
        at = match part.strip_suffix("[]") {
            Some(list) => &mut at[list][0],
            None => &mut at[part],
        };
    }
    *at = value;
    document
}

#[test]
fn every_key_changes_the_effective_configuration() {
    let dir = base_dir();
    for key in keys::all() {
        let before = around(key);
        let after = with(before.clone(), key, schema::yaml(key.example));
        // Without `model`, the document for `models` is no document.
        let before = if key.name() == "models" { json!({}) } else { effective(&before, dir.path()) };
        assert_ne!(effective(&after, dir.path()), before, "{} changes nothing", key.path);
    }
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_model() {
    let dir = base_dir();
    for key in keys::all() {
        if let Default::Value(default) = key.default {
            let before = around(key);
            let after = with(before.clone(), key, schema::yaml(default));
            assert_eq!(effective(&after, dir.path()), effective(&before, dir.path()), "{}", key.path);
        }
    }
}

/// Defaults that differ between policies, which the table can only tell in words.
#[test]
fn the_bounds_of_each_policy_are_those_of_the_table() {
    let bounds = |policy: &str| {
        let text = format!("listen: 127.0.0.1:1\npools: [{{ model: m, policy: {policy}, replicas: [\"http://a\"] }}]");
        let shown = parse(&text, "test", Path::new(""), &no_env).unwrap().effective()["pools"][0]["policy"].clone();
        [&shown["max_load_ratio"], &shown["min_load_gap"], &shown["min_queue_gap"]].map(Value::to_string)
    };
    for (policy, expected) in [
        ("session_sticky", ["1.25", "8", "null"]),
        ("{ type: header_hash, header: x-a }", ["1.25", "8", "null"]),
        ("cache_aware", ["2.0", "8", "null"]),
        ("{ type: cache_aware, load: placements }", ["2.0", "16", "null"]),
        ("{ type: cache_aware, load: placements, min_load_gap: 8 }", ["2.0", "8", "null"]),
        ("{ type: cache_aware, load: queued_seconds }", ["2.0", "null", "\"2s\""]),
        ("{ type: cache_aware, affinity: prefer }", ["null", "null", "null"]),
    ] {
        assert_eq!(bounds(policy), expected, "{policy}");
    }
    for path in ["pools[].policy", "pools[].shadow"] {
        let told = |name| keys::find(path, name).map(|key| key.default);
        assert!(
            matches!(told("max_load_ratio"), Some(Default::Words(words)) if words == "`1.25`; `2` with `cache_aware`")
        );
        assert!(
            matches!(told("min_load_gap"), Some(Default::Words(words)) if words == "`8`; `16` with `load: placements`")
        );
    }
}

#[test]
fn who_is_told_of_decisions() {
    let peers = |text: &str| {
        let pools = "pools: [{ model: m, replicas: [\"http://a\"] }]";
        let config = parse(&format!("listen: 127.0.0.1:1\n{text}\n{pools}"), "test", Path::new(""), &no_env).unwrap();
        let again = parse(&config.effective_yaml(), "effective", Path::new(""), &no_env).unwrap();
        assert_eq!(again.expose, config.expose);
        config.expose.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let trusted = "trusted_proxies: [10.0.0.0/8, \"::1\"]\n";
    assert_eq!(peers(trusted), "", "by default nobody");
    assert_eq!(peers("expose: off"), "");
    assert_eq!(peers("expose: []"), "");
    assert_eq!(peers("expose: 127.0.0.1"), "127.0.0.1/32");
    assert_eq!(peers(&format!("{trusted}expose: trusted")), "10.0.0.0/8 ::1/128");
    assert_eq!(peers(&format!("{trusted}expose: [trusted, 127.0.0.1]")), "10.0.0.0/8 ::1/128 127.0.0.1/32");
}

#[test]
fn every_word_of_the_table_is_understood() {
    let dir = base_dir();
    for key in keys::all() {
        let Kind::Scalar(Scalar::OneOf(words)) = key.kind else { continue };
        for word in words {
            let mut document = with(around(key), key, json!(word));
            match *word {
                "header_hash" => {
                    let policy = if key.path.contains("shadow") { "shadow" } else { "policy" };
                    document["pools"][0][policy]["header"] = json!("x-a");
                }
                "tenant" => document["pools"][0]["session"]["tenant_header"] = json!("x-a"),
                _ => {}
            }
            let mut at = &effective(&document, dir.path());
            for part in key.path.split('.') {
                at = part.strip_suffix("[]").map_or(&at[part], |list| &at[list][0]);
            }
            assert_eq!(at, word, "{}", key.path);
        }
    }
}

#[test]
fn the_table_is_well_formed() {
    let mut seen = BTreeSet::from([String::new()]);
    for key in keys::all() {
        assert!(seen.contains(key.parent()), "{} stands before its parent", key.path);
        assert!(seen.insert(key.inside()), "{} stands twice", key.path);
        assert!(key.doc.ends_with(['.', '…']), "{}: the doc is a sentence", key.path);
    }
}

#[test]
fn the_examples_pass() {
    let files = examples();
    assert_eq!(files.len(), 7);
    for (path, _) in files {
        if let Err(errors) = load(&path, &no_env) {
            panic!("{errors}");
        }
    }
}

#[test]
fn the_full_example_has_every_key() {
    let text = std::fs::read_to_string(repository().join("config/full.yaml")).unwrap();
    let mut written = BTreeSet::new();
    fn walk(node: &node::Node, pattern: &str, written: &mut BTreeSet<String>) {
        match &node.data {
            node::Data::Map(entries) => {
                for entry in entries {
                    let path = format!("{pattern}.{}", entry.key);
                    walk(&entry.node, path.trim_start_matches('.'), written);
                }
            }
            node::Data::List(items) => items.iter().for_each(|item| walk(item, &format!("{pattern}[]"), written)),
            node::Data::Scalar(_) => {}
        }
        written.insert(pattern.to_owned());
    }
    walk(&node::read(&text).unwrap().unwrap(), "", &mut written);
    for key in keys::all() {
        // `models` cannot stand beside other pools, so a comment speaks of it.
        let commented = key.name() == "models" && text.contains("`models: any`");
        assert!(written.contains(key.path) || commented, "config/full.yaml lacks {}", key.path);
    }
}

#[test]
fn the_effective_configuration_reads_back() {
    for (path, _) in examples() {
        let config = load(&path, &no_env).unwrap();
        let again = parse(&config.effective_yaml(), "effective", Path::new(""), &no_env).unwrap();
        assert_eq!(again.effective(), config.effective());
    }
}

#[test]
fn the_schema_accepts_what_the_check_accepts_and_no_unknown_key() {
    let schema = schema();
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    for (path, text) in examples() {
        let document = schema::yaml(&text);
        let errors: Vec<_> = validator.iter_errors(&document).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
    }
    for key in keys::all() {
        let document = with(around(key), key, schema::yaml(key.example));
        assert!(validator.is_valid(&document), "{}: {document}", key.path);
        if let Default::Value(default) = key.default {
            assert!(validator.is_valid(&with(around(key), key, schema::yaml(default))), "{}", key.path);
        }
        if let Kind::Map | Kind::MapOr(_) | Kind::List { of: Kind::Map | Kind::MapOr(_), .. } = key.kind {
            let child = Key { path: Box::leak(format!("{}.nonsense", key.inside()).into()), ..*key };
            let document = with(around(key), &child, json!(1));
            assert!(!validator.is_valid(&document), "{document}");
        }
    }
    let mut document = around(&keys::all()[0]);
    document["nonsense"] = json!(1);
    assert!(!validator.is_valid(&document));
}

#[test]
fn the_reference_is_up_to_date() {
    let path = repository().join("docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, markdown()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == markdown(),
        "docs/configuration.md is not what the table says; write it anew: cargo run -- schema --markdown > \
         docs/configuration.md"
    );
}

#[test]
fn secrets_never_show() {
    let dir = base_dir();
    std::fs::write(dir.path().join("key"), "  s3cret-from-file\n").unwrap();
    let text = "listen: 127.0.0.1:1\nadmin: { listen: 0.0.0.0:2, token: \"${T}\" }\npools:\n  - model: m\n    \
                replicas: [{ url: \"http://a\", credential: \"file:key\" }]\n";
    let config = parse(text, "test", dir.path(), &|_| Some("s3cret-from-env".into())).unwrap();
    let replica = &config.pools[0].replicas[0];
    assert_eq!(replica.credential.as_ref().unwrap().reveal(), "s3cret-from-file");
    assert_eq!(config.admin.as_ref().unwrap().token.as_ref().unwrap().reveal(), "s3cret-from-env");
    for shown in [format!("{config:?}"), config.effective().to_string(), config.effective_yaml()] {
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    // Nor in errors: a bad variable anywhere, a literal beside another error, a secret that is no token.
    let text = "listen: \"${T}\"\nlogging: { level: \"${T}\", format: \"${T}\" }\npools:\n  - model: \"${T}\"\n    \
                tokenizer: \"x/${T}\"\n    aliases: [\"${T}\"]\n    policy: \"${T}\"\n    replicas:\n      - \"http://u:s3cret@a\"\n      \
                - { url: \"http://b\", weigth: 1, credential: s3cret }\n      - { url: \"http://b\", credential: \"s3cret 2\" }\n      \
                - { url: \"http://c\", id: \"${T}\" }\n      - { url: \"http://d\", id: \"${T}\" }\n";
    let errors = parse(text, "test", dir.path(), &|_| Some("s3cret value".into())).unwrap_err();
    assert!(errors.len() >= 10, "{errors}");
    assert!(!errors.to_string().contains("s3cret"), "{errors}");
}

#[test]
fn flags_go_the_same_way() {
    let args = ServeArgs {
        listen: vec!["127.0.0.1:8080".into()],
        model: Some("m".into()),
        replicas: vec!["http://a:1".into(), "http://b:1/x/".into()],
        policy: Some("session_sticky".into()),
        tokenizer: None,
        admin: Some("off".into()),
    };
    let config = Config::from_args(&args).unwrap();
    assert_eq!(&*config.pools[0].replicas[1].id, "b:1/x");
    assert!(config.admin.is_none());
    let any = Config::from_args(&ServeArgs { model: None, ..args.clone() }).unwrap();
    assert_eq!(any.pools[0].models, Models::Any);

    let bad = ServeArgs {
        listen: vec!["8080".into()],
        replicas: vec!["ftp://a".into(), "http://$HOST".into()],
        policy: Some("least_laod".into()),
        admin: Some("0.0.0.0:9090".into()),
        ..args
    };
    let lines: Vec<_> =
        Config::from_args(&bad).unwrap_err().iter().map(|e| format!("{}: {}", e.place, e.problem)).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    --admin: `0.0.0.0:9090` can be reached from other machines, and no token is set: whoever connects could read this configuration and drain replicas
    --listen: `8080` names no IP address: 127.0.0.1 is this machine alone, 0.0.0.0 is every interface
    --policy: `least_laod` is not known here; did you mean `least_load`?
    --replica: `ftp://a` begins with neither `http://` nor `https://`
    --replica: `http://$HOST` has no valid host
    ");
}

proptest::proptest! {
    #[test]
    fn random_text_is_refused_and_does_not_panic(text in "(listen|pools|model|admin|[ :\\-\\[\\]{}&*#'\"$|>!%@\n\t~?,]|[a-z0-9.]|\\PC){0,120}") {
        if let Err(errors) = parse(&text, "random", Path::new(""), &no_env) {
            proptest::prop_assert!(!errors.is_empty());
        }
    }

    /// A good file with a stretch of it replaced: this gets past the YAML and into the checks.
    #[test]
    fn a_damaged_file_does_not_panic(at in 0usize..3000, cut in 0usize..40, put in "[ :\\-\\[\\]{}&*#'\"$\na-z0-9]{0,8}") {
        let mut text: Vec<char> = include_str!("../../config/full.yaml").chars().collect();
        let at = at.min(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.chars());
        let text: String = text.into_iter().collect();
        if let Err(errors) = parse(&text, "damaged", Path::new(""), &no_env) {
            proptest::prop_assert!(!errors.is_empty());
            let _ = errors.to_string();
        }
    }
}
