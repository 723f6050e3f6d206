//! Servers of a test's own, in a temporary folder.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use async_nats::jetstream;
use async_nats::jetstream::stream::Config;
use lockwork_sequencer::journal::Unreachable;
use tempfile::TempDir;

use crate::copies::{LONGEST, Wanted};
use crate::local::{Servers, program};
use crate::{NatsJournal, Options};

/// Servers, and the folder that goes with them.
#[derive(Debug)]
pub struct TestServers {
    servers: Servers,
    folder: TempDir,
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
        Some(Self { servers, folder })
    }

    /// The servers for several threads, and the folder that goes with them.
    #[must_use]
    pub fn shared(self) -> (Mutex<Servers>, TempDir) {
        (Mutex::new(self.servers), self.folder)
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

/// Ends a server, and alters bytes in the middle of every file of messages that it has; how many files.
///
/// # Panics
/// If that fails.
pub fn damage(servers: &mut Servers, at: usize) -> usize {
    servers.kill(at).expect("a server is killed");
    alter(&servers.data(at))
}

/// Alters bytes in the middle of every file of messages below a folder; how many files.
///
/// # Panics
/// If one cannot be read or written.
pub fn alter(folder: &Path) -> usize {
    let files = blocks(folder);
    for file in &files {
        let mut bytes = fs::read(file).expect("messages");
        let middle = bytes.len() / 2;
        bytes.iter_mut().skip(middle).take(64).for_each(|byte| *byte = !*byte);
        fs::write(file, bytes).expect("other messages");
    }
    files.len()
}

/// Files of messages below a folder.
fn blocks(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let each = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => blocks(&path),
        Some(extension) if extension == "blk" => vec![path],
        _ => Vec::new(),
    };
    entries.flat_map(each).collect()
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

/// What is done with a journal's stream by somebody who has a connection of their own.
fn with_stream<T>(options: &Options, act: impl AsyncFnOnce(jetstream::Context, String) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let Options { servers, user, name, .. } = options;
        let (user, password) = user.clone().expect("a user");
        let connecting = async_nats::ConnectOptions::with_user_and_password(user, password);
        let client = connecting.connect(servers.clone()).await.expect("servers");
        act(jetstream::new(client), format!("lockwork_{name}")).await
    })
}

/// Which server leads a journal's stream, from 0, if one does.
#[must_use]
pub fn stream_leader(options: &Options) -> Option<usize> {
    with_stream(options, async |context, name| {
        let stream = context.get_stream(name).await.ok()?;
        let leader = stream.cached_info().cluster.as_ref()?.leader.as_ref()?;
        leader.rsplit('-').next()?.parse::<usize>().ok()?.checked_sub(1)
    })
}

/// Asks that this server, from 0, leads a journal's stream. It may not be able to.
pub fn prefer_leader(options: &Options, at: usize) {
    with_stream(options, async |context, name| {
        let wish = serde_json::json!({ "placement": { "preferred": format!("nats-{}", at + 1) } });
        let asked: Result<serde_json::Value, _> =
            context.request(format!("STREAM.LEADER.STEPDOWN.{name}"), &wish).await;
        // One that does not answer is as good as one that refuses.
        drop(asked);
    });
}

/// Messages from `first` on, before `until`, as one server has them that has the first.
///
/// # Errors
/// Not all servers say whether they have it.
pub fn found(journal: &NatsJournal, first: u64, until: u64) -> Result<Vec<Vec<u8>>, Unreachable> {
    let wanted = Wanted { first, until, most_bytes: usize::MAX, longest: LONGEST };
    journal.runtime.block_on(crate::copies::found(journal, wanted))
}

/// Changes the settings of a journal's stream, as somebody may, who knows how many bytes are in it.
///
/// # Panics
/// If the servers cannot be reached, or refuse.
pub fn change_stream(options: &Options, change: impl FnOnce(&mut Config, u64)) {
    change_other(options, &options.stream_name(1), change);
}

/// Changes the settings of a stream with this name.
///
/// # Panics
/// See [`change_stream`].
pub fn change_other(options: &Options, name: &str, change: impl FnOnce(&mut Config, u64)) {
    with_stream(options, async |context, _| {
        let stream = context.get_stream(name).await.expect("a stream");
        let mut config = stream.cached_info().config.clone();
        change(&mut config, stream.cached_info().state.bytes);
        context.update_stream(config).await.expect("other settings");
    });
}
