//! Servers of a test's own, in a temporary folder.

use std::ops::{Deref, DerefMut};
use std::process::Command;

use async_nats::jetstream::stream::Config;
use tempfile::TempDir;

use crate::Options;
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

/// Changes the settings of a journal's stream, as somebody may, who knows how many bytes are in it.
///
/// # Panics
/// If the servers cannot be reached, or refuse.
pub fn change_stream(options: &Options, change: impl FnOnce(&mut Config, u64)) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let Options { servers, user, name, .. } = options;
        let (user, password) = user.clone().expect("a user");
        let connecting = async_nats::ConnectOptions::with_user_and_password(user, password);
        let client = connecting.connect(servers.clone()).await.expect("servers");
        let context = async_nats::jetstream::new(client);
        let stream = context.get_stream(format!("lockwork_{name}")).await.expect("a stream");
        let mut config = stream.cached_info().config.clone();
        change(&mut config, stream.cached_info().state.bytes);
        context.update_stream(config).await.expect("other settings");
    });
}
