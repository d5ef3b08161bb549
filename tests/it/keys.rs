//! Every key of the configuration does something.
//!
//! Field report T4: a timeout that could be configured, was documented, and was wired to nothing. So each key of the
//! table has a check here. A check starts routers that differ in the key alone, and asserts on **both** what a client,
//! an engine or the operator sees of them: a key that changes nothing cannot pass.
//!
//! To add one: write `pub async fn name()` in the file of the key's room, and name it with its keys in the `checks!` at
//! the file's head. A new file is added to [`files`]. A map is named beside one of the keys below it.
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use warmroute::config::keys;

use crate::support::*;

/// What a file checks: the check's name, and the keys it is for.
type Checks = &'static [(&'static str, &'static [&'static str])];

/// Makes a test of each check, and notes which keys it is for.
macro_rules! checks {
    ($($check:ident: $($key:literal),+;)+) => {
        pub const CHECKS: super::Checks = &[$((concat!(module_path!(), "::", stringify!($check)), &[$($key),+])),+];

        mod run {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $check() {
                let _named = crate::keys::Named(&[$($key),+]);
                super::$check().await;
            })+
        }
    };
}

mod breaker;
mod discover;
mod edge;
mod engine_metrics;
mod health;
mod kv_events;
mod limits;
mod listeners;
mod logs;
mod policy;
mod pools;
mod prefix;
mod queue;
mod replicas;
mod retry;
mod session;
mod shadow;
mod timers;

fn files() -> Vec<Checks> {
    vec![
        breaker::CHECKS,
        discover::CHECKS,
        edge::CHECKS,
        engine_metrics::CHECKS,
        health::CHECKS,
        kv_events::CHECKS,
        limits::CHECKS,
        listeners::CHECKS,
        logs::CHECKS,
        policy::CHECKS,
        pools::CHECKS,
        prefix::CHECKS,
        queue::CHECKS,
        replicas::CHECKS,
        retry::CHECKS,
        session::CHECKS,
        shadow::CHECKS,
        timers::CHECKS,
    ]
}

#[test]
fn every_key_has_a_check_and_every_check_a_key() {
    let table: BTreeMap<&str, &keys::Key> = keys::all().iter().map(|key| (key.path, key)).collect();
    let checks: Vec<_> = files().into_iter().flatten().collect();
    let checked: BTreeSet<&str> = checks.iter().flat_map(|(_, keys)| keys.iter().copied()).collect();
    let mut wrong = Vec::new();
    for (path, key) in table.iter().filter(|(path, _)| !checked.contains(*path)) {
        wrong.push(format!(
            "{path}: no check. The table has the key, and nothing shows that it does what it says (\"{}\"). Write a \
             check in tests/it/keys/: start a router with it (say, `{}: {}`) and one without it, and assert what \
             differs in what clients, engines or the operator see; then name both in that file's `checks!`",
            key.doc,
            key.name(),
            key.example,
        ));
    }
    for (check, keys) in &checks {
        for key in keys.iter().filter(|key| !table.contains_key(*key)) {
            wrong.push(format!(
                "{key}: checked by {check}, but src/config/table.rs has no such key. If it was renamed, rename it in \
                 that file's `checks!`; if it is gone, the check goes too"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} keys:\n\n{}\n", wrong.len(), table.len(), wrong.join("\n\n"));
}

/// Says which keys a failed check was for.
struct Named(&'static [&'static str]);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- this was the check of {} ---", self.0.join(", "));
            eprintln!("Either it is no longer wired to what it promises, or its promise changed: see the key's row in");
            eprintln!("src/config/table.rs and who reads its field of src/config/model.rs.");
        }
    }
}

/// Two routers, ready: one with the key, and one without it (or with another value).
async fn pair(with: &Config, without: &Config) -> (Proxy, Proxy) {
    tokio::join!(Proxy::start(with), Proxy::start(without))
}

/// How late a timer of at most a second may be on a busy machine. Less than the defaults of other timers that might
/// ring in its stead.
const LATE: Duration = Duration::from_secs(6);

/// What `with` comes to while `without` still waits: a timer in force rings before its default does, so nobody needs to
/// wait for the default.
async fn sooner<T, U>(what: &str, with: impl Future<Output = T>, without: impl Future<Output = U>) -> T {
    let race = async {
        tokio::select! {
            biased;
            _ = without => panic!("{what}: the router without the key was no later than the one with it"),
            result = with => result,
        }
    };
    within(what, LATE, race).await
}

/// A value of `/config`, at a JSON pointer.
async fn in_force(proxy: &Proxy, pointer: &str) -> Value {
    proxy.admin_get("/config").await.json().pointer(pointer).cloned().unwrap_or_default()
}

/// An engine that answers a plain request with its name; a stream says its name and is then held open.
async fn engine(name: &'static str) -> Upstream {
    Upstream::start(move |request, mut wire| async move {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if body["stream"] == true {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100000\r\n\r\n";
            wire.send(format!("{head}data: {name}\n\n")).await.ok()?;
            wire.gone().await;
            return None;
        }
        wire.reply(200, &[("Content-Type", "application/json")], name.as_bytes()).await.ok()?;
        Some(wire)
    })
    .await
}

/// Two such engines.
async fn two() -> [Upstream; 2] {
    [engine("e0").await, engine("e1").await]
}

/// A configuration of one pool, of model `m`, for engines.
fn one_pool(engines: &[Upstream], key: &str) -> Config {
    let pool = engines.iter().fold(Pool::model("m"), |pool, engine| pool.at(engine.address()));
    Config::new(if key.is_empty() { pool } else { pool.with(key) })
}

/// Which engine answers.
async fn who(proxy: &Proxy, request: &Request) -> String {
    let answer = proxy.exchange(request).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.text()
}

/// How many of `requests` each engine answers; those with none are left out.
async fn shares(proxy: &Proxy, requests: impl IntoIterator<Item = Request>) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for request in requests {
        *shares.entry(who(proxy, &request).await).or_default() += 1;
    }
    shares
}

/// `count` plain requests, each as `make` has it.
fn plain(count: usize, make: impl Fn(usize, Request) -> Request) -> Vec<Request> {
    (0..count).map(|n| make(n, chat(false, 1))).collect()
}

/// A stream that an engine holds open, and that engine's name.
async fn held(proxy: &Proxy, make: impl Fn(Request) -> Request) -> (Client, String) {
    let mut client = proxy.client().await;
    client.send(&make(chat(true, 1))).await;
    assert_eq!(client.head().await.status(), 200);
    let event = client.until(b"\n\n").await;
    let name = String::from_utf8_lossy(&event).trim().trim_start_matches("data: ").to_string();
    (client, name)
}
