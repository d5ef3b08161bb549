//! `listen` and `admin`: where the router is found, and by whom.
use std::net::{IpAddr, SocketAddr};

use tempfile::TempDir;

use super::*;

checks! {
    listen: "listen";
    admin: "admin", "admin.listen";
    token: "admin.token";
}

const SECOND: &str = "127.0.0.2";

/// `serve`, without the assumption that there is an admin listener.
fn serve(config: &Config) -> (Process, TempDir) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("warmroute.yaml");
    std::fs::write(&path, config.yaml()).unwrap();
    (Process::start(&["serve", "--config", path.to_str().unwrap()], &[]), folder)
}

/// Where it says that this role listens, on this address.
fn address(process: &mut Process, role: &str, ip: &str) -> SocketAddr {
    let role = format!("role=\"{role}\"");
    process.line(&format!("address of {role} on {ip}"), |line| {
        let at = line.contains(&role).then(|| address_after(line, "address="))??;
        (at.ip() == ip.parse::<IpAddr>().unwrap()).then_some(at)
    })
}

pub async fn listen() {
    let engines = [engine("e0").await];
    let both = one_pool(&engines, "").with(&format!("listen: [127.0.0.1:0, {SECOND}:0]"));
    let (mut with, _folder) = serve(&both);
    for ip in ["127.0.0.1", SECOND] {
        let address = address(&mut with, "proxy", ip);
        assert_eq!(exchange(address, &chat(false, 1)).await.text(), "e0", "on {ip}");
    }
    let without = Proxy::start(&one_pool(&engines, "")).await;
    let address = SocketAddr::new(SECOND.parse().unwrap(), without.address().port());
    let refused = tokio::net::TcpStream::connect(address).await;
    assert!(refused.is_err(), "one address, one listener");
}

pub async fn admin() {
    let engines = [engine("e0").await];
    // The short form, the long one, and the word that closes it.
    for written in [format!("admin: {SECOND}:0"), format!("admin: {{ listen: {SECOND}:0 }}")] {
        let (mut process, _folder) = serve(&one_pool(&engines, "").with(&written));
        let address = address(&mut process, "admin", SECOND);
        assert_eq!(get(address, "/livez").await.status(), 200, "{written}");
    }
    for written in ["admin: off", "admin: { listen: off }"] {
        let (mut process, _folder) = serve(&one_pool(&engines, "").with(written));
        let address = address(&mut process, "proxy", "127.0.0.1");
        assert_eq!(exchange(address, &chat(false, 1)).await.status(), 200, "{written}");
        process.terminate();
        assert!(process.wait(PATIENCE).success());
        let said = process.output();
        assert!(!said.iter().any(|line| line.contains("admin")), "{written}: {said:?}");
    }
}

pub async fn token() {
    let engines = [engine("e0").await];
    let without = one_pool(&engines, "");
    let with = Proxy::start_unready(&without.clone().with("admin: { listen: 127.0.0.1:0, token: t0ken }"));
    let without = Proxy::start_unready(&without);
    assert_eq!(with.admin_get("/replicas").await.status(), 401);
    assert_eq!(without.admin_get("/replicas").await.status(), 200);
    let known = Request::get("/replicas").header("Authorization", "Bearer t0ken");
    assert_eq!(exchange(with.admin(), &known).await.status(), 200);
}
