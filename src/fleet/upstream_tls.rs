//! TLS to a replica: its certificate is judged against its own authorities or the public ones, for one name.
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::config::{ReplicaTls, provider};

/// How TLS is spoken to one replica.
pub struct UpstreamTls {
    settings: ReplicaTls,
    /// A set-up that failed is an error of each connection; it must never become plain text.
    setup: Result<(TlsConnector, ServerName<'static>), String>,
}

impl std::fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TLS for {:?}", self.setup.as_ref().map(|(_, name)| name))
    }
}

impl UpstreamTls {
    /// Its set-up, kept so that sessions are resumed. A checked configuration can be set up.
    pub fn new(settings: &ReplicaTls) -> Self {
        Self { settings: settings.clone(), setup: Self::setup(settings) }
    }

    /// Whether it was set up so; authorities count by their content.
    pub fn is(&self, settings: &ReplicaTls) -> bool {
        self.settings == *settings
    }

    fn setup(settings: &ReplicaTls) -> Result<(TlsConnector, ServerName<'static>), String> {
        let roots = match &settings.ca {
            Some(authorities) => authorities.roots.clone(),
            None => Arc::new(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }),
        };
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from(settings.server_name.to_string()).map_err(|error| error.to_string())?;
        Ok((TlsConnector::from(Arc::new(config)), name))
    }

    /// The handshake.
    ///
    /// # Errors
    /// When it fails.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<Wire> {
        let (connector, name) = self.setup.as_ref().map_err(|problem| io::Error::other(problem.clone()))?;
        let stream = connector.connect(name.clone(), stream).await?;
        Ok(Either::Right(Box::new(stream)))
    }
}

/// What carries the bytes to a replica: as they are, or in TLS.
pub type Wire = Either<TcpStream, Box<TlsStream<TcpStream>>>;
