//! Servers of which one is wanted, and which: a list of hosts and `target_session_attrs`, in the words of PostgreSQL's
//! clients.
//!
//! Of a cluster one node leads and takes writes; the others say so, or take those who only read. A client that has all
//! addresses finds the one that it needs by asking each in turn, and needs nobody who knows who leads.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use tokio_postgres::Config;

use crate::Error;

/// A server: its name or IP address, and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its name or IP address.
    pub name: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') { write!(f, "[{name}]:{port}") } else { write!(f, "{name}:{port}") }
    }
}

/// Hosts in the order that a random number says.
pub(crate) fn shuffled(mut hosts: Vec<Host>) -> Vec<Host> {
    let random = RandomState::new();
    let mut numbered: Vec<(u64, Host)> =
        hosts.drain(..).enumerate().map(|(at, host)| (random.hash_one(at), host)).collect();
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, host)| host).collect()
}

/// Which servers will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAttrs {
    /// The first that lets the client in.
    #[default]
    Any,
    /// One where the session may write.
    ReadWrite,
    /// One where the session only reads.
    ReadOnly,
    /// One that leads.
    Primary,
    /// One that follows.
    Standby,
    /// One that follows if there is any, else the first.
    PreferStandby,
}

impl SessionAttrs {
    const ALL: [Self; 6] =
        [Self::Any, Self::ReadWrite, Self::ReadOnly, Self::Primary, Self::Standby, Self::PreferStandby];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::ReadWrite => "read-write",
            Self::ReadOnly => "read-only",
            Self::Primary => "primary",
            Self::Standby => "standby",
            Self::PreferStandby => "prefer-standby",
        }
    }

    /// What is looked for in one turn through all hosts after the other.
    pub(crate) fn turns(self) -> &'static [Self] {
        match self {
            Self::Any => &[Self::Any],
            Self::ReadWrite => &[Self::ReadWrite],
            Self::ReadOnly => &[Self::ReadOnly],
            Self::Primary => &[Self::Primary],
            Self::Standby => &[Self::Standby],
            Self::PreferStandby => &[Self::Standby, Self::Any],
        }
    }

    /// Whether a server will do that says this of itself and the session; else why not.
    pub(crate) fn check(self, follows: bool, is_read_only: bool) -> Result<(), Error> {
        let why = match self {
            Self::ReadWrite if follows || is_read_only => "the session may not write there",
            Self::ReadOnly if !follows && !is_read_only => "the session may write there",
            Self::Primary if follows => "it follows another server",
            Self::Standby if !follows => "it follows no other server",
            _ => return Ok(()),
        };
        Err(Error::Unlike { why, wanted: self })
    }

    /// Has a session that is to read say so from the beginning: a node that follows lets in nobody else.
    pub(crate) fn prepare(self, config: &mut Config) {
        const READS: &str = "default_transaction_read_only";
        if !matches!(self, Self::ReadOnly | Self::Standby | Self::PreferStandby) {
            return;
        }
        let said = config.get_options().unwrap_or_default();
        if !said.contains(READS) {
            let options = format!("{said} -c {READS}=on");
            config.options(options.trim_start());
        }
    }
}

impl FromStr for SessionAttrs {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|attrs| attrs.name() == text);
        let hint = || format!("there are {}", Self::ALL.map(Self::name).join(", "));
        found.ok_or_else(|| Error::asked(format!("target_session_attrs is '{text}'"), hint()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart_as_libpq_does_it() {
        // What a leader says, a follower, and a leader of a session that only reads.
        let servers = [(false, false), (true, true), (false, true)];
        for (name, expected) in [
            ("any", [true, true, true]),
            ("read-write", [true, false, false]),
            ("read-only", [false, true, true]),
            ("primary", [true, false, true]),
            ("standby", [false, true, false]),
            ("prefer-standby", [true, true, true]),
        ] {
            let attrs: SessionAttrs = name.parse().unwrap();
            assert_eq!(servers.map(|(follows, reads)| attrs.check(follows, reads).is_ok()), expected, "{name}");
            assert_eq!(attrs.name(), name);
        }
        let error = "follower".parse::<SessionAttrs>().unwrap_err();
        assert!(error.to_string().contains("'follower'") && error.hint().contains("prefer-standby"));
    }

    #[test]
    fn who_wants_to_read_says_so_unless_something_else_was_said() {
        let prepared = |attrs: SessionAttrs, options: &str| {
            let mut config = Config::new();
            config.options(options);
            attrs.prepare(&mut config);
            config.get_options().unwrap_or_default().to_string()
        };
        assert_eq!(prepared(SessionAttrs::Standby, ""), "-c default_transaction_read_only=on");
        assert_eq!(prepared(SessionAttrs::ReadOnly, "-c a=b"), "-c a=b -c default_transaction_read_only=on");
        let off = "-c default_transaction_read_only=off";
        assert_eq!(prepared(SessionAttrs::PreferStandby, off), off);
        assert_eq!(prepared(SessionAttrs::Primary, ""), "");
    }

    #[test]
    fn shuffled_hosts_are_all_there_in_every_order() {
        let host = |port| Host { name: "a".into(), port };
        let mut first = std::collections::HashSet::new();
        for _ in 0..200 {
            let hosts = shuffled(vec![host(1), host(2), host(3)]);
            first.insert(hosts[0].port);
            let mut ports: Vec<u16> = hosts.iter().map(|host| host.port).collect();
            ports.sort_unstable();
            assert_eq!(ports, [1, 2, 3]);
        }
        assert_eq!(first.len(), 3);
    }
}
