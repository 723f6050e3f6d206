//! Certificates of servers, looked at as closely as was asked for.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// What a server that speaks nothing but TLS is asked for.
const ALPN: &[u8] = b"postgresql";

/// What is verified of a certificate.
#[derive(Debug)]
pub(crate) enum Trust {
    /// Nothing, but that the server has its key.
    Anybody,
    /// Who signed it, and the name if it is so.
    Signed { by: Vec<CertificateDer<'static>>, for_name: bool },
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    anchors: RootCertStore,
    provider: Arc<CryptoProvider>,
}

/// TLS 1.2 and 1.3 with such certificates.
pub(crate) fn config(trust: Trust) -> Result<ClientConfig, Error> {
    let provider = Arc::new(default_provider());
    let mut anchors = RootCertStore::empty();
    if let Trust::Signed { by, .. } = &trust {
        // Of the many that a system has some may be of a kind that is too old.
        anchors.add_parsable_certificates(by.iter().cloned());
    }
    let verifier = Verifier { trust, anchors, provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

/// Whether all that is wrong with a certificate is that it could sign others too, as `openssl req -x509` makes them.
fn is_only_an_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Trust::Signed { by, for_name } = &self.trust else { return Ok(ServerCertVerified::assertion()) };
        let algorithms = self.provider.signature_verification_algorithms.all;
        let certificate = ParsedCertificate::try_from(presented)?;
        match verify_server_cert_signed_by_trust_anchor(&certificate, &self.anchors, others, now, algorithms) {
            // Who is trusted to sign for all is trusted to be himself. His time was looked at before.
            Err(error) if is_only_an_authority(&error) && by.contains(presented) => {}
            Err(error) if is_only_an_authority(&error) => return Err(CertificateError::UnknownIssuer.into()),
            signed => signed?,
        }
        if *for_name {
            verify_server_name(&certificate, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
