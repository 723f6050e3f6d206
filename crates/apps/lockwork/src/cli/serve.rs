//! `lockwork serve`: a database for PostgreSQL's clients.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use lockwork::sequencer::{self, Durability};
use lockwork::sql::{Field, SqlType, statements};
use lockwork::{Error, Lockwork, OpenOptions};
use lockwork_server::{Audit, Options, Page, ServeError, Stage, StartupListener, Tls, Token, Users, Watcher};
use sd_notify::NotifyState;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::cluster::Join;
use super::engines::{self, EngineOptions};
use super::{Failure, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The folder of the database, made if it is not there; without one it lives in memory and ends with the server
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
    /// Where clients connect: an address of this machine's loopback, or any with --users
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5433", value_parser = resolved)]
    pub(super) listen: SocketAddr,
    /// The engine that runs the calls
    #[arg(long, default_value = "deterministic")]
    pub(super) engine: String,
    #[command(flatten)]
    pub(super) engine_options: EngineOptions,
    /// When a call is answered: fsync, when it survives a loss of power; async, when it survives this process; none,
    /// when it has run [default: fsync]
    #[arg(long, requires = "data")]
    durability: Option<String>,
    #[command(flatten)]
    pub(super) requests: super::requests::Memory,
    /// A file of SQL that is run before clients come, if the database has no tables yet
    #[arg(long, value_name = "FILE")]
    pub(super) init: Option<PathBuf>,
    /// A file of those who may connect, with passwords and rights (`lockwork user` makes it); it is read at each login,
    /// and sessions of users that are changed or removed end. Without one everybody on this machine may do everything
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Where logins, refusals and definitions are written down, a line of JSON each; 'none' for nowhere [default: the
    /// name of the file of users with .audit behind it; nowhere without users]
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// The certificate of this server, PEM: connections may be encrypted then, and those of other machines have to be
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The key of the certificate, PEM, in a file that only its owner can read
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Where a page for people, /metrics, /healthz and /readyz are: an address of this machine's loopback, or any with
    /// --http-token; with --tls-certificate other machines ask for https
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = resolved)]
    http: Option<SocketAddr>,
    /// A file with a token that the page and /metrics want: Authorization: Bearer TOKEN, or the token as the password
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token: Option<PathBuf>,
    /// Show the values of hot keys on the page, to everybody who may see it
    #[arg(long, requires = "http")]
    http_keys: bool,
    /// Sessions at a time; with --users, the last tenth is for users that have few, and the last 3 for those who define
    #[arg(long, value_name = "N", default_value_t = Options::default().connections, value_parser = at_least_one)]
    pub(super) connections: usize,
    #[command(flatten)]
    pub(super) join: Join,
}

/// An address, or that of a name: the first, and of IPv4 if it has one.
pub(super) fn resolved(text: &str) -> Result<SocketAddr, String> {
    let all: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| format!("{error}; write 127.0.0.1:5433 or localhost:5433"))?.collect();
    let first = all.iter().find(|address| address.is_ipv4()).or(all.first());
    first.copied().ok_or_else(|| "the name has no address".to_string())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "write a number from 1".to_string())
}

/// A server that could not start, as a failure of the command.
pub(super) fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::Listen { .. } => {
            Failure::Connect(format!("{error}\nhint: end the process that has the address, or name another address"))
        }
        ServeError::Database(error) => error.into(),
        error => Failure::Usage(error.to_string()),
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    super::create_for_owner_only();
    let (users, tls) = (arguments.users()?, arguments.tls()?);
    let audit = arguments.audit()?;
    let shown = arguments.page(tls.as_ref())?;
    if users.is_some() && tls.is_none() && !arguments.listen.ip().is_loopback() {
        tracing::warn!("without --tls-certificate what goes over the network can be read on its way");
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().thread_stack_size(lockwork_server::STACK);
    let runtime = runtime.build().map_err(|error| Failure::usage(format!("threads: {error}")))?;
    let watcher = Watcher::default();
    // Before the database is open: recovery can be watched.
    let page =
        arguments.http.map(|address| runtime.block_on(watcher.listen(address, shown))).transpose().map_err(failure)?;
    let page = page
        .map(|page| format!("{}://{page}/", if tls.is_some() && !page.ip().is_loopback() { "https" } else { "http" }));
    let served = if arguments.join.is_wanted() {
        if let Some(page) = page {
            tracing::info!("page at {page}");
        }
        super::cluster::serve(arguments, &runtime, &watcher)
    } else {
        serve(arguments, &runtime, &watcher, page, (users, audit, tls))
    };
    // A query that still runs then has no client, and is not waited for.
    runtime.shutdown_background();
    served
}

/// A server that is no node of a cluster.
fn serve(
    arguments: &Arguments,
    runtime: &Runtime,
    watcher: &Watcher,
    page: Option<String>,
    (users, audit, tls): (Option<Users>, Option<Audit>, Option<Tls>),
) -> Result<ExitCode, Failure> {
    let connections = arguments.connections;
    let options = Options { connections, users, audit, tls, watcher: watcher.clone(), ..Options::default() };
    // Before there is a folder: where the address cannot be had none is made.
    let gate = runtime.block_on(StartupListener::listen(arguments.listen, &options)).map_err(failure)?;
    let database = while_starting(runtime, &gate, watcher, || arguments.fill(arguments.open(watcher)?, watcher))?;
    let example = example(&database);
    runtime.block_on(async {
        let server = gate.open(database, options).map_err(failure)?;
        let address = server.address().map_err(Failure::connect)?;
        let ending = server.ending();
        let mut signals = Signals::new()?;
        let place = arguments.data.as_ref().map_or("in memory".into(), |data| data.display().to_string());
        let page = page.map_or(String::new(), |page| format!("{page}, "));
        let host = host(address);
        print(&format!("ready: {place}, {page}psql -h {host} -p {}\n", address.port()))?;
        if let Some(call) = example {
            eprintln!("for example: psql -h {host} -p {} -c \"{call}\"", address.port());
        }
        notify_ready();
        let mut serving = tokio::spawn(server.run());
        let mut asked = 0;
        let ended = loop {
            tokio::select! {
                ended = &mut serving => break ended,
                () = signals.next() => {}
            }
            asked += 1;
            if asked > 1 {
                tracing::warn!("ended at once; what was acknowledged is there");
                // Without waiting for anybody.
                std::process::exit(130);
            }
            tracing::info!("ending; once more ends it at once");
            notify_stopping();
            ending.end();
        };
        match ended {
            Ok(closed) => Ok(closed.map(|()| ExitCode::SUCCESS)?),
            Err(error) => Err(Failure::BackEnd(format!("the server: {error}"))),
        }
    })
}

/// Runs `open` in this thread while clients are told that the server is starting up.
pub(super) fn while_starting<T>(
    runtime: &Runtime,
    gate: &StartupListener,
    watcher: &Watcher,
    open: impl FnOnce() -> T,
) -> T {
    std::thread::scope(|scope| {
        // Dropped when it is open, or has panicked.
        let (_opening, opened) = tokio::sync::oneshot::channel::<()>();
        scope.spawn(move || runtime.block_on(gate.starting(watcher, opened)).ok());
        open()
    })
}

/// Where this machine finds an address, if it is everywhere.
pub(super) fn host(address: SocketAddr) -> IpAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// What asks a server to end.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, Failure> {
        let no_signals = |error| Failure::usage(format!("signals: {error}"));
        // A compiler that an engine has loaded (LLVM, in PoCL) may have taken them, to clear up and end the process,
        // and whoever had a signal before is called too.
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: it becomes the system's own action, which runs no code of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        let terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// A call of the first procedure that takes no arrays, with arguments of the right types.
pub(super) fn example(database: &Lockwork) -> Option<String> {
    let argument = |(number, field): (usize, &Field)| {
        Some(match field.sql_type.filter(|_| field.count.is_none())? {
            SqlType::Integer(_) => (number + 1).to_string(),
            SqlType::Decimal(_, scale) => format!("1.{}", "0".repeat(scale.into())).trim_end_matches('.').into(),
            SqlType::Boolean => "true".into(),
            SqlType::Timestamp => "now()".into(),
            SqlType::Text(_) | SqlType::Bytes(_) => "'a'".into(),
            _ => return None,
        })
    };
    database.procedure_definitions().iter().find_map(|procedure| {
        let arguments: Option<Vec<String>> = procedure.compiled.parameters.iter().enumerate().map(argument).collect();
        Some(format!("CALL {}({})", procedure.name, arguments?.join(", ")))
    })
}

/// Tells the service manager, if there is one (`sd_notify(3)`), that the server is ready.
pub(super) fn notify_ready() {
    notify(NotifyState::Ready);
}

/// Tells the service manager that the server ends.
pub(super) fn notify_stopping() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(&state)) {
        tracing::warn!("systemd was not told {state}: {error}");
    }
}

impl Arguments {
    fn open(&self, watcher: &Watcher) -> Result<Lockwork, Failure> {
        if let Some(folder) = &self.data {
            warn_if_open(folder);
        }
        let engine = engines::find(&self.engine)?;
        let engine_options = self.engine_options.options(engine)?;
        let durability: Durability = self.durability.as_deref().unwrap_or("fsync").parse()?;
        let sequencer = self.requests.applied(sequencer::Options { durability, ..sequencer::Options::default() })?;
        let options = OpenOptions { engine, engine_options, sequencer };
        match &self.data {
            Some(folder) => {
                super::sql::refuse_address(folder)?;
                let watch = |progress| watcher.starting(Stage::Recovering(progress));
                let (database, found) = super::sql::open_folder(folder, &options, watch)?;
                found.iter().for_each(|what| tracing::warn!("{what}"));
                Ok(database)
            }
            None => Ok(Lockwork::open_in_memory_with(&options)?),
        }
    }

    pub(super) fn users(&self) -> Result<Option<Users>, Failure> {
        self.users.as_ref().map(Users::open).transpose().map_err(Failure::usage)
    }

    /// Opens the audit log. Without --audit, an error with its default file is a warning, and the server starts.
    pub(super) fn audit(&self) -> Result<Option<Audit>, Failure> {
        let (path, is_asked) = match (&self.audit, &self.users) {
            (Some(none), _) if none == Path::new("none") => return Ok(None),
            (Some(path), _) => (path.clone(), true),
            (None, Some(users)) => {
                let mut beside = users.as_os_str().to_owned();
                beside.push(".audit");
                (beside.into(), false)
            }
            (None, None) => return Ok(None),
        };
        match Audit::open(&path) {
            Ok(audit) => Ok(Some(audit)),
            Err(error) if is_asked => Err(Failure::of_file(&path, &error)),
            Err(error) => {
                let path = path.display();
                tracing::warn!("logins are not written down: {path}: {error}; --audit names another file, or none");
                Ok(None)
            }
        }
    }

    /// Who may see what of the page.
    fn page(&self, tls: Option<&Tls>) -> Result<Page, Failure> {
        let token = self.http_token.as_deref().map(Token::open).transpose().map_err(Failure::usage)?;
        let is_far = self.http.is_some_and(|address| !address.ip().is_loopback());
        if is_far && token.is_some() && tls.is_none() {
            tracing::warn!("without --tls-certificate the page and its token can be read on their way");
        }
        Ok(Page { token, tls: tls.cloned(), shows_keys: self.http_keys })
    }

    pub(super) fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else { return Ok(None) };
        Tls::open(certificate, key).map(Some).map_err(Failure::usage)
    }

    /// Runs the statements of `--init` on a database that is new. In a folder a mark stands beside them until all are
    /// durable: what has one is in half.
    fn fill(&self, mut database: Lockwork, watcher: &Watcher) -> Result<Lockwork, Failure> {
        let mark = self.data.as_ref().map(|folder| folder.join(MARK));
        let is_marked = mark.as_ref().is_some_and(|mark| mark.exists());
        let is_empty = database.tables().is_empty();
        if is_marked && !(is_empty && database.procedure_definitions().is_empty()) {
            let begun = "an --init has begun here and has not ended: only a part of it is there";
            return Err(Failure::usage(format!("{begun}\n{}", self.ways_out())));
        }
        let script = self.init.as_ref().map(|file| read(file)).transpose()?;
        let Some(script) = script.filter(|_| is_empty) else {
            // Of one that has done nothing.
            mark.filter(|_| is_marked).map_or(Ok(()), |mark| unmark(&mark))?;
            return Ok(database);
        };
        mark.as_ref().map_or(Ok(()), |mark| set_mark(mark))?;
        watcher.starting(Stage::Initializing);
        let mut done = 0;
        if let Err(error) = database.sql_each(&script, |_, _| done += 1) {
            let file = self.init.as_deref().unwrap_or(Path::new("")).display();
            let is_begun = !(database.tables().is_empty() && database.procedure_definitions().is_empty());
            let ways_out = mark.filter(|_| is_begun);
            let ways_out = ways_out.map(|_| format!("\nwhat stands before it is there\n{}", self.ways_out()));
            let at = format!("{file}: {}", place_of(&script, done, &error));
            return Err(match &error {
                Error::Durability(why) if let Some(failure) = why.no_room() => {
                    Failure::no_room(format!("{at}{failure}"))
                }
                _ => Failure::usage(format!("{at}{error}")),
            }
            .reworded(|text| text + &ways_out.unwrap_or_default()));
        }
        let Some(mark) = mark else { return Ok(database) };
        // Whatever the durability is: without the mark all of it is there.
        database.close()?;
        unmark(&mark)?;
        self.open(watcher)
    }

    /// What to do with a folder that an --init has left in half.
    fn ways_out(&self) -> String {
        let folder = self.data.as_deref().unwrap_or(Path::new("")).display();
        format!("remove {folder} and start again; or do the rest with lockwork sql {folder} and remove {folder}/{MARK}")
    }
}

/// Where the statement stands behind the first `done`, for an error that does not say it itself.
pub(super) fn place_of(script: &str, done: usize, error: &Error) -> String {
    let statement = statements(script).nth(done).and_then(Result::ok);
    match (error, statement) {
        (Error::Sql(_), _) | (_, None) => String::new(),
        (_, Some(statement)) => format!("line {}, statement {}: ", statement.place().line, done + 1),
    }
}

/// Tells about a folder that other users of the machine can look into, as those of earlier versions can be.
fn warn_if_open(folder: &Path) {
    let mode = std::fs::metadata(folder).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o077 != 0 {
        let folder = folder.display();
        tracing::warn!(
            "{folder} is open to other users of this machine (mode {:03o}): chmod -R go= {folder}",
            mode & 0o777
        );
    }
}

/// The file of a folder that says that an --init has begun.
const MARK: &str = "INIT";

pub(super) fn read(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn set_mark(mark: &Path) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let set = options.open(mark).and_then(|file| file.sync_all()).and_then(|()| sync_folder(mark));
    set.map_err(|error| Failure::of_file(mark, &error))
}

fn unmark(mark: &Path) -> Result<(), Failure> {
    let gone = std::fs::remove_file(mark).and_then(|()| sync_folder(mark));
    gone.map_err(|error| Failure::usage(format!("{}: {error}", mark.display())))
}

/// Makes the names of the folder durable that a file is in.
fn sync_folder(file: &Path) -> std::io::Result<()> {
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_call_that_can_be_made() {
        let mut database = Lockwork::open_in_memory(lockwork::EngineKind::SERIAL).unwrap();
        assert_eq!(example(&database), None);
        let all = "CREATE PROCEDURE a(x BIGINT[3]) AS $$ BEGIN NULL; END $$;\
                   CREATE PROCEDURE b(k INTEGER, d DECIMAL(9, 3), e DECIMAL(9, 0), t VARCHAR(3), w TIMESTAMP, \
                   o BOOLEAN, OUT n BIGINT) AS $$ BEGIN n := 1; END $$";
        database.sql(all).unwrap();
        let call = example(&database).unwrap();
        assert_eq!(call, "CALL b(1, 1.000, 1, 'a', now(), true)");
        database.sql(&call).unwrap();
    }
}
