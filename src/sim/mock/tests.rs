//! Tests over sockets, in process.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

struct Client {
    mock: MockHandle,
    connection: SendRequest<Full<Bytes>>,
}

async fn connect(mock: &MockHandle) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(mock.address()).await.expect("the mock listens");
    let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("handshake");
    tokio::spawn(connection);
    sender
}

impl Client {
    async fn new(options: MockOptions) -> Self {
        let mock = start(options).await.expect("a free port");
        let connection = connect(&mock).await;
        Self { mock, connection }
    }

    async fn head(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> hyper::Result<http::Response<hyper::body::Incoming>> {
        let request = http::Request::builder().method(method).uri(path).header("host", "mock");
        let request = request.header("x-order", "kept").body(Full::new(Bytes::from(body.to_owned()))).expect("valid");
        if self.connection.ready().await.is_err() {
            self.connection = connect(&self.mock).await;
        }
        self.connection.send_request(request).await
    }

    async fn call(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let response = self.head(method, path, body).await.expect("an answer");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn json(&mut self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (status, text) = self.call(method, path, &body.to_string()).await;
        (status, serde_json::from_str(&text).expect("JSON"))
    }

    async fn control(&mut self, body: Value) {
        assert_eq!(self.json("POST", "/__control", body).await, (200, json!({"ok": true})));
    }

    async fn stats(&mut self) -> Value {
        self.json("GET", "/__stats", json!(null)).await.1
    }
}

/// Waits until something is so, for ten seconds at most.
async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap_or_else(|_| panic!("never so: {what}"));
}

fn chat(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}]});
    body.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
    body
}

#[tokio::test]
async fn the_second_identical_prompt_is_cached_and_so_is_the_answer_in_the_next_turn() {
    let mut client = Client::new(MockOptions::default()).await;
    let text = "a prompt of more than one block ".repeat(8);
    let (_, first) = client.json("POST", "/v1/chat/completions", chat(&text, json!({}))).await;
    let (_, second) = client.json("POST", "/v1/chat/completions", chat(&text, json!({}))).await;
    assert_eq!(first["usage"]["prompt_tokens"], 67);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
    let answer = &first["choices"][0]["message"]["content"];
    let turn = json!({"messages": [
        {"role": "user", "content": text}, {"role": "assistant", "content": answer}, {"role": "user", "content": "more"},
    ]});
    let (_, third) = client.json("POST", "/v1/chat/completions", turn).await;
    assert_eq!(third["usage"]["prompt_tokens_details"]["cached_tokens"], 80, "67 of the prompt and 13 of the answer");
    let (_, salted) = client.json("POST", "/v1/chat/completions", chat(&text, json!({"cache_salt": "other"}))).await;
    assert_eq!(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn a_stream_has_a_role_the_words_a_reason_usage_and_done() {
    let mut client = Client::new(MockOptions::default()).await;
    let body = chat("hi", json!({"stream": true, "max_tokens": 3, "stream_options": {"include_usage": true}}));
    let (status, text) = client.call("POST", "/v1/chat/completions", &body.to_string()).await;
    assert_eq!(status, 200);
    let events: Vec<&str> =
        text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("data")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let words: Vec<&str> =
        chunks[1..4].iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(words, ["token1", " token2", " token3"]);
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "length");
    assert_eq!((chunks.len(), &chunks[4]["usage"]["completion_tokens"]), (5, &json!(3)));
}

#[tokio::test]
async fn anthropic_and_responses_streams_open_and_close_as_their_apis_say() {
    let mut client = Client::new(MockOptions::default()).await;
    let names = |text: &str| -> Vec<String> {
        let mut names: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix("event: ").map(str::to_owned)).collect();
        names.dedup();
        names
    };
    let body = chat("hi", json!({"stream": true, "max_tokens": 2}));
    let (_, text) = client.call("POST", "/v1/messages", &body.to_string()).await;
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names(&text), expected);
    let body = json!({"input": "weather?", "stream": true, "tools": [{"type": "function", "name": "w"}]});
    let (_, text) = client.call("POST", "/v1/responses", &body.to_string()).await;
    let names = names(&text);
    assert_eq!((names[0].as_str(), names[names.len() - 1].as_str()), ("response.created", "response.completed"));
    assert!(names.contains(&"response.function_call_arguments.delta".to_owned()));
}

#[tokio::test]
async fn a_response_is_kept_continued_and_deleted_and_an_unknown_one_is_404() {
    let mut client = Client::new(MockOptions::default()).await;
    let (_, first) = client.json("POST", "/v1/responses", json!({"input": "hello ".repeat(40)})).await;
    let id = first["id"].as_str().expect("an id").to_owned();
    assert!(id.starts_with("resp_"));
    let (_, next) = client.json("POST", "/v1/responses", json!({"input": "more", "previous_response_id": id})).await;
    assert_eq!(next["usage"]["input_tokens_details"]["cached_tokens"], 64);
    let path = format!("/v1/responses/{id}");
    assert_eq!(client.json("GET", &path, json!(null)).await.1["id"], id);
    assert_eq!(client.json("DELETE", &path, json!(null)).await.0, 200);
    assert_eq!(client.json("GET", &path, json!(null)).await.0, 404);
    assert_eq!(client.json("POST", &format!("{path}/cancel"), json!(null)).await.0, 404);
    assert_eq!(client.json("POST", "/v1/responses", json!({"input": "more", "previous_response_id": id})).await.0, 404);
}

#[tokio::test]
async fn errors_have_the_engines_shapes() {
    let mut vllm = Client::new(MockOptions::default()).await;
    let mut sglang = Client::new(MockOptions { dialect: Dialect::Sglang, ..MockOptions::default() }).await;
    let unknown = chat("hi", json!({"model": "nope", "max_tokens": 1}));
    let (status, body) = vllm.json("POST", "/v1/chat/completions", unknown.clone()).await;
    assert_eq!((status, &body["error"]["type"], &body["error"]["code"]), (404, &json!("NotFoundError"), &json!(404)));
    assert_eq!(sglang.json("POST", "/v1/chat/completions", unknown.clone()).await.0, 200, "SGLang serves any name");
    let (status, body) = vllm.json("POST", "/v1/messages", unknown).await;
    assert_eq!((status, &body["type"], &body["error"]["type"]), (404, &json!("error"), &json!("not_found_error")));
    for (client, pointer) in [(&mut vllm, "/error/message"), (&mut sglang, "/message")] {
        let (status, body) = client.call("POST", "/v1/chat/completions", "{\"model\":").await;
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, body.pointer(pointer).is_some_and(Value::is_string)), (400, true));
        let (status, _) = client.json("POST", "/v1/completions", json!({"prompt": vec![1; 300_000]})).await;
        assert_eq!(status, 400, "longer than the cache");
        assert_eq!(client.json("GET", "/v1/nope", json!(null)).await.0, 404);
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_engine_in_every_phase() {
    let mut options = MockOptions::default();
    options.engine.decode_tps = 1.0;
    let mut client = Client::new(options).await;
    for (disconnects, phase) in ["in the stream", "before the answer", "hanging"].into_iter().enumerate() {
        let body = chat("hi", json!({"stream": phase == "in the stream", "max_tokens": 1_000})).to_string();
        client.control(json!({"hang": phase == "hanging"})).await;
        let mut leaver = TcpStream::connect(client.mock.address()).await.expect("connects");
        let head =
            format!("POST /v1/chat/completions HTTP/1.1\r\nhost: mock\r\ncontent-length: {}\r\n\r\n", body.len());
        leaver.write_all((head + &body).as_bytes()).await.expect("sent");
        if phase == "in the stream" {
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains("token1") {
                assert_ne!(leaver.read_buf(&mut seen).await.expect("a stream"), 0);
            }
        }
        until("in flight", || client.mock.inflight() == 1).await;
        if phase != "hanging" {
            until("in the engine", || client.mock.engine_stats().running == 1).await;
        }
        drop(leaver);
        until("noticed", || client.mock.inflight() == 0 && client.mock.engine_stats().running == 0).await;
        let stats = client.stats().await;
        assert_eq!((&stats["disconnects"], &stats["inflight"]), (&json!(disconnects + 1), &json!(0)), "{phase}");
        assert_eq!(stats["engine"]["blocks_in_use"], 0);
    }
    assert_eq!(client.stats().await["engine"]["cancelled"], 2);
}

#[tokio::test]
async fn stats_tell_what_was_received_and_leave_out_health() {
    let mut client = Client::new(MockOptions::default()).await;
    let body = chat("hi", json!({}));
    client.json("POST", "/v1/chat/completions?a=b", body.clone()).await;
    for path in ["/health", "/metrics"] {
        assert_eq!(client.call("GET", path, "").await.0, 200);
    }
    let stats = client.stats().await;
    assert_eq!((&stats["requests"], &stats["responses_by_status"]), (&json!(1), &json!({"200": 1})));
    assert_eq!(stats["last_path"], "/v1/chat/completions?a=b");
    let hash = xxhash_rust::xxh3::xxh3_64(body.to_string().as_bytes());
    assert_eq!(stats["last_body_hash"], format!("{hash:016x}"));
    assert_eq!(stats["last_headers"][0], json!(["host", "mock"]));
    assert_eq!(stats["last_headers"][1], json!(["x-order", "kept"]));
    client.call("POST", "/__stats/reset", "").await;
    assert_eq!(client.stats().await["requests"], 0);
}

#[tokio::test]
async fn counted_faults_are_used_up_and_unknown_ones_refused() {
    let mut client = Client::new(MockOptions::default()).await;
    let body = chat("hi", json!({})).to_string();
    client.control(json!({"status": 503, "count": 2, "retry_after": 7, "health_status": 500})).await;
    let response = client.head("POST", "/v1/chat/completions", &body).await.expect("an answer");
    assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (503, &http::HeaderValue::from(7)));
    drop(response.into_body().collect().await);
    assert_eq!(client.call("GET", "/health", "").await.0, 500);
    assert_eq!(client.call("POST", "/v1/chat/completions", &body).await.0, 503);
    assert_eq!(client.call("POST", "/v1/chat/completions", &body).await.0, 200);
    client.control(json!({"clear": true})).await;
    assert_eq!(client.call("GET", "/health", "").await.0, 200);
    let (status, refusal) = client.json("POST", "/__control", json!({"delay": 5})).await;
    assert!(status == 400 && refusal["error"].as_str().is_some_and(|text| text.contains("delay_ms")), "{refusal}");
    assert_eq!(client.json("POST", "/__control", json!({"status": 99})).await.0, 400);
}

#[tokio::test]
async fn a_cut_answer_keeps_its_length_and_breaks_off() {
    let mut client = Client::new(MockOptions::default()).await;
    for stream in [false, true] {
        client.control(json!({"cut_after_bytes": 40})).await;
        let body = chat("hi", json!({"stream": stream})).to_string();
        let mut raw = TcpStream::connect(client.mock.address()).await.expect("connects");
        let head =
            format!("POST /v1/chat/completions HTTP/1.1\r\nhost: mock\r\ncontent-length: {}\r\n\r\n", body.len());
        raw.write_all((head + &body).as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).await.expect("closed");
        let answer = String::from_utf8(answer).expect("text");
        let (head, rest) = answer.split_once("\r\n\r\n").expect("a head");
        if stream {
            assert!(rest.starts_with("28\r\ndata: ") && !rest.contains("\r\n0\r\n"), "{rest}");
        } else {
            assert!(head.contains("content-length: ") && rest.len() == 40, "{answer}");
        }
    }
    let stats = client.stats().await;
    assert_eq!(
        (&stats["disconnects"], &stats["inflight"]),
        (&json!(0), &json!(0)),
        "a cut is not the client's leaving"
    );
}

#[tokio::test]
async fn a_reused_connection_is_reset_and_an_idle_one_closed() {
    let mut client = Client::new(MockOptions::default()).await;
    let body = chat("hi", json!({})).to_string();
    client.control(json!({"reset_on_reuse": true})).await;
    assert!(client.head("POST", "/v1/chat/completions", &body).await.is_err(), "the connection has served before");
    assert_eq!(client.call("POST", "/v1/chat/completions", &body).await.0, 200);
    assert_eq!(client.call("POST", "/v1/chat/completions", &body).await.0, 200, "only once");
    client.control(json!({"close_idle_after_ms": 1})).await;
    until("closed", || client.connection.is_closed()).await;
    assert_eq!(client.call("POST", "/v1/chat/completions", &body).await.0, 200, "on a new connection");
}

#[tokio::test]
async fn pacing_delays_the_head_the_first_token_and_the_others() {
    let mut client = Client::new(MockOptions::default()).await;
    client.control(json!({"delay_ms": 30, "first_token_delay_ms": 30, "inter_token_ms": 20})).await;
    let began = std::time::Instant::now();
    let body = chat("hi", json!({"stream": true, "max_tokens": 3})).to_string();
    let response = client.head("POST", "/v1/chat/completions", &body).await.expect("a head");
    assert!(began.elapsed() >= Duration::from_millis(30));
    drop(response.into_body().collect().await.expect("a stream"));
    assert!(began.elapsed() >= Duration::from_millis(30 + 30 + 2 * 20));
}

#[tokio::test]
async fn metrics_use_the_engines_names() {
    let names = [(Dialect::Vllm, "vllm:prefix_cache_hits_total"), (Dialect::Sglang, "sglang:cached_tokens_total")];
    for (dialect, name) in names {
        let mut client = Client::new(MockOptions { dialect, ..MockOptions::default() }).await;
        for _ in 0..2 {
            client
                .json("POST", "/v1/completions", json!({"prompt": (0..40).collect::<Vec<u32>>(), "max_tokens": 1}))
                .await;
        }
        let (_, page) = client.call("GET", "/metrics", "").await;
        let line = page.lines().find(|line| line.starts_with(name)).expect(name);
        assert!(line.ends_with("} 32.0"), "{line}");
        assert_eq!(page.contains("vllm:cache_config_info{block_size=\"16\""), dialect == Dialect::Vllm);
    }
}

#[tokio::test]
async fn a_restart_cuts_streams_and_empties_the_cache() {
    let mut options = MockOptions::default();
    options.engine.decode_tps = 1.0;
    let mut client = Client::new(options).await;
    let body = chat("hi", json!({"stream": true, "max_tokens": 100})).to_string();
    let response = client.head("POST", "/v1/chat/completions", &body).await.expect("a head");
    until("running", || client.mock.engine_stats().running == 1).await;
    client.mock.restart_engine();
    assert!(response.into_body().collect().await.is_err());
    until("gone", || client.mock.inflight() == 0).await;
    assert_eq!(client.mock.engine_stats().blocks_cached, 0);
}

#[tokio::test]
async fn a_mock_that_is_dropped_stops_listening() {
    let mock = start(MockOptions::default()).await.expect("a free port");
    let address = mock.address();
    drop(mock);
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), refused).await.expect("the listener is gone");
}
