//! TLS: a certificate and its key, from PEM files.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::private::{self, Unusable};

/// What a client that begins with TLS at once has to ask for.
const ALPN: &[u8] = b"postgresql";

/// A certificate, and the key that belongs to it.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    /// For the page: its clients ask for HTTP.
    pub(crate) http: TlsAcceptor,
    /// The file of the certificate, for binding a login to its channel.
    pub(crate) certificate: Vec<u8>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is not there, or no PEM of what it should be.
    #[error("{path}: {error}; PEM is needed, as openssl writes it")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        error: String,
    },
    /// Others than its owner can read the key; the text says how to change that.
    #[error("{0}")]
    Open(String),
    /// Certificate and key do not go together, or are of a kind that is not supported.
    #[error("certificate and key: {0}")]
    Pair(rustls::Error),
}

impl Tls {
    /// Reads a chain of certificates and the key of the first.
    ///
    /// # Errors
    /// A file is not there or holds something else, others can read the key, or the two do not belong together.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let file = |path: &Path, error: String| TlsError::File { path: path.display().to_string(), error };
        let pem = std::fs::read(certificate).map_err(|error| file(certificate, error.to_string()))?;
        let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| file(certificate, error.to_string()))?;
        if chain.is_empty() {
            return Err(file(certificate, "there is no certificate in it".into()));
        }
        let private = private::read_key(key).map_err(|why| match why {
            Unusable::Io(error) => file(key, error.to_string()),
            Unusable::Open(why) => TlsError::Open(why),
        })?;
        let private = PrivateKeyDer::from_pem_slice(&private).map_err(|error| file(key, error.to_string()))?;
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().map_err(TlsError::Pair)?;
        let mut config = config.with_no_client_auth().with_single_cert(chain, private).map_err(TlsError::Pair)?;
        let mut http = config.clone();
        http.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.alpn_protocols = vec![ALPN.to_vec()];
        let [acceptor, http] = [config, http].map(|config| TlsAcceptor::from(Arc::new(config)));
        Ok(Self { acceptor, http, certificate: pem })
    }
}
