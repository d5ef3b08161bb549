//! Exchanges recorded from real engines, served again byte for byte: what a client gets through the router has the
//! recorded body, status and type, whatever the framing was.
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::support::*;

/// One recording.
struct Recording {
    name: String,
    request: Vec<u8>,
    response: Vec<u8>,
    body: Vec<u8>,
}

fn recordings(folder: &Path) -> Vec<Recording> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of recordings").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "resp")
                && let (Ok(request), Ok(body)) =
                    (std::fs::read(path.with_extension("req")), std::fs::read(path.with_extension("body")))
            {
                let response = std::fs::read(&path).expect("a recording");
                found.push(Recording { name: path.display().to_string(), request, response, body });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Replays each recording of a folder through one router and compares. Returns how many were compared.
async fn replay(folder: &Path) -> usize {
    let script: Arc<Mutex<Vec<u8>>> = Arc::default();
    let next = script.clone();
    let upstream = Upstream::start(move |_, mut wire| {
        let bytes = next.lock().unwrap().clone();
        async move {
            wire.send(bytes).await.ok()?;
            // Recordings were made with one connection each; some end with it.
            None
        }
    })
    .await;
    let recordings = recordings(folder);
    let mut paths: Vec<String> = recordings.iter().map(|r| path_of(&r.request)).filter(|path| !known(path)).collect();
    paths.sort();
    paths.dedup();
    // The rest is allow-listed, as an operator would.
    let listed: Vec<String> = paths.iter().map(|path| format!("{path:?}")).collect();
    // `models: any`: the recorded bodies name models of their own, or none, or are no JSON at all.
    let pool = Pool::any().at(upstream.address()).with(&format!("paths: [{}]", listed.join(", ")));
    let proxy = Proxy::start(&Config::new(pool)).await;
    let mut compared = 0;
    for recording in &recordings {
        let path = path_of(&recording.request);
        // What the router answers itself: probes, the union of models, and a wrong method.
        if path == "/health" || path == "/v1/models" || recording.name.contains("method-not-allowed") {
            continue;
        }
        *script.lock().unwrap() = recording.response.clone();
        let end = memchr::memmem::find(&recording.response, b"\r\n\r\n").expect("a recorded head");
        let expected = Head::parse(&recording.response[..end]);
        let request = request_of(&recording.request);
        let answer = proxy.exchange(&request).await;
        let name = &recording.name;
        assert_eq!(answer.status(), expected.status(), "{name}: {}", answer.text());
        assert_eq!(answer.header("content-type"), expected.get("content-type"), "{name}");
        assert_eq!(answer.body.len(), recording.body.len(), "{name}");
        assert!(answer.body == recording.body, "{name}");
        assert!(answer.complete, "{name}");
        compared += 1;
    }
    proxy.load_is_zero().await;
    compared
}

/// Served without being allow-listed.
fn known(path: &str) -> bool {
    ENDPOINTS.iter().any(|endpoint| endpoint.path == path) || path == "/health" || path == "/v1/models"
}

fn path_of(request: &[u8]) -> String {
    let line = String::from_utf8_lossy(request.split(|&byte| byte == b'\r').next().unwrap_or(b"")).into_owned();
    line.split(' ').nth(1).and_then(|target| target.split('?').next()).unwrap_or("").to_string()
}

/// The recorded request, on a connection that stays open.
fn request_of(bytes: &[u8]) -> Request {
    let end = memchr::memmem::find(bytes, b"\r\n\r\n").expect("a recorded head");
    let head = Head::parse(&bytes[..end]);
    let mut parts = head.start.split(' ');
    let mut request = Request::new(parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    for (name, value) in &head.headers {
        if !["host", "connection", "content-length"].contains(&name.as_str()) {
            request = request.header(name, value);
        }
    }
    request.body(&bytes[end + 4..])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_few_that_travel_with_the_source() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/http");
    let compared = replay(&folder).await;
    println!("recorded exchanges: {compared} relayed with equal hashes");
    assert!(compared >= 10, "{compared} compared");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_lie_beside_the_repository() {
    let shared = std::env::var_os("WARMROUTE_SHARED").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared"));
    let folder = shared.join("fixtures/http");
    if !folder.is_dir() {
        println!("skipped: no recordings at ../shared/fixtures/http (or $WARMROUTE_SHARED/fixtures/http)");
        return;
    }
    let compared = replay(&folder).await;
    println!("recorded exchanges beside the repository: {compared} relayed with equal hashes");
    assert!(compared > 150, "{compared} compared");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_in_mid_stream_is_relayed_as_it_died() {
    // vLLM's death looks like success: an error event, then [DONE], and a clean end. It is the engine's answer: it passes.
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/http/vllm-0.32.0-cpu/failures/stream-engine-killed.resp");
    let bytes = std::fs::read(path).expect("the recording");
    let end = memchr::memmem::find(&bytes, b"\r\n\r\n").expect("a recorded head");
    let sent = bytes.clone();
    let upstream = Upstream::start(move |_, mut wire| {
        let bytes = sent.clone();
        async move {
            wire.send(bytes).await.ok()?;
            None
        }
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("m").at(upstream.address()))).await;
    let answer = proxy.exchange(&chat(true, 1)).await;
    assert_eq!(answer.status(), Head::parse(&bytes[..end]).status());
    let events = sse_events(&answer.body);
    assert_eq!(events.last().unwrap().data, "[DONE]");
    assert_eq!(events.iter().filter(|event| event.data.contains("\"error\"")).count(), 1, "none is added");
    let outcome = "warmroute_requests_total{outcome=\"engine_failed\"}";
    wait_until("it is counted as what it is", PATIENCE, || async { proxy.metric(outcome).await == 1.0 }).await;
    assert_eq!(proxy.metric("warmroute_usage_reports_total").await, 0.0, "it reports nothing");
    proxy.process.says("its line", |line| line.contains("outcome=engine_failed") && line.contains("status=200")).await;
    proxy.load_is_zero().await;
}
