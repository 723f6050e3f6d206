//! A session that gives up a server which does not answer, and goes on at the next one.
//!
//! A process that is stopped, or a machine that is cut off, keeps its connections and never answers. So:
//!
//! - A CALL without an answer is given up when its time is over.
//! - Another statement may take long at a server that works. While it has no answer the client asks the server, by a
//!   second connection, whether it answers at all, and gives the statement up only if it does not.
//! - What does no more when it is asked twice ([`Effect::is_repeatable`]) is asked of the next server, in the same time
//!   altogether, unless the session had something at its server that is gone with it ([`SessionState`]).

use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::{Address, Connected, Effect, Error, Host, SessionState, Timeouts, connect};

/// Before all servers are asked again while none takes the session: a cluster elects a leader.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Why a statement has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Its time is over.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The server answers nothing: a second connection got no answer either.
    #[error("the server does not respond: a second connection to it got no answer within {} s", .0.as_secs_f64())]
    Unresponsive(Duration),
}

/// How long the answer of a statement is waited for at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The time; `None` for no limit.
    pub time: Option<Duration>,
    /// Whether the statement is given up when the time is over even if the server responds.
    pub is_hard: bool,
}

impl Limit {
    /// That of a statement with this effect at one server of an address: half of the time where the other half is for
    /// the next server.
    #[must_use]
    pub fn of(timeouts: &Timeouts, hosts: usize, effect: Effect) -> Self {
        let goes_on = hosts > 1 && effect.is_repeatable();
        let time = timeouts.call.map(|call| if goes_on { call / 2 } else { call });
        Self { time, is_hard: effect.is_call() }
    }
}

/// Waits for an answer of a server, as long as the limit allows. The connection is of no use after an error: the answer
/// may still arrive on it.
///
/// # Errors
/// There is none in time.
pub async fn answered<T>(host: &Host, limit: Limit, answer: impl Future<Output = T>) -> Result<T, Unanswered> {
    let Some(time) = limit.time else { return Ok(answer.await) };
    if limit.is_hard {
        return timeout(time, answer).await.map_err(|_| Unanswered::Late(time));
    }
    let mut answer = pin!(answer);
    let (silence, limit) = (time.mul_f64(0.4), time.mul_f64(0.6));
    loop {
        if let Ok(answer) = timeout(silence, answer.as_mut()).await {
            return Ok(answer);
        }
        tokio::select! {
            answer = answer.as_mut() => return Ok(answer),
            responds = timeout(limit, responds(host)) => if !responds.unwrap_or(false) {
                return Err(Unanswered::Unresponsive(limit));
            }
        }
    }
}

/// Whether a server says anything to a new connection. One that refuses connections is there: it ends, and answers
/// first what it has been asked.
async fn responds(host: &Host) -> bool {
    /// A request for TLS, which is answered with one byte.
    const TLS: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    let mut stream = match TcpStream::connect((host.name.as_str(), host.port)).await {
        Ok(stream) => stream,
        Err(error) => return error.kind() == std::io::ErrorKind::ConnectionRefused,
    };
    // A server without room for the connection closes it, which is an answer too.
    stream.write_all(&TLS).await.is_ok() && stream.read(&mut [0]).await.is_ok()
}

/// Whether an error says that the connection is of no use any more.
#[must_use]
pub fn is_lost(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        Some(said) => said.severity() == "FATAL" || *said.code() == SqlState::ADMIN_SHUTDOWN,
        None => {
            let source = std::error::Error::source(error);
            error.is_closed() || source.is_some_and(|source| source.is::<std::io::Error>())
        }
    }
}

/// Whether a server has said that it does not know whether a call was made (08007): its log has not answered.
fn is_unknown(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::TRANSACTION_RESOLUTION_UNKNOWN)
}

/// Whether a server has said that nothing has happened, because it does not lead any more (57P01, as an ERROR).
fn has_not_happened(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|said| said.severity() != "FATAL" && *said.code() == SqlState::ADMIN_SHUTDOWN)
}

/// Connects to the first of several servers that takes the session, the one that was lost last; again and again until
/// `deadline` while the reasons may pass.
///
/// # Errors
/// Why the servers did not take it at last.
pub async fn connect_next(address: &Address, lost: &Host, deadline: Instant) -> Result<Connected, Error> {
    let mut address = address.clone();
    address.hosts.sort_by_key(|host| host == lost);
    let hosts = address.hosts.len();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // A server that is stopped takes connections and says nothing: others get their share of the time.
        let each = address.timeouts.connect_of(hosts).min(left / 3);
        address.timeouts.connect = Some(each.max(RETRY_DELAY));
        match connect(&address).await {
            Err(error) if error.is_of_this_server() && Instant::now() + RETRY_DELAY < deadline => {
                sleep(RETRY_DELAY).await;
            }
            connected => return connected,
        }
    }
}

/// Why a statement was not answered as it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The server has refused it; the session goes on.
    #[error("{0}")]
    Refused(tokio_postgres::Error),
    /// The server was lost. Unless the effect is that of a read, the statement may have been carried out.
    #[error("{host}: {why}")]
    Lost {
        /// The server.
        host: Host,
        /// What happened to the connection, and to the attempt to go on.
        why: String,
        /// What the statement may have done.
        effect: Effect,
        /// Whether it is known that it has not.
        is_undone: bool,
    },
}

/// A session at one of several servers.
pub struct Session {
    address: Address,
    client: Client,
    wire: JoinHandle<Result<(), tokio_postgres::Error>>,
    host: Host,
    state: SessionState,
    is_lost: bool,
    moved: fn(&Host, &str, &Host, Effect),
}

impl Session {
    /// Connects to the first server that will do ([`connect`]), in a runtime that drives the connection. `moved` hears
    /// when a statement goes on at another server: the one that was lost, why, and the new one.
    ///
    /// # Errors
    /// As [`connect`].
    pub async fn connect(address: Address, moved: fn(&Host, &str, &Host, Effect)) -> Result<Self, Error> {
        let Connected { client, wire, host } = connect(&address).await?;
        let (wire, state) = (tokio::spawn(wire), SessionState::default());
        Ok(Self { address, client, wire, host, state, is_lost: false, moved })
    }

    /// The server that it is with.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The servers and the user.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Has a server carry out a statement: `ask` sends it and waits. What may be repeated ([`Effect::is_repeatable`])
    /// is asked of the next server when this one is lost, within the time for a call ([`Timeouts::call`]).
    ///
    /// # Errors
    /// [`AskError::Refused`] by the server, and [`AskError::Lost`].
    pub async fn ask<T>(
        &mut self,
        statement: &str,
        ask: impl AsyncFn(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, AskError> {
        let effect = Effect::of(statement);
        let timeouts = self.address.timeouts;
        let hosts = self.address.hosts.len();
        let deadline = timeouts.call.filter(|_| hosts > 1).map(|call| Instant::now() + call);
        let was_fresh = self.state.is_fresh();
        let mut undone = None;
        if self.is_lost || self.client.is_closed() {
            undone = Some("the connection has ended, and nothing was asked".to_string());
        }
        loop {
            let (why, is_undone) = match undone.take() {
                Some(why) => (why, true),
                None => {
                    self.state.sends(effect);
                    let limit = Limit::of(&timeouts, hosts, effect);
                    let answer = answered(&self.host, limit, ask(&self.client)).await;
                    match answer {
                        Ok(Ok(answer)) => {
                            self.state.done(effect);
                            return Ok(answer);
                        }
                        Ok(Err(error)) if !is_lost(&error) && !is_unknown(&error) => {
                            return Err(AskError::Refused(error));
                        }
                        Ok(Err(error)) => (self.cause(&error).await, has_not_happened(&error)),
                        Err(unanswered) => (unanswered.to_string(), false),
                    }
                }
            };
            self.is_lost = true;
            let goes_on = was_fresh && (effect.is_repeatable() || is_undone);
            let lost = self.host.clone();
            let failed = |why: String| AskError::Lost { host: lost.clone(), why, effect, is_undone };
            let Some(deadline) = deadline.filter(|_| goes_on) else { return Err(failed(why)) };
            if let Err(error) = self.go_on(deadline).await {
                return Err(failed(format!("{why}; and {error}")));
            }
            (self.moved)(&lost, &why, &self.host, effect);
        }
    }

    /// Connects anew, to the first server that will do, if the server was lost. What the session had set, and a
    /// transaction that was open, are gone. Returns whether the server was lost.
    ///
    /// # Errors
    /// As [`connect_next`], after the time for a call.
    pub async fn reconnect(&mut self) -> Result<bool, Error> {
        if !self.is_lost && !self.client.is_closed() {
            return Ok(false);
        }
        self.go_on(Instant::now() + self.address.timeouts.call.unwrap_or_default()).await?;
        Ok(true)
    }

    async fn go_on(&mut self, deadline: Instant) -> Result<(), Error> {
        let Connected { client, wire, host } = connect_next(&self.address, &self.host, deadline).await?;
        (self.client, self.host, self.state, self.is_lost) = (client, host, SessionState::default(), false);
        self.wire = tokio::spawn(wire);
        Ok(())
    }

    /// What an error comes from: the connection may know more than the statement.
    async fn cause(&mut self, error: &tokio_postgres::Error) -> String {
        let ended = if error.is_closed() {
            timeout(RETRY_DELAY, &mut self.wire).await.ok().and_then(|wire| wire.ok()?.err())
        } else {
            None
        };
        crate::told(ended.as_ref().unwrap_or(error))
    }
}
