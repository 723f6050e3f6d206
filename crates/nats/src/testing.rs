//! Servers of a test's own, in a temporary folder.

use std::ops::{Deref, DerefMut};
use std::process::Command;

use tempfile::TempDir;

use crate::local::{Servers, program};

/// Servers, and the folder that goes with them.
#[derive(Debug)]
pub struct TestServers {
    servers: Servers,
    _folder: TempDir,
}

impl TestServers {
    /// Starts so many. Nothing, and the test is said to be skipped, if NATS is not installed.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn start(count: usize) -> Option<Self> {
        if Command::new(program()).arg("--version").output().is_err() {
            lockwork_skip::skip("nats-server is not installed (scripts/nats)");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("lockwork-nats").tempdir().expect("a temporary folder");
        let servers = Servers::start(folder.path(), count).unwrap_or_else(|why| panic!("{why}"));
        Some(Self { servers, _folder: folder })
    }

    /// Sends a signal to a server: `-STOP` and `-CONT`.
    ///
    /// # Panics
    /// If it does not run, or the signal cannot be sent.
    pub fn signal(&self, at: usize, signal: &str) {
        let process = self.process(at).expect("a server that runs").to_string();
        assert!(Command::new("kill").args([signal, &process]).status().expect("kill runs").success());
    }
}

impl Deref for TestServers {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        &self.servers
    }
}

impl DerefMut for TestServers {
    fn deref_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }
}
