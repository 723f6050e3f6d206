//! How much is to be encrypted and verified, and whom to trust: `sslmode` and `sslrootcert`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::Error;

/// How safe a connection has to be, in the words of PostgreSQL's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// Never encrypted.
    Disable,
    /// Encrypted if the server can; nothing is verified.
    Prefer,
    /// Encrypted; nothing is verified unless roots are named, and then it is [`Self::VerifyCa`].
    Require,
    /// The certificate has been signed by somebody who is trusted.
    VerifyCa,
    /// And it is for the host that was asked for.
    VerifyFull,
}

impl SslMode {
    const ALL: [Self; 5] = [Self::Disable, Self::Prefer, Self::Require, Self::VerifyCa, Self::VerifyFull];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

impl FromStr for SslMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == text);
        let hint = || format!("there are {}", Self::ALL.map(Self::name).join(", "));
        mode.ok_or_else(|| Error::asked(format!("sslmode is '{text}'"), hint()))
    }
}

/// Whom to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// Those whom the system trusts.
    System,
    /// The certificates of a file of PEM: of authorities, or the server's own.
    File(PathBuf),
}

impl From<&str> for Roots {
    /// `system`, or a file.
    fn from(text: &str) -> Self {
        if text == "system" { Self::System } else { Self::File(text.into()) }
    }
}

impl std::fmt::Display for Roots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System => f.write_str("this system"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Roots {
    /// Reads the certificates, one at least.
    pub(crate) fn read(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let certificates = match self {
            Self::System => rustls_native_certs::load_native_certs().certs,
            Self::File(path) => of_file(path)?,
        };
        if certificates.is_empty() {
            let hint = "name a file with the certificate of the server, or of who signed it: sslrootcert=FILE";
            return Err(Error::asked(format!("there are no certificates to trust at {self}"), hint));
        }
        Ok(certificates)
    }
}

fn of_file(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |error: String| Error::asked(format!("sslrootcert: {}: {error}", path.display()), PEM);
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(certificates)
}

/// What a file of roots has to be.
const PEM: &str = "a file of certificates in PEM is needed, as openssl writes it; 'system' is those of this system";

/// What was asked for; what was not said depends on where the server is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// How safe the connection has to be.
    pub mode: Option<SslMode>,
    /// Whom to trust.
    pub roots: Option<Roots>,
}

impl Security {
    /// Adds what was not said before.
    ///
    /// # Errors
    /// A mode that there is not.
    pub fn complete(&mut self, mode: Option<&str>, roots: Option<&str>) -> Result<(), Error> {
        if let (None, Some(mode)) = (self.mode, mode) {
            self.mode = Some(mode.parse()?);
        }
        if self.roots.is_none() {
            self.roots = roots.map(Roots::from);
        }
        Ok(())
    }

    /// How safe it is. What goes to this machine only needs nothing; else nobody may listen or be somebody else, unless
    /// that was asked for.
    pub(crate) fn mode_for(&self, is_near: bool) -> SslMode {
        match (self.mode, &self.roots) {
            (None, None) if is_near => SslMode::Prefer,
            (None, _) => SslMode::VerifyFull,
            (Some(SslMode::Require), Some(_)) => SslMode::VerifyCa,
            (Some(mode), _) => mode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_safe() {
        let security = |mode: Option<&str>, roots: Option<&str>| {
            let mut security = Security::default();
            security.complete(mode, roots).unwrap();
            [security.mode_for(true), security.mode_for(false)]
        };
        use SslMode::*;
        assert_eq!(security(None, None), [Prefer, VerifyFull]);
        assert_eq!(security(None, Some("a.pem")), [VerifyFull; 2]);
        assert_eq!(security(None, Some("system")), [VerifyFull; 2]);
        for (mode, alone, rooted) in [
            ("disable", Disable, Disable),
            ("prefer", Prefer, Prefer),
            ("require", Require, VerifyCa),
            ("verify-ca", VerifyCa, VerifyCa),
            ("verify-full", VerifyFull, VerifyFull),
        ] {
            assert_eq!(security(Some(mode), None), [alone; 2]);
            assert_eq!(security(Some(mode), Some("a.pem")), [rooted; 2]);
        }
        let mut security = Security::default();
        let error = security.complete(Some("verify_full"), None).unwrap_err();
        assert!(error.to_string().contains("'verify_full'") && error.hint().contains("verify-full"));
    }

    #[test]
    fn what_was_said_first_stays() {
        let mut security = Security { mode: Some(SslMode::Require), roots: Some(Roots::System) };
        security.complete(Some("disable"), Some("a.pem")).unwrap();
        assert_eq!(security, Security { mode: Some(SslMode::Require), roots: Some(Roots::System) });
    }
}
