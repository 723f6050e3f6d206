//! A private PostgreSQL server in a temporary folder, which goes with whoever has started it.
//!
//! A *guard*, a shell in a process group of its own, makes the cluster, starts the server, and then waits until its
//! standard input ends. That happens when [`Cluster`] is stopped or dropped, and as well when this process is
//! interrupted, killed or crashes, as the kernel closes its end of the pipe. Then the guard stops the server and
//! removes the folder. So there is one way of cleaning up, and no signal handler.
//!
//! *Invariant*: everything lies in the folder, which only the server's user can open: data, socket, module, logs. There
//! is no port, nothing is installed, and no server is stopped but the one whose data lie there.
//!
//! *Trade-off*: the server refuses to run as root. So for root all of it, the compiler too, runs as the user
//! `postgres` or `nobody`; nothing is then written with root's rights into a folder that somebody else controls.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::PostgresError;

/// Programs of a server that are used.
const PROGRAMS: [&str; 4] = ["initdb", "pg_isready", "postgres", "psql"];

/// Where packages put them: in a folder for each version. `*` is anything.
const FOLDERS: [(&str, &str, &str); 3] =
    [("/usr/lib/postgresql", "", "bin"), ("/usr", "pgsql-", "bin"), ("/usr/local", "pgsql", "bin")];

/// Users that a server may run as if we are root, the better one first.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A socket's address has 108 bytes, the last of them zero.
const MAX_SOCKET_BYTES: usize = 107;

/// Nothing waits for a disk, nothing runs beside the measured session, no page is written out whole. What the server
/// would do to survive a crash is in nobody's interest here, and would only be in PostgreSQL's disfavour.
const SETTINGS: &str = "
listen_addresses = ''
unix_socket_permissions = 0700
fsync = off
synchronous_commit = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
max_wal_size = 16GB
checkpoint_timeout = 1h
autovacuum = off
bgwriter_lru_maxpages = 0
max_parallel_workers_per_gather = 0
jit = off
max_connections = 10
work_mem = 1GB
statement_timeout = 10min
";

/// `$0` is the folder, `$1` that of the programs, `$2` the settings. Says `started` or `failed`, and in the end takes
/// everything away. Neither that nobody hears what it says nor a signal to all of us must end it before. Half a minute
/// is what a start may take.
const GUARD: &str = r#"
trap '' PIPE INT TERM HUP
cd "$0" || exit
start() {
    "$1/initdb" -D data -U lockwork -A trust -N --no-locale -E UTF8 >initdb.log 2>&1 || return
    printf '%s\n' "$2" >>data/postgresql.conf
    "$1/postgres" -D data </dev/null >server.log 2>&1 &
    server=$!
    tries=0
    until "$1/pg_isready" -q -h "$0"; do
        tries=$((tries + 1))
        kill -0 "$server" && [ "$tries" -lt 300 ] && sleep 0.1 || return
    done
}
if start "$@"; then echo started; else echo failed; fi
read -r nothing
if [ -n "$server" ]; then kill -QUIT "$server"; wait "$server"; fi
cd / && rm -rf "$0"
"#;

/// The programs of one server.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    folder: PathBuf,
    headers: Option<PathBuf>,
    pub(super) major: u32,
}

impl Installation {
    /// The newest one of this machine.
    pub(crate) fn find() -> Result<Self, PostgresError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        for (parent, prefix, inner) in FOLDERS {
            let entries = fs::read_dir(parent).into_iter().flatten().flatten();
            let fitting = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
            folders.extend(fitting.map(|entry| entry.path().join(inner)));
        }
        Self::newest(&folders)
    }

    /// The newest one of those whose programs are in one of `folders`; of several, the first.
    pub(super) fn newest(folders: &[PathBuf]) -> Result<Self, PostgresError> {
        let complete = folders.iter().filter(|folder| PROGRAMS.iter().all(|name| folder.join(name).is_file()));
        let (mut newest, mut broken) = (None::<Self>, None);
        for found in complete.map(|folder| Self::of(folder)) {
            match found {
                Ok(found) if newest.as_ref().is_none_or(|newest| found.major > newest.major) => newest = Some(found),
                Ok(_) => {}
                Err(why) => broken = broken.or(Some(why)),
            }
        }
        newest.ok_or_else(|| match broken {
            Some(why) => PostgresError::Server(why),
            None => {
                let looked = FOLDERS.map(|(parent, prefix, inner)| format!("{parent}/{prefix}*/{inner}")).join(", ");
                PostgresError::Absent { looked }
            }
        })
    }

    fn of(folder: &Path) -> Result<Self, String> {
        let (program, headers) = (folder.join("postgres"), folder.join("pg_config"));
        let version = output(Command::new(&program).arg("--version"));
        let named = |why: String| format!("{} --version: {why}", program.display());
        let version = version.map_err(named)?;
        let major = major(&version).ok_or_else(|| named(format!("'{}' is no version", version.trim())))?;
        let headers = output(Command::new(headers).arg("--includedir-server")).ok();
        let headers = headers.map(|path| PathBuf::from(path.trim())).filter(|path| path.join("postgres.h").is_file());
        Ok(Self { folder: folder.to_path_buf(), headers, major })
    }

    /// Where the headers for modules of this server are, if they are installed.
    pub(super) fn headers(&self) -> Option<&Path> {
        self.headers.as_deref()
    }
}

/// The first number of a line such as `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
pub(super) fn major(line: &str) -> Option<u32> {
    let version = line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// What a program says, or why it does not end well.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}, {}", output.status, said.lines().next().unwrap_or("and says nothing")))
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Cluster {
    programs: PathBuf,
    folder: PathBuf,
    user: Option<(u32, u32)>,
    guard: Child,
}

impl Cluster {
    /// Starts one with room for a table of `rows` rows, which would not survive a crash.
    pub(super) fn start(installation: &Installation, rows: u64) -> Result<Self, PostgresError> {
        Self::start_with(installation, rows, SETTINGS)
    }

    /// As [`Self::start`], with other settings.
    pub(crate) fn start_with(installation: &Installation, rows: u64, chosen: &str) -> Result<Self, PostgresError> {
        let user = user()?;
        let folder = new_folder(user)?;
        // 36 bytes a row. A table of more than a quarter of the buffers would go through a few of them instead.
        let megabytes = 256 + rows * 36 * 5 / 1_000_000;
        let settings = format!(
            "{chosen}shared_buffers = {megabytes}MB\nunix_socket_directories = '{}'\n",
            folder.display().to_string().replace('\'', "''")
        );
        let mut guard = command("sh", &folder, user);
        guard.args(["-c", GUARD]).arg(&folder).arg(&installation.folder).arg(settings);
        // Away from the terminal's group: what interrupts us must not interrupt the cleaning up.
        guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let guard = guard.spawn().map_err(|error| {
            _ = fs::remove_dir(&folder);
            let who = user.map_or_else(String::new, |(user, _)| format!(" as user {user}"));
            PostgresError::Server(format!("cannot start sh in {}{who}: {error}", folder.display()))
        })?;
        let mut cluster = Self { programs: installation.folder.clone(), folder, user, guard };
        let mut said = String::new();
        let stdout = cluster.guard.stdout.take().expect("it is piped");
        _ = BufReader::new(stdout).read_line(&mut said);
        if said.trim() == "started" { Ok(cluster) } else { Err(cluster.why_not()) }
    }

    /// What the logs say about a server that did not start.
    fn why_not(&self) -> PostgresError {
        let log = |name| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        let logs = ["initdb.log", "server.log"].map(log).concat();
        let reason = logs.lines().filter(|line| ["FATAL:", "error:"].iter().any(|word| line.contains(word)));
        let reason: Vec<&str> = reason.collect();
        let reason = if reason.is_empty() { logs.trim().to_string() } else { reason.join("; ") };
        let (programs, folder) = (self.programs.display(), self.folder.display());
        PostgresError::Server(format!("the server of {programs} did not start in {folder}: {reason}"))
    }

    /// Compiles a module; its path, or why that was not possible.
    pub(super) fn compile(&self, installation: &Installation, source: &str) -> Result<PathBuf, String> {
        let module = self.folder.join("module.so");
        let mut compiler = command("cc", &self.folder, self.user);
        compiler.args(["-O2", "-shared", "-fPIC", "-x", "c", "-", "-o"]).arg(&module);
        compiler.arg(format!("-DSERVER_MAJOR={}", installation.major));
        if let Some(headers) = installation.headers() {
            compiler.arg("-I").arg(headers);
        }
        feed(compiler, source).map_err(|error| format!("cc: {error}"))?;
        Ok(module)
    }

    /// What SQL answers: values only, a line for each row.
    pub(crate) fn psql(&self, script: &str) -> Result<String, PostgresError> {
        let mut psql = command(self.programs.join("psql"), &self.folder, self.user);
        psql.args(["-X", "-q", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1", "-U", "lockwork", "-d", "postgres", "-h"]);
        psql.arg(&self.folder);
        feed(psql, script).map_err(|error| PostgresError::Server(format!("psql: {error}")))
    }

    /// Stops it and takes everything away.
    pub(crate) fn stop(mut self) -> Result<(), PostgresError> {
        self.end();
        if self.folder.exists() {
            let folder = self.folder.display();
            return Err(PostgresError::Server(format!("{folder} could not be removed; look for what is left in it")));
        }
        Ok(())
    }

    fn end(&mut self) {
        drop(self.guard.stdin.take());
        _ = self.guard.wait();
    }

    /// Where everything of it is.
    #[cfg(test)]
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// Who the server runs as, unless that is who we are.
fn user() -> Result<Option<(u32, u32)>, PostgresError> {
    // SAFETY: a system call that cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = USERS.iter().find_map(|name| user_of(&users, name));
    found.map(Some).ok_or_else(|| {
        let names = USERS.join(" nor ");
        PostgresError::Server(format!("it refuses to run as root, and /etc/passwd has neither a user {names}"))
    })
}

/// User and group of the line of `name`.
pub(super) fn user_of(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut fields = line.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// A folder that nobody has had, for the user alone.
fn new_folder(user: Option<(u32, u32)>) -> Result<PathBuf, PostgresError> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("lockwork-postgres-{}-{number}", std::process::id()));
    let name = folder.display().to_string();
    let socket = folder.join(".s.PGSQL.5432").as_os_str().len();
    if socket > MAX_SOCKET_BYTES {
        return Err(PostgresError::Server(format!(
            "a socket in {name} would have an address of {socket} bytes; set TMPDIR to a folder with a path that is \
             shorter by {}",
            socket - MAX_SOCKET_BYTES
        )));
    }
    let failed = |error| PostgresError::Server(format!("{name}: {error}"));
    fs::DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
    if let Some((user, group)) = user {
        chown(&folder, Some(user), Some(group)).map_err(failed)?;
    }
    Ok(folder)
}

/// A program as that user, with nothing in its environment that leads it elsewhere.
fn command(program: impl AsRef<std::ffi::OsStr>, folder: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").env("TMPDIR", folder).current_dir(folder);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    command
}

/// Runs a program on an input; what it says, or why it fails.
fn feed(mut command: Command, input: &str) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().expect("it is piped");
    // Inputs are shorter than a pipe, so this does not wait for a reader that waits for us. That it does not read to
    // the end shows in how it ends.
    _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|error| error.to_string());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find(|line| line.contains("rror:")).or_else(|| said.lines().next());
    Err(reason.map_or_else(|| output.status.to_string(), |line| line.trim().to_string()))
}
