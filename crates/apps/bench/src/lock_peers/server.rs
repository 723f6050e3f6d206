//! Servers of one benchmark: each a process of its own on loopback, in a folder of its own, both gone afterwards.
//!
//! A *guard*, a shell in a process group of its own, starts the server and waits until its standard input ends: when
//! [`Server`] is dropped, or this process is interrupted, killed or crashes, as the kernel closes its end of the pipe.
//! Then it kills the server, which has nothing to keep, and removes the folder.
//!
//! *Invariant*: whatever a server writes lies in its folder, in memory where the system has `/dev/shm`; no server is
//! talked to or ended but one that was started here.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::super::Failure;

/// `$0` is the folder, the rest the command. Says the server's number.
const GUARD: &str = r#"
cd "$0" || exit
"$@" </dev/null >log 2>&1 &
server=$!
trap '' PIPE INT TERM HUP
echo "$server"
read -r nothing
kill -KILL "$server"; wait "$server"
cd / && rm -rf "$0"
"#;

/// What a start may take.
const START: Duration = Duration::from_secs(20);

/// A server that runs.
#[derive(Debug)]
pub(in super::super) struct Server {
    /// Where it listens.
    pub(super) address: SocketAddr,
    folder: PathBuf,
    guard: Child,
    process: u32,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        _ = self.guard.wait();
    }
}

/// The program of this name in PATH.
pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|at| at.is_file())
}

/// Where a program is that may not be installed, and what it says of its version: its first line.
pub(super) fn find(name: &str, package: &str) -> Result<(PathBuf, String), Failure> {
    let Some(program) = in_path(name) else {
        return Err(Failure::BackEnd(format!(
            "no {name} in PATH; Debian has it in the package {package}; or leave out what needs it: --system"
        )));
    };
    let said = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    let said = said.map_err(|error| Failure::BackEnd(format!("{}: {error}", program.display())))?;
    let version = String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or_default().to_string();
    Ok((program, version))
}

/// A port that nobody had a moment ago.
pub(super) fn free_port() -> Result<u16, Failure> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    port.map(|address| address.port()).map_err(|error| Failure::Connect(format!("no free port on loopback: {error}")))
}

impl Server {
    /// Where it listens.
    pub(in super::super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts `command`, which is to listen at `port` of loopback, and waits until `ready` says where it answers; that
    /// is given the port, and what the server has written so far.
    ///
    /// # Errors
    /// It cannot be started, ends at once, or does not answer in time; with what it wrote.
    pub(in super::super) fn start(
        command: &[String],
        port: u16,
        ready: impl Fn(SocketAddr, &str) -> Option<SocketAddr>,
    ) -> Result<Self, Failure> {
        let folder = new_folder()?;
        let failed = |what: String| Failure::BackEnd(format!("{}: {what}", command[0]));
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD]).arg(&folder).args(command);
        // Away from the terminal's group: what interrupts us must not interrupt the cleaning up.
        guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guard = guard.spawn().map_err(|error| {
            _ = fs::remove_dir(&folder);
            failed(format!("cannot start sh: {error}"))
        })?;
        let mut said = String::new();
        _ = BufReader::new(guard.stdout.take().expect("it is piped")).read_line(&mut said);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Self { address, folder, guard, process: said.trim().parse().unwrap_or(0) };
        let began = Instant::now();
        loop {
            let log = fs::read_to_string(server.folder.join("log")).unwrap_or_default();
            if let Some(address) = ready(address, &log) {
                server.address = address;
                return Ok(server);
            }
            let lives = server.lives();
            if !lives || began.elapsed() > START {
                let how = if lives { "does not answer" } else { "ended at once" };
                // Once more: it may have said why since.
                let log = server.log();
                let last: Vec<&str> = log.lines().rev().take(3).collect();
                return Err(failed(format!("it {how}: {}", last.into_iter().rev().collect::<Vec<_>>().join("; "))));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the process has not ended; one that has stays until its guard looks for it.
    fn lives(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    /// What it has written so far.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub(super) fn kill(&self) {
        // SAFETY: a plain system call; the number is that of a process that the guard has not waited for.
        unsafe { libc::kill(self.process as i32, libc::SIGKILL) };
        while self.lives() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Seconds of processor time that it has taken so far.
    pub(super) fn processor_s(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process)).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        // SAFETY: a question that cannot fail.
        ticks as f64 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
    }
}

/// Where servers have their folders.
pub(super) fn parent() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() }
}

/// A folder that nobody has had, for this user alone.
fn new_folder() -> Result<PathBuf, Failure> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = parent().join(format!("lockwork-peers-{}-{number}", std::process::id()));
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    made.map(|()| folder.clone()).map_err(|error| Failure::BackEnd(format!("{}: {error}", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Result<Server, Failure> {
        let command = ["sh", "-c", script].map(String::from);
        Server::start(&command, 1, |at, log| log.contains("ready").then_some(at))
    }

    #[test]
    fn a_server_and_its_folder_end_with_what_has_started_it() {
        let server = start("echo ready; exec sleep 100").expect("it starts");
        let (folder, process) = (server.folder.clone(), PathBuf::from(format!("/proc/{}", server.process)));
        assert!(folder.is_dir() && process.is_dir() && server.processor_s() < 1.0);
        drop(server);
        assert!(!folder.exists() && !process.exists());
    }

    #[test]
    fn one_that_ends_at_once_is_told_with_its_words_and_one_that_is_absent_with_its_package() {
        let error = start("echo no such option; exit 1").expect_err("it ends").to_string();
        assert_eq!(error, "sh: it ended at once: no such option");
        let error = find("lockwork-no-such-server", "some-package").expect_err("nobody has it").to_string();
        assert!(error.contains("no lockwork-no-such-server in PATH") && error.contains("some-package"), "{error}");
    }
}
