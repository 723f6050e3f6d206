//! A database for PostgreSQL's clients: protocol 3, simple and extended queries, text and binary.
//!
//! | module | idea |
//! |---|---|
//! | `shared` | the database as all connections have it |
//! | `session` | what a client's messages do |
//! | `known` | statements that are no business of the database: settings, `SELECT 1`, `version()` |
//! | `catalog` | PostgreSQL's system catalog, for clients that look what there is |
//! | `values` | types and values, in text and binary |
//! | `error` | errors as clients get them |

mod catalog;
mod error;
mod known;
mod parameters;
mod session;
mod shared;
mod values;

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use lockwork_database::{Error, Lockwork, sequencer};
use pgwire::api::auth::{
    ServerParameterProvider, StartupHandler, finish_authentication, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::api::{ClientInfo, PgWireServerHandlers};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use session::Session;
use shared::{Database, Shared};

/// How a server works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections at a time; further ones are refused.
    pub connections: usize,
    /// Calls that may wait for the database; further ones wait in their connections.
    pub queue: usize,
    /// How long connections may take to finish what they are at, when the server ends.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { connections: 1000, queue: 512, drain: Duration::from_secs(10) }
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
    #[error("{0} can be reached from other machines, and this server knows no passwords yet; listen at 127.0.0.1")]
    Open(SocketAddr),
    /// The database refuses.
    #[error(transparent)]
    Database(#[from] Error),
}

/// A server that listens. It accepts nobody before [`Server::run`].
pub struct Server {
    listener: TcpListener,
    database: Database,
    options: Options,
    ending: watch::Sender<bool>,
}

/// A way to end a server.
#[derive(Clone)]
pub struct Ending(watch::Sender<bool>);

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
    /// The address is taken, or not of this machine's loopback; the database is in no folder.
    pub async fn listen(address: SocketAddr, database: Lockwork, options: Options) -> Result<Self, ServeError> {
        if !address.ip().is_loopback() {
            return Err(ServeError::Open(address));
        }
        let database = Arc::new(Shared::new(database, options.queue)?);
        let listener = TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })?;
        Ok(Self { listener, database, options, ending: watch::Sender::new(false) })
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

    /// What the database's log has done.
    #[must_use]
    pub fn statistics(&self) -> sequencer::Statistics {
        self.database.statistics()
    }

    /// Serves until [`Ending::end`], then closes the database. It needs a runtime of several threads.
    ///
    /// # Errors
    /// Why something that was acknowledged may not be durable.
    pub async fn run(self) -> Result<(), Error> {
        let permits = Arc::new(Semaphore::new(self.options.connections));
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
                connections.spawn(refused(socket, "53300", "there are too many connections"));
                continue;
            };
            let busy = watch::Sender::new(false);
            let (mut idle, mut ending) = (busy.subscribe(), ending.clone());
            let handlers = Handlers { session: Arc::new(Session { database: self.database.clone(), busy }) };
            connections.spawn(async move {
                let _permit = permit;
                drop(socket.set_nodelay(true));
                let told = async {
                    drop(ending.wait_for(|ending| *ending).await);
                    drop(idle.wait_for(|busy| !*busy).await);
                };
                tokio::select! {
                    _ = pgwire::tokio::process_socket(socket, None, handlers) => {}
                    () = told => {}
                }
            });
        }
        drop(self.listener);
        drop(
            tokio::time::timeout(self.options.drain, async { while connections.join_next().await.is_some() {} }).await,
        );
        connections.shutdown().await;
        tokio::task::block_in_place(|| self.database.close())
    }
}

/// Tells a client why it is not served.
async fn refused(mut socket: TcpStream, sqlstate: &str, message: &str) {
    use pgwire::messages::Message;
    let mut bytes = bytes::BytesMut::new();
    let response = pgwire::messages::response::ErrorResponse::from(session::fatal(sqlstate, message));
    if response.encode(&mut bytes).is_ok() {
        drop(socket.write_all(&bytes).await);
    }
    drop(socket.shutdown().await);
}

struct Handlers {
    session: Arc<Session>,
}

impl PgWireServerHandlers for Handlers {
    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        self.session.clone()
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        self.session.clone()
    }

    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::new(Startup)
    }
}

/// Lets everybody in: only this machine reaches it.
struct Startup;

impl ServerParameterProvider for Startup {
    fn server_parameters<C>(&self, client: &C) -> Option<HashMap<String, String>>
    where
        C: ClientInfo,
    {
        let mut parameters: HashMap<String, String> =
            parameters::LIST.iter().map(|&(name, value)| (name.to_string(), value.to_string())).collect();
        for (name, told) in [("application_name", "application_name"), ("user", "session_authorization")] {
            if let Some(value) = client.metadata().get(name) {
                parameters.insert(told.into(), value.clone());
            }
        }
        Some(parameters)
    }
}

#[async_trait]
impl StartupHandler for Startup {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if let PgWireFrontendMessage::Startup(ref startup) = message {
            protocol_negotiation(client, startup).await?;
            save_startup_parameters_to_metadata(client, startup);
            finish_authentication(client, self).await?;
            client.flush().await?;
        }
        Ok(())
    }
}
