//! The lock service of this project, as a process of its own, and its client library over UDP on loopback: a session
//! for each client, as if each were a process, or one for all; and with locks that stay with who has used them.

use std::path::PathBuf;
use std::time::Duration;

use lockwork_locks::client::{Guard, Locks, Options};

use super::Peer;
use super::server::{Server, in_path};
use super::{Failure, outside};

/// The command `lockwork`, whose daemon is measured: beside this program, or in PATH.
pub(in super::super) fn program() -> Result<PathBuf, Failure> {
    let this = std::env::current_exe().map_err(|error| outside("this program", error))?;
    let beside = this.with_file_name("lockwork");
    if beside.is_file() {
        return Ok(beside);
    }
    in_path("lockwork").ok_or_else(|| {
        Failure::BackEnd(format!("no program {}, and none in PATH; build it: --bin lockwork", beside.display()))
    })
}

/// Starts the daemon.
pub(super) fn start(locks: u64) -> Result<Server, Failure> {
    let program = program()?;
    let mut command = vec![program.display().to_string()];
    let line = format!("lockd --udp 127.0.0.1:0 --fresh --locks {locks}");
    command.extend(line.split(' ').map(String::from));
    Server::start(&command, 0, |_, log| log.split_once("ready on ")?.1.split_once(' ')?.0.parse().ok())
}

/// For how long locks stay with a client where they do.
const STAY: Duration = Duration::from_secs(1);

/// A session, with which locks `stay` or not. Where there are more clients than cores, looking at the socket without
/// sleeping only takes the processor from others.
pub(super) fn session(server: &Server, spins: bool, stay: bool) -> Result<Locks, String> {
    let usual = Options { stay: if stay { STAY } else { Duration::ZERO }, ..Options::default() };
    let options = if spins { usual } else { Options { spin: Duration::ZERO, ..usual } };
    Locks::connect_with(&server.address.to_string(), options).map_err(|error| error.to_string())
}

/// A client.
pub(super) struct Client {
    locks: Locks,
    guard: Option<Guard>,
}

impl Client {
    pub(super) fn new(locks: Locks) -> Self {
        Self { locks, guard: None }
    }
}

impl Peer for Client {
    fn acquire(&mut self, lock: u64) -> Result<Option<u64>, String> {
        let guard = self.locks.exclusive(lock).acquire().map_err(|error| error.to_string())?;
        let token = guard.token();
        self.guard = Some(guard);
        Ok(Some(token))
    }

    fn release(&mut self, lock: u64) -> Result<(), String> {
        match self.guard.take() {
            Some(guard) if guard.is_lost() => Err(format!("lock {lock} was lost while it was held")),
            _ => Ok(()),
        }
    }
}
