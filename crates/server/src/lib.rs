//! A database for PostgreSQL's clients: protocol 3, simple and extended queries, text and binary.
//!
//! | module | idea |
//! |---|---|
//! | `shared` | the database as all connections have it |
//! | `gate` | clients that get an error instead of a session |
//! | `connection` | one connection: its messages in turn |
//! | `messages` | messages as they come: how long they may be and take, and whether they are whole |
//! | `held` | what connections hold of the memory that they share |
//! | `startup` | the beginning of a connection: who it is, and what it is told |
//! | `users` | who may connect, what each may do, and what proves their passwords |
//! | `tls` | certificates |
//! | `session` | what a client's messages do |
//! | `cancel` | what ends a statement before it has its answer |
//! | `transaction` | BEGIN .. COMMIT of a session |
//! | `stored` | statements as a session keeps them, and their answers as rows |
//! | `known` | statements that are no business of the database: settings, `SELECT 1`, `version()` |
//! | `settings` | what a session sets: timeouts and the search path |
//! | `many` | CALL MANY: columns in, columns out |
//! | `copy` | COPY: rows in and out |
//! | `catalog` | PostgreSQL's system catalog, for clients that look what there is |
//! | `query` | SELECTs that no key finds the rows of, answered from a copy of their tables |
//! | `reads` | reads at a node of a cluster that follows |
//! | `lite` | SQLite, as the catalog and queries have it |
//! | `syntax` | statements as PostgreSQL writes them: reading, places, names |
//! | `verb` | kinds of statements, as counts and clients call them |
//! | `values` | types and values, in text and binary |
//! | `watch` | what those who run a server want to know, for Prometheus and for people |
//! | `error` | errors as clients get them |

mod cancel;
/// The stack that threads of a server's runtime need: statements are as deep as they are.
pub const STACK: usize = 16 << 20;

mod catalog;
mod connection;
mod copy;
mod error;
mod gate;
mod held;
mod known;
mod lite;
mod many;
mod messages;
mod parameters;
mod query;
mod reads;
mod session;
mod settings;
mod shared;
mod startup;
mod stored;
mod syntax;
mod tls;
mod transaction;
mod users;
mod values;
mod verb;
mod watch;

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use lockwork_database::{Error, Lockwork};
use pgwire::api::PgWireServerHandlers;
use pgwire::api::auth::StartupHandler;
use pgwire::api::cancel::CancelHandler;
use pgwire::api::copy::CopyHandler;
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::error::PgWireError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch::Sender};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use gate::Gate;
pub use reads::Promoter;
use session::Session;
use shared::{Database, Shared};
use startup::{Access, Startup};
pub use tls::{Tls, TlsError};
pub use users::{Right, Users, UsersError};
use watch::Watch;
pub use watch::{Stage, Watcher};

/// How a server works.
#[derive(Debug)]
pub struct Options {
    /// Connections at a time; further ones are refused.
    pub connections: usize,
    /// Calls that may wait for the database; further ones wait in their connections.
    pub queue: usize,
    /// How long connections may take to finish what they are at, when the server ends.
    pub drain: Duration,
    /// How long a login may take, and a message from its first byte on; a second more for each MiB of it.
    pub patience: Duration,
    /// Who may connect. Without users everybody may, and do everything, from this machine only.
    pub users: Option<Users>,
    /// With a certificate connections may be encrypted, and those of other machines have to be.
    pub tls: Option<Tls>,
    /// Counts what the server does.
    pub watcher: Watcher,
    /// Is told what those who run the server should know, in a sentence.
    pub warn: fn(&str),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 1000,
            queue: 512,
            drain: Duration::from_secs(10),
            patience: Duration::from_secs(60),
            users: None,
            tls: None,
            watcher: Watcher::default(),
            warn: |_| {},
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
    #[error("{0} can be reached from other machines, and nobody is asked who they are; show the page at 127.0.0.1")]
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
    connections: usize,
    drain: Duration,
    patience: Duration,
    ending: Sender<bool>,
    /// Open before anybody is told that the server is ready, as is all that it ever opens for itself.
    reserve: Reserve,
}

/// How long clients may take to be told that the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// A way to end a server.
#[derive(Clone)]
pub struct Ending(Sender<bool>);

impl Ending {
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
        Gate::listen(address, &options).await?.open(database, options)
    }

    fn new(listener: TcpListener, database: Lockwork, options: Options) -> Result<Self, ServeError> {
        let Options { connections, queue, drain, patience, users, tls, watcher, warn } = options;
        if let Some(files) = allow_descriptors().filter(|&files| files < connections + OTHER_FILES) {
            warn(&format!(
                "this process may have {files} files open (ulimit -n), which is about {} connections, and not {connections}",
                files.saturating_sub(OTHER_FILES)
            ));
        }
        let access = Access::new(users, tls.as_ref()).map_err(ServeError::Certificate)?;
        let caller = database.caller()?;
        let database = Arc::new(Shared::new(database, queue, watcher.0.clone())?);
        watcher.0.watches(caller);
        if !database.follows() {
            watcher.0.ready();
        }
        let (ending, reserve) = (Sender::new(false), Reserve::new(warn));
        Ok(Self { listener, database, access: Arc::new(access), tls, connections, drain, patience, ending, reserve })
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
    pub fn promoter(&self) -> Promoter {
        Promoter(self.database.clone())
    }

    /// What ends it.
    #[must_use]
    pub fn ending(&self) -> Ending {
        Ending(self.ending.clone())
    }

    /// Refuses a client because there are too many.
    fn refused(&self, socket: TcpStream) -> impl Future<Output = ()> + Send + use<> {
        let tls = self.tls.as_ref().map(|tls| tls.acceptor.clone());
        gate::refused(socket, tls, self.database.cancels.clone(), session::fatal("53300", TOO_MANY))
    }

    /// Serves until [`Ending::end`], then closes the database. It needs a runtime of several threads.
    ///
    /// It returns though queries may still run in threads of the runtime that may block: their clients have gone, and
    /// they end at their next look whether they are to. A program that ends shuts its runtime down without waiting for
    /// them (`Runtime::shutdown_background`).
    ///
    /// # Errors
    /// Why something that was acknowledged may not be durable.
    pub async fn run(mut self) -> Result<(), Error> {
        let permits = Arc::new(Semaphore::new(self.connections));
        let room = held::room();
        let mut ending = self.ending.subscribe();
        let over = Sender::new(false);
        let mut connections = JoinSet::new();
        loop {
            let has_reserve = self.reserve.is_there();
            let accepted = tokio::select! {
                _ = ending.wait_for(|ending| *ending) => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                () = sleep(BRIEFLY), if !has_reserve => continue,
                accepted = self.listener.accept(), if has_reserve => accepted,
            };
            let Ok((socket, _)) = accepted else {
                // Out of file descriptors, mostly: those there are go on, and may end.
                match self.reserve.accept(&self.listener).await {
                    Some(socket) => {
                        self.database.watch.refused.fetch_add(1, Relaxed);
                        connections.spawn(self.refused(socket));
                    }
                    None => sleep(BRIEFLY).await,
                }
                continue;
            };
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                self.database.watch.refused.fetch_add(1, Relaxed);
                connections.spawn(self.refused(socket));
                continue;
            };
            let Ok(entered) = self.database.cancels.enter(&socket) else { continue };
            let guest = Guest::new(self.database.watch.clone());
            let busy = Sender::new(false);
            let (mut idle, mut ending, mut over) = (busy.subscribe(), ending.clone(), over.subscribe());
            let session = Arc::new(Session::new(self.database.clone(), busy, &entered));
            let handlers = Handlers { session, access: self.access.clone() };
            let acceptor = self.tls.as_ref().map(|tls| tls.acceptor.clone());
            let (room, patience) = (room.clone(), self.patience);
            connections.spawn(async move {
                let (_permit, _guest, _entered) = (permit, guest, entered);
                let told = async {
                    drop(ending.wait_for(|ending| *ending).await);
                    tokio::select! {
                        _ = idle.wait_for(|busy| !*busy) => {}
                        _ = over.wait_for(|over| *over) => {}
                    }
                };
                drop(connection::serve(socket, acceptor, handlers, room, patience, told).await);
            });
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

/// Waits until all connections have ended.
async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

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
    warn: fn(&str),
    /// When it was last told that there are no files.
    told: Option<Instant>,
}

impl Reserve {
    fn new(warn: fn(&str)) -> Self {
        Self { file: File::open("/dev/null").ok(), warn, told: None }
    }

    /// Whether the file is there; it comes back when somebody has gone, before others come in.
    fn is_there(&mut self) -> bool {
        self.file = self.file.take().or_else(|| File::open("/dev/null").ok());
        self.file.is_some()
    }

    /// Whoever has waited for longest, in the place of the file.
    async fn accept(&mut self, listener: &TcpListener) -> Option<TcpStream> {
        const AGAIN: Duration = Duration::from_secs(60);
        if self.told.is_none_or(|told| told.elapsed() > AGAIN) {
            self.told = Some(Instant::now());
            (self.warn)("no file is left for a connection (ulimit -n): those who come are refused");
        }
        drop(self.file.take()?);
        match timeout(Duration::from_millis(1), listener.accept()).await {
            Ok(Ok((socket, _))) => Some(socket),
            _ => None,
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

const TOO_MANY: &str = "there are too many connections";

struct Handlers {
    session: Arc<Session>,
    access: Arc<Access>,
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
        Arc::new(Startup::new(self.access.clone(), self.session.clone()))
    }
}
