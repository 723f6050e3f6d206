//! One connection: its messages in turn.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use futures::{Sink, SinkExt};
use pgwire::api::{ClientInfo, PgWireConnectionState as State, PgWireServerHandlers};
use pgwire::error::{ErrorInfo, PgWireError};
use pgwire::messages::PgWireBackendMessage::{ErrorResponse, ReadyForQuery};
use pgwire::messages::response::{ReadyForQuery as Ready, TransactionStatus};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage as Message};
use pgwire::tokio::TlsAcceptor;
use pgwire::tokio::server::{negotiate_tls, process_message};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::Handlers;
use crate::error::response;
use crate::messages::{Messages, Next, Stage};
use crate::prepared::Stored;
use crate::quota::{Change, Held};
use crate::session::fatal;
use crate::transaction;

/// A buffer of answers that is longer is not kept.
const ANSWERS: usize = 64 << 10;
/// How long a client that is told that it has to go may send on.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The same for one that has done nothing wrong: the server ends.
const GOODBYE: Duration = Duration::from_millis(100);
/// When a client that says nothing is asked whether it is there, how often again, and how many times.
const SILENCE: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_secs(10);
const TIMES: u32 = 6;

/// Has the system find out about clients that are gone without a word.
fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE)?;
    sockopt::set_tcp_keepintvl(socket, RETRY_DELAY)?;
    Ok(sockopt::set_tcp_keepcnt(socket, TIMES)?)
}

/// Tells a client what is wrong with a message, and waits for its next one.
async fn refuse<S>(client: &mut S, error: PgWireError, is_extended: bool) -> io::Result<()>
where
    S: ClientInfo + Sink<PgWireBackendMessage, Error = io::Error> + Unpin,
{
    client.feed(ErrorResponse(response(error.into()))).await?;
    let status = client.transaction_status().to_error_state();
    client.set_transaction_status(status);
    if is_extended {
        client.set_state(State::AwaitingSync);
    } else {
        client.set_state(State::ReadyForQuery);
        client.feed(ReadyForQuery(Ready::new(status))).await?;
    }
    client.flush().await
}

/// How long things may take, and what all connections share.
#[derive(Clone)]
pub(crate) struct Limits {
    /// For the login, TLS included.
    pub(crate) login: Duration,
    /// For each message.
    pub(crate) io_timeout: Duration,
    pub(crate) room: Arc<Semaphore>,
}

/// Serves a connection until it ends. When `told` is there the client has to go, for this reason, whatever it is at.
pub(crate) async fn serve(
    socket: TcpStream,
    tls: Option<TlsAcceptor>,
    handlers: Handlers,
    Limits { login, io_timeout, room }: Limits,
    told: impl Future<Output = ErrorInfo>,
) -> io::Result<()> {
    let late = Instant::now() + login;
    socket.set_nodelay(true)?;
    keep_alive(&socket)?;
    tokio::pin!(told);
    let negotiated = tokio::select! {
        negotiated = timeout_at(late, negotiate_tls::<Stored>(socket, tls)) => negotiated,
        _ = &mut told => return Ok(()),
    };
    let Ok(negotiated) = negotiated else { return Ok(()) };
    let Some(mut socket) = negotiated? else { return Ok(()) };
    let early = std::mem::take(socket.read_buffer_mut());
    if socket.is_secure() && !early.is_empty() {
        // What came before the encryption may be anybody's.
        return Ok(());
    }
    let mut messages = Messages::new(early, io_timeout);
    let mut held = Held::new(room, io_timeout);
    let (startup, copy, asked) = (handlers.startup_handler(), handlers.copy_handler(), handlers.cancel_handler());
    let cancel = handlers.session.cancel.clone();
    let mut mechanism = Stage::Mechanism;
    let served = async {
        let socket = &mut socket;
        loop {
            let state = socket.state();
            let (stage, is_login) = match state {
                State::AwaitingStartup => (Stage::Startup, true),
                State::AuthenticationInProgress => (std::mem::replace(&mut mechanism, Stage::Proof), true),
                _ => (Stage::Other, false),
            };
            let version = socket.protocol_version();
            let copying = match state {
                State::CopyInProgress(is_extended) => Some(is_extended),
                _ => None,
            };
            let next = messages.next(socket.get_mut(), stage, version, &held);
            let next = if is_login {
                let slow = || fatal("57014", &format!("the login has taken more than {login:?}"));
                timeout_at(late, next).await.unwrap_or_else(|_| Ok(Next::Broken(slow().into())))
            } else {
                next.await
            };
            let (message, part) = match next? {
                Next::Message(Message::Terminate(_), _) | Next::Gone => return io::Result::Ok(None),
                Next::Message(message, part) => (message, part),
                Next::Broken(why) => return Ok(Some(*why)),
                // What comes behind an error is passed over anyway.
                Next::Refused(..) if matches!(state, State::AwaitingSync) => continue,
                Next::Refused(kind, refusal) => {
                    let has_failed = kind == b'F' && socket.transaction_status() == TransactionStatus::Error;
                    let refusal = if has_failed { transaction::failed() } else { refusal };
                    let is_extended = copying.unwrap_or(!matches!(kind, b'Q' | b'F'));
                    let error = handlers.session.fail(socket, refusal.into()).await;
                    refuse(socket, handlers.session.end_copy(error), is_extended).await?;
                    continue;
                }
            };
            let is_extended = copying.unwrap_or(message.is_extended_query());
            let is_cancel = matches!(message, Message::CancelRequest(_));
            let (change, is_sync) = (Change::of(&message), matches!(message, Message::Sync(_)));
            let is_ignored = matches!(state, State::AwaitingSync) && !is_sync;
            if is_ignored {
                continue;
            }
            handlers.session.is_last.store(messages.is_sync_next(), Ordering::Relaxed);
            cancel.begin();
            let before = socket.transaction_status();
            let done = match cancel.check() {
                Err(refusal) if !is_sync => Err(refusal.into()),
                _ => {
                    let (simple, extended) = (handlers.session.clone(), handlers.session.clone());
                    let (startup, copy, asked) = (startup.clone(), copy.clone(), asked.clone());
                    let is_simple = matches!(message, Message::Query(_));
                    let done = process_message(message, socket, startup, simple, extended, copy, asked);
                    // Each statement of a simple query has a time of its own.
                    let done = if is_simple { done.await } else { handlers.session.timed(done).await };
                    match change {
                        Change::Nothing => held.free(handlers.session.freed()),
                        change if done.is_ok() => held.change(change, part),
                        _ => {}
                    }
                    done
                }
            };
            // Portals end with their transaction.
            if (is_sync || before != TransactionStatus::Idle) && socket.transaction_status() == TransactionStatus::Idle
            {
                held.end_portals();
            }
            if let Err(error) = done {
                if is_login || error.is_fatal() {
                    return Ok(Some(ErrorInfo::from(error)));
                }
                let error = handlers.session.fail(socket, error).await;
                refuse(socket, handlers.session.end_copy(error), is_extended).await?;
            }
            if copying == Some(false) && matches!(socket.state(), State::ReadyForQuery) {
                handlers.session.rest();
            }
            if is_cancel {
                return Ok(None);
            }
            if !matches!(socket.state(), State::CopyInProgress(_)) {
                cancel.end(is_sync || !is_extended);
            }
            if socket.write_buffer().is_empty() && socket.write_buffer().capacity() > ANSWERS {
                *socket.write_buffer_mut() = BytesMut::new();
            }
        }
    };
    let (why, io_timeout) = tokio::select! {
        why = served => match why? {
            Some(why) => (why, LAST_WORDS),
            None => return Ok(()),
        },
        why = told => (why, GOODBYE),
    };
    socket.send(ErrorResponse(response(why))).await?;
    socket.close().await?;
    // A connection that ends while bytes come takes with it what the client has not read.
    drop(timeout(io_timeout, tokio::io::copy(socket.get_mut(), &mut tokio::io::sink())).await);
    Ok(())
}
