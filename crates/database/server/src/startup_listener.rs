//! Clients that get an error instead of a session: the server starts, has stopped, or has too many connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockwork::Lockwork;
use pgwire::error::ErrorInfo;
use pgwire::messages::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::cancel::Cancels;
use crate::session::fatal;
use crate::{BRIEFLY, Options, ServeError, Server, Watcher, error};

/// Clients that are refused at the same time; further ones wait in the listener's queue.
const MAX_REFUSED: usize = 256;
/// How long a client that is refused may take to send its first messages, TLS included.
const REFUSED: Duration = Duration::from_secs(5);
/// The first byte of a TLS handshake that no request for encryption precedes.
const HANDSHAKE: u8 = 0x16;

/// A server that listens and has no database yet. It refuses every client with `57P03`, so that a client with a list of
/// hosts goes on to the next one.
pub struct StartupListener {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl StartupListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// As [`Server::listen`].
    pub async fn listen(address: SocketAddr, options: &Options) -> Result<Self, ServeError> {
        if options.users.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Open(address));
        }
        let listener = TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })?;
        Ok(Self { listener, tls: options.tls.as_ref().map(|tls| tls.acceptor.clone()) })
    }

    /// The address that it listens at.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Refuses every client until `opens` returns: the database system is starting up. DETAIL says how far `watcher`
    /// has seen the start come.
    pub async fn starting<T>(&self, watcher: &Watcher, opens: impl Future<Output = T>) -> T {
        let why = || {
            let mut info = fatal("57P03", "the database system is starting up");
            info.detail = Some(watcher.0.progress());
            info
        };
        self.refuse_with(why, opens).await
    }

    /// Refuses every client with this reason until `opens` returns.
    pub async fn refuse<T>(&self, why: impl Fn() -> String, opens: impl Future<Output = T>) -> T {
        self.refuse_with(|| fatal("57P03", &why()), opens).await
    }

    async fn refuse_with<T>(&self, why: impl Fn() -> ErrorInfo, opens: impl Future<Output = T>) -> T {
        let mut opens = std::pin::pin!(opens);
        let mut clients = JoinSet::new();
        loop {
            tokio::select! {
                opened = &mut opens => return opened,
                Some(_) = clients.join_next(), if !clients.is_empty() => {}
                accepted = self.listener.accept(), if clients.len() < MAX_REFUSED => match accepted {
                    Ok((socket, _)) => {
                        clients.spawn(refused(socket, self.tls.clone(), Arc::default(), why()));
                    }
                    Err(_) => sleep(BRIEFLY).await,
                },
            }
        }
    }

    /// The server, with a database now. The server of a node that follows takes readers only, until the node leads
    /// ([`Server::promoter`]).
    ///
    /// # Errors
    /// As [`Server::listen`].
    pub fn open(self, database: Lockwork, options: Options) -> Result<Server, ServeError> {
        Server::new(self.listener, database, options)
    }
}

/// What a client begins with.
enum Opening {
    /// It asks for a session.
    Session,
    /// It asked to cancel a statement, which was done.
    Cancel,
    /// It was told to begin a TLS handshake.
    Tls,
}

/// Sends an error to a client in answer to its first message, over TLS if the client asks for that and the server has
/// it: a client that insists on TLS would take a plain answer for the lack of TLS, and give up its search for a server.
pub(crate) async fn refused(socket: TcpStream, tls: Option<TlsAcceptor>, cancels: Arc<Cancels>, why: ErrorInfo) {
    // A client that hangs up early wanted no answer.
    drop(timeout(REFUSED, answer(socket, tls, &cancels, why)).await);
}

async fn answer(
    mut socket: TcpStream,
    tls: Option<TlsAcceptor>,
    cancels: &Cancels,
    why: ErrorInfo,
) -> std::io::Result<()> {
    let mut first = [0];
    let is_handshake = tls.is_some() && socket.peek(&mut first).await? == 1 && first[0] == HANDSHAKE;
    let opening = if is_handshake { Opening::Tls } else { opening(&mut socket, tls.is_some(), cancels).await? };
    match (opening, tls) {
        (Opening::Session, _) => send(&mut socket, why).await,
        (Opening::Tls, Some(tls)) => {
            let mut socket = tls.accept(socket).await?;
            match self::opening(&mut socket, false, cancels).await? {
                Opening::Session => send(&mut socket, why).await,
                Opening::Cancel | Opening::Tls => Ok(()),
            }
        }
        (Opening::Cancel | Opening::Tls, _) => Ok(()),
    }
}

/// Reads a client's first messages: it listens to errors only when it has asked for a session.
async fn opening<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut S,
    has_tls: bool,
    cancels: &Cancels,
) -> std::io::Result<Opening> {
    /// Codes of requests (protocol 3, section 55.7): encryption by TLS, by GSSAPI, and cancelling.
    const TLS: u32 = 80_877_103;
    const GSSAPI: u32 = 80_877_104;
    const CANCEL: u32 = 80_877_102;
    /// The longest first message.
    const MAX_LENGTH: u32 = 10_000;
    loop {
        let (length, code) = (socket.read_u32().await?, socket.read_u32().await?);
        let rest = u64::from(length.min(MAX_LENGTH).saturating_sub(8));
        match code {
            CANCEL if length == 16 => {
                cancels.cancel(socket.read_i32().await?, socket.read_i32().await?);
                return Ok(Opening::Cancel);
            }
            CANCEL => {
                // Bytes left unread would reset the connection.
                tokio::io::copy(&mut socket.take(rest), &mut tokio::io::sink()).await?;
                return Ok(Opening::Cancel);
            }
            TLS if has_tls => {
                socket.write_all(b"S").await?;
                return Ok(Opening::Tls);
            }
            TLS | GSSAPI => socket.write_all(b"N").await?,
            _ => {
                tokio::io::copy(&mut socket.take(rest), &mut tokio::io::sink()).await?;
                return Ok(Opening::Session);
            }
        }
    }
}

async fn send<S: AsyncWrite + Unpin>(socket: &mut S, why: ErrorInfo) -> std::io::Result<()> {
    let mut bytes = bytes::BytesMut::new();
    error::response(why).encode(&mut bytes).map_err(std::io::Error::other)?;
    socket.write_all(&bytes).await?;
    socket.shutdown().await
}
