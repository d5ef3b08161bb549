//! What a key of the configuration is: the row of the one table (`table.rs`) that the check, the JSON schema, the
//! reference and the error messages all read.
use std::time::Duration;

use super::table::TABLE;
use super::units::{show_duration, show_seconds, show_size};

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its path; `[]` stands for any item of a list.
    pub path: &'static str,
    /// What may stand there.
    pub kind: Kind,
    /// A word that switches the thing off, or leaves it to Warmroute, where that is possible.
    pub off: Option<&'static str>,
    /// What holds when it is left out.
    pub default: Default,
    /// Whether a reload changes it in a running process; otherwise it takes a restart.
    pub live: bool,
    /// A value that is not the default, as it is written in YAML.
    pub example: &'static str,
    /// What it does, in a sentence or two.
    pub doc: &'static str,
}

/// The shape of a value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Keys of its own.
    Map,
    /// Keys of its own; a bare value stands for the one that is named here.
    MapOr(&'static str),
    /// A list; of scalars, one may stand without brackets.
    List {
        /// What its items are.
        of: &'static Kind,
        /// Fewest items.
        min: usize,
    },
    /// A single value.
    Scalar(Scalar),
}

/// The type of a single value, with its range.
#[derive(Debug, Clone, Copy)]
pub enum Scalar {
    /// IP address and port to listen on.
    Address,
    /// Text that clients, logs or labels show: 1 to 256 characters, none of them a control character.
    Name,
    /// A replica's id: a name of ASCII letters, digits and `.-_:/[]@`, fit for a header.
    Id,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Count(u64, u64),
    /// A number.
    Ratio(f64, f64),
    /// A share, written as a percentage; from and to, in percent.
    Percent(u64, u64),
    /// A length of time.
    Time(Duration, Duration),
    /// A share of a second, with a fraction where it is wanted; from and to, in seconds.
    Seconds(f64, f64),
    /// A number of bytes.
    Size(u64, u64),
    /// One of a few words.
    OneOf(&'static [&'static str]),
    /// `http[s]://host[:port][/base]`.
    Url,
    /// The name of an HTTP header.
    Header,
    /// The path of a URL.
    Path,
    /// `header:NAME` or `body:/json/pointer`.
    SessionKey,
    /// A filter of `tracing`.
    Filter,
    /// A secret: the text itself, or `file:` and a path.
    Secret,
    /// A folder with a `tokenizer.json`.
    Tokenizer,
    /// A file that need not be there yet, relative to the folder of the configuration.
    File,
    /// A name of the DNS.
    DnsName,
    /// A PEM file that can be read.
    Pem,
    /// A PEM file with the certificates of authorities.
    Authorities,
    /// An IP address, or a network in CIDR form.
    Network,
    /// The same, or the word `trusted`.
    Peer,
    /// A DNS name or IP address, as a certificate carries it.
    ServerName,
    /// `tcp://host:port`.
    Tcp,
}

/// What holds when a key is left out.
#[derive(Debug, Clone, Copy)]
pub enum Default {
    /// It may not be left out.
    Required,
    /// This value, as it is written in YAML.
    Value(&'static str),
    /// No single value; in words.
    Words(&'static str),
}

/// Every key, parents before their children.
pub fn all() -> &'static [Key] {
    TABLE
}

/// The keys directly under `parent` (`""` is the whole file).
pub(super) fn under(parent: &str) -> impl Iterator<Item = &'static Key> {
    TABLE.iter().filter(move |key| key.parent() == parent)
}

/// The key `name` under `parent`.
pub(super) fn find(parent: &str, name: &str) -> Option<&'static Key> {
    under(parent).find(|key| key.name() == name)
}

impl Key {
    /// The last part of its path, as it is written.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The path of the map it stands in; `""` for the file.
    pub fn parent(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(parent, _)| parent)
    }

    /// Where keys below it hang: its own path, or that of its items.
    pub(super) fn inside(&self) -> String {
        match self.kind {
            Kind::List { .. } => format!("{}[]", self.path),
            _ => self.path.to_owned(),
        }
    }

    /// What may be written, in words: completes "write …".
    pub fn expects(&self) -> String {
        let mut text = self.kind.expects(&self.inside());
        if let Some(word) = self.off {
            text = format!("{text}; or `{word}`");
        }
        text
    }

    /// "write …, for example …".
    pub(super) fn remedy(&self) -> String {
        format!("write {}, for example `{}: {}`", self.expects(), self.name(), self.example)
    }
}

impl Kind {
    fn expects(&self, inside: &str) -> String {
        match self {
            Self::Map => format!("its keys below it ({})", names(inside)),
            Self::MapOr(short) => {
                let short = find(inside, short).map(Key::expects).unwrap_or_default();
                format!("{short}; or its keys below it ({})", names(inside))
            }
            Self::List { of: Self::Scalar(scalar), .. } => format!("{}, or a list of such", scalar.expects()),
            Self::List { of: of @ Self::MapOr(_), .. } => format!("a list, each item {}", of.expects(inside)),
            Self::List { .. } => format!("a list, each item with its keys ({})", names(inside)),
            Self::Scalar(scalar) => scalar.expects(),
        }
    }
}

/// The names of the keys under `parent`, joined by commas.
pub(super) fn names(parent: &str) -> String {
    under(parent).map(Key::name).collect::<Vec<_>>().join(", ")
}

impl Scalar {
    /// What may be written, in words.
    pub fn expects(&self) -> String {
        match self {
            Self::Address => "an IP address and a port".into(),
            Self::Name => "a name of 1 to 256 characters".into(),
            Self::Id => "a name of 1 to 256 letters, digits and . - _ : / [ ] @".into(),
            Self::Bool => "`true` or `false`".into(),
            Self::Count(min, max) => format!("a whole number from {min} to {max}"),
            Self::Ratio(min, max) => format!("a number from {min} to {max}"),
            Self::Percent(min, max) => format!("a percentage, {min}% to {max}%"),
            Self::Time(min, max) => {
                format!("a duration with its unit, {} to {}", show_duration(*min), show_duration(*max))
            }
            Self::Seconds(min, max) => {
                format!("a time with its unit (s, ms, us, ns), {} to {}", show_seconds(*min), show_seconds(*max))
            }
            Self::Size(min, max) => format!("a size with its unit, {} to {}", show_size(*min), show_size(*max)),
            Self::OneOf(words) => {
                let words: Vec<_> = words.iter().map(|w| format!("`{w}`")).collect();
                if words.len() == 1 { words.concat() } else { format!("one of {}", words.join(", ")) }
            }
            Self::Url => "`http://host[:port][/base/path]`, or `https://…`".into(),
            Self::Header => "a header's name".into(),
            Self::Path => "a path that begins with `/`".into(),
            Self::SessionKey => "`header:NAME` or `body:/json/pointer`".into(),
            Self::Filter => "a level (error, warn, info, debug, trace, off) or a filter".into(),
            Self::Secret => "a secret: `${VARIABLE}`, or `file:` and a path".into(),
            Self::Pem => "the path of a PEM file".into(),
            Self::Authorities => "the path of a PEM file of certificates".into(),
            Self::Network => "an IP address or a network such as `10.0.0.0/8`".into(),
            Self::Peer => "an IP address, a network such as `10.0.0.0/8`, or `trusted`".into(),
            Self::ServerName => "a DNS name or an IP address".into(),
            Self::Tokenizer => "a folder that holds a `tokenizer.json`".into(),
            Self::File => "the path of a file, relative to this one".into(),
            Self::DnsName => "a name of the DNS".into(),
            Self::Tcp => "`tcp://host:port`".into(),
        }
    }
}
