//! Each request goes where its prefix is warm: tokens or text, with no session to go by, through retries, reloads and
//! restarts.
mod hostile;
mod learned;
mod least_cost;
mod prefill;
mod tokenizers;
mod visible;

use serde_json::{Value, json};

use crate::support::*;

/// The tokenizer that is committed for tests.
fn tokenizer() -> String {
    format!("tokenizer: \"{}/tests/fixtures/tokenizer\"", env!("CARGO_MANIFEST_DIR"))
}

/// A pool for `m` that follows prefixes of four blocks and more; `r0`, `r1`, … are its replicas.
fn following(mocks: &[Mock]) -> Pool {
    let pool = Pool::model("m").with("policy: { type: cache_aware, min_match_tokens: 64 }");
    // On a busy machine a short prompt may take long; and mocks count four bytes as a token.
    let pool = pool.with("tokens: { budget: 1m, parity: false }");
    mocks.iter().fold(pool, |pool, mock| pool.at(mock.address()))
}

/// The same, with every answer telling the tests where it comes from.
fn open(pool: Pool) -> Config {
    Config::new(pool).with("expose: 127.0.0.1")
}

/// A conversation, as its client keeps it.
#[derive(Clone)]
struct Conversation {
    messages: Vec<Value>,
    extra: Value,
}

/// Where an answer says that it comes from.
#[derive(Debug, Clone, PartialEq)]
struct From {
    replica: String,
    reason: String,
    matched: u64,
}

impl Conversation {
    /// One that nobody else has begun in this way.
    fn about(topic: &str) -> Self {
        Self { messages: vec![json!({"role": "system", "content": topic.repeat(600)})], extra: json!({}) }
    }

    /// With further fields in its bodies.
    fn with(mut self, extra: Value) -> Self {
        self.extra = extra;
        self
    }

    fn body(&self, question: &str) -> Value {
        let mut messages = self.messages.clone();
        messages.push(json!({"role": "user", "content": question}));
        let mut body = json!({"model": "m", "messages": messages, "max_tokens": 8});
        for (name, value) in self.extra.as_object().expect("fields") {
            body[name] = value.clone();
        }
        body
    }

    /// One turn; the answer, and where it came from.
    async fn turn(&mut self, proxy: &Proxy, question: &str) -> (Value, From) {
        let answer = proxy.exchange(&Request::post("/v1/chat/completions", &self.body(question))).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let from = from(&answer);
        let answer = answer.json();
        self.messages.push(json!({"role": "user", "content": question}));
        self.messages.push(answer["choices"][0]["message"].clone());
        (answer, from)
    }
}

fn from(answer: &Response) -> From {
    let of = |name: &str| answer.header(name).unwrap_or_else(|| panic!("no {name}")).to_owned();
    From {
        replica: of("x-warmroute-replica"),
        reason: of("x-warmroute-reason"),
        matched: of("x-warmroute-matched-tokens").parse().expect("a number"),
    }
}

/// What `POST /explain` says of a chat.
async fn explained(proxy: &Proxy, body: &Value) -> Value {
    let answer = exchange(proxy.admin(), &Request::post("/explain", body)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

/// What one replica holds of a prompt, as far as the router knows.
fn matched_on(explained: &Value, replica: &str) -> u64 {
    let candidates = explained["candidates"].as_array().expect("a list");
    let row = candidates.iter().find(|row| row["replica"] == replica).expect("each replica has a row");
    row["matched_tokens"].as_u64().unwrap_or_else(|| panic!("no matched_tokens in {row}"))
}

/// Open placements that pin blocks in the index.
async fn pins(proxy: &Proxy) -> u64 {
    let dump = proxy.admin_get("/index?limit=10000").await.json();
    let runs = dump["index"]["runs"].as_array().unwrap_or_else(|| panic!("no runs in {dump}"));
    let holders = runs.iter().flat_map(|run| run["holders"].as_array().expect("a list"));
    holders.map(|holder| holder["pins"].as_u64().expect("a number")).sum()
}

/// With and without a tokenizer: four conversations whose turns take turns, and no session to go by.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_back_to_where_it_is_warm() {
    for basis in ["text", "tokens"] {
        let mocks = [Mock::fast(), Mock::fast(), Mock::fast()];
        let pool = following(&mocks);
        let proxy = Proxy::start(&open(if basis == "tokens" { pool.with(&tokenizer()) } else { pool })).await;
        let mut conversations: Vec<_> =
            ["red ", "green ", "blue ", "grey "].map(Conversation::about).into_iter().collect();
        let mut homes = Vec::new();
        for conversation in &mut conversations {
            let (answer, from) = conversation.turn(&proxy, "and what of it?").await;
            assert_eq!((from.matched, &*from.reason), (0, "no_match"), "{basis}: nobody has seen it");
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
            homes.push((from.replica, 0, 0));
        }
        for turn in 1..5 {
            for (conversation, (home, matched, cached)) in conversations.iter_mut().zip(&mut homes) {
                let (answer, from) = conversation.turn(&proxy, &format!("{turn}: ").repeat(40)).await;
                assert_eq!((&from.replica, &*from.reason), (&*home, "prefix"), "{basis}, turn {turn}");
                assert!(from.matched > *matched, "{basis}, turn {turn}: {} after {matched}", from.matched);
                *matched = from.matched;
                let reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
                assert!(reported > *cached, "{basis}, turn {turn}: the engine reports {reported} after {cached}");
                *cached = reported;
            }
        }
        let prompts = proxy.metric(&format!("warmroute_prompts_total{{basis=\"{basis}\",pool=\"m\"}}")).await;
        assert_eq!(prompts, 20.0, "{basis}");
        assert_eq!(proxy.metric("warmroute_prompt_fallbacks_total").await, 0.0);
        let (all, matched) =
            (proxy.metric("warmroute_prompt_tokens_total").await, proxy.metric("warmroute_matched_tokens_total").await);
        assert!(0.0 < matched && matched < all, "{matched} of {all}");
        assert!(proxy.metric("warmroute_index_bytes").await > 0.0);
        assert!(proxy.metric("warmroute_index_blocks").await > 100.0);
        let cached = proxy.metric("warmroute_boundary_cache_bytes").await;
        assert_eq!(cached > 0.0, basis == "tokens");
        proxy.load_is_zero().await;
        assert_eq!(pins(&proxy).await, 0);
    }
}

/// What shares an engine's cache shares blocks, and what does not, does not.
#[tokio::test(flavor = "multi_thread")]
async fn adapters_and_salts_have_prefixes_of_their_own() {
    let speed = ["--prefill-tps", "1000000", "--decode-tps", "100000"];
    let mocks = [Mock::start(&[&["--model", "m", "--model", "lora"][..], &speed].concat())];
    let pool = following(&mocks).with("aliases: [default]").with("adapters: [lora]").with(&tokenizer());
    let proxy = Proxy::start(&open(pool)).await;
    let mut plain = Conversation::about("one ");
    let fresh = plain.clone();
    plain.turn(&proxy, "a question").await;
    let (_, again) = fresh.clone().turn(&proxy, "a question").await;
    assert!(again.matched > 500, "{again:?}");
    let (_, alias) = fresh.clone().with(json!({"model": "default"})).turn(&proxy, "a question").await;
    assert_eq!(alias.matched, again.matched, "an alias is the same model");
    for other in [json!({"model": "lora"}), json!({"cache_salt": "tenant"}), json!({"cache_salt": "another"})] {
        let (answer, from) = fresh.clone().with(other.clone()).turn(&proxy, "a question").await;
        assert_eq!(from.matched, 0, "{other}");
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{other}: the engine agrees");
        let (_, from) = fresh.clone().with(other.clone()).turn(&proxy, "a question").await;
        assert_eq!(from.matched, again.matched, "{other}");
    }
    let body = fresh.clone().with(json!({"model": "lora"})).body("a question");
    let said = explained(&proxy, &body).await;
    assert_eq!((&said["model"], &said["adapter"], &said["pool"]), (&json!("lora"), &json!("lora"), &json!("m")));
    let listed = proxy.exchange(&Request::get("/v1/models")).await.text();
    assert!(listed.contains("\"lora\""), "{listed}");
}
