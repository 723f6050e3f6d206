//! One connection: its messages in turn.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures::SinkExt;
use pgwire::api::{ClientInfo, PgWireConnectionState as State, PgWireServerHandlers};
use pgwire::error::ErrorInfo;
use pgwire::messages::PgWireBackendMessage::ErrorResponse;
use pgwire::messages::PgWireFrontendMessage as Message;
use pgwire::messages::response::TransactionStatus;
use pgwire::tokio::TlsAcceptor;
use pgwire::tokio::server::{negotiate_tls, process_error, process_message};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::Handlers;
use crate::held::{Change, Held};
use crate::messages::{Messages, Next, Stage};
use crate::session::fatal;
use crate::stored::Stored;

/// A buffer of answers that is longer is not kept.
const ANSWERS: usize = 64 << 10;
/// How long a client that is told that it has to go may send on.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// When a client that says nothing is asked whether it is there, how often again, and how many times.
const SILENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(10);
const TIMES: u32 = 6;

/// Has the system find out about clients that are gone without a word.
fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE)?;
    sockopt::set_tcp_keepintvl(socket, AGAIN)?;
    Ok(sockopt::set_tcp_keepcnt(socket, TIMES)?)
}

/// Serves a connection until it ends. `patience` is for logging in, and for each message.
pub(crate) async fn serve(
    socket: TcpStream,
    tls: Option<TlsAcceptor>,
    handlers: Handlers,
    room: Arc<Semaphore>,
    patience: Duration,
) -> io::Result<()> {
    let late = Instant::now() + patience;
    socket.set_nodelay(true)?;
    keep_alive(&socket)?;
    let Ok(negotiated) = timeout_at(late, negotiate_tls::<Stored>(socket, tls)).await else { return Ok(()) };
    let Some(mut socket) = negotiated? else { return Ok(()) };
    let early = std::mem::take(socket.read_buffer_mut());
    if socket.is_secure() && !early.is_empty() {
        // What came before the encryption may be anybody's.
        return Ok(());
    }
    let mut messages = Messages::new(early, patience);
    let mut held = Held::new(room, patience);
    let (startup, copy, asked) = (handlers.startup_handler(), handlers.copy_handler(), handlers.cancel_handler());
    let cancel = handlers.session.cancel.clone();
    let mut mechanism = Stage::Mechanism;
    let why = loop {
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
            let slow = || fatal("57014", &format!("the login has taken more than {patience:?}"));
            timeout_at(late, next).await.unwrap_or_else(|_| Ok(Next::Broken(slow().into())))
        } else {
            next.await
        };
        let (message, part) = match next? {
            Next::Message(Message::Terminate(_), _) | Next::Gone => return Ok(()),
            Next::Message(message, part) => (message, part),
            Next::Broken(why) => break *why,
            // What comes behind an error is passed over anyway.
            Next::Refused(..) if matches!(state, State::AwaitingSync) => continue,
            Next::Refused(kind, refusal) => {
                let is_extended = copying.unwrap_or(!matches!(kind, b'Q'));
                process_error(&mut socket, handlers.session.end_copy(refusal.into()), is_extended).await?;
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
        cancel.begin();
        let before = socket.transaction_status();
        let done = match cancel.check() {
            Err(refusal) if !is_sync => Err(refusal.into()),
            _ => {
                let (simple, extended) = (handlers.session.clone(), handlers.session.clone());
                let (startup, copy, asked) = (startup.clone(), copy.clone(), asked.clone());
                let done = process_message(message, &mut socket, startup, simple, extended, copy, asked).await;
                match change {
                    Change::Nothing => held.free(handlers.session.freed()),
                    change if done.is_ok() => held.change(change, part),
                    _ => {}
                }
                done
            }
        };
        // Portals end with their transaction.
        if (is_sync || before != TransactionStatus::Idle) && socket.transaction_status() == TransactionStatus::Idle {
            held.end_portals();
        }
        if let Err(error) = done {
            if is_login || error.is_fatal() {
                break ErrorInfo::from(error);
            }
            process_error(&mut socket, handlers.session.end_copy(error), is_extended).await?;
        }
        if copying == Some(false) && matches!(socket.state(), State::ReadyForQuery) {
            handlers.session.rest();
        }
        if is_cancel {
            return Ok(());
        }
        if !matches!(socket.state(), State::CopyInProgress(_)) {
            cancel.end(is_sync || !is_extended);
        }
        if socket.write_buffer().is_empty() && socket.write_buffer().capacity() > ANSWERS {
            *socket.write_buffer_mut() = BytesMut::new();
        }
    };
    socket.send(ErrorResponse(why.into())).await?;
    socket.close().await?;
    // A connection that ends while bytes come takes with it what the client has not read.
    drop(timeout(LAST_WORDS, tokio::io::copy(socket.get_mut(), &mut tokio::io::sink())).await);
    Ok(())
}
