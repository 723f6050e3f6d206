//! `lockwork cluster up`: NATS servers and nodes of a cluster, all on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use lockwork::divided::MAX_PARTS;
use lockwork::sequencer::io::{Disk, Io, Locking};
use lockwork_nats::Error as NatsError;
use lockwork_nats::local::{Servers, lock};
use lockwork_nats::repair::{Mended, repair};

use super::engines;
use super::logging::Format;
use super::parts::{SECRET, may_divide, may_sequence};
use super::serve::read;
use super::{Failure, Outcome, print};

/// Before a node that has ended is started again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// What a node ends with that found damage in the log.
const DAMAGED: i32 = 5;
/// A node that ends by itself so soon, the first time, would do so again.
const SOON: Duration = Duration::from_secs(10);
/// How often the nodes are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How often it is looked whether all servers have everything; how soon after they were started; and how late at most,
/// as long as not all are known to have.
const AUDIT_INTERVAL: Duration = Duration::from_secs(300);
const FIRST_AUDIT: Duration = Duration::from_secs(2);
const AUDIT_RETRY_DELAY: Duration = Duration::from_secs(60);
/// How long nodes may take to end.
const END: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes, and NATS servers: 1, 3 or 5
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = nodes)]
    nodes: usize,
    /// Nodes that have a part of every table each, so many of them; --nodes is then the number of NATS servers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_PARTS as i64))]
    partitions: Option<u16>,
    /// How many of those take calls: each of them for a stream of its own, which are merged
    #[arg(long, value_name = "N", default_value_t = 1, requires = "partitions")]
    sequencers: u16,
    /// The folder of the servers' data, made if it is not there; without one all of it goes when the cluster ends
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The port of the first node; the others have those behind it, and nodes with parts as many more for each other
    #[arg(long, value_name = "PORT", default_value_t = 5433)]
    port: u16,
    /// A file of SQL that the first leader runs before clients come, if the database has no tables yet
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// The engine that runs the calls
    #[arg(long, default_value = "deterministic")]
    engine: String,
}

impl Arguments {
    /// How many nodes there are.
    fn count(&self) -> usize {
        self.partitions.map_or(self.nodes, usize::from)
    }

    /// The port of a node for clients; behind those of all are the ones for each other.
    fn port(&self, number: usize) -> Result<u16, Failure> {
        let port = self.port.checked_add(number as u16 - 1).filter(|_| self.port > 0);
        port.ok_or_else(|| Failure::usage("--port has to leave room for all nodes up to 65535"))
    }

    /// What nodes would find, when the servers run.
    fn validate(&self) -> Result<(), Failure> {
        may_sequence(self.sequencers, self.partitions.map_or(1, usize::from))?;
        engines::find(&self.engine)?;
        if self.partitions.is_some() {
            may_divide(&self.engine)?;
        }
        self.init.as_deref().map(read).transpose()?;
        self.port(self.ports()).map(drop)
    }

    /// How many ports the nodes listen at, for clients and for each other.
    fn ports(&self) -> usize {
        if self.partitions.is_some() { 2 * self.count() } else { self.count() }
    }

    /// Checks that the ports of all nodes are free, before servers are started and a folder is made.
    fn find_ports_free(&self) -> Result<(), Failure> {
        for number in 1..=self.ports() {
            let address = ("127.0.0.1", self.port(number)?);
            TcpListener::bind(address).map_err(|error| {
                let (host, port) = address;
                let node = (number - 1) % self.count() + 1;
                let hint = "hint: end the process that has the address, or name another --port";
                Failure::connect(format!("node {node} cannot listen at {host}:{port}: {error}\n{hint}"))
            })?;
        }
        Ok(())
    }
}

fn nodes(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|nodes| [1, 3, 5].contains(nodes)).ok_or_else(|| "write 1, 3 or 5".to_string())
}

/// Somebody wants it to end.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    ENDING.store(true, Ordering::Relaxed);
}

struct Node {
    number: usize,
    port: u16,
    child: Child,
    /// When it is to be started again.
    again: Option<Instant>,
    started: Instant,
    /// It has not been started before.
    is_first: bool,
}

/// What is the same for all nodes.
struct Common<'a> {
    arguments: &'a Arguments,
    /// How nodes log.
    format: Format,
    folder: &'a Path,
    options: lockwork_nats::Options,
    /// What nodes with parts prove to each other.
    secret: String,
}

impl Common<'_> {
    /// Where nodes with parts listen for each other.
    fn peers(&self, parts: usize) -> Result<Vec<String>, Failure> {
        (1..=parts).map(|number| Ok(format!("127.0.0.1:{}", self.arguments.port(parts + number)?))).collect()
    }

    fn start(&self, number: usize) -> Result<Node, Failure> {
        let port = self.arguments.port(number)?;
        let failed = |error| Failure::usage(format!("node {number} cannot be started: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--log-format", self.format.name(), "--engine", &self.arguments.engine]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        if let Some(parts) = self.arguments.partitions {
            let peers = self.peers(parts.into())?.join(",");
            command.args(["--partition", &number.to_string(), "--peers", &peers]).env(SECRET, &self.secret);
            command.args(["--sequencers", &self.arguments.sequencers.to_string()]);
        }
        command.args(["--cluster", &self.options.servers.join(","), "--cluster-name", &self.options.name]);
        command.args(["--replicas", &self.options.replicas.to_string()]);
        command.arg("--scratch").arg(self.folder.join(format!("node-{number}")));
        if let Some(init) = &self.arguments.init {
            command.arg("--init").arg(init);
        }
        let secrets = [("LOCKWORK_NATS_USER", &self.options.user), ("LOCKWORK_NATS_SYSTEM", &self.options.system)];
        for (variable, secret) in secrets {
            if let Some((user, password)) = secret {
                command.env(variable, format!("{user}:{password}"));
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // What ends the terminal's programs ends this one, which ends them in their order.
        command.process_group(0);
        with_parent(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let id = child.id();
        if let Some(out) = child.stdout.take() {
            relay(number, id, out, Format::Text);
        }
        if let Some(err) = child.stderr.take() {
            relay(number, id, err, self.format);
        }
        Ok(Node { number, port, child, again: None, started: Instant::now(), is_first: true })
    }
}

/// Ends a program when this one has ended, however.
fn with_parent(command: &mut Command) {
    let ends = || {
        // SAFETY: it sets what this process hears when its parent ends, and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(ends) };
}

/// Prints what a node prints: on standard output, and events in JSON among those of this process.
fn relay(number: usize, id: u32, from: impl Read + Send + 'static, format: Format) {
    let lines = move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Where nobody reads any more, it goes on.
            match of_node(&line, number, id).filter(|_| format == Format::Json) {
                Some(event) => drop(writeln!(std::io::stderr(), "{event}")),
                None => drop(print(&format!("node {number} (process {id}): {line}\n"))),
            }
        }
    };
    drop(std::thread::Builder::new().name(format!("node-{number}")).spawn(lines));
}

/// The event of a line, with the node and the process that it is of; nothing if the line is no event in JSON.
fn of_node(line: &str, number: usize, id: u32) -> Option<serde_json::Value> {
    let mut event: serde_json::Map<_, _> = serde_json::from_str(line).ok()?;
    event.insert("node".into(), number.into());
    event.insert("process".into(), id.into());
    Some(event.into())
}

/// Keeps others from the same folder until what it returns is dropped, or this program ends, however.
fn alone(folder: &Path) -> Result<Box<dyn Send + Sync>, Failure> {
    let failed = |error| Failure::usage(format!("'{}': {error}", folder.display()));
    Disk::new().create_directory(folder).map_err(failed)?;
    match Disk::new().lock(&folder.join("lock")).map_err(failed)? {
        Locking::Held(held) => Ok(held),
        Locking::Taken(owner) => {
            let text = "another `lockwork cluster up` has it: end that one, or name another folder";
            Err(Failure::usage(format!("'{}': {text} ({owner})", folder.display())))
        }
    }
}

/// Refuses data of another number of servers, fewer of which would go on without what most of those have acknowledged,
/// and of tables that are divided otherwise.
fn as_before(folder: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let tables = arguments.partitions.map_or("whole tables".into(), |parts| format!("tables in {parts} parts"));
    let wanted = format!("{} NATS servers, {tables}", arguments.nodes);
    let path = folder.join("layout");
    let failed = |error| Failure::usage(format!("'{}': {error}", path.display()));
    let refused = |before: &str| {
        let text = "that is for good: name another folder, or tell --nodes and --partitions as before";
        Err(Failure::usage(format!("'{}' is of {before}, and this would be {wanted}; {text}", folder.display())))
    };
    match std::fs::read_to_string(&path) {
        Ok(before) if before.trim_end() == wanted => return Ok(()),
        Ok(before) => return refused(before.trim_end()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    // It may be of a version that wrote no layout.
    let is_there = |number: &usize| folder.join("nats").join(format!("nats-{number}.conf")).exists();
    match (1..).take_while(is_there).count() {
        0 => {}
        servers if servers == arguments.nodes => {}
        servers => return refused(&format!("{servers} NATS servers")),
    }
    std::fs::write(&path, format!("{wanted}\n")).map_err(failed)
}

pub(super) fn run(arguments: &Arguments, format: Format) -> Outcome {
    super::create_for_owner_only();
    arguments.validate()?;
    arguments.find_ports_free()?;
    let temporary = match &arguments.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("lockwork-cluster").tempdir().map_err(Failure::usage)?),
    };
    let folder = arguments.data.as_deref().or(temporary.as_ref().map(|folder| folder.path())).unwrap_or("".as_ref());
    let folder = std::path::absolute(folder).map_err(Failure::usage)?;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
    }
    let _alone = alone(&folder)?;
    as_before(&folder, arguments)?;
    let servers = Servers::start(&folder.join("nats"), arguments.nodes).map_err(Failure::BackEnd)?;
    for at in 0..arguments.nodes {
        let process = servers.process(at).map_or(String::new(), |id| id.to_string());
        print(&format!("NATS server {} (process {process})\n", at + 1))?;
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::BackEnd(format!("no random bytes: {error}")))?;
    let secret = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let common = Common { arguments, format, folder: &folder, options: servers.options("lockwork"), secret };
    let mut nodes = (1..=arguments.count()).map(|number| common.start(number)).collect::<Result<Vec<_>, _>>()?;
    let ports: Vec<String> = nodes.iter().map(|node| node.port.to_string()).collect();
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let database =
        arguments.init.as_deref().and_then(Path::file_stem).map_or("lockwork".into(), |stem| stem.to_string_lossy());
    let reads = match arguments.partitions {
        // One that follows has a part of the rows.
        Some(_) => "",
        None => {
            "read where another leads: with PGOPTIONS='-c default_transaction_read_only=on' before it, and \
             target_session_attrs=prefer-standby in it\n"
        }
    };
    let others = match arguments.sequencers {
        1 => "",
        _ => "calls of procedures are taken by every node that sequences too\n",
    };
    print(&format!(
        "connect, whoever leads: psql \"host={hosts} port={} dbname={database}\"\n{reads}{others}\
         kill -9 a process, and see another one go on; Ctrl-C ends all\n",
        ports.join(",")
    ))?;
    let (servers, is_new) = (Arc::new(Mutex::new(servers)), Arc::new(AtomicBool::new(false)));
    let mender = {
        let (servers, is_new, options) = (servers.clone(), is_new.clone(), common.options.clone());
        std::thread::Builder::new().name("mender".into()).spawn(move || mend_all(&servers, &options, &is_new))
    };
    drop(mender.map_err(|error| Failure::BackEnd(format!("no thread: {error}")))?);
    let kept = keep(&common, &servers, &is_new, &mut nodes);
    stop(nodes);
    // Whoever mends one of them is not waited for.
    lock(&servers).end();
    kept
}

/// Gives servers again what they have lost. `is_new`: one was started again.
fn mend_all(servers: &Mutex<Servers>, options: &lockwork_nats::Options, is_new: &AtomicBool) {
    let twice = |pause: Duration| (2 * pause).min(AUDIT_RETRY_DELAY);
    let (mut due, mut soon, mut last) = (Instant::now() + FIRST_AUDIT, FIRST_AUDIT, String::new());
    // When one may be ended again that was ended in vain.
    let (mut not_before, mut later) = (Instant::now(), FIRST_AUDIT);
    while !ENDING.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
        if is_new.swap(false, Ordering::Relaxed) {
            (due, soon) = ((Instant::now() + FIRST_AUDIT).max(not_before), FIRST_AUDIT);
        }
        if due > Instant::now() {
            continue;
        }
        let (next, said) = match repair(servers, options) {
            Ok(Mended::Whole) => {
                // It takes room only.
                drop(lock(servers).discard());
                later = FIRST_AUDIT;
                // A server that was just started may not have told all of what it lacks.
                let next = if soon < AUDIT_RETRY_DELAY { soon } else { AUDIT_INTERVAL };
                soon = twice(soon);
                (next, String::new())
            }
            Ok(Mended::Emptied(text)) => {
                later = FIRST_AUDIT;
                (FIRST_AUDIT, format!("NATS server {text}"))
            }
            Ok(Mended::NotYet(text)) => {
                not_before = Instant::now() + later;
                later = twice(later);
                (FIRST_AUDIT, format!("NATS server {text}"))
            }
            // One that was just started, perhaps, or is given much: nothing is said of that.
            Ok(Mended::Unsure(_)) | Err(NatsError::Unreachable(_)) if soon < AUDIT_RETRY_DELAY => {
                soon = twice(soon);
                (soon, last.clone())
            }
            Ok(Mended::Unsure(text)) => (soon, format!("NATS servers do not have the same: {text}")),
            Err(NatsError::Unreachable(text)) => (soon, format!("NATS servers do not say what they have: {text}")),
            // Perhaps only until servers that were just started have what the others have.
            Err(NatsError::Settings(text)) => {
                soon = twice(soon);
                (soon, format!("NATS server {text}: docs/cluster.md, When a server is damaged, says what to do"))
            }
        };
        due = (Instant::now() + next).max(not_before);
        if !said.is_empty() && said != last {
            tracing::warn!("{said}");
        }
        last = said;
    }
}

/// Starts servers and nodes again that have ended, until somebody wants all to end.
fn keep(common: &Common<'_>, servers: &Mutex<Servers>, is_new: &AtomicBool, nodes: &mut [Node]) -> Outcome {
    let mut revives = Instant::now();
    while !ENDING.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
        if revives.elapsed() > RETRY_DELAY {
            revives = Instant::now();
            let revived = lock(servers).revive();
            for at in revived.map_err(Failure::BackEnd)? {
                tracing::warn!("NATS server {} had ended, and is started again", at + 1);
                is_new.store(true, Ordering::Relaxed);
            }
        }
        for node in &mut *nodes {
            match node.again {
                Some(at) if at <= Instant::now() => {
                    *node = Node { is_first: false, ..common.start(node.number)? };
                }
                Some(_) => {}
                None => {
                    let Ok(Some(status)) = node.child.try_wait() else { continue };
                    // What was wrong with the servers when it came back may be over; with what it was told, or with the
                    // log, it is not.
                    let refused = node.is_first && node.started.elapsed() < SOON;
                    if let Some(code) = status.code()
                        && (code == DAMAGED || code != 0 && refused)
                    {
                        // It has said why.
                        let what = if code == DAMAGED { "has stopped for good" } else { "does not start" };
                        return Err(Failure::of_exit_code(code, format!("node {} {what}", node.number)));
                    }
                    tracing::warn!("node {} has ended ({status}), and is started again", node.number);
                    node.again = Some(Instant::now() + RETRY_DELAY);
                }
            }
        }
    }
    Ok(())
}

/// Ends all nodes in good order.
fn stop(mut nodes: Vec<Node>) {
    for node in &mut nodes {
        if let Ok(None) = node.child.try_wait() {
            // SAFETY: the process is a child that was not waited for, so the number is its own.
            unsafe { libc::kill(node.child.id() as libc::pid_t, libc::SIGTERM) };
        }
    }
    let until = Instant::now() + END;
    for node in &mut nodes {
        while Instant::now() < until && matches!(node.child.try_wait(), Ok(None)) {
            std::thread::sleep(POLL_INTERVAL);
        }
        // There is nobody to tell.
        drop(node.child.kill());
        drop(node.child.wait());
    }
}
