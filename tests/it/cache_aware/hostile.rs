//! Prompts that cost much, or can't be read: others are served meanwhile, and what falls back is counted.
use std::time::{Duration, Instant};

use super::*;

/// A small request beside a bad one may take so long; nothing here is asserted closer than that.
const BESIDE: Duration = Duration::from_secs(2);

/// Sends `bodies` at once, and small requests all the while; returns the answers to the first, and how many of the
/// small ones there were.
async fn beside(proxy: &Proxy, bodies: Vec<Vec<u8>>) -> (Vec<u16>, usize) {
    let address = proxy.address();
    let mut large = tokio::task::JoinSet::new();
    for body in bodies {
        large.spawn(async move {
            let request =
                Request::new("POST", "/v1/chat/completions").header("content-type", "application/json").body(body);
            exchange(address, &request).await.status()
        });
    }
    let (mut statuses, mut small, mut times) = (Vec::new(), 0, Vec::new());
    let mut client = proxy.client().await;
    loop {
        let began = Instant::now();
        assert_eq!(client.exchange(&chat(false, 1)).await.status(), 200);
        times.push(began.elapsed());
        small += 1;
        while let Some(status) = large.try_join_next() {
            statuses.push(status.expect("an answer"));
        }
        if large.is_empty() {
            break;
        }
    }
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    println!(
        "{small} small requests beside {} large ones: p99 {p99:?}, most {:?}",
        statuses.len(),
        times[times.len() - 1]
    );
    assert!(p99 < BESIDE, "{p99:?}");
    (statuses, small)
}

fn prose(bytes: usize) -> Vec<u8> {
    let text = "each word of it is a word, and no two of its lines are the same; ".to_owned() + &letters(bytes, 5);
    json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1}).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_of_60_mib_holds_up_nobody() {
    let engine = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").with("policy: cache_aware").with(&tokenizer()).with("tokens: { budget: 300ms }");
    let proxy = Proxy::start(&open(pool.at(engine.address())).with("logging: { access: false }")).await;
    let (statuses, _) = beside(&proxy, vec![prose(60 << 20), prose(60 << 20)]).await;
    assert_eq!(statuses, [200, 200], "it is the engine's to judge");
    let fallbacks = proxy.metric("warmroute_prompt_fallbacks_total").await;
    assert_eq!(fallbacks, 2.0, "{}", proxy.metrics().await);
    proxy.load_is_zero().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_goes_by_load_and_is_counted() {
    let engine = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").with("policy: cache_aware").with(&tokenizer()).with("tokens: { budget: 1m }");
    let proxy = Proxy::start(&open(pool.at(engine.address())).with("logging: { access: false }")).await;
    let depth = 200_000;
    let deep = |open: &str, close: &str| {
        let content = open.repeat(depth) + "1" + &close.repeat(depth);
        format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]}}").into_bytes()
    };
    let bodies = vec![
        b"this is no JSON".to_vec(),
        b"[1,2,3]".to_vec(),
        deep("[", "]"),
        deep("{\"a\":", "}"),
        json!({"model": "m"}).to_string().into_bytes(),
        json!({"model": "m", "messages": "hello"}).to_string().into_bytes(),
        br#"{"model":"m","messages":7,"messages":null,"tools":"x","stream":[]}"#.to_vec(),
        json!({"model": "m", "messages": [{"role": "nobody", "content": "x"}]}).to_string().into_bytes(),
    ];
    let count = bodies.len();
    let (statuses, small) = beside(&proxy, bodies).await;
    assert_eq!(statuses, vec![200; count]);
    assert_eq!(engine.seen("/v1/chat/completions").len(), count + small, "the engine gets them all");
    let fallbacks = proxy.metric("warmroute_prompt_fallbacks_total").await;
    assert_eq!(fallbacks, count as f64, "{}", proxy.metrics().await);
    assert_eq!(proxy.metric("warmroute_prompt_fallbacks_total{reason=\"unreadable\"}").await, 2.0);
}

/// A template that loops for as long as it is let.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_loops_ends_in_the_text_fallback() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer/tokenizer.json");
    std::fs::copy(from, folder.path().join("tokenizer.json")).expect("a file can be copied");
    let template = "{%- for a in range(99999) %}{%- for b in range(99999) %}{%- for c in range(99999) %}{{- 'x' }}{%- endfor %}{%- endfor %}{%- endfor %}";
    let config = json!({"chat_template": template}).to_string();
    std::fs::write(folder.path().join("tokenizer_config.json"), config).expect("a file to write");
    let engine = Upstream::fixed(200, &[], "{}").await;
    let pool = Pool::model("m").with("policy: cache_aware").with("tokens: { budget: 200ms }");
    let pool = pool.with(&format!("tokenizer: \"{}\"", folder.path().display())).at(engine.address());
    let proxy = Proxy::start(&open(pool).with("logging: { access: false }")).await;
    let answer = within("an answer", PATIENCE, proxy.exchange(&chat(false, 1))).await;
    assert_eq!(answer.status(), 200);
    let fallbacks = proxy.metric("warmroute_prompt_fallbacks_total").await;
    assert_eq!(fallbacks, 1.0, "{}", proxy.metrics().await);
    assert_eq!(proxy.metric("warmroute_prompts_total{basis=\"text\",pool=\"m\"}").await, 1.0);
}
