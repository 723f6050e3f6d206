//! Where a server is, and who asks: `127.0.0.1:5433`, or a URL as PostgreSQL's clients take it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::Failure;

/// That of a URL without one, at every client of PostgreSQL.
const PORT: u16 = 5432;
/// How long a server may take to let somebody in.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    /// User, database, and a password if there is one.
    pub(super) config: Config,
    pub(super) patience: Duration,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Address {
    /// What a text says, if it has the form of an address.
    ///
    /// # Errors
    /// A URL that is wrong, or asks for what there is not.
    pub(super) fn parse(text: &str) -> Option<Result<Self, Failure>> {
        if ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Some(Self::of_url(text));
        }
        let (host, port) = text.rsplit_once(':')?;
        let port: u16 = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))?;
        let is_name = |host: &str| {
            let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
            !host.is_empty() && host.chars().all(is_of_name)
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().ok().map(|_| inner)?,
            None => Some(host).filter(|host| is_name(host))?,
        };
        Some(Ok(Self { host: host.into(), port, config: Config::new(), patience: PATIENCE }))
    }

    fn of_url(url: &str) -> Result<Self, Failure> {
        // The password in it is no part of any message.
        let refused = |why: &str| Failure::usage(format!("the URL of the server: {why}"));
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| refused(&told(&error)))?;
        let host = match config.get_hosts() {
            [] => IpAddr::from(Ipv4Addr::LOCALHOST).to_string(),
            [Host::Tcp(host)] => host.clone(),
            _ => return Err(refused("name one host; sockets of the file system are none that a server listens at")),
        };
        let port = match config.get_ports() {
            [] => PORT,
            [port] => *port,
            _ => return Err(refused("name one port")),
        };
        if !config.get_hostaddrs().is_empty() {
            return Err(refused("write the address as the host, not as hostaddr"));
        }
        if config.get_ssl_mode() == SslMode::Require {
            return Err(refused("this command has no TLS").reworded(|text| format!("{text}\n{ENCRYPTED}")));
        }
        let patience = config.get_connect_timeout().copied().unwrap_or(PATIENCE);
        Ok(Self { host, port, config, patience })
    }

    /// Adds what options and variables say: of the user and the database options first, then the URL.
    pub(super) fn complete(&mut self, user: Option<&str>, database: Option<&str>) {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let user = user.or(self.config.get_user()).map(str::to_string);
        let user = user.or_else(|| variable("PGUSER")).or_else(|| variable("USER")).unwrap_or("lockwork".into());
        let database = database.or(self.config.get_dbname()).unwrap_or(&user).to_string();
        self.config.user(user).dbname(database);
        if self.config.get_password().is_none()
            && let Some(password) = variable("LOCKWORK_PASSWORD").or_else(|| variable("PGPASSWORD"))
        {
            self.config.password(password);
        }
    }

    pub(super) fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    pub(super) fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or_default()
    }

    /// The failure of an address of another machine.
    pub(super) fn is_far(&self) -> Failure {
        let message = "is another machine, and this command does not encrypt what it sends";
        Failure::usage(format!("{self} {message}\n{ENCRYPTED}"))
    }
}

/// What to do instead of TLS.
const ENCRYPTED: &str = "hint: psql 'host=... port=... sslmode=require' does; or ssh to that machine";

/// An error and what it comes from.
pub(super) fn told(error: &tokio_postgres::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(Address::parse(text).unwrap().unwrap().to_string(), expected, "{text}");
        }
        for text in
            ["bank", "", ":5433", "a/b:5433", "./a:1", "a:b", "a:", "a:+1", "a:65536", "::1:5433", "[a]:1", "C:\\a"]
        {
            assert!(Address::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_url_says_who_asks_and_options_say_it_louder() {
        let mut address = Address::parse("postgres://ann:p%40ss@localhost:7/bank?connect_timeout=3").unwrap().unwrap();
        assert_eq!((address.config.get_password(), address.patience.as_secs()), (Some(&b"p@ss"[..]), 3));
        address.complete(None, None);
        assert_eq!((address.user(), address.database()), ("ann", "bank"));
        address.complete(Some("bob"), Some("shop"));
        assert_eq!((address.user(), address.database()), ("bob", "shop"));
        for (url, why) in [
            ("postgres://ann:secret@localhost:x", "port"),
            ("postgres://ann:secret@a,b", "one host"),
            ("postgres://ann:secret@%2Ftmp", "one host"),
            ("postgres://ann:secret@localhost?sslmode=require", "no TLS"),
            ("postgres://ann:secret@localhost?hostaddr=127.0.0.1", "hostaddr"),
            ("postgres://ann:secret@localhost?wrong=1", "wrong"),
        ] {
            let refused = Address::parse(url).unwrap().unwrap_err().to_string();
            assert!(refused.contains(why) && !refused.contains("secret"), "{url}: {refused}");
        }
    }
}
