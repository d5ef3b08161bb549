//! Secrets and prompts planted in headers, bodies and configuration appear nowhere but where they are meant to go.
use crate::support::*;

const CLIENT: &str = "PLANTED-client-key";
const ENGINE: &str = "PLANTED-engine-key";
const ADMIN: &str = "PLANTED-admin-token";
const PROMPT: &str = "PLANTED-prompt-text";
const ANSWER: &str = "PLANTED-answer-text";
const SESSION: &str = "PLANTED-session-id";

#[tokio::test(flavor = "multi_thread")]
async fn planted_secrets_never_show() {
    for format in ["text", "json"] {
        let upstream = Upstream::fixed(200, &[], format!("{{\"text\":\"{ANSWER}\"}}")).await;
        let broken = Upstream::start(|_, _wire| async { None }).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{ENGINE}\n")).unwrap();
        let pool = Pool::model("m")
            .replica(&format!(
                "{{ id: a, url: \"{}\", credential: \"file:{}\" }}",
                upstream.url(),
                file.path().display()
            ))
            .replica(&format!("{{ id: b, url: \"{}\", credential: \"${{ENGINE_KEY}}\" }}", broken.url()))
            .with("policy: { type: session_sticky, fallback: round_robin }");
        let config = Config::new(pool)
            .with("admin: { listen: 127.0.0.1:0, token: \"${ADMIN_TOKEN}\" }")
            .with(&format!("logging: {{ level: trace, format: {format} }}"));
        let proxy = Proxy::start_with(&config, &[("ENGINE_KEY", ENGINE), ("ADMIN_TOKEN", ADMIN)]);
        let prompt = |model: &str| {
            let mut body = chat_body(model, false, 1);
            body["messages"][0]["content"] = PROMPT.into();
            body["prompt_cache_key"] = SESSION.into();
            Request::post("/v1/chat/completions", &body)
                .header("Authorization", &format!("Bearer {CLIENT}"))
                .header("x-api-key", CLIENT)
                .header("Cookie", &format!("session={CLIENT}"))
        };
        for turn in 0..6 {
            let request = if turn % 2 == 0 { prompt("m").header("x-session-id", SESSION) } else { prompt("m") };
            proxy.exchange(&request).await;
            proxy.exchange(&prompt("nope")).await;
        }
        let mut half = prompt("m");
        half.body.truncate(half.body.len() / 2);
        proxy.exchange(&half).await;
        proxy
            .exchange(&Request::get(&format!("/v1/unknown?key={CLIENT}")).header("x-request-id", "\"} {\"PLANTED\""))
            .await;

        let token = format!("Bearer {ADMIN}");
        for page in ["/config", "/metrics", "/replicas", "/readyz", "/livez"] {
            let answer = exchange(proxy.admin(), &Request::get(page).header("Authorization", &token)).await;
            assert!([200, 503].contains(&answer.status()), "{page}: {}", answer.status());
            assert!(!answer.text().contains("PLANTED"), "{page}: {}", answer.text());
        }
        // The access log is written behind the answers: its last line shows that all were written.
        let logged =
            || async { proxy.process.output().iter().filter(|line| line.contains("duration_ms")).count() >= 14 };
        wait_until("14 access-log lines", PATIENCE, logged).await;
        for line in proxy.process.output() {
            assert!(!line.contains("PLANTED"), "{line}");
        }
        assert!(
            upstream
                .seen("/v1/chat/completions")
                .iter()
                .any(|seen| seen.head.get("authorization") == Some(&format!("Bearer {ENGINE}")))
        );
    }
}
