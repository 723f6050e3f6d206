//! A database for PostgreSQL's clients: protocol 3, simple and extended queries, text and binary.
//!
//! | module | idea |
//! |---|---|
//! | `shared` | the database as all connections have it |
//! | `startup_listener` | clients that get an error instead of a session |
//! | `logins` | who has a place: unfinished logins and sessions |
//! | `backoff` | how long wrong passwords make the next login wait |
//! | `audit` | a log of who came, who was refused, and what was defined and granted |
//! | `private` | files that only their owner may be able to read |
//! | `connection` | one connection: its messages in turn |
//! | `messages` | messages as they come: how long they may be and take, and whether they are whole |
//! | `quota` | what connections hold of the memory that they share |
//! | `startup` | the beginning of a connection: who it is, and what it is told |
//! | `users` | who may connect, and what proves their passwords: the file |
//! | `rights` | what each may do with all procedures and tables |
//! | `grants` | single procedures and tables for users who lack the right for all |
//! | `tls` | certificates |
//! | `session` | what a client's messages do |
//! | `cancel` | what ends a statement before it has its answer |
//! | `transaction` | BEGIN .. COMMIT of a session |
//! | `prepared` | statements as a session keeps them, and their answers as rows |
//! | `session_settings` | statements that are no business of the database: settings, `SELECT 1`, `version()` |
//! | `settings` | what a session sets: timeouts and the search path |
//! | `batch_call` | CALL MANY: columns in, columns out |
//! | `copy` | COPY: rows in and out |
//! | `catalog` | PostgreSQL's system catalog, for clients that list tables and procedures |
//! | `query` | SELECTs that no key finds the rows of, answered from a copy of their tables |
//! | `reads` | reads at a node of a cluster that follows |
//! | `sqlite` | SQLite, as the catalog and queries have it |
//! | `limits` | what bounds a query in time and memory |
//! | `texts` | functions of texts for SQLite, which keep to those bounds |
//! | `quoting` | texts and names as SQLite reads them |
//! | `words` | statements that are read word by word |
//! | `syntax` | statements as PostgreSQL writes them: reading, places, names |
//! | `verb` | kinds of statements, as counts and clients call them |
//! | `values` | types and values, in text and binary |
//! | `metrics` | what those who run a server want to know, for Prometheus and for people |
//! | `error` | errors as clients get them |

/// The stack that threads of a server's runtime need: statements are as deep as they are.
pub const STACK: usize = 16 << 20;

mod audit;
mod backoff;
mod cancel;
mod catalog;
mod connection;
mod copy;
mod error;
#[doc(hidden)]
pub mod fuzz {
    //! What holds for any bytes that a client sends.
    pub use crate::catalog::fuzz::catalog;
}
mod batch_call;
mod grants;
mod limits;
mod logins;
mod messages;
mod metrics;
mod parameters;
mod prepared;
mod private;
mod query;
mod quota;
mod quoting;
mod reads;
mod rights;
mod session;
mod session_settings;
mod settings;
mod shared;
mod sqlite;
mod startup;
mod startup_listener;
mod syntax;
mod texts;
mod tls;
mod transaction;
mod users;
mod values;
mod verb;
mod words;

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use lockwork::{Error, Lockwork};
use pgwire::api::PgWireServerHandlers;
use pgwire::api::auth::StartupHandler;
use pgwire::api::cancel::CancelHandler;
use pgwire::api::copy::CopyHandler;
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::error::PgWireError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch::Sender;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use audit::Audit;
use logins::{Entry, Full, Logins};
use metrics::Watch;
pub use metrics::{Page, Stage, Token, TokenError, Watcher};
pub use reads::LeadershipHandle;
pub use rights::Right;
use session::Session;
use shared::{Database, Shared};
use startup::{Access, Startup};
pub use startup_listener::StartupListener;
pub use tls::{Tls, TlsError};
pub use users::{Users, UsersError};

/// How a server works.
#[derive(Debug)]
pub struct Options {
    /// Sessions at a time; further ones are refused. Connections that have not logged in have places of their own.
    pub connections: usize,
    /// Calls that may wait for the database; further ones wait in their connections.
    pub queue: usize,
    /// How long connections may take to finish what they are at, when the server ends.
    pub drain: Duration,
    /// How long a login may take, from the connection on.
    pub login: Duration,
    /// How long a message may take from its first byte on; a second more for each MiB of it.
    pub io_timeout: Duration,
    /// Who may connect. Without users everybody may, and do everything, from this machine only.
    pub users: Option<Users>,
    /// The audit log: logins, refused logins, definitions and grants.
    pub audit: Option<Audit>,
    /// With a certificate connections may be encrypted, and those of other machines have to be.
    pub tls: Option<Tls>,
    /// Counts what the server does.
    pub watcher: Watcher,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 1000,
            queue: 512,
            drain: Duration::from_secs(10),
            login: Duration::from_secs(10),
            io_timeout: Duration::from_secs(60),
            users: None,
            audit: None,
            tls: None,
            watcher: Watcher::default(),
        }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// Others could reach it, and nothing asks them who they are.
    #[error(
        "{0} can be reached from other machines, and there are no passwords; give it users, or listen at 127.0.0.1"
    )]
    Open(SocketAddr),
    /// Others could look at it.
    #[error(
        "{0} can be reached from other machines, and nobody is asked who they are; give the page a token (--http-token \
         FILE), or show it at 127.0.0.1"
    )]
    OpenPage(SocketAddr),
    /// The certificate cannot bind logins to it.
    #[error("certificate: {0}")]
    Certificate(PgWireError),
    /// The database refuses.
    #[error(transparent)]
    Database(#[from] Error),
}

/// A server that listens. It accepts nobody before [`Server::run`].
pub struct Server {
    listener: TcpListener,
    database: Database,
    access: Arc<Access>,
    tls: Option<Tls>,
    users: Option<Arc<Users>>,
    audit: Option<Audit>,
    logins: Arc<Logins>,
    drain: Duration,
    limits: connection::Limits,
    ending: Sender<bool>,
    /// Open before anybody is told that the server is ready, as is all that it ever opens for itself.
    reserve: Reserve,
}

/// How long clients may take to be told that the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// A way to end a server.
#[derive(Clone)]
pub struct ShutdownHandle(Sender<bool>);

impl ShutdownHandle {
    /// New connections are refused, and those there are end when they have been answered.
    pub fn end(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// The address is taken, or can be reached from other machines and there are no users.
    pub async fn listen(address: SocketAddr, database: Lockwork, options: Options) -> Result<Self, ServeError> {
        StartupListener::listen(address, &options).await?.open(database, options)
    }

    fn new(listener: TcpListener, database: Lockwork, options: Options) -> Result<Self, ServeError> {
        let Options { connections, queue, drain, login, io_timeout, users, audit, tls, watcher } = options;
        let files = allow_descriptors();
        if let Some(files) = files.filter(|&files| files < connections + OTHER_FILES) {
            tracing::warn!(
                "this process may have {files} files open (ulimit -n), which is about {} connections, and not {connections}",
                files.saturating_sub(OTHER_FILES)
            );
        }
        let users = users.map(Arc::new);
        let access = Access::new(users.clone(), audit.clone(), tls.as_ref()).map_err(ServeError::Certificate)?;
        let caller = database.caller();
        let database = Arc::new(Shared::new(database, queue, watcher.0.clone())?);
        watcher.0.watches(caller);
        if !database.follows() {
            watcher.0.ready();
        }
        let (ending, reserve) = (Sender::new(false), Reserve::new());
        // A program may begin all of its connections at once. Each has two files: the other one tells that it has gone.
        let few_files = files.map_or(usize::MAX, |files| files.saturating_sub(OTHER_FILES) / 4);
        let max_pending = connections.max(MIN_PENDING).min(few_files.max(MIN_PENDING));
        let logins = Arc::new(Logins::new(connections, max_pending));
        let (access, limits) = (Arc::new(access), connection::Limits { login, io_timeout, room: quota::room() });
        Ok(Self { listener, database, access, tls, users, audit, logins, drain, limits, ending, reserve })
    }

    /// Where it listens: with port 0 asked for, the port that it got.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What has it lead, if it is of a node that follows.
    #[must_use]
    pub fn promoter(&self) -> LeadershipHandle {
        LeadershipHandle(self.database.clone())
    }

    /// What ends it.
    #[must_use]
    pub fn ending(&self) -> ShutdownHandle {
        ShutdownHandle(self.ending.clone())
    }

    /// Refuses a client because there are too many.
    fn refused(&self, socket: TcpStream) -> impl Future<Output = ()> + Send + use<> {
        let tls = self.tls.as_ref().map(|tls| tls.acceptor.clone());
        startup_listener::refused(
            socket,
            tls,
            self.database.cancels.clone(),
            session::fatal("53300", Full::All.message()),
        )
    }

    /// Serves until [`ShutdownHandle::end`], then closes the database. It needs a runtime of several threads.
    ///
    /// It returns though queries may still run in threads of the runtime that may block: their clients have gone, and
    /// they end at their next look whether they are to. A program that ends shuts its runtime down without waiting for
    /// them (`Runtime::shutdown_background`).
    ///
    /// # Errors
    /// Why something that was acknowledged may not be durable.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut ending = self.ending.subscribe();
        let over = Sender::new(false);
        let mut connections = JoinSet::new();
        let mut looks = tokio::time::interval(POLL_INTERVAL);
        let mut watching = self.users.clone().map(|users| Watching { users, last: None, is_told: false });
        loop {
            let has_reserve = self.reserve.is_there();
            let accepted = tokio::select! {
                _ = ending.wait_for(|ending| *ending) => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                _ = looks.tick(), if watching.is_some() => {
                    if let Some(watching) = &mut watching {
                        watching.look(&self.logins, self.audit.as_ref());
                    }
                    continue;
                }
                () = sleep(BRIEFLY), if !has_reserve => continue,
                accepted = self.listener.accept(), if has_reserve => accepted,
            };
            let (socket, address) = match accepted {
                Ok(accepted) => accepted,
                // Out of file descriptors, mostly: those there are go on, and may end. Who has not logged in gives way.
                Err(_) => match self.reserve.accept(&self.listener).await {
                    Some(accepted) if self.logins.displace() => {
                        self.database.watch.displaced.fetch_add(1, Relaxed);
                        accepted
                    }
                    Some((socket, _)) => {
                        self.reserve.tell();
                        self.database.watch.refused.fetch_add(1, Relaxed);
                        connections.spawn(self.refused(socket));
                        continue;
                    }
                    None => {
                        sleep(BRIEFLY).await;
                        continue;
                    }
                },
            };
            let Ok(entered) = self.database.cancels.enter(&socket) else { continue };
            let (entry, mut changed, has_displaced) = self.logins.enter(address.ip());
            self.database.watch.displaced.fetch_add(u64::from(has_displaced), Relaxed);
            let (id, guest) = (entry.id(), Guest::new(self.database.watch.clone()));
            let busy = Sender::new(false);
            let (mut idle, mut ending, mut over) = (busy.subscribe(), ending.clone(), over.subscribe());
            let (audit, users) = (self.audit.clone(), self.users.clone());
            let session = Arc::new(Session::new(self.database.clone(), busy, &entered, audit, users));
            let handlers = Handlers { session, access: self.access.clone(), entry: Arc::new(entry) };
            let acceptor = self.tls.as_ref().map(|tls| tls.acceptor.clone());
            let limits = self.limits.clone();
            let task = connections.spawn(async move {
                let (_guest, _entered) = (guest, entered);
                let told = async {
                    tokio::select! {
                        _ = ending.wait_for(|ending| *ending) => {}
                        Ok(()) = &mut changed => return session::fatal("57P01", USER_CHANGED),
                    }
                    tokio::select! {
                        _ = idle.wait_for(|busy| !*busy) => {}
                        _ = over.wait_for(|over| *over) => {}
                    }
                    session::fatal("57P01", "terminating connection due to administrator command")
                };
                drop(connection::serve(socket, acceptor, handlers, limits, told).await);
            });
            self.logins.started(id, task);
        }
        self.database.watch.ending();
        drop(self.listener);
        if timeout(self.drain, all(&mut connections)).await.is_err() {
            over.send_replace(true);
            drop(timeout(FAREWELL, all(&mut connections)).await);
        }
        // Queries end at their next look; one that looks too seldom is not waited for.
        self.database.cancels.end();
        drop(timeout(FAREWELL, connections.shutdown()).await);
        tokio::task::block_in_place(|| self.database.close())
    }
}

/// What a session is told whose user is not what it was at the login.
const USER_CHANGED: &str = "terminating connection: its user was changed or removed";

/// Looks whether the users of sessions are as they were.
struct Watching {
    users: Arc<Users>,
    /// The version of the file that all sessions have been compared with.
    last: Option<users::Version>,
    /// It was told that the file cannot be read.
    is_told: bool,
}

impl Watching {
    /// Ends sessions of users that were changed or removed. A file that cannot be read, perhaps because somebody is
    /// writing it, ends nobody's.
    fn look(&mut self, logins: &Logins, audit: Option<&Audit>) {
        let version = self.users.version().ok();
        let has_new = logins.has_new();
        if version.is_some() && version == self.last && !has_new {
            return;
        }
        match self.users.logins() {
            Ok(now) => {
                for (id, user) in logins.end_changed(&now) {
                    tracing::info!(user, session = id, "a session is ended: its user was changed or removed");
                    if let Some(audit) = audit {
                        audit.ended(&user, id, "the user was changed or removed");
                    }
                }
                (self.last, self.is_told) = (version, false);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    tracing::error!("nobody can log in, and sessions go on as they are: {error}");
                }
                self.last = None;
            }
        }
    }
}

/// Waits until all connections have ended.
async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// How often it is looked whether users were changed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Unfinished logins that there is a place for at least.
const MIN_PENDING: usize = 64;

/// How long a server that can accept nobody waits before it looks again.
const BRIEFLY: Duration = Duration::from_millis(20);

/// Files that the server may have open besides its connections.
const OTHER_FILES: usize = 32;

/// Lets the process open as many files and connections as the system lets it: what it may at first is for programs
/// that wait with `select`, and is not enough for a thousand connections. How many these are, if there is a bound.
fn allow_descriptors() -> Option<usize> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Otherwise fewer are accepted at a time.
    _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok())
}

/// A file that is open for nothing, so that somebody can be told when no further one is possible.
struct Reserve {
    file: Option<File>,
    /// When it was last told that there are no files.
    told: Option<Instant>,
}

impl Reserve {
    fn new() -> Self {
        Self { file: File::open("/dev/null").ok(), told: None }
    }

    /// Whether the file is there; it comes back when somebody has gone, before others come in.
    fn is_there(&mut self) -> bool {
        self.file = self.file.take().or_else(|| File::open("/dev/null").ok());
        self.file.is_some()
    }

    /// Whoever has waited for longest, in the place of the file.
    async fn accept(&mut self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
        drop(self.file.take()?);
        timeout(Duration::from_millis(1), listener.accept()).await.ok()?.ok()
    }

    /// Warns at intervals that connections are refused because the process has no file descriptors left.
    fn tell(&mut self) {
        const RETRY_DELAY: Duration = Duration::from_secs(60);
        if self.told.is_none_or(|told| told.elapsed() > RETRY_DELAY) {
            self.told = Some(Instant::now());
            tracing::warn!("no file is left for a connection (ulimit -n): those who come are refused");
        }
    }
}

/// Counts a connection while it is there.
struct Guest(Arc<Watch>);

impl Guest {
    fn new(watch: Arc<Watch>) -> Self {
        watch.connected.fetch_add(1, Relaxed);
        watch.connections.fetch_add(1, Relaxed);
        Self(watch)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

struct Handlers {
    session: Arc<Session>,
    access: Arc<Access>,
    entry: Arc<Entry>,
}

impl PgWireServerHandlers for Handlers {
    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        self.session.clone()
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        self.session.clone()
    }

    fn copy_handler(&self) -> Arc<impl CopyHandler> {
        self.session.clone()
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        self.session.database.cancels.clone()
    }

    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::new(Startup::new(self.access.clone(), self.session.clone(), self.entry.clone()))
    }
}
