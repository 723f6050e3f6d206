//! Addresses of servers, the user, and encryption: `127.0.0.1:5433`, several of these with commas between them,
//! or a URL as PostgreSQL's clients take it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config;

use crate::{Error, Host, Security, SessionAttrs, Timeouts};

/// That of a URL without one, at every client of PostgreSQL.
const PORT: u16 = 5432;

/// A server, or several of which one is wanted, and the user.
#[derive(Clone, Debug)]
pub struct Address {
    /// The servers, in the order that they are tried in.
    pub hosts: Vec<Host>,
    /// Which of them will do; any, if nothing was said.
    pub attrs: Option<SessionAttrs>,
    /// User, database, and a password if there is one.
    pub config: Config,
    /// How long the client waits for them.
    pub timeouts: Timeouts,
    /// How the connection is to be encrypted.
    pub security: Security,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        f.write_str(&hosts.join(","))
    }
}

impl Address {
    /// Servers of which nothing else is said.
    #[must_use]
    pub fn new(hosts: Vec<Host>) -> Self {
        Self { hosts, attrs: None, config: Config::new(), timeouts: Timeouts::default(), security: Security::default() }
    }

    /// What a text says, if it has the form of an address: `HOST:PORT`, `[IP]:PORT`, several of these with commas
    /// between them, or a URL.
    ///
    /// # Errors
    /// A URL that is malformed, or asks for something unsupported.
    #[must_use]
    pub fn parse(text: &str) -> Option<Result<Self, Error>> {
        if ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Some(Self::of_url(text));
        }
        let hosts = text.split(',').map(host_of).collect::<Option<Vec<Host>>>()?;
        Some(Ok(Self::new(hosts)))
    }

    /// Whether a text may be meant as an address, right or wrong: what stands before its first slash has a colon or an
    /// `@`, is `localhost`, or has the form of an IP address. A folder of such a name can be written as `./name`.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let host = text.split('/').next().unwrap_or_default();
        let is_ipv4 = host.split('.').count() == 4 && host.chars().all(|c| c.is_ascii_digit() || c == '.');
        is_ipv4 || host.contains([':', '@']) || host.eq_ignore_ascii_case("localhost")
    }

    fn of_url(url: &str) -> Result<Self, Error> {
        // The password in it is no part of any message.
        let refused = |why: &str| Error::asked(format!("the URL of the server: {why}"), "");
        let Said { url, security, attrs, mut timeouts } = said(url)?;
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| refused(&crate::told(&error)))?;
        let mut names = Vec::new();
        for host in config.get_hosts() {
            let config::Host::Tcp(name) = host else {
                return Err(refused("name a host; sockets of the file system are none that a server listens at"));
            };
            // The driver leaves those of `?host=a,b` together.
            names.extend(name.split(',').map(str::to_string));
        }
        if names.iter().any(String::is_empty) {
            return Err(refused("a host has no name"));
        }
        if names.is_empty() {
            names.push(IpAddr::from(Ipv4Addr::LOCALHOST).to_string());
        }
        let ports = match config.get_ports() {
            [] => vec![PORT; names.len()],
            [port] => vec![*port; names.len()],
            ports if ports.len() == names.len() => ports.to_vec(),
            _ => return Err(refused("name one port, or one for each host")),
        };
        let hosts = names.into_iter().zip(ports).map(|(name, port)| Host { name, port }).collect();
        if !config.get_hostaddrs().is_empty() {
            return Err(refused("write the address as the host, not as hostaddr"));
        }
        timeouts.connect = config.get_connect_timeout().copied();
        Ok(Self { config, attrs, timeouts, security, ..Self::new(hosts) })
    }
}

/// `HOST:PORT` or `[IP]:PORT`.
fn host_of(text: &str) -> Option<Host> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))?;
    let is_name = |host: &str| {
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
        !host.is_empty() && host.chars().all(is_of_name)
    };
    let name = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(|_| inner)?,
        None => Some(host).filter(|host| is_name(host))?,
    };
    Some(Host { name: name.into(), port })
}

/// A URL without what the driver knows only in part, and that.
struct Said {
    url: String,
    security: Security,
    attrs: Option<SessionAttrs>,
    timeouts: Timeouts,
}

/// Takes out of a URL what it says of its encryption, which server is wanted, and how long the client waits.
fn said(url: &str) -> Result<Said, Error> {
    // A password may have a question mark.
    let host = url.find('@').map_or(0, |at| at + 1);
    let (mut security, mut attrs, mut timeouts) = (Security::default(), None, Timeouts::default());
    let Some(query) = url[host..].find('?').map(|at| host + at + 1) else {
        return Ok(Said { url: url.into(), security, attrs, timeouts });
    };
    let mut rest = Vec::new();
    for parameter in url[query..].split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match name {
            "sslmode" => security.complete(Some(&value), None)?,
            "sslrootcert" => security.complete(None, Some(&value))?,
            "target_session_attrs" => attrs = Some(value.parse()?),
            _ if timeouts.set(name, &value)? => {}
            _ => rest.push(parameter),
        }
    }
    let before = if rest.is_empty() { &url[..query - 1] } else { &url[..query] };
    Ok(Said { url: format!("{before}{}", rest.join("&")), security, attrs, timeouts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Roots, SslMode};

    #[test]
    fn an_address_has_a_port_or_is_a_url() {
        for (text, expected) in [
            ("127.0.0.1:5433", "127.0.0.1:5433"),
            ("localhost:1", "localhost:1"),
            ("db-1.example:65535", "db-1.example:65535"),
            ("[::1]:5433", "[::1]:5433"),
            ("postgres://", "127.0.0.1:5432"),
            ("postgres://ann@localhost", "localhost:5432"),
            ("postgresql://ann:p%40ss@[::1]:7/bank?connect_timeout=3", "[::1]:7"),
            ("a:1,[::1]:2,c:3", "a:1,[::1]:2,c:3"),
            ("postgresql://a:1,b,[::1]:3/bank?target_session_attrs=any", "a:1,b:5432,[::1]:3"),
            ("postgres:///bank?host=a,b&port=5433", "a:5433,b:5433"),
            ("postgres:///bank?host=a,b&port=1,2", "a:1,b:2"),
        ] {
            assert_eq!(Address::parse(text).unwrap().unwrap().to_string(), expected, "{text}");
        }
        for text in [
            "bank", "", ":5433", "a/b:5433", "./a:1", "a:b", "a:", "a:+1", "a:65536", "::1:5433", "[a]:1", "C:\\a",
            "a,b:1", "a:1,", "a:1,,b:1", "a:1, b:1",
        ] {
            assert!(Address::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_was_meant_for_an_address_is_known_from_a_folder() {
        for text in [
            "127.0.0.1",
            "127.0.0.1:99999",
            "256.1.1.1",
            "127.0.0.1/bank",
            "foo:bar",
            "foo:5433/bank",
            "LocalHost",
            "ann@localhost",
            "::1",
            "[::1]",
            "http://a/b",
            "postgres:/a",
            ":5433",
        ] {
            assert!(Address::parse(text).is_none() && Address::is_meant(text), "{text}");
        }
        assert!(Address::is_meant("127.0.0.1:5433") && Address::is_meant("postgres://a"));
        for text in ["bank", "./a:b", "/var/lib/a:b", "./localhost", "../127.0.0.1", "a.b", "1.2.3", "localhost2", ""] {
            assert!(!Address::is_meant(text), "{text}");
        }
    }

    #[test]
    fn a_url_says_who_asks_and_how_safely() {
        let parse = |url: &str| Address::parse(url).unwrap();
        let address = parse("postgres://ann:p%40ss@localhost:7/bank?connect_timeout=3").unwrap();
        let seconds = |address: &Address| address.timeouts.connect_of(address.hosts.len()).as_secs();
        assert_eq!((address.config.get_password(), seconds(&address)), (Some(&b"p@ss"[..]), 3));
        assert_eq!((address.config.get_user(), address.config.get_dbname()), (Some("ann"), Some("bank")));
        assert_eq!(address.security, Security::default());
        let file = |path: &str| Some(Roots::File(path.into()));
        for (url, mode, roots, timeout) in [
            ("postgres://a:b?c@h?sslmode=verify-ca", Some(SslMode::VerifyCa), None, 10),
            ("postgres://h/b?sslrootcert=%2Ftmp%2Fa%20b.pem&connect_timeout=4", None, file("/tmp/a b.pem"), 4),
            ("postgres://h?connect_timeout=5&sslrootcert=system", None, Some(Roots::System), 5),
            ("postgres://h?sslmode=require&connect_timeout=6&sslrootcert=x", Some(SslMode::Require), file("x"), 6),
        ] {
            let address = parse(url).unwrap();
            assert_eq!(address.security, Security { mode, roots }, "{url}");
            assert_eq!((address.hosts[0].name.as_str(), seconds(&address)), ("h", timeout), "{url}");
        }
        let address = parse("postgres://a,b?sslmode=require&target_session_attrs=prefer-standby&options=-c%20x%3Dy");
        let address = address.unwrap();
        assert_eq!((address.attrs, address.config.get_options()), (Some(SessionAttrs::PreferStandby), Some("-c x=y")));
        for (url, why) in [
            ("postgres://ann:secret@localhost:x", "port"),
            ("postgres://ann:secret@a,,b", "no name"),
            ("postgres://ann:secret@a,b?port=1", "one for each host"),
            ("postgres://ann:secret@a?target_session_attrs=leader", "target_session_attrs is 'leader'"),
            ("postgres://ann:secret@%2Ftmp", "name a host"),
            ("postgres://ann:secret@localhost?sslmode=allow", "sslmode is 'allow'"),
            ("postgres://ann:secret@localhost?hostaddr=127.0.0.1", "hostaddr"),
            ("postgres://ann:secret@localhost?wrong=1", "wrong"),
            ("postgres://ann:secret@localhost?call_timeout=soon", "call_timeout is 'soon'"),
        ] {
            let refused = parse(url).unwrap_err().to_string();
            assert!(refused.contains(why) && !refused.contains("secret"), "{url}: {refused}");
        }
    }
}
