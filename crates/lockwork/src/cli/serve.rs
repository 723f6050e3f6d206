//! `lockwork serve`: a database for PostgreSQL's clients.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as SocketAddress, UnixDatagram};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use lockwork::sequencer::{self, Durability};
use lockwork::{EngineKind, Lockwork, OpenOptions};
use lockwork_server::{Options, ServeError, Server, Tls, Users, Watcher};
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The folder of the database, made if it is not there; without one it lives in memory and ends with the server
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where clients connect: an address of this machine's loopback, or any with --users
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5433")]
    listen: SocketAddr,
    /// The engine that runs the calls
    #[arg(long, default_value = "deterministic")]
    engine: String,
    /// When a call is answered: fsync, when it survives a loss of power; async, when it survives this process; none,
    /// when it has run [default: fsync]
    #[arg(long, requires = "data")]
    durability: Option<String>,
    /// A file of SQL that is run before clients come, if the database has no tables yet
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// A file of those who may connect, with passwords and rights (`lockwork user` makes it); it is read at each login.
    /// Without one everybody on this machine may do everything
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// The certificate of this server, PEM: connections may be encrypted then, and those of other machines have to be
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Where a page for people, /metrics, /healthz and /readyz are: an address of this machine's loopback
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = Options::default().connections)]
    connections: usize,
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Listen { .. } => Self::Connect(error.to_string()),
            ServeError::Database(error) => error.into(),
            error => Self::Usage(error.to_string()),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (users, tls) = (arguments.users()?, arguments.tls()?);
    if users.is_some() && tls.is_none() && !arguments.listen.ip().is_loopback() {
        eprintln!("lockwork: without --tls-certificate what goes over the network can be read on its way");
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().thread_stack_size(lockwork_server::STACK);
    let runtime = runtime.build().map_err(|error| Failure::usage(format!("threads: {error}")))?;
    let watcher = Watcher::default();
    // Before the database is open: recovery can be watched.
    let page = arguments.http.map(|address| runtime.block_on(watcher.listen(address))).transpose()?;
    let mut database = arguments.open(&watcher)?;
    arguments.fill(&mut database)?;
    let options = Options { connections: arguments.connections, users, tls, watcher, ..Options::default() };
    runtime.block_on(async {
        let server = Server::listen(arguments.listen, database, options).await?;
        let address = server.address().map_err(Failure::connect)?;
        let ending = server.ending();
        let no_signals = |error| Failure::usage(format!("signals: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
        let place = arguments.data.as_ref().map_or("in memory".into(), |data| data.display().to_string());
        let page = page.map_or(String::new(), |page| format!("http://{page}/, "));
        print(&format!("ready: {place}, {page}psql -h {} -p {}\n", address.ip(), address.port()))?;
        tell_manager();
        let mut serving = tokio::spawn(server.run());
        let mut asked = 0;
        let ended = loop {
            tokio::select! {
                ended = &mut serving => break ended,
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            asked += 1;
            if asked > 1 {
                eprintln!("lockwork: ended at once; what was acknowledged is there");
                // Without waiting for anybody.
                std::process::exit(130);
            }
            eprintln!("lockwork: ending; once more ends it at once");
            ending.end();
        };
        match ended {
            Ok(closed) => Ok(closed.map(|()| ExitCode::SUCCESS)?),
            Err(error) => Err(Failure::BackEnd(format!("the server: {error}"))),
        }
    })
}

/// Tells systemd, if it wants to know (`sd_notify(3)`), that the server is there.
fn tell_manager() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = UnixDatagram::unbound().and_then(|socket| {
        let name = name.as_bytes();
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddress::from_abstract_name(name)?,
            None => SocketAddress::from_pathname(OsStr::from_bytes(name))?,
        };
        socket.send_to_addr(b"READY=1", &address)
    });
    if let Err(error) = told {
        eprintln!("lockwork: systemd was not told that the server is ready: {error}");
    }
}

impl Arguments {
    fn open(&self, watcher: &Watcher) -> Result<Lockwork, Failure> {
        let engine: EngineKind = self.engine.parse().map_err(Failure::usage)?;
        let durability: Durability = self.durability.as_deref().unwrap_or("fsync").parse()?;
        let sequencer = sequencer::Options { durability, ..sequencer::Options::default() };
        let options = OpenOptions { engine, sequencer, ..OpenOptions::default() };
        match &self.data {
            Some(folder) => super::sql::open_and_tell(folder, &options, |done, total| watcher.recovering(done, total)),
            None => Ok(Lockwork::open_volatile(&options)?),
        }
    }

    fn users(&self) -> Result<Option<Users>, Failure> {
        self.users.as_ref().map(Users::open).transpose().map_err(Failure::usage)
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else { return Ok(None) };
        Tls::open(certificate, key).map(Some).map_err(Failure::usage)
    }

    /// Runs the statements of `--init` on a database that is new.
    fn fill(&self, database: &mut Lockwork) -> Result<(), Failure> {
        let Some(file) = &self.init else { return Ok(()) };
        let script =
            std::fs::read_to_string(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        if !database.tables().is_empty() {
            return Ok(());
        }
        let stays = |folder: &PathBuf| {
            let folder = folder.display();
            format!(
                "\nwhat stands before it is in {folder}: remove {folder}, or do the rest with lockwork sql {folder}"
            )
        };
        database.sql(&script).map(drop).map_err(|error| {
            let stays = self.data.as_ref().map(stays).unwrap_or_default();
            Failure::usage(format!("{}: {error}{stays}", file.display()))
        })
    }
}
