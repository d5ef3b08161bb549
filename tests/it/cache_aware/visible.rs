//! What is told of a decision, and to whom.
use super::*;
use crate::resilience::Engine;

const NAMES: [&str; 3] = ["x-warmroute-replica", "x-warmroute-reason", "x-warmroute-matched-tokens"];

fn told(answer: &Response) -> Vec<&str> {
    NAMES.into_iter().filter(|name| answer.header(name).is_some()).collect()
}

/// Field report H2: whoever writes a header of ours does not speak for us.
#[tokio::test(flavor = "multi_thread")]
async fn h2_only_listed_peers_are_told_and_no_engine_speaks_for_us() {
    let lies = [("x-warmroute-replica", "evil"), ("x-warmroute-reason", "evil"), ("x-warmroute-matched-tokens", "9")];
    let engine = Upstream::fixed(200, &lies, "{}").await;
    let pool = Pool::model("m")
        .with("policy: { type: cache_aware }")
        .replica(&format!("{{ id: r0, url: \"{}\" }}", engine.url()));
    for (expose, sees) in
        [("expose: off", false), ("expose: 10.0.0.0/8", false), ("expose: [10.0.0.0/8, 127.0.0.1]", true)]
    {
        let proxy = Proxy::start(&Config::new(pool.clone()).with(expose)).await;
        // A claim of the client's own counts for nothing.
        let answer = proxy.exchange(&chat(false, 1).header("x-forwarded-for", "10.0.0.1")).await;
        if sees {
            assert_eq!(told(&answer), NAMES);
            let from = from(&answer);
            assert_eq!((&*from.replica, from.matched), ("r0", 0));
        } else {
            assert_eq!(told(&answer), <[&str; 0]>::default(), "{expose}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_our_own_names_the_replica_that_was_tried() {
    let engine = Engine::answering(crate::resilience::CLOSES).await;
    let pool = Pool::model("m").replica(&format!("{{ id: r0, url: \"{}\" }}", engine.upstream.url()));
    let proxy = Proxy::start(&open(pool)).await;
    let answer = proxy.exchange(&chat(false, 1)).await;
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.header("x-warmroute-replica"), Some("r0"));
    let answer = proxy.exchange(&Request::get("/nowhere")).await;
    assert_eq!((answer.status(), told(&answer)), (404, vec![]), "no replica was chosen");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_tells_what_would_be_decided_and_changes_nothing() {
    let mocks = [Mock::fast(), Mock::fast()];
    let proxy = Proxy::start(&open(following(&mocks).with(&tokenizer()))).await;
    let mut conversation = Conversation::about("north ");
    let body = conversation.body("where to?");
    let cold = explained(&proxy, &body).await;
    for (field, value) in [
        ("pool", json!("m")),
        ("model", json!("m")),
        ("adapter", Value::Null),
        ("endpoint", json!("/v1/chat/completions")),
        ("basis", json!("tokens")),
        ("fallback", Value::Null),
        ("session", Value::Null),
    ] {
        assert_eq!(cold[field], value, "{field} in {cold}");
    }
    assert!(cold["tokens"].as_u64() > Some(600) && cold["blocks"].as_u64() > Some(37), "{cold}");
    assert_eq!(cold["decision"]["matched_tokens"], 0);
    for candidate in cold["candidates"].as_array().expect("a list") {
        let mut fields: Vec<_> = candidate.as_object().expect("an object").keys().cloned().collect();
        fields.sort();
        let expected = [
            "chosen",
            "counted_tokens",
            "in_flight",
            "load",
            "matched_tokens",
            "note",
            "placements",
            "queued_seconds",
            "replica",
            "state",
            "weight",
        ];
        assert_eq!(fields, expected);
        assert_eq!((&candidate["placements"], &candidate["matched_tokens"]), (&json!(0), &json!(0)), "{candidate}");
    }
    for _ in 0..20 {
        assert_eq!(explained(&proxy, &body).await, cold, "nothing has changed");
    }
    for mock in &mocks {
        assert_eq!(mock.stat("requests").await, 0, "nothing is sent");
    }
    for family in
        ["warmroute_prompts_total", "warmroute_requests_total", "warmroute_session_bindings", "warmroute_index_blocks"]
    {
        assert_eq!(proxy.metric(family).await, 0.0, "{family}");
    }
    let (_, from) = conversation.turn(&proxy, "where to?").await;
    assert_eq!(cold["decision"]["replica"], from.replica, "and so it is done");
    let warm = explained(&proxy, &conversation.body("and then?")).await;
    assert_eq!((&warm["decision"]["replica"], &warm["decision"]["reason"]), (&json!(from.replica), &json!("prefix")));
    assert!(matched_on(&warm, &from.replica) > 600, "{warm}");
    let other = if from.replica == "r0" { "r1" } else { "r0" };
    assert_eq!(matched_on(&warm, other), 0, "{warm}");
    // A session's header is the explain request's own.
    let asked = Request::post("/explain", &body).header("x-session-id", "a-session-to-be-explained");
    assert_eq!(exchange(proxy.admin(), &asked).await.json()["session"], "session_header");
    assert_eq!(pins(&proxy).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_why_nobody_would_be_taken() {
    let mocks = [Mock::fast(), Mock::fast()];
    let proxy = Proxy::start(&open(following(&mocks))).await;
    for id in ["r0", "r1"] {
        assert_eq!(proxy.admin_post(&format!("/replicas/{id}/drain")).await.status(), 200);
    }
    let said = explained(&proxy, &Conversation::about("x ").body("y")).await;
    assert_eq!(said["decision"], json!({"refused": "none_ready"}));
    for candidate in said["candidates"].as_array().expect("a list") {
        assert_eq!((&candidate["note"], &candidate["chosen"]), (&json!("draining"), &json!(false)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_explain_cannot_read_is_said_in_json() {
    let mocks = [Mock::fast()];
    let config = Config::new(following(&mocks))
        .pool(Pool::model("n").replica("{ id: x, url: \"http://127.0.0.1:9\" }"))
        .with("admin: { listen: 127.0.0.1:0, token: \"${ADMIN_TOKEN}\" }")
        .with("limits: { body: 4KiB }");
    let proxy = Proxy::start_with(&config, &[("ADMIN_TOKEN", "right-token")]);
    for (target, body, status) in [
        ("/explain", "no json".to_owned(), 400),
        ("/explain", json!({"messages": []}).to_string(), 400),
        ("/explain", json!({"model": "nobody's"}).to_string(), 404),
        ("/explain?path=/nowhere", json!({"model": "m"}).to_string(), 404),
        ("/explain", json!({"model": "m", "x": "y".repeat(5_000)}).to_string(), 413),
        ("/explain?path=/v1/embeddings", json!({"model": "m", "input": "x"}).to_string(), 200),
    ] {
        let request = Request::new("POST", target).header("authorization", "Bearer right-token").body(body);
        let answer = exchange(proxy.admin(), &request).await;
        assert_eq!(answer.status(), status, "{target}: {}", answer.text());
        assert_eq!(answer.json()["error"]["message"].is_string(), status != 200, "{target}: {}", answer.text());
    }
    // No prompt is no text either.
    let request = Request::post("/explain", &json!({"model": "m"}));
    let said = exchange(proxy.admin(), &request.header("authorization", "Bearer right-token")).await.json();
    assert_eq!((&said["basis"], &said["tokens"], &said["blocks"]), (&json!("none"), &json!(0), &json!(0)), "{said}");
    assert_eq!(exchange(proxy.admin(), &Request::post("/explain", &json!({"model": "m"}))).await.status(), 401);
    assert_eq!(exchange(proxy.admin(), &Request::get("/index?pool=m")).await.status(), 401);
}

/// Under load, with whatever comes: only decisions change what the index holds, and which one is first to go.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_explanations_change_nothing() {
    let engine = Engine::answering(crate::resilience::HANGS).await;
    let mocks = [Mock::fast(), Mock::fast()];
    let pool = following(&mocks).at(engine.upstream.address());
    let proxy = Proxy::start(&open(pool).with("limits: { body: 1MiB }")).await;
    let mut clients = Vec::new();
    for topic in ["one ", "two ", "three ", "four ", "five ", "six "] {
        let mut client = proxy.client().await;
        let body = Conversation::about(topic).body("a question");
        client
            .send(
                &Request::post("/v1/chat/completions", &body)
                    .header("x-session-id", &format!("a-session-about-{}", topic.trim())),
            )
            .await;
        clients.push(client);
    }
    wait_until("all have come, and only what hangs is open", PATIENCE, || async {
        let rows = ["r0", "r1", "r2"].map(|id| proxy.replica(id));
        let open = futures_util::future::join_all(rows).await;
        let open: Vec<_> = open.into_iter().filter_map(|row| row.expect("a row")["in_flight"].as_f64()).collect();
        // What has been answered is bound, and what hangs is open.
        let bound = proxy.metric("warmroute_session_bindings").await;
        open[..2] == [0.0, 0.0] && open[2] > 0.0 && bound + open[2] == 6.0
    })
    .await;
    let index = || async { proxy.admin_get("/index?limit=10000").await.json()["index"].clone() };
    let bindings = proxy.metric("warmroute_session_bindings").await;
    assert!(bindings > 1.0);
    let body = Conversation::about("one ").body("a question");
    let (before, said) = (index().await, explained(&proxy, &body).await);
    let mut asked = tokio::task::JoinSet::new();
    for at in 0..60_usize {
        let (address, body) = (proxy.admin(), body.clone());
        asked.spawn(async move {
            let request = match at % 6 {
                0 => Request::post("/explain", &body).header("x-session-id", "a-session-about-one"),
                1 => Request::post("/explain", &Conversation::about("seven ").body("?"))
                    .header("x-session-id", "a-session-about-seven"),
                2 => Request::new("POST", "/explain").body(vec![b'['; 900_000]),
                3 => Request::new("POST", "/explain?path=/v1/responses").body(
                    br#"{"model":"m","previous_response_id":"x","input":[{"type":1,"role":{}}],"stream":"\u0000"}"#
                        .to_vec(),
                ),
                4 => Request::new("POST", "/explain?path=%2Fv1%2Fcompletions")
                    .body(br#"{"model":"m","prompt":[[1,-1,99999999999],"\ud800",null],"n":4294967295}"#.to_vec()),
                _ => Request::get("/explain"),
            };
            exchange(address, &request).await.status()
        });
    }
    // One whose body does not come keeps none of the others waiting.
    let mut slow = Client::connect(proxy.admin()).await;
    slow.send_raw(b"POST /explain HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{").await.expect("a connection");
    while let Some(status) = asked.join_next().await {
        assert!([200, 400, 405].contains(&status.expect("an answer")));
    }
    assert_eq!(index().await, before, "stamps, pins and blocks");
    // Not the seconds that wait: those drain by themselves.
    let rows = |said: &Value| {
        let mut rows = said["candidates"].as_array().expect("a list").clone();
        rows.iter_mut().for_each(|row| _ = row["queued_seconds"].take());
        rows
    };
    assert_eq!(rows(&explained(&proxy, &body).await), rows(&said), "placements, matches, turns");
    assert_eq!(proxy.metric("warmroute_session_bindings").await, bindings);
    drop((clients, slow));
    proxy.load_is_zero().await;
    assert_eq!(pins(&proxy).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_tells_what_was_matched() {
    let mocks = [Mock::fast(), Mock::fast()];
    let config = open(following(&mocks)).with("logging: { format: json }");
    let proxy = Proxy::start(&config).await;
    let mut conversation = Conversation::about("south ");
    conversation.turn(&proxy, "once").await;
    let (_, from) = conversation.turn(&proxy, "twice").await;
    let lines = || {
        let lines = proxy.process.output();
        lines
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["outcome"] == "ok")
            .collect::<Vec<_>>()
    };
    wait_until("two lines", PATIENCE, || async { lines().len() == 2 }).await;
    let line = &lines()[1];
    assert_eq!((&line["matched_tokens"], &line["basis"]), (&json!(from.matched), &json!("text")), "{line}");
    assert!(line["prompt_tokens"].as_u64() > Some(from.matched), "{line}");
    assert!(line.get("fallback").is_none(), "a pool without a tokenizer has nothing to fall back from: {line}");
}
