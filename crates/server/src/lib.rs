//! A database for PostgreSQL's clients: protocol 3, simple and extended queries, text and binary.
//!
//! | module | idea |
//! |---|---|
//! | `shared` | the database as all connections have it |
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
//! | `many` | CALL MANY: columns in, columns out |
//! | `copy` | COPY: rows in and out |
//! | `catalog` | PostgreSQL's system catalog, for clients that look what there is |
//! | `query` | SELECTs that no key finds the rows of, answered from a copy of their tables |
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
mod held;
mod known;
mod lite;
mod many;
mod messages;
mod parameters;
mod query;
mod session;
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

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use lockwork_database::{Error, Lockwork};
use pgwire::api::PgWireServerHandlers;
use pgwire::api::auth::StartupHandler;
use pgwire::api::cancel::CancelHandler;
use pgwire::api::copy::CopyHandler;
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::error::PgWireError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch::Sender};
use tokio::task::JoinSet;

use cancel::Cancels;
use session::Session;
use shared::{Database, Shared};
use startup::{Access, Startup};
pub use tls::{Tls, TlsError};
pub use users::{Right, Users, UsersError};
use watch::Watch;
pub use watch::Watcher;

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
}

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
        let Options { connections, queue, drain, patience, users, tls, watcher } = options;
        if users.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Open(address));
        }
        allow_descriptors();
        let access = Access::new(users, tls.as_ref()).map_err(ServeError::Certificate)?;
        let caller = database.caller()?;
        let database = Arc::new(Shared::new(database, queue, watcher.0.clone())?);
        let listener = TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })?;
        watcher.0.ready(caller);
        let ending = Sender::new(false);
        Ok(Self { listener, database, access: Arc::new(access), tls, connections, drain, patience, ending })
    }

    /// Where it listens: with port 0 asked for, the port that it got.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it.
    #[must_use]
    pub fn ending(&self) -> Ending {
        Ending(self.ending.clone())
    }

    /// Serves until [`Ending::end`], then closes the database. It needs a runtime of several threads.
    ///
    /// # Errors
    /// Why something that was acknowledged may not be durable.
    pub async fn run(self) -> Result<(), Error> {
        let permits = Arc::new(Semaphore::new(self.connections));
        let room = held::room();
        let mut ending = self.ending.subscribe();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                _ = ending.wait_for(|ending| *ending) => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((socket, _)) = accepted else {
                // Out of file descriptors, mostly: those there are go on, and may end.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                self.database.watch.refused.fetch_add(1, Relaxed);
                let cancels = self.database.cancels.clone();
                connections.spawn(refused(socket, cancels));
                continue;
            };
            let Ok(entered) = self.database.cancels.enter(&socket) else { continue };
            let guest = Guest::new(self.database.watch.clone());
            let busy = Sender::new(false);
            let (mut idle, mut ending) = (busy.subscribe(), ending.clone());
            let session = Arc::new(Session::new(self.database.clone(), busy, &entered));
            let handlers = Handlers { session, access: self.access.clone() };
            let acceptor = self.tls.as_ref().map(|tls| tls.acceptor.clone());
            let (room, patience) = (room.clone(), self.patience);
            connections.spawn(async move {
                let (_permit, _guest, _entered) = (permit, guest, entered);
                let told = async {
                    drop(ending.wait_for(|ending| *ending).await);
                    drop(idle.wait_for(|busy| !*busy).await);
                };
                tokio::select! {
                    _ = connection::serve(socket, acceptor, handlers, room, patience) => {}
                    () = told => {}
                }
            });
        }
        self.database.watch.ending();
        drop(self.listener);
        drop(tokio::time::timeout(self.drain, async { while connections.join_next().await.is_some() {} }).await);
        connections.shutdown().await;
        tokio::task::block_in_place(|| self.database.close())
    }
}

/// Lets the process open as many files and connections as the system lets it: what it may at first is for programs
/// that wait with `select`, and is not enough for a thousand connections.
fn allow_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Otherwise fewer are accepted at a time.
    _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
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

/// How long somebody who is refused may take to say who it is.
const REFUSED: Duration = Duration::from_secs(2);

/// Reads what a client begins with: it listens to errors only when it has asked to be let in. Whether it has: who wants
/// nothing but to cancel a statement needs no place.
async fn asked(socket: &mut TcpStream, cancels: &Cancels) -> std::io::Result<bool> {
    /// A request for encryption, by TLS or by GSSAPI, and for cancelling (protocol 3, section 55.7).
    const ENCRYPT: [u32; 2] = [80_877_103, 80_877_104];
    const CANCEL: u32 = 80_877_102;
    /// The longest first message.
    const LONGEST: u32 = 10_000;
    loop {
        let (length, code) = (socket.read_u32().await?, socket.read_u32().await?);
        if (length, code) == (16, CANCEL) {
            cancels.cancel(socket.read_i32().await?, socket.read_i32().await?);
            return Ok(false);
        }
        if !ENCRYPT.contains(&code) {
            let rest = u64::from(length.min(LONGEST).saturating_sub(8));
            tokio::io::copy(&mut socket.take(rest), &mut tokio::io::sink()).await?;
            return Ok(code != CANCEL);
        }
        socket.write_all(b"N").await?;
    }
}

/// Tells a client that there is no place for it.
async fn refused(mut socket: TcpStream, cancels: Arc<Cancels>) {
    if !matches!(tokio::time::timeout(REFUSED, asked(&mut socket, &cancels)).await, Ok(Ok(true))) {
        return;
    }
    use pgwire::messages::Message;
    let mut bytes = bytes::BytesMut::new();
    let response =
        pgwire::messages::response::ErrorResponse::from(session::fatal("53300", "there are too many connections"));
    if response.encode(&mut bytes).is_ok() {
        drop(socket.write_all(&bytes).await);
    }
    drop(socket.shutdown().await);
}

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
