//! A connection to the first server that will do, as safe as was asked for.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_postgres::config::{self, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Connection};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{self, CertificateError};

use crate::hosts::{Host, SessionAttrs, shuffled};
use crate::security::{Roots, SslMode};
use crate::verifier::{self, Trust};
use crate::{Address, Error};

/// What drives a connection.
pub type Wire = Connection<TcpStream, <MakeRustlsConnect as MakeTlsConnect<TcpStream>>::Stream>;

/// A connection.
pub struct Connected {
    /// Who asks.
    pub client: Client,
    /// What drives the connection.
    pub wire: Wire,
    /// The server that it is with.
    pub host: Host,
}

/// Connects to the first server that lets the client in and is what is wanted; each is asked once, or twice if one that
/// follows is preferred.
///
/// # Errors
/// Nobody answers in time, the server lets nobody in, or it cannot be as safe as was asked for. Of several servers each
/// says why, and one whose reason is no other's ends the search ([`Error::is_of_this_server`]).
pub async fn connect(address: &Address) -> Result<Connected, Error> {
    let hosts = match address.config.get_load_balance_hosts() {
        LoadBalanceHosts::Random => shuffled(address.hosts.clone()),
        _ => address.hosts.clone(),
    };
    let attrs = address.attrs.unwrap_or_default();
    let time = address.timeouts.connect_of(hosts.len());
    let mut tried = Vec::new();
    for wanted in attrs.turns() {
        tried.clear();
        for host in &hosts {
            let late = |_| Err(Error::Late(time));
            match timeout(time, let_in(address, host, *wanted)).await.unwrap_or_else(late) {
                Ok(connected) => return Ok(connected),
                Err(error) => {
                    let goes_on = error.is_of_this_server();
                    tried.push((host.clone(), error));
                    if !goes_on {
                        return Err(nobody(tried, hosts.len()));
                    }
                }
            }
        }
    }
    Err(nobody(tried, hosts.len()))
}

/// What there is to say when there is one server is what that has said.
fn nobody(mut tried: Vec<(Host, Error)>, hosts: usize) -> Error {
    match tried.pop() {
        Some((_, error)) if hosts == 1 => error,
        last => Error::Nobody(tried.into_iter().chain(last).collect()),
    }
}

async fn let_in(address: &Address, host: &Host, wanted: SessionAttrs) -> Result<Connected, Error> {
    let found = lookup_host((host.name.as_str(), host.port)).await.map_err(Error::Unreachable)?;
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
    address.attrs.unwrap_or_default().prepare(&mut config);
    config.ssl_mode(match mode {
        SslMode::Disable => config::SslMode::Disable,
        SslMode::Prefer => config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => config::SslMode::Require,
    });
    let stream = TcpStream::connect(&found[..]).await.map_err(Error::Unreachable)?;
    // Small messages that wait for each other.
    stream.set_nodelay(true).map_err(Error::Unreachable)?;
    address.timeouts.apply(&stream).map_err(Error::Unreachable)?;
    let Ok(tls) = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut connector, &host.name);
    let connected = config.connect_raw(stream, tls).await;
    let (client, wire) = connected.map_err(|error| explained(error, host, mode, &roots))?;
    let is_on = |name: &str| wire.parameter(name) == Some("on");
    wanted.check(is_on("in_hot_standby"), is_on("default_transaction_read_only"))?;
    Ok(Connected { client, wire, host: host.clone() })
}

/// What is behind an error of TLS.
fn cause(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    let source = std::error::Error::source(error)?.downcast_ref::<io::Error>()?;
    source.get_ref()?.downcast_ref()
}

/// Says of an error of TLS what is wrong and what would be right.
fn explained(error: tokio_postgres::Error, host: &Host, mode: SslMode, roots: &Roots) -> Error {
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
            wrong(format!("the certificate of the server is for {names}, and not for '{}'", host.name), MISNAMED)
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
