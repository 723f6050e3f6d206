//! A cluster of NATS servers for one test, in a temporary folder: started, stopped, killed and damaged at will.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use async_nats::jetstream;
use async_nats::jetstream::stream::Config;
use lockwork_nats::Options;
use lockwork_nats::local::{Servers, program};
use tempfile::TempDir;

/// Servers with their temporary folder; both are removed on drop.
#[derive(Debug)]
pub struct TestServers {
    servers: Servers,
    folder: TempDir,
}

impl TestServers {
    /// Starts `count` servers. Skips the test and returns `None` if NATS is not installed.
    ///
    /// # Panics
    /// If a server does not start.
    #[must_use]
    pub fn start(count: usize) -> Option<Self> {
        if Command::new(program()).arg("--version").output().is_err() {
            crate::skip("nats-server is not installed (scripts/nats)");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("lockwork-nats").tempdir().expect("a temporary folder");
        let servers = Servers::start(folder.path(), count).unwrap_or_else(|why| panic!("{why}"));
        Some(Self { servers, folder })
    }

    /// Returns the servers for use by several threads, and their folder, which must outlive them.
    #[must_use]
    pub fn shared(self) -> (Mutex<Servers>, TempDir) {
        (Mutex::new(self.servers), self.folder)
    }

    /// Sends a signal, such as `-STOP` or `-CONT`, to the server `at`, counted from 0.
    ///
    /// # Panics
    /// If the server does not run, or the signal cannot be sent.
    pub fn signal(&self, at: usize, signal: &str) {
        let process = self.process(at).expect("a server that runs").to_string();
        assert!(Command::new("kill").args([signal, &process]).status().expect("kill runs").success());
    }
}

/// Kills a server and [alters](alter) its files of messages; returns how many there were.
///
/// # Panics
/// If the server cannot be killed, or a file cannot be read or written.
pub fn damage(servers: &mut Servers, at: usize) -> usize {
    servers.kill(at).expect("a server is killed");
    alter(&servers.data(at))
}

/// Alters bytes in the middle of every file of messages below a folder; returns how many files there were.
///
/// # Panics
/// If a file cannot be read or written.
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

/// Returns the files of messages below a folder.
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

/// Returns the name of the stream that holds the log.
fn stream_name(options: &Options) -> String {
    format!("lockwork_{}", options.name)
}

/// Calls `act` with a JetStream context on a new connection, and the name of the log's stream.
fn with_stream<T>(options: &Options, act: impl AsyncFnOnce(jetstream::Context, String) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (user, password) = options.user.clone().expect("a user");
        let connecting = async_nats::ConnectOptions::with_user_and_password(user, password);
        let client = connecting.connect(options.servers.clone()).await.expect("servers");
        act(jetstream::new(client), stream_name(options)).await
    })
}

/// Returns the server, counted from 0, that leads the log's stream, if there is a leader.
#[must_use]
pub fn stream_leader(options: &Options) -> Option<usize> {
    with_stream(options, async |context, name| {
        let stream = context.get_stream(name).await.ok()?;
        let leader = stream.cached_info().cluster.as_ref()?.leader.as_ref()?;
        leader.rsplit('-').next()?.parse::<usize>().ok()?.checked_sub(1)
    })
}

/// Asks the leader of the log's stream to hand over to the server `at`, counted from 0, which may not be able to lead.
pub fn prefer_leader(options: &Options, at: usize) {
    with_stream(options, async |context, name| {
        let wish = serde_json::json!({ "placement": { "preferred": format!("nats-{}", at + 1) } });
        let asked: Result<serde_json::Value, _> =
            context.request(format!("STREAM.LEADER.STEPDOWN.{name}"), &wish).await;
        // The caller treats a missing answer as a refusal.
        drop(asked);
    });
}

/// Changes the settings of the log's stream; `change` gets them and the number of bytes in the stream.
///
/// # Panics
/// If the servers cannot be reached, or refuse the settings.
pub fn change_stream(options: &Options, change: impl FnOnce(&mut Config, u64)) {
    change_other(options, &stream_name(options), change);
}

/// Changes the settings of the stream called `name`, as [`change_stream`] does.
///
/// # Panics
/// As [`change_stream`].
pub fn change_other(options: &Options, name: &str, change: impl FnOnce(&mut Config, u64)) {
    with_stream(options, async |context, _| {
        let stream = context.get_stream(name).await.expect("a stream");
        let mut config = stream.cached_info().config.clone();
        change(&mut config, stream.cached_info().state.bytes);
        context.update_stream(config).await.expect("other settings");
    });
}
