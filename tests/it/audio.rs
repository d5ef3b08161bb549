//! Audio comes as a multipart form; the model is one of its fields, and the rest is not looked at.
use crate::support::*;

fn form(model: Option<&str>, first: bool, audio: &[u8]) -> Request {
    let boundary = "----warm-boundary-7d1";
    let part = |head: &str, content: &[u8]| {
        let mut out = format!("--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n").into_bytes();
        out.extend_from_slice(content);
        out.extend_from_slice(b"\r\n");
        out
    };
    let named = model.map(|model| part("name=\"model\"", model.as_bytes())).unwrap_or_default();
    let file = part("name=\"file\"; filename=\"a.wav\"", audio);
    let mut body = Vec::new();
    for piece in if first { [&named, &file] } else { [&file, &named] } {
        body.extend_from_slice(piece);
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Request::new("POST", "/v1/audio/transcriptions")
        .header("content-type", &format!("multipart/form-data; boundary={boundary}"))
        .body(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_forms_model_picks_the_pool_and_the_bytes_pass() {
    let (a, b) = (Upstream::fixed(200, &[], "\"a\"").await, Upstream::fixed(200, &[], "\"b\"").await);
    let config = Config::new(Pool::model("whisper").replica(&format!("{{ id: a, url: \"{}\" }}", a.url())))
        .pool(Pool::model("voxtral").replica(&format!("{{ id: b, url: \"{}\" }}", b.url())));
    let proxy = Proxy::start(&config).await;
    let audio = noise(500_000, 5);
    for (upstream, model, name) in [(&a, "whisper", "\"a\""), (&b, "voxtral", "\"b\"")] {
        for (turn, first) in [true, false].into_iter().enumerate() {
            let request = form(Some(model), first, &audio);
            let answer = proxy.exchange(&request).await;
            assert_eq!((answer.status(), answer.text()), (200, name.to_string()), "{model} first={first}");
            let seen = &upstream.seen("/v1/audio/transcriptions")[turn];
            assert!(seen.body == request.body);
            assert!(seen.head.get("content-type").unwrap().contains("boundary=----warm-boundary-7d1"));
        }
    }
    let answer = proxy.exchange(&form(Some("nobody"), true, &audio)).await;
    assert_eq!(answer.status(), 404);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("nobody"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_without_a_model_goes_to_the_only_pool() {
    let upstream = Upstream::fixed(200, &[], "{}").await;
    let proxy = Proxy::start(&Config::new(Pool::model("whisper").at(upstream.address()))).await;
    assert_eq!(proxy.exchange(&form(None, true, b"RIFF")).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_the_engine() {
    let upstream = Upstream::start(|_, mut wire| async move {
        wire.gone().await;
        None
    })
    .await;
    let proxy = Proxy::start(&Config::new(Pool::model("whisper").at(upstream.address()))).await;
    let mut client = proxy.client().await;
    client.send(&form(Some("whisper"), true, b"RIFF")).await;
    proxy.wait_in_flight(1, PATIENCE).await;
    drop(client);
    proxy.wait_in_flight(0, RELEASE).await;
}
