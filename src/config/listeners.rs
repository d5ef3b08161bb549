//! Where clients and the operator connect: addresses that don't get in each other's way, TLS whose files fit together.
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::check::Item;
use super::error::{Error, Errors};
use super::model::{Admin, Listen};
use super::resolve::{Read as _, networks, or};
use super::tls::{self, ClientCertificates, ListenTls, MinVersion};

/// Both listeners; the inner `None` of the second is `admin: off`.
pub(super) fn resolve(root: &Item, errors: &mut Errors) -> (Option<Vec<Listen>>, Option<Option<Admin>>) {
    let mut listen = Vec::new();
    let mut taken: Vec<(SocketAddr, &Item)> = Vec::new();
    let item = root.get("admin");
    let admin = or(item, "listen", Some(SocketAddr::from(([127, 0, 0, 1], 9090))))
        .map(|listen| Admin { listen, token: or(item, "token", None) });
    for item in root.items("listen") {
        let Some(at) = item.get("address") else { continue };
        let Some(address) = SocketAddr::read(&at.value) else { continue };
        if let Some((_, other)) = taken.iter().find(|(a, _)| overlap(*a, address)) {
            let problem = format!("`{}` overlaps with {} ({})", at.shown, other.path, other.place);
            errors.push(Error::new(at.place, &at.path, problem, "give each listener a port of its own"));
        }
        taken.push((address, at));
        listen.push(Listen {
            address,
            tls: item.get("tls").and_then(|tls| listen_tls(tls, errors)),
            proxy_protocol: networks(item, "proxy_protocol"),
            reuse_port: or(Some(item), "reuse_port", false),
        });
    }
    if let Some(admin) = &admin {
        // Without `admin:` in the file, the place to change is the listener that took the default's port.
        let at = item.and_then(|item| item.get("listen"));
        if let Some((_, other)) = taken.iter().find(|(a, _)| overlap(*a, admin.listen)) {
            let (place, path) = at.map_or((other.place, "admin.listen"), |i| (i.place, i.path.as_str()));
            let problem = format!("{} overlaps with {} ({})", admin.listen, other.path, other.place);
            errors.push(Error::new(
                place,
                path,
                problem,
                "give the admin listener another port, or write `admin: off`",
            ));
        }
        if let (None, Some(at), false) = (&admin.token, at, admin.listen.ip().to_canonical().is_loopback()) {
            // A token that was given but is wrong has its own error.
            if !errors.iter().any(|e| e.path == "admin.token") {
                let problem = format!(
                    "`{}` can be reached from other machines, and no token is set: whoever connects could read this \
                     configuration and drain replicas",
                    at.shown
                );
                let remedy = "write `admin: { listen: …, token: \"${ADMIN_TOKEN}\" }`, or listen on 127.0.0.1";
                errors.push(Error::new(at.place, &at.path, problem, remedy));
            }
        }
    }
    (if listen.is_empty() { None } else { Some(listen) }, Some(admin))
}

/// `None` when it is switched off, or an error has been pushed.
fn listen_tls(item: &Item, errors: &mut Errors) -> Option<ListenTls> {
    let file = |name: &str| item.get(name).map(|given| (given, PathBuf::read(&given.value)));
    let (certificate, key) = (file("certificate"), file("key"));
    if let Some((_, None)) = certificate {
        return None;
    }
    let (Some((at, Some(certificate))), Some((_, Some(key)))) = (certificate, key) else {
        // A file that can't be read has its own error.
        let path = |name: &str| format!("{}.{name}", item.path);
        if !errors.iter().any(|e| e.path == path("certificate") || e.path == path("key")) {
            let remedy = "write `tls: { certificate: cert.pem, key: key.pem }`";
            errors.push(Error::new(item.place, &item.path, "TLS needs a `certificate` and its `key`", remedy));
        }
        return None;
    };
    let pair = tls::read_file(&certificate)
        .and_then(|content| Ok((content, tls::read_file(&key)?)))
        .and_then(|(certificate, key)| tls::read_pair(&certificate, &key));
    if let Err(problem) = pair {
        let remedy = "give the PEM files of one pair, the listener's own certificate first in its file";
        errors.push(Error::new(at.place, &at.path, problem, remedy));
    }
    let client_ca = or(Some(item), "client_ca", None);
    if let Some(given) =
        item.get("client_certificates").filter(|_| client_ca.is_none() && item.get("client_ca").is_none())
    {
        let remedy = "write `client_ca: ca.pem` beside it, the authority that signs them";
        errors.push(Error::new(given.place, &given.path, "client certificates need a `client_ca`", remedy));
    }
    Some(ListenTls {
        certificate,
        key,
        client_ca,
        client_certificates: or(Some(item), "client_certificates", ClientCertificates::Required),
        min_version: or(Some(item), "min_version", MinVersion::Tls12),
    })
}

/// Whether one socket would take the other's connections, or could not be opened beside it.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified();
    let both_ways = |x: IpAddr, y: IpAddr| any(x) && (x.is_ipv6() || y.is_ipv4());
    a.port() != 0
        && a.port() == b.port()
        && (a.ip() == b.ip() || both_ways(a.ip(), b.ip()) || both_ways(b.ip(), a.ip()))
}
