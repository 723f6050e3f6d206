//! What the commands of the lock service have in common: which service, with which key, and times as people write them.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockwork_lock_protocol::names::LONGEST;
use lockwork_lock_protocol::packet::Key;
use lockwork_locks::client::{ConnectError, LockName, Locks, Options};

use super::Failure;

/// Where a service is if nobody says otherwise.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:7400";
/// And at which port, wherever it is.
pub(super) const DEFAULT_PORT: u16 = 7400;

/// Which service.
#[derive(Debug, Args)]
pub(super) struct Service {
    /// Address of the lock service, HOST:PORT [default: LOCKWORK_LOCKD, or 127.0.0.1:7400]
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    /// File with the cluster's key [default: LOCKWORK_KEY, or no key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Service {
    /// The address as it was given, and what gave it, for messages.
    fn name(&self) -> (String, &'static str) {
        match (&self.server, variable("LOCKWORK_LOCKD")) {
            (Some(given), _) => (given.clone(), "--server"),
            (None, Some(given)) => (given, "LOCKWORK_LOCKD"),
            (None, None) => (DEFAULT_ADDRESS.to_string(), "the default"),
        }
    }

    pub(super) fn key(&self) -> Result<Option<Key>, Failure> {
        key(self.key.as_deref())
    }

    /// The address, looked up.
    pub(super) fn address(&self) -> Result<SocketAddr, Failure> {
        let (name, source) = self.name();
        address(&name).map_err(|error| Failure::usage(format!("{source}: {error}")))
    }

    /// A session of a process that keeps locks beyond the decider's.
    pub(super) fn connect_as_manager(&self) -> Result<Locks, Failure> {
        let locks = self.connect_with(Options { manages: true, ..Options::default() })?;
        if locks.is_beyond(u64::MAX >> 2) {
            return Ok(locks);
        }
        Err(Failure::usage(format!(
            "the lock service at {} has {} locks and none beyond them to keep; start 'lockwork lockd' with --overflow-locks",
            locks.address(),
            locks.count()
        )))
    }

    /// A session, for which it waits no longer than `most`.
    pub(super) fn connect(&self, most: Option<Duration>) -> Result<Locks, Failure> {
        let usual = Options::default();
        let connect_timeout = most.map_or(usual.connect_timeout, |most| most.min(usual.connect_timeout));
        self.connect_with(Options { connect_timeout, ..usual })
    }

    fn connect_with(&self, options: Options) -> Result<Locks, Failure> {
        let options = Options { key: self.key()?, ..options };
        let (name, source) = self.name();
        Locks::connect_with(&name, options).map_err(|error| match error {
            ConnectError::Address { .. } => Failure::usage(format!("{source}: {error}")),
            _ => Failure::Connect(error.to_string()),
        })
    }
}

/// An address of the form HOST:PORT.
pub(super) fn address(text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().map_err(|error| error.to_string());
    let found = found.and_then(|mut all| all.next().ok_or_else(|| "the name has no address".to_string()));
    found.map_err(|error| {
        Failure::usage(format!("'{text}' is no address: {error}; write HOST:PORT, such as {DEFAULT_ADDRESS}"))
    })
}

/// An etcd, as an option: its name is looked up when it is asked.
pub(super) fn etcd(text: &str) -> Result<String, String> {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && !host.is_empty() && !host.contains('/') => Ok(text.to_string()),
        _ => Err("write HOST:PORT, such as 127.0.0.1:2379".to_string()),
    }
}

/// The key of a file, or of the file that the environment names.
pub(super) fn key(file: Option<&Path>) -> Result<Option<Key>, Failure> {
    let (file, source) = match (file, variable("LOCKWORK_KEY")) {
        (Some(file), _) => (file.to_path_buf(), "--key"),
        (None, Some(file)) => (PathBuf::from(file), "LOCKWORK_KEY"),
        (None, None) => return Ok(None),
    };
    let read = lockwork_locks::key::read(&file);
    read.map(Some).map_err(|error| Failure::usage(format!("{source}: {error}")))
}

/// A lock as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// One of those that are only counted.
    Number(u64),
    /// What the service gives a lock for.
    Name(String),
}

impl Lock {
    /// The lock as messages name it.
    pub(super) fn name(&self) -> LockName {
        match self {
            Self::Number(number) => LockName::Number(*number),
            Self::Name(name) => LockName::Name(name.as_str().into()),
        }
    }
}

/// What looks like a number is one, everything else a name.
pub(super) fn lock(text: &str) -> Result<Lock, String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = text.parse().map(Lock::Number);
        return number.map_err(|_| "locks are numbered from 0: write a whole number, or a name".to_string());
    }
    match text.len() {
        1..=LONGEST => Ok(Lock::Name(text.to_string())),
        0 => Err(format!("the name is empty: write a name of 1 to {LONGEST} bytes, or a number from 0")),
        bytes => Err(format!("a name has 1 to {LONGEST} bytes, and this one has {bytes}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_have_numbers_or_names() {
        assert_eq!(lock("17"), Ok(Lock::Number(17)));
        assert!(lock("").is_err_and(|message| message.contains("the name is empty")));
        for wrong in ["-1", "99999999999999999999"] {
            assert!(lock(wrong).is_err_and(|message| message.contains("from 0")), "{wrong}");
        }
        for name in ["one", "-", "1.5", "orders/17", "0x10"] {
            assert_eq!(lock(name), Ok(Lock::Name(name.to_string())));
        }
        assert!(lock(&"x".repeat(256)).is_err_and(|message| message.contains("1 to 255 bytes")));
    }

    #[test]
    fn an_etcd_has_a_host_and_a_port() {
        for right in ["127.0.0.1:2379", "etcd.example:2379", "[::1]:2379"] {
            assert_eq!(etcd(right), Ok(right.to_string()));
        }
        for wrong in
            ["", ":", "localhost", ":2379", "localhost:", "localhost:0", "localhost:x", "http://localhost:2379"]
        {
            assert!(etcd(wrong).is_err_and(|message| message.contains("HOST:PORT")), "{wrong}");
        }
    }
}
