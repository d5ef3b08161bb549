//! TLS on listeners: rustls with *ring*, HTTP/2 or HTTP/1.1 by ALPN, and certificates that follow their files.
//!
//! The files are compared by content every few seconds, so that renamed, rewritten and re-linked ones are all seen. A
//! pair that can't be used changes nothing: the old one stays, a log line and a counter tell.
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, NoClientAuth, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};
use tokio_rustls::TlsAcceptor;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{ClientCertificates, ListenTls, MinVersion, provider, read_file, read_pair};
use crate::telemetry::Metrics;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(2);

/// HTTP/2 in ALPN.
pub const H2: &[u8] = b"h2";

/// The certificate in use.
#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// A listener's certificate files, watched.
#[derive(Debug)]
pub struct Certificate {
    current: Arc<Current>,
    certificate: PathBuf,
    key: PathBuf,
    /// Content that is in use, or was found wanting.
    seen: u64,
    /// Its address: the label.
    listen: String,
}

/// What accepts TLS connections, and the files it follows.
///
/// # Errors
/// When the files can't be used.
pub fn acceptor(tls: &ListenTls, listen: String, metrics: &Metrics) -> io::Result<(TlsAcceptor, Certificate)> {
    let content = read(&tls.certificate, &tls.key).map_err(io::Error::other)?;
    let pair = read_pair(&content.0, &content.1).map_err(io::Error::other)?;
    metrics.set_certificate_expiry(&listen, pair.expires);
    let current = Arc::new(Current(ArcSwap::new(pair.key)));
    let verifier = match &tls.client_ca {
        None => Arc::new(NoClientAuth),
        Some(authorities) => {
            let builder = WebPkiClientVerifier::builder_with_provider(authorities.roots.clone(), provider());
            match tls.client_certificates {
                ClientCertificates::Optional => builder.allow_unauthenticated().build(),
                ClientCertificates::Required => builder.build(),
            }
            .map_err(io::Error::other)?
        }
    };
    let versions = match tls.min_version {
        MinVersion::Tls12 => rustls::ALL_VERSIONS,
        MinVersion::Tls13 => &[&version::TLS13],
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(io::Error::other)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(current.clone());
    config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(io::Error::other)?;
    let certificate = Certificate {
        current,
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
        seen: hash(&content),
        listen,
    };
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

impl Certificate {
    /// Follows the files for as long as it is polled.
    pub async fn follow(mut self, metrics: &Metrics) {
        // Two files are not replaced in one step: a pair is judged when it has stood for one look.
        let mut before = self.seen;
        loop {
            tokio::time::sleep(LOOK).await;
            let (certificate, key) = (self.certificate.clone(), self.key.clone());
            let content = match tokio::task::spawn_blocking(move || read(&certificate, &key)).await {
                Ok(Ok(content)) => Ok(content),
                Ok(Err(problem)) => Err(problem),
                Err(_) => continue,
            };
            let now = content.as_ref().map_or_else(|problem| xxh3_64(problem.as_bytes()), hash);
            let settled = std::mem::replace(&mut before, now) == now;
            if now == self.seen || !settled {
                continue;
            }
            self.seen = now;
            match content.and_then(|(certificate, key)| read_pair(&certificate, &key)) {
                Ok(pair) => {
                    self.current.0.store(pair.key);
                    metrics.set_certificate_expiry(&self.listen, pair.expires);
                    metrics.certificate_reloads.with_label_values(&[&*self.listen, "ok"]).inc();
                    tracing::info!(listen = self.listen, file = %self.certificate.display(), "a new certificate is in use");
                }
                Err(problem) => {
                    metrics.certificate_reloads.with_label_values(&[&*self.listen, "failed"]).inc();
                    tracing::error!(
                        listen = self.listen,
                        problem,
                        "the certificate or its key has changed and can't be used; the one before stays in use"
                    );
                }
            }
        }
    }
}

fn read(certificate: &Path, key: &Path) -> Result<(Vec<u8>, Vec<u8>), String> {
    let one = |path: &Path| read_file(path).map_err(|problem| format!("{} {problem}", path.display()));
    Ok((one(certificate)?, one(key)?))
}

fn hash((certificate, key): &(Vec<u8>, Vec<u8>)) -> u64 {
    xxh3_64(certificate) ^ xxh3_64(key).rotate_left(1)
}
