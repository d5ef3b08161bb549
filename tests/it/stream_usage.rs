//! `stream_usage: ask`: streams report what was cached though their clients did not ask, and clients see nothing of it.
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;

use crate::encoding::{compressed, gzip};
use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const ASKED: &str = "{\"stream_options\":{\"include_usage\":true},";
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
const REPORT: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"prompt_tokens_details\":{\"cached_tokens\":48}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const EVENTS: (&str, &str) = ("Content-Type", "text/event-stream");

fn asking(pool: Pool) -> Config {
    Config::new(pool.with("stream_usage: ask")).with("logging: { format: json }")
}

/// A request's body as the engine gets it that is asked.
fn asked(request: &Request) -> Vec<u8> {
    String::from_utf8(request.body.clone()).expect("UTF-8").replacen('{', ASKED, 1).into_bytes()
}

async fn reports(proxy: &Proxy, report: &str) -> f64 {
    proxy.metric(&format!("warmroute_usage_reports_total{{report=\"{report}\"}}")).await
}

/// Recorded with `include_usage`: a client that does not ask gets all of it but that event, and one that does gets all.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_streams_report_and_their_clients_do_not_see_it() {
    for (engine, cached) in [("vllm-0.32.0-cpu", [0, 96]), ("sglang-0.5.23-cpu", [16, 112])] {
        for (name, path, cached) in [("chat", CHAT, cached[0]), ("completions", "/v1/completions", cached[1])] {
            let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/http");
            let recorded = folder.join(engine).join(format!("tiny-qwen3/{name}-stream-usage.resp"));
            let response = std::fs::read(&recorded).expect("a recording");
            let body = std::fs::read_to_string(recorded.with_extension("body")).expect("a recording");
            let upstream = Upstream::start(move |_, mut wire| {
                let bytes = response.clone();
                async move {
                    wire.send(bytes).await.ok()?;
                    None
                }
            })
            .await;
            let proxy = Proxy::start(&asking(Pool::model("m").at(upstream.address()))).await;
            let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.path == path).expect("it is known");
            let silent = endpoint.request(true);
            let answer = proxy.exchange(&silent.clone().header("x-request-id", "silent")).await;
            let events: Vec<_> =
                body.split_inclusive("\n\n").filter(|event| !event.contains("\"choices\":[]")).collect();
            assert_eq!(events.len() + 1, body.split_inclusive("\n\n").count());
            assert!(answer.complete && answer.text() == events.concat(), "{}", recorded.display());
            assert!(upstream.only(path).await.body == asked(&silent));
            let line = proxy.process.says("its line", |line| line.contains("\"silent\""));
            within("its line", PATIENCE, line).await;
            let lines = proxy.process.output();
            let line = lines.iter().find(|line| line.contains("\"silent\"")).expect("it was there");
            let line: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!((&line["cached_tokens"], &line["bytes_out"]), (&cached.into(), &answer.body.len().into()));
            assert_eq!(reports(&proxy, "cached_tokens").await, 1.0);

            let mut body_of = endpoint.body("m", true);
            body_of["stream_options"] = serde_json::json!({"include_usage": true});
            let loud = Request::post(path, &body_of);
            assert!(proxy.exchange(&loud).await.text() == body);
            assert!(upstream.seen(path)[1].body == loud.body);
            proxy.load_is_zero().await;
        }
    }
}

/// The body that the engine gets of each request; whoever sent others than that sees no report.
async fn sent(pool: Pool, requests: &[Request]) -> Vec<Vec<u8>> {
    let upstream = Upstream::fixed(200, &[EVENTS], [TOKEN, REPORT, DONE].concat()).await;
    let proxy = Proxy::start(&asking(pool.at(upstream.address()))).await;
    for request in requests {
        let answer = proxy.exchange(request).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let body = upstream.all().pop().expect("it came").body;
        assert_eq!(answer.text().contains(REPORT), body == request.body, "{}", String::from_utf8_lossy(&body));
    }
    upstream.all().into_iter().map(|seen| seen.body).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_streams_that_say_nothing_of_usage_are_asked_and_no_other_byte_changes() {
    let odd = "{ \"a\" :1.0e+2,\r\n\"dup\":1,\"dup\":2, \"stream\" : true ,\"model\"  :  \"short\",\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\\ude00 \u{e9}\"}] }\n";
    let post = |body: &str| Request::new("POST", CHAT).body(body);
    let body = |options: &str| format!("{{\"model\":\"m\",\"stream\":true,\"stream_options\":{options}}}");
    let same = [
        post(&body("{\"include_usage\":false}")),
        post(&body("null")),
        post("{\"model\":\"m\",\"stream\":false}"),
        post("no JSON"),
    ];
    let elsewhere = ["/v1/responses", "/v1/messages", "/generate"];
    let elsewhere = ENDPOINTS.iter().filter(|endpoint| elsewhere.contains(&endpoint.path));
    let same: Vec<_> = same.into_iter().chain(elsewhere.map(|endpoint| endpoint.request(true))).collect();
    let expected: Vec<_> = same.iter().map(|request| request.body.clone()).collect();
    assert!(sent(Pool::model("m"), &same).await == expected);
    // A pool that would read no body reads these.
    let any = || Pool::any().with("policy: round_robin");
    assert!(sent(any(), &same).await == expected);
    assert_eq!(sent(any(), &[chat(true, 1)]).await, [asked(&chat(true, 1))]);

    let aliased = sent(Pool::model("m").with("aliases: [short]"), &[post(odd), post(&body("{ }"))]).await;
    let odd = odd.replace("\"short\"", "\"m\"").replacen('{', ASKED, 1);
    assert_eq!(aliased, [odd.into_bytes(), body("{\"include_usage\":true }").into_bytes()]);

    let packed = || compressed("gzip", gzip(&chat(true, 1).body));
    assert_eq!(sent(Pool::model("m"), &[packed()]).await, [asked(&chat(true, 1))]);
    assert_eq!(sent(Pool::model("m").with("request_encoding: pass"), &[packed()]).await, [packed().body]);
}

/// What can't be read, or is no stream, or no success, passes as it is; of a stream with a length, the length does not.
#[tokio::test(flavor = "multi_thread")]
async fn only_streams_that_succeed_and_can_be_read_lose_an_event() {
    // The last event has no end.
    let whole = [TOKEN, REPORT, DONE, ": open"].concat();
    let gzipped: &[(&str, &str)] = &[EVENTS, ("Content-Encoding", "gzip")];
    for (status, fields, hides) in [
        (200, &[EVENTS][..], true),
        (200, gzipped, false),
        (200, &[("Content-Type", "application/json")], false),
        (400, &[EVENTS], false),
    ] {
        let upstream = Upstream::fixed(status, fields, whole.clone()).await;
        let proxy = Proxy::start(&asking(Pool::model("m").at(upstream.address()))).await;
        let shown = if hides { [TOKEN, DONE, ": open"].concat() } else { whole.clone() };
        // Nor is that of any other stream promised on, so that an error always fits behind it.
        let length = (fields == gzipped || !fields.contains(&EVENTS)).then(|| whole.len().to_string());

        let mut client = proxy.client().await;
        for _ in 0..2 {
            let answer = client.exchange(&chat(true, 1)).await;
            assert_eq!((answer.status(), answer.text()), (status, shown.clone()));
            assert_eq!(answer.header("content-length"), length.as_deref(), "{fields:?}");
            assert!(answer.complete);
        }
        let (head, body) = Http2::connect(proxy.address()).await.exchange(&chat(true, 1)).await;
        assert_eq!((head.status.as_u16(), String::from_utf8(body).unwrap()), (status, shown.clone()));

        // Without chunks, the end of the connection is the end.
        let (mut client, body) = (proxy.client().await, chat(true, 1).body);
        let head = format!("POST {CHAT} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
        client.send_raw(&[head.as_bytes(), &body].concat()).await.unwrap();
        let head = client.head().await;
        assert_eq!((head.status(), head.get("content-length")), (status, length.as_deref()));
        assert_eq!(String::from_utf8(client.rest().await).unwrap(), shown);
        proxy.load_is_zero().await;
    }
}

fn chunk(bytes: &str) -> String {
    format!("{:x}\r\n{bytes}\r\n", bytes.len())
}

/// A stream whose pieces come when they are let go; at its end the connection is cut.
async fn stepwise(pieces: &'static [&'static str]) -> (Upstream, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let gate = go.clone();
    let upstream = Upstream::start(move |_, mut wire| {
        let gate = gate.clone();
        async move {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            wire.send(head).await.ok()?;
            for piece in pieces {
                tokio::select! {
                    permit = gate.acquire() => permit.ok()?.forget(),
                    () = wire.gone() => return None,
                }
                wire.send(chunk(piece)).await.ok()?;
            }
            gate.acquire().await.ok()?.forget();
            None
        }
    })
    .await;
    (upstream, go)
}

#[tokio::test(flavor = "multi_thread")]
async fn events_pass_before_the_next_is_made_and_what_is_held_passes_when_the_answer_breaks_off() {
    let (upstream, go) = stepwise(&[TOKEN, ": alive\n\n", REPORT, TOKEN, "data: {\"choi"]).await;
    let proxy = Proxy::start(&asking(Pool::model("m").at(upstream.address()))).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 4)).await;
    assert_eq!(client.head().await.status(), 200);
    for (steps, shown) in [(1, TOKEN), (1, ": alive\n\n"), (2, TOKEN)] {
        go.add_permits(steps);
        assert_eq!(client.next().await.as_deref(), Some(shown.as_bytes()));
    }
    go.add_permits(2);
    let rest = String::from_utf8(client.rest().await).unwrap();
    let error = rest.strip_prefix("data: {\"choi\n\ndata: ").expect("what was held, and its end");
    assert_eq!(serde_json::from_str::<Value>(error.trim()).unwrap()["error"]["code"], "answer_cut");
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_an_event_is_held_frees_the_engine() {
    let (upstream, go) = stepwise(&["data: {\"choi", "never"]).await;
    let proxy = Proxy::start(&asking(Pool::model("m").at(upstream.address()))).await;
    let mut client = proxy.client().await;
    client.send(&chat(true, 4)).await;
    assert_eq!(client.head().await.status(), 200);
    go.add_permits(1);
    assert_eq!(proxy.in_flight().await, 1);
    drop(client);
    proxy.load_is_zero().await;
    proxy.process.says("its line", |line| line.contains("client_gone")).await;
}

/// Each attempt sends the same bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_asks_as_the_first_attempt_did() {
    let failing = Upstream::fixed(503, &[], "{}").await;
    let serving = Upstream::fixed(200, &[EVENTS], [TOKEN, REPORT, DONE].concat()).await;
    let pool = Pool::model("m").at(failing.address()).at(serving.address());
    let pool = pool.with("policy: round_robin").with("retry: { replay: true, on: [503] }");
    let proxy = Proxy::start(&asking(pool)).await;
    for _ in 0..2 {
        assert_eq!(proxy.exchange(&chat(true, 1)).await.text(), [TOKEN, DONE].concat());
    }
    let bodies: Vec<_> = [failing.seen(CHAT), serving.seen(CHAT)].concat().into_iter().map(|seen| seen.body).collect();
    assert!(bodies.len() == 3 && bodies.iter().all(|body| *body == asked(&chat(true, 1))));
}
