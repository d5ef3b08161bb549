//! Tokenizers that can't be loaded are refused where they are named, at start, by `check`, and by a reload.
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// A folder with the tests' tokenizer, as the caller spoils it.
fn folder(spoil: impl FnOnce(&Path)) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(Path::new(from).join(file), folder.path().join(file)).expect("a file can be copied");
    }
    spoil(folder.path());
    folder
}

fn rewrite(file: &Path, change: impl FnOnce(String) -> String) {
    let text = std::fs::read_to_string(file).expect("a file to read");
    std::fs::write(file, change(text)).expect("a file to write");
}

fn with(folder: &TempDir) -> Config {
    let pool =
        Pool::model("m").with("policy: cache_aware").with(&format!("tokenizer: \"{}\"", folder.path().display()));
    open(pool.replica("{ id: r0, url: \"http://127.0.0.1:9\" }"))
}

/// One that only a loader finds wanting: it is JSON, and has a model.
fn unloadable() -> TempDir {
    folder(|at| std::fs::write(at.join("tokenizer.json"), r#"{"model":{"type":"BPE"}}"#).expect("a file to write"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_loaded_is_refused_with_file_and_cause() {
    let truncated = folder(|at| rewrite(&at.join("tokenizer.json"), |text| text[..text.len() / 2].to_owned()));
    let template = folder(|at| {
        rewrite(&at.join("tokenizer_config.json"), |_| json!({"chat_template": "{% for m in messages %}"}).to_string());
    });
    for (name, folder) in [("truncated", truncated), ("unloadable", unloadable()), ("template", template)] {
        let place = TempDir::new().expect("a folder");
        let path = place.path().join("c.yaml");
        std::fs::write(&path, with(&folder).yaml()).expect("a file to write");
        for command in [vec!["serve", "--config", path.to_str().unwrap()], vec!["check", path.to_str().unwrap()]] {
            let mut process = Process::start(&command, &[]);
            let said = process.line("the key", |line| line.contains("pools[0].tokenizer").then(|| line.to_string()));
            assert!(said.contains("c.yaml:"), "{name}: {said}");
            assert!(!process.wait(PATIENCE).success(), "{name}: {command:?} started: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_with_one_that_cannot_be_loaded_changes_nothing() {
    let mocks = [Mock::fast()];
    let good = following(&mocks).with(&tokenizer());
    let proxy = Proxy::start(&open(good.clone())).await;
    let mut conversation = Conversation::about("down ");
    conversation.turn(&proxy, "once").await;
    let folder = unloadable();
    let bad = following(&mocks).with(&format!("tokenizer: \"{}\"", folder.path().display()));
    proxy.replace_config(&open(bad).yaml());
    let answer = proxy.admin_post("/reload").await;
    assert_eq!(answer.status(), 422, "{}", answer.text());
    assert!(answer.text().contains("pools[0].tokenizer"), "{}", answer.text());
    let (_, from) = conversation.turn(&proxy, "twice").await;
    assert!(from.matched > 500, "{from:?}");
    assert_eq!(explained(&proxy, &conversation.body("thrice")).await["basis"], "tokens");
}

/// The file in the folder is another one: the same configuration, asked for again, reads it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_reads_files_that_have_changed() {
    let folder = folder(|_| ());
    let mocks = [Mock::fast()];
    let pool = following(&mocks).with(&format!("tokenizer: \"{}\"", folder.path().display()));
    let proxy = Proxy::start(&open(pool)).await;
    let body = Conversation::about("in ").body("how long?");
    let before = explained(&proxy, &body).await;
    rewrite(&folder.path().join("tokenizer_config.json"), |text| {
        text.replace("<|begin|>assistant", "<|begin|><|begin|><|begin|>assistant")
    });
    assert_eq!(explained(&proxy, &body).await["tokens"], before["tokens"], "nobody asked");
    assert_eq!(proxy.admin_post("/reload").await.status(), 200);
    let after = explained(&proxy, &body).await;
    assert_eq!(after["tokens"].as_u64(), before["tokens"].as_u64().map(|tokens| tokens + 2), "two more tokens");
}
