//! Servers on this machine: for trying a cluster, and for tests.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Options;

/// Settings of the connections between servers. When one takes another that says nothing for gone: until it does, it
/// refuses that one's new connection as a second one, and by itself it waits half a minute between two looks. And one
/// connection for everything: with one of its own for what servers agree upon, as they have otherwise, that may be
/// missing for minutes after servers were killed or stopped while all others are there, and nobody is served.
pub const ROUTES: &str = "ping_interval: \"2s\", ping_max: 2, pool_size: -1";
/// How long a server may take to answer.
const START: Duration = Duration::from_secs(20);
/// Where servers listen.
const PORTS: std::ops::Range<u16> = 10_000..20_000;
/// What is before an address and a password in a server's configuration.
const LISTEN: &str = "\nlisten: \"";
const CLIENT: &str = "user: lockwork, password: \"";
/// How many times other ports are tried.
const ATTEMPTS: usize = 5;

/// The program: what `LOCKWORK_NATS_SERVER` names, or else what `scripts/nats` has installed in this checkout, or else
/// what the system has.
#[must_use]
pub fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("LOCKWORK_NATS_SERVER") {
        return program.into();
    }
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/nats/bin/nats-server");
    if installed.exists() { installed } else { "nats-server".into() }
}

/// Servers that are a cluster, each with its files in a folder; they are ended when this is dropped, the files stay.
#[derive(Debug)]
pub struct Servers {
    folder: PathBuf,
    clients: Vec<u16>,
    children: Vec<Option<Child>>,
    /// Those to be started again that were ended on purpose.
    due: Vec<usize>,
    passwords: [String; 2],
}

/// Servers that several threads look after.
pub fn lock(servers: &Mutex<Servers>) -> MutexGuard<'_, Servers> {
    servers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a journal of this name is reached at servers that another program has [started](Servers::start) in a folder, for
/// clients: without what only the system's account may ask.
///
/// # Errors
/// There are none, or they cannot be read; the text says why.
pub fn options_of(folder: &Path, name: &str) -> Result<Options, String> {
    let (mut servers, mut user) = (Vec::new(), None);
    for at in 0.. {
        let file = configuration(folder, at);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if at > 0 && error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(format!("'{}': {error}", file.display())),
        };
        let quoted = |before: &str| Some(text.split_once(before)?.1.split_once('"')?.0.to_string());
        let (Some(address), Some(password)) = (quoted(LISTEN), quoted(CLIENT)) else {
            return Err(format!("'{}' is of no server that `lockwork cluster up` has started", file.display()));
        };
        // Those behind were of more servers, before.
        let this = Some(("lockwork".into(), password));
        if at > 0 && this != user {
            break;
        }
        servers.push(format!("nats://{address}"));
        user = this;
    }
    Ok(Options { replicas: servers.len(), servers, user, name: name.into(), system: None, unsynced: true })
}

fn configuration(folder: &Path, at: usize) -> PathBuf {
    folder.join(format!("nats-{}.conf", at + 1))
}

/// Ports that nobody has. Not of those that the system gives to clients: one that calls a server which is not there
/// might get that server's port for itself, and keep it from coming back.
fn free_ports(count: usize) -> Result<Vec<u16>, String> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).map_err(|error| format!("the system gives no random bytes: {error}"))?;
    let from = usize::from(u16::from_le_bytes(bytes)) % PORTS.len();
    let mut held = Vec::new();
    for port in PORTS.skip(from).chain(PORTS.take(from)) {
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
        if held.len() == count {
            return held.iter().map(|held| Ok(held.local_addr().map_err(|error| error.to_string())?.port())).collect();
        }
    }
    Err("all ports from 10000 to 19999 are taken".into())
}

impl Servers {
    /// Starts so many servers on ports that are free, with passwords of their own, and waits until they answer. What
    /// servers of before have left in the folder is there again.
    ///
    /// # Errors
    /// The program is missing, or does not start; the text says why.
    pub fn start(folder: &Path, count: usize) -> Result<Self, String> {
        let mut why = String::new();
        // A port may be taken by somebody else between looking and starting.
        for _ in 0..ATTEMPTS {
            let ports = free_ports(2 * count)?;
            let (clients, routes) = ports.split_at(count);
            let passwords = [password()?, password()?];
            let children = (0..count).map(|_| None).collect();
            let mut servers =
                Self { folder: folder.to_path_buf(), clients: clients.to_vec(), children, due: Vec::new(), passwords };
            let written = (0..count).try_for_each(|at| servers.configure(at, routes));
            written.map_err(|error| format!("cannot write to '{}': {error}", folder.display()))?;
            match (0..count).try_for_each(|at| servers.spawn(at)).and_then(|()| servers.wait()) {
                Ok(()) => return Ok(servers),
                Err(problem) => why = problem,
            }
        }
        Err(why)
    }

    fn log(&self, at: usize) -> PathBuf {
        self.folder.join(format!("nats-{}.log", at + 1))
    }

    /// Where a server has its data.
    #[must_use]
    pub fn data(&self, at: usize) -> PathBuf {
        self.folder.join(format!("nats-{}", at + 1))
    }

    fn configure(&self, at: usize, routes: &[u16]) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let others: Vec<String> = routes.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let cluster = match routes {
            [_] => String::new(),
            _ => format!(
                "cluster {{ name: lockwork, listen: \"127.0.0.1:{}\", routes: [{}], {ROUTES} }}\n",
                routes[at],
                others.join(", ")
            ),
        };
        let [client, system] = &self.passwords;
        let text = format!(
            "server_name: nats-{}{LISTEN}127.0.0.1:{}\"\nmax_payload: 8MB\n\
             jetstream {{ store_dir: {:?}, sync_interval: always, max_memory_store: 64MB }}\n{cluster}\
             accounts {{\n  $SYS {{ users: [{{ user: system, password: \"{system}\" }}] }}\n  \
             lockwork {{ jetstream: enabled, users: [{{ {CLIENT}{client}\" }}] }}\n}}\n",
            at + 1,
            self.clients[at],
            self.data(at)
        );
        let mut options = fs::OpenOptions::new();
        // It has passwords in it.
        options.create(true).write(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        options.open(configuration(&self.folder, at))?.write_all(text.as_bytes())
    }

    fn spawn(&mut self, at: usize) -> Result<(), String> {
        let program = program();
        let failed = |error: io::Error| {
            let advice = "install it: scripts/nats in a checkout, or LOCKWORK_NATS_SERVER names it";
            format!("'{}' cannot be started: {error}; {advice}", program.display())
        };
        let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(self.log(at)).map_err(failed)?;
        let mut command = Command::new(&program);
        command.arg("--config").arg(configuration(&self.folder, at));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // What ends the terminal's programs is not for the servers: they end when whoever started them has.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        with_parent(&mut command);
        self.children[at] = Some(command.spawn().map_err(failed)?);
        Ok(())
    }

    /// Waits until all that were started answer.
    fn wait(&mut self) -> Result<(), String> {
        let start = Instant::now();
        for at in 0..self.children.len() {
            let Some(child) = &mut self.children[at] else { continue };
            while TcpStream::connect((Ipv4Addr::LOCALHOST, self.clients[at])).is_err() {
                let ended = child.try_wait().ok().flatten();
                if ended.is_some() || start.elapsed() > START {
                    let log = self.folder.join(format!("nats-{}.log", at + 1));
                    let told = fs::read_to_string(log).unwrap_or_default();
                    let last = told.lines().last().unwrap_or("it says nothing");
                    return Err(format!("server nats-{} does not start: {last}", at + 1));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// How a journal of this name is reached here.
    #[must_use]
    pub fn options(&self, name: &str) -> Options {
        let [client, system] = &self.passwords;
        let server = |port: &u16| format!("nats://127.0.0.1:{port}");
        Options {
            servers: self.clients.iter().map(server).collect(),
            user: Some(("lockwork".into(), client.clone())),
            name: name.into(),
            replicas: self.clients.len(),
            system: Some(("system".into(), system.clone())),
            unsynced: false,
        }
    }

    /// The process of a server that runs.
    #[must_use]
    pub fn process(&self, at: usize) -> Option<u32> {
        self.children[at].as_ref().map(Child::id)
    }

    /// Starts servers again that have ended by themselves, or are [released](Self::release); which ones.
    ///
    /// # Errors
    /// Why one cannot be started.
    pub fn revive(&mut self) -> Result<Vec<usize>, String> {
        let ended =
            |child: &mut Option<Child>| child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
        let mut gone = std::mem::take(&mut self.due);
        gone.retain(|at| self.children[*at].is_none());
        gone.extend((0..self.children.len()).filter(|at| ended(&mut self.children[*at])));
        gone.iter().try_for_each(|at| self.spawn(*at)).map(|()| gone)
    }

    /// Ends all of them as `kill -9` does.
    pub fn end(&mut self) {
        for at in 0..self.children.len() {
            // There is nobody left to tell.
            drop(self.kill(at));
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.children.len()
    }

    /// Sets everything aside that a server has, which was [killed](Self::kill), in place of what was before.
    ///
    /// # Errors
    /// The system's; or it runs.
    pub fn empty(&mut self, at: usize) -> io::Result<()> {
        if self.children[at].is_some() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "it runs"));
        }
        let aside = self.aside(at);
        if aside.exists() {
            fs::remove_dir_all(&aside)?;
        }
        fs::rename(self.data(at), aside)
    }

    /// Where is what was set aside of a server.
    fn aside(&self, at: usize) -> PathBuf {
        self.data(at).with_extension("damaged")
    }

    /// Removes what was [set aside](Self::empty), when others have it.
    ///
    /// # Errors
    /// The system's.
    pub fn discard(&self) -> io::Result<()> {
        let mut there = (0..self.count()).map(|at| self.aside(at)).filter(|aside| aside.exists());
        there.try_for_each(fs::remove_dir_all)
    }

    /// Lets a server that was [killed](Self::kill) be started again.
    pub fn release(&mut self, at: usize) {
        self.due.push(at);
    }

    /// Ends a server as `kill -9` does; it is not started again before it is [released](Self::release).
    ///
    /// # Errors
    /// The system's.
    pub fn kill(&mut self, at: usize) -> io::Result<()> {
        if let Some(mut child) = self.children[at].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts a server again, with the data that it has, and waits until it answers.
    ///
    /// # Errors
    /// Why it does not start.
    pub fn restart(&mut self, at: usize) -> Result<(), String> {
        self.kill(at).map_err(|error| error.to_string())?;
        self.spawn(at)?;
        self.wait()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends a program when the thread that started it has ended, however: servers go with whoever has them.
fn with_parent(command: &mut Command) {
    let ends = || {
        // SAFETY: it sets what this process hears when its parent ends, and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, ends) };
}

/// A password that nobody guesses.
fn password() -> Result<String, String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| format!("the system gives no random bytes: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
