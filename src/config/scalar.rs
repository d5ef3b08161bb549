//! The text of one value → the value, or what is wrong with it.
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use rustls::pki_types::ServerName;
use tracing_subscriber::filter::LevelFilter;

use super::events::TcpEndpoint;
use super::keys::Scalar;
use super::model::{ReplicaUrl, Secret, SessionKeySource};
use super::tls::{self, Authorities};
use super::units;

/// A value that passed its check; or a map or list of such.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Map(Vec<(&'static str, super::check::Item)>),
    List(Vec<super::check::Item>),
    /// The word that switches the thing off.
    Off,
    Bool(bool),
    /// Whole numbers, and bytes.
    Count(u64),
    Ratio(f64),
    Time(Duration),
    Word(&'static str),
    Text(Arc<str>),
    Address(SocketAddr),
    Url(ReplicaUrl),
    Tcp(TcpEndpoint),
    Header(HeaderName),
    SessionKey(SessionKeySource),
    Secret(Secret),
    /// A folder or file.
    Path(PathBuf),
    Authorities(Authorities),
    Network(IpNet),
}

/// Stands for the peers of `trusted_proxies`.
const TRUSTED: &str = "trusted";
const MAX_SECRET: u64 = 64 << 10;
const MAX_TOKENIZER: u64 = 256 << 20;

/// Reads `text` as `kind`. The error completes "`TEXT` …" and never repeats the text.
pub(super) fn parse(kind: Scalar, text: &str, base_dir: &Path) -> Result<Value, String> {
    Ok(match kind {
        Scalar::Address => Value::Address(address(text)?),
        Scalar::Name => Value::Text(name(text)?.into()),
        Scalar::Id => Value::Text(id(text)?.into()),
        Scalar::Bool => Value::Bool(text.parse().map_err(|_| "is neither `true` nor `false`")?),
        Scalar::Count(min, max) => Value::Count(within(units::count(text)?, min, max)?),
        Scalar::Ratio(min, max) => {
            let number: f64 = text.parse().map_err(|_| "is not a number")?;
            Value::Ratio(within(number, min, max)?)
        }
        Scalar::Percent(min, max) => {
            let digits = text.strip_suffix('%').ok_or("has no percent sign")?;
            Value::Ratio(within(units::count(digits.trim_end())?, min, max)? as f64 / 100.0)
        }
        Scalar::Time(min, max) => Value::Time(within(units::duration(text)?, min, max)?),
        Scalar::Seconds(min, max) => Value::Ratio(within(units::seconds(text)?, min, max)?),
        Scalar::Size(min, max) => Value::Count(within(units::size(text)?, min, max)?),
        Scalar::OneOf(words) => match words.iter().find(|w| **w == text) {
            Some(word) => Value::Word(word),
            None => {
                return Err(format!("is not known here{}", super::check::did_you_mean(text, words.iter().copied())));
            }
        },
        Scalar::Url => Value::Url(ReplicaUrl::parse(text)?),
        Scalar::Tcp => Value::Tcp(TcpEndpoint::parse(text)?),
        Scalar::Header => Value::Header(header(text)?),
        Scalar::Path => Value::Text(path(text)?.into()),
        Scalar::SessionKey => Value::SessionKey(session_key(text)?),
        Scalar::Filter => Value::Text(filter(text)?.into()),
        Scalar::Secret => Value::Secret(secret(text, base_dir)?),
        Scalar::Tokenizer => Value::Path(tokenizer(text, base_dir)?),
        Scalar::File => Value::Path(base_dir.join(name(text)?)),
        Scalar::DnsName => Value::Text(dns_name(text)?.into()),
        Scalar::Pem => {
            let path = base_dir.join(text);
            tls::read_file(&path)?;
            Value::Path(path)
        }
        Scalar::Authorities => Value::Authorities(Authorities::read(&base_dir.join(text))?),
        Scalar::Network => Value::Network(network(text)?),
        Scalar::Peer if text == TRUSTED => Value::Word(TRUSTED),
        Scalar::Peer => Value::Network(network(text)?),
        Scalar::ServerName => match ServerName::try_from(text) {
            Ok(_) => Value::Text(text.into()),
            Err(_) => return Err("is neither a DNS name nor an IP address".into()),
        },
    })
}

fn within<T: PartialOrd>(value: T, min: T, max: T) -> Result<T, String> {
    if value >= min && value <= max { Ok(value) } else { Err("is out of range".into()) }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        if text.starts_with(':') || text.chars().all(|c| c.is_ascii_digit()) {
            "names no IP address: 127.0.0.1 is this machine alone, 0.0.0.0 is every interface".into()
        } else {
            "is not an IP address and a port".into()
        }
    })
}

fn network(text: &str) -> Result<IpNet, String> {
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return Ok(ip.into());
    }
    let network: IpNet = text.parse().map_err(|_| "is neither an IP address nor a network")?;
    if network.trunc() != network {
        return Err("has bits set outside its prefix: write the network's first address".into());
    }
    Ok(network)
}

fn name(text: &str) -> Result<&str, String> {
    match text.chars().count() {
        0 => Err("is empty".into()),
        257.. => Err("is longer than 256 characters".into()),
        _ if text.chars().any(char::is_control) => Err("holds a control character".into()),
        _ if text.trim() != text => Err("begins or ends with a space".into()),
        _ => Ok(text),
    }
}

fn id(text: &str) -> Result<&str, String> {
    let text = name(text)?;
    match text.chars().find(|c| !c.is_ascii_alphanumeric() && !".-_:/[]@".contains(*c)) {
        Some(c) => Err(format!("holds `{}`, which an id may not", c.escape_debug())),
        None => Ok(text),
    }
}

/// RFC 1035's lengths; underscores, because service names begin with them (RFC 2782).
fn dns_name(text: &str) -> Result<&str, String> {
    let text = name(text)?;
    let labels = text.strip_suffix('.').unwrap_or(text).split('.');
    let valid = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    match text.len() {
        254.. => Err("is longer than a name may be".into()),
        _ if labels.clone().all(valid) => Ok(text),
        _ => Err("is not a name of the DNS: letters, digits, `-` and `_`, joined by dots".into()),
    }
}

fn header(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| "is not a header's name".into())
}

fn path(text: &str) -> Result<&str, String> {
    if !text.starts_with('/') {
        return Err("does not begin with `/`".into());
    }
    match text.chars().find(|c| !c.is_ascii_graphic() || "?#".contains(*c)) {
        Some(c) => Err(format!("holds `{}`, which a path may not", c.escape_debug())),
        None => Ok(text),
    }
}

fn session_key(text: &str) -> Result<SessionKeySource, String> {
    if let Some(header) = text.strip_prefix("header:") {
        return Ok(SessionKeySource::Header(header.parse().map_err(|_| "does not name a header")?));
    }
    let Some(pointer) = text.strip_prefix("body:") else {
        return Err("says neither `header:` nor `body:`".into());
    };
    // RFC 6901: every reference token begins with `/`, and `~` comes only as `~0` or `~1`.
    let escapes = pointer.split('~').skip(1).all(|part| part.starts_with(['0', '1']));
    if !pointer.starts_with('/') || !escapes {
        return Err("holds no JSON pointer after `body:`".into());
    }
    Ok(SessionKeySource::Body(pointer.into()))
}

/// A bare word that is no level is a target's name to tracing, which then silences all the rest: a typo in `info` would
/// turn the log off. So a target is only taken with its level.
pub(super) fn filter(text: &str) -> Result<&str, String> {
    let bare = |part: &&str| !part.contains(['=', ':', '[', ']', '{', '}']) && part.parse::<LevelFilter>().is_err();
    // The word itself is not repeated: the value may be filled in from a variable.
    if text.split(',').map(str::trim).any(|part| !part.is_empty() && bare(&part)) {
        return Err("is no filter: a word in it is neither a level nor `target=level`".into());
    }
    match tracing_subscriber::EnvFilter::builder().parse(text) {
        Ok(_) if !text.trim().is_empty() => Ok(text),
        _ => Err("is neither a level nor a filter".into()),
    }
}

fn secret(text: &str, base_dir: &Path) -> Result<Secret, String> {
    let value = match text.strip_prefix("file:") {
        Some(path) => read(&base_dir.join(path), MAX_SECRET)?.trim().to_owned(),
        None => text.to_owned(),
    };
    if value.is_empty() {
        return Err("is empty".into());
    }
    if !value.chars().all(|c| c.is_ascii_graphic()) {
        return Err("holds a space or a character outside ASCII, which a bearer token may not".into());
    }
    Ok(Secret::new(value))
}

fn tokenizer(text: &str, base_dir: &Path) -> Result<PathBuf, String> {
    let folder = base_dir.join(text);
    if !folder.is_dir() {
        return Err(match base_dir.to_str() {
            Some("") | None => "is not a folder, seen from the working directory".into(),
            Some(base) => format!("is not a folder, seen from {base}"),
        });
    }
    let file = folder.join("tokenizer.json");
    let text = read(&file, MAX_TOKENIZER).map_err(|e| format!("holds no usable tokenizer: its tokenizer.json {e}"))?;
    #[derive(serde::Deserialize)]
    struct Shape {
        #[serde(rename = "model")]
        _model: serde::de::IgnoredAny,
    }
    match serde_json::from_str::<Shape>(&text) {
        Ok(_) => Ok(folder),
        Err(e) => Err(format!("holds no usable tokenizer: its tokenizer.json is not one: {e}")),
    }
}

/// A small text file; the error completes "FILE …".
fn read(path: &Path, most: u64) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|e| format!("cannot be read: {}", plain(&e)))?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        return Err("cannot be read: it is a folder".into());
    }
    let mut text = String::new();
    let read = file.take(most + 1).read_to_string(&mut text).map_err(|e| format!("cannot be read: {}", plain(&e)))?;
    if read as u64 > most {
        return Err(format!("is larger than {}", units::show_size(most)));
    }
    Ok(text)
}

/// An I/O error in words, without the number of the system.
pub(super) fn plain(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        std::io::ErrorKind::InvalidData => "it is not UTF-8 text".into(),
        _ => e.to_string(),
    }
}

impl ReplicaUrl {
    /// Reads `http[s]://host[:port][/base/path]`; the error completes "`TEXT` …" and never repeats the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("has no scheme: a URL begins with `http://`")?;
        let tls = scheme.eq_ignore_ascii_case("https");
        if !tls && !scheme.eq_ignore_ascii_case("http") {
            return Err("begins with neither `http://` nor `https://`".into());
        }
        let usual = if tls { 443 } else { 80 };
        if rest.contains('@') {
            return Err("carries a user or password: `credential` is the place for it".into());
        }
        if rest.contains(['?', '#']) {
            return Err("has a query or fragment, and only a base path may follow the host".into());
        }
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let base = base.trim_end_matches('/');
        let authority: http::uri::Authority = authority.parse().map_err(|_| "has no valid host")?;
        if !base.is_empty() && (base.parse::<http::uri::PathAndQuery>().is_err() || path(base).is_err()) {
            return Err("has a base path with characters that a URL may not hold".into());
        }
        let host = authority.host().to_ascii_lowercase();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let valid = if host.starts_with('[') {
            bare.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            !bare.is_empty() && bare.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
        };
        if !valid {
            return Err("has no valid host".into());
        }
        let port = match authority.as_str()[authority.host().len()..].strip_prefix(':') {
            None => usual,
            Some(port) => match port.parse::<u16>() {
                Ok(port) if port > 0 => port,
                _ => return Err("has no valid port".into()),
            },
        };
        let written = if port == usual { host.clone() } else { format!("{host}:{port}") };
        Ok(Self { tls, host: bare.into(), port, authority: written.into(), base_path: base.into() })
    }

    /// `host:port[/base]`: a replica's id when it is given none.
    pub fn default_id(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.to_string() };
        format!("{host}:{}{}", self.port, self.base_path)
    }
}

impl std::fmt::Display for ReplicaUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.base_path)
    }
}
