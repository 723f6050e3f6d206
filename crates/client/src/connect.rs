//! A connection, as safe as was asked for.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Connection, config};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{self, CertificateError};

use crate::security::{Roots, SslMode};
use crate::verifier::{self, Trust};
use crate::{Address, Error};

/// A client, and what drives its connection.
pub type Connected = (Client, Connection<TcpStream, <MakeRustlsConnect as MakeTlsConnect<TcpStream>>::Stream>);

/// After so long without a word the other side is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Connects, and is let in.
///
/// # Errors
/// Nobody answers in time, the server lets nobody in, or it cannot be as safe as was asked for.
pub async fn connect(address: &Address) -> Result<Connected, Error> {
    let late = |_| Error::Late(address.patience.as_secs());
    timeout(address.patience, let_in(address)).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}

async fn let_in(address: &Address) -> Result<Connected, Error> {
    let found = lookup_host((address.host.as_str(), address.port)).await.map_err(Error::Unreachable)?;
    let found: Vec<SocketAddr> = found.collect();
    let mode = address.security.mode_for(found.iter().all(|found| found.ip().is_loopback()));
    let roots = address.security.roots.clone().unwrap_or(Roots::System);
    let trust = match mode {
        SslMode::Disable | SslMode::Prefer | SslMode::Require => Trust::Anybody,
        SslMode::VerifyCa => Trust::Signed { by: roots.read()?, for_name: false },
        SslMode::VerifyFull => Trust::Signed { by: roots.read()?, for_name: true },
    };
    let configured = verifier::config(trust).map_err(|error| Error::asked(error.to_string(), ""))?;
    let mut connector = MakeRustlsConnect::new(configured);
    let mut config = address.config.clone();
    config.ssl_mode(match mode {
        SslMode::Disable => config::SslMode::Disable,
        SslMode::Prefer => config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => config::SslMode::Require,
    });
    let stream = TcpStream::connect(&found[..]).await.map_err(Error::Unreachable)?;
    // Small messages that wait for each other.
    stream.set_nodelay(true).map_err(Error::Unreachable)?;
    sockopt::set_socket_keepalive(&stream, true).map_err(|error| Error::Unreachable(error.into()))?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE).map_err(|error| Error::Unreachable(error.into()))?;
    let Ok(tls) = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut connector, &address.host);
    config.connect_raw(stream, tls).await.map_err(|error| explained(error, address, mode, &roots))
}

/// What is behind an error of TLS.
fn cause(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    let source = std::error::Error::source(error)?.downcast_ref::<io::Error>()?;
    source.get_ref()?.downcast_ref()
}

/// Says of an error of TLS what is wrong and what would be right.
fn explained(error: tokio_postgres::Error, address: &Address, mode: SslMode, roots: &Roots) -> Error {
    let wrong = |message: String, hint: &str| Error::Unsafe { message, hint: hint.into() };
    let Some(tls) = cause(&error) else {
        let has_none = "server does not support TLS";
        let source = std::error::Error::source(&error);
        return match source.is_some_and(|source| source.to_string() == has_none) {
            true => wrong(format!("the server has no TLS, and sslmode is {}", mode.name()), NO_TLS),
            false => Error::Refused(error),
        };
    };
    let rustls::Error::InvalidCertificate(why) = tls else {
        return wrong(format!("no TLS with the server: {tls}"), "");
    };
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            wrong(format!("the certificate of the server is signed by nobody whom {roots} trusts"), UNTRUSTED)
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = match why {
                CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
                    presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ")
                }
                _ => "no name at all (subjectAltName is missing)".into(),
            };
            wrong(format!("the certificate of the server is for {names}, and not for '{}'", address.host), MISNAMED)
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            wrong("the certificate of the server has expired".into(), EXPIRED)
        }
        _ => wrong(format!("the certificate of the server: {why}"), ""),
    }
}

/// The name itself of one that was shown as `DnsName("a.example")` or `IpAddress(127.0.0.1)`.
fn bare(shown: &str) -> &str {
    let inner = shown.split_once('(').and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.unwrap_or(shown).trim_matches('"')
}

const NO_TLS: &str = "lockwork serve --tls-certificate FILE --tls-key FILE gives it one; sslmode=disable sends \
    everything so that others can read it on its way";
const UNTRUSTED: &str = "sslrootcert=FILE names the certificate of who signed it, or the server's own";
const MISNAMED: &str = "connect by a name that it is for; sslmode=verify-ca takes any name";
const EXPIRED: &str = "the server needs a new certificate";
