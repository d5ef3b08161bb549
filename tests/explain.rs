//! `warmroute explain` as an operator runs it: what it asks the admin listener, what it prints, and its exit codes.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Guten Tag"}]}"#;

/// A folder with a configuration and a body.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(top: &str, pool: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "listen: 127.0.0.1:0\n{top}\npools:\n  - model: m\n    policy: cache_aware\n    replicas: [{{ id: a, url: \
             \"http://127.0.0.1:1\" }}, {{ id: b, url: \"http://127.0.0.1:2\", weight: 2 }}]\n{pool}\n"
        );
        std::fs::write(folder.path().join("router.yaml"), config).unwrap();
        std::fs::write(folder.path().join("body.json"), BODY).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn explain(&self, more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_warmroute"))
            .args(["explain", "--config"])
            .arg(self.path("router.yaml"))
            .arg("--body")
            .arg(self.path("body.json"))
            .args(more)
            .output()
            .unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a request said: its head's lines, and its body.
type Asked = (Vec<String>, String);

/// A stand-in for a router's admin listener: gives one answer, and tells what was asked.
fn admin(status: &str, body: &str) -> (String, JoinHandle<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let head: Vec<String> =
            reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        let length = head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        (head, text(&body))
    });
    (address, asked)
}

fn candidate(replica: &str, more: &Value) -> Value {
    let mut candidate = json!({
        "replica": replica, "state": "ready", "weight": 1, "in_flight": 3, "placements": 5, "queued_seconds": 0.125,
        "matched_tokens": 0, "counted_tokens": 0, "load": 3.0, "chosen": false, "note": null
    });
    candidate.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    candidate
}

fn explanation() -> Value {
    json!({
        "pool": "m", "model": "m", "adapter": null, "endpoint": "/v1/chat/completions", "basis": "tokens",
        "fallback": null, "tokens": 12_345, "blocks": 771, "session": "session_header",
        "decision": { "replica": "gpu-a", "reason": "prefix", "matched_tokens": 12_000 },
        "candidates": [
            candidate("gpu-a", &json!({ "matched_tokens": 12_000, "counted_tokens": 12_000, "chosen": true })),
            candidate("gpu-b", &json!({ "in_flight": 256, "load": 128.0, "note": "full", "weight": 2 })),
        ]
    })
}

#[test]
fn the_router_is_asked_with_the_requests_own_body_and_headers() {
    let (address, asked) = admin("200 OK", &explanation().to_string());
    let folder = Folder::new(&format!("admin: {{ listen: \"{address}\", token: s3cret }}"), "");
    let headers = ["--header", "X-Session-Id: abc:def", "--header", "authorization: Bearer the-clients"];
    let out = folder.explain(&[&headers[..], &["--path", "/v1/messages", "--header", "content-length: 7"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let (head, body) = asked.join().unwrap();
    assert_eq!(head[0], "POST /explain?path=/v1/messages HTTP/1.1");
    for line in [
        "x-session-id: abc:def",
        "authorization: Bearer s3cret",
        "x-explain-authorization: Bearer the-clients",
        &format!("content-length: {}", BODY.len()),
    ] {
        assert_eq!(head.iter().filter(|given| *given == line).count(), 1, "{line}: {head:?}");
    }
    assert_eq!(body, BODY);
}

#[test]
fn the_table_tells_the_decision_and_each_candidate() {
    let (address, asked) = admin("200 OK", &explanation().to_string());
    let folder = Folder::new("admin: off", "");
    let out = folder.explain(&["--admin", &format!("http://{address}/")]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    asked.join().unwrap();
    let row = |name: &str| {
        let line =
            said.lines().find(|line| line.starts_with('|') && line.contains(name)).unwrap_or_else(|| panic!("{said}"));
        line.split('|').map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(row("gpu-a"), [">", "gpu-a", "ready", "3", "5", "0.12", "3", "12,000", "12,000"]);
    assert_eq!(row("gpu-b"), ["gpu-b", "ready", "256", "5", "0.12", "128", "0", "0", "full, weight 2"]);
    for line in [
        "prompt    12,345 tokens in 771 whole blocks, as the engine has them",
        "session   session_header",
        "decision  gpu-a (prefix: it holds the longest prefix); 12,000 of 12,345 tokens matched",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}\n{said}");
    }
}

#[test]
fn costs_are_told_where_the_policy_has_them() {
    let mut answer = explanation();
    answer["candidates"][0]["cost_seconds"] = json!(0.01234);
    let said = [explanation(), answer].map(|answer| {
        let (address, asked) = admin("200 OK", &answer.to_string());
        let out = Folder::new("", "").explain(&["--admin", &address]);
        asked.join().unwrap();
        text(&out.stdout)
    });
    assert!(!said[0].contains("cost s"), "{}", said[0]);
    let row = |name: &str| {
        let line = said[1].lines().find(|line| line.starts_with('|') && line.contains(name));
        line.unwrap_or_else(|| panic!("{}", said[1])).split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((&*row("cost s")[8], &*row("gpu-a")[8], &*row("gpu-b")[8]), ("cost s", "0.0123", "-"));
    assert!(said[1].contains("\ncost s: "), "{}", said[1]);
}

#[test]
fn a_refusal_and_a_prompt_cut_as_text_are_told() {
    let mut answer = explanation();
    answer["decision"] = json!({ "refused": "all_full" });
    answer["basis"] = json!("text");
    answer["fallback"] = json!("time_budget");
    let (address, asked) = admin("200 OK", &answer.to_string());
    let out = Folder::new("", "").explain(&["--admin", &address]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    asked.join().unwrap();
    assert!(said.contains("decision  refused (all_full: every replica that is up is at its max_in_flight)"), "{said}");
    assert!(
        said.contains("about 12,345 tokens in 771 whole blocks of text (time_budget: tokens.budget was over)"),
        "{said}"
    );
}

#[test]
fn json_is_the_routers_answer() {
    let mut answer = explanation();
    answer["of_a_later_version"] = json!([1]);
    let (address, asked) = admin("200 OK", &answer.to_string());
    let out = Folder::new("", "").explain(&["--admin", &address, "--format", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap(), answer);
    asked.join().unwrap();
}

#[test]
fn what_the_router_refuses_is_exit_code_1_with_its_words() {
    let unknown = json!({ "error": { "message": "no pool serves `x`; there are: m" } }).to_string();
    for (status, body, said) in [
        ("404 Not Found", unknown.as_str(), "no pool serves `x`; there are: m"),
        ("404 Not Found", "paths: /livez /readyz\n", "paths: /livez /readyz"),
        ("401 Unauthorized", "", "asks for a token"),
        ("200 OK", "hello", "not as a router's admin listener does"),
        ("200 OK", "{}", "a form that this version does not know"),
    ] {
        let (address, asked) = admin(status, body);
        let out = Folder::new("", "").explain(&["--admin", &address]);
        assert_eq!(out.status.code(), Some(1), "{status} {body}");
        assert!(out.stdout.is_empty());
        assert!(text(&out.stderr).contains(said), "{}", text(&out.stderr));
        asked.join().unwrap();
    }
}

#[test]
fn where_no_router_runs_it_says_so_and_what_else_there_is() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let out = Folder::new(&format!("admin: \"{free}\""), "").explain(&[]);
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stderr);
    assert!(said.contains(&format!("no router answers at http://{free}")), "{said}");
    assert!(said.contains("--admin") && said.contains("--offline"), "{said}");
    let out = Folder::new("admin: off", "").explain(&[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("`admin: off`, so there is nobody to ask"), "{}", text(&out.stderr));
}

#[test]
fn offline_it_tells_the_prompt_and_that_the_rest_is_unknown() {
    let folder = Folder::new("", "");
    let long = json!({ "model": "m", "messages": [{ "role": "user", "content": "once upon a time ".repeat(100) }] });
    let tokens = |body: &str| {
        std::fs::write(folder.path("body.json"), body).unwrap();
        let out = folder.explain(&["--offline", "--format", "json"]);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            (&answer["pool"], &answer["basis"], &answer["decision"]),
            (&"m".into(), &"text".into(), &Value::Null)
        );
        assert_eq!(answer["candidates"].as_array().unwrap().len(), 2);
        assert_eq!(answer["candidates"][0]["in_flight"], Value::Null);
        (answer["tokens"].as_u64().unwrap(), answer["blocks"].as_u64().unwrap())
    };
    let (short, long) = (tokens(BODY), tokens(&long.to_string()));
    // 1,700 characters, four to a token, sixteen tokens to a block.
    assert!(long.0 >= 425 && long.1 >= 26 && short.0 < 100, "{short:?} {long:?}");
    let out = folder.explain(&["--offline"]);
    assert!(text(&out.stdout).contains("nobody was asked"), "{}", text(&out.stdout));
}

#[test]
fn a_body_comes_from_standard_input_too() {
    let folder = Folder::new("", "    adapters: [sql]");
    let mut child = Command::new(env!("CARGO_BIN_EXE_warmroute"))
        .args(["explain", "--offline", "--body", "-", "--config"])
        .arg(folder.path("router.yaml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let body = BODY.replace("\"m\"", "\"sql\"");
    child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let said = text(&child.wait_with_output().unwrap().stdout);
    assert!(said.contains("adapter   sql") && said.contains("model     sql\n"), "{said}");
}

#[test]
fn what_can_not_be_explained_is_said_without_the_prompt() {
    let folder = Folder::new("limits: { body: 1KiB }", "");
    for (body, path, said) in [
        ("{\"model\": \"private\"}", "/v1/chat/completions", "no pool serves the model"),
        ("{\"messages\": \"private\"}", "/v1/chat/completions", "the body names no model; there are: m"),
        ("private", "/v1/chat/completions", "no JSON object"),
        (BODY, "/v1/models", "no request with a prompt goes to this path"),
        (&" ".repeat(1025), "/v1/chat/completions", "larger than limits.body"),
    ] {
        std::fs::write(folder.path("body.json"), body).unwrap();
        let out = folder.explain(&["--offline", "--path", path]);
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{error}");
        assert!(error.contains(said) && !error.contains("private"), "{error}");
    }
    let out = folder.explain(&["--header", "no-colon"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("name: value"));
}
