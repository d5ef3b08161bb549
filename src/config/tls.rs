//! TLS as the operator writes it, and what is in the files it names.
//!
//! Files are read when a configuration is checked, so that `check` speaks of a certificate that doesn't fit its key and
//! a bad new one never replaces a good one. A listener reads its certificate and key again when they change
//! ([`read_pair`]); authorities are as they were when the configuration was read.
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode as _;

/// Certificates and keys are small; more than this is some other file.
const MAX_FILE: u64 = 1 << 20;

/// TLS on a listener.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenTls {
    /// PEM file: the listener's certificate, then its intermediates.
    pub certificate: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
    /// Who signs client certificates; `None` = none are asked for.
    pub client_ca: Option<Authorities>,
    /// Whether a client must show one. Default required, where `client_ca` is set.
    pub client_certificates: ClientCertificates,
    /// Oldest version spoken. Default 1.2.
    pub min_version: MinVersion,
}

/// Whether clients must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// One that is shown must be valid; none will do.
    Optional,
    /// A client without a valid one is refused.
    Required,
}

/// Oldest TLS version spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// TLS to a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaTls {
    /// Who signs its certificate; `None` = the public authorities (Mozilla's list, compiled in).
    pub ca: Option<Authorities>,
    /// The name that its certificate must carry, and that is asked for. Default: the URL's host.
    pub server_name: Arc<str>,
}

/// TLS to the replicas of a pool, where they don't say otherwise.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolTls {
    /// As in [`ReplicaTls`].
    pub ca: Option<Authorities>,
    /// The name for all of them; `None` = the host of each one's URL.
    pub server_name: Option<Arc<str>>,
}

/// Trusted certificates of a PEM file, as they were when it was read; equal when path and content are.
#[derive(Clone)]
pub struct Authorities {
    /// The file.
    pub path: PathBuf,
    /// Its certificates.
    pub roots: Arc<RootCertStore>,
    content: Arc<[u8]>,
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.content == other.content
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} certificates)", self.path.display(), self.roots.len())
    }
}

impl Authorities {
    /// Reads a PEM file; the error completes "`FILE` …".
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let content = read_file(path)?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&content)? {
            roots.add(certificate).map_err(|error| format!("holds a certificate that cannot be trusted: {error}"))?;
        }
        Ok(Self { path: path.to_owned(), roots: Arc::new(roots), content: content.into() })
    }
}

/// The cryptography of this build.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate with its key, ready to serve.
#[derive(Debug)]
pub struct Pair {
    /// For rustls.
    pub key: Arc<CertifiedKey>,
    /// When the certificate expires, in seconds since 1970; `None` if that can't be read.
    pub expires: Option<u64>,
}

/// Certificate and key from the content of their files.
///
/// # Errors
/// What is wrong, in words that name `certificate` and `key`.
pub fn read_pair(certificate: &[u8], key: &[u8]) -> Result<Pair, String> {
    let chain = certificates(certificate).map_err(|problem| format!("the certificate's file {problem}"))?;
    let expires = chain.first().and_then(|leaf| expiry(leaf));
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| "the key's file holds no private key in PEM (`-----BEGIN PRIVATE KEY-----`)".to_owned())?;
    let key = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => "the key is not the certificate's".to_owned(),
        other => format!("certificate and key cannot be used: {other}"),
    })?;
    Ok(Pair { key: Arc::new(key), expires })
}

/// The content of a small file; the error completes "`FILE` …".
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut content = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut content))
        .map_err(|error| format!("cannot be read: {}", super::scalar::plain(&error)))?;
    if content.len() as u64 > MAX_FILE {
        return Err("is larger than 1MiB".into());
    }
    Ok(content)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        _ => Err("holds no certificate in PEM (`-----BEGIN CERTIFICATE-----`)".into()),
    }
}

fn expiry(certificate: &CertificateDer<'_>) -> Option<u64> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
}
