//! How clients reach a server: addresses and URLs as PostgreSQL's users know them, and TLS.
//!
//! | module | idea |
//! |---|---|
//! | `address` | addresses of servers, the user, encryption |
//! | `hosts` | which of several servers is wanted (`target_session_attrs`) |
//! | `security` | how much is to be encrypted and verified (`sslmode`), and whom to trust (`sslrootcert`) |
//! | `verifier` | certificates, looked at as closely as was asked for |
//! | `connect` | a connection, or what is wrong and what would be right |
//! | `divide` | a script cut into statements that only the server may know |
//! | `effect` | what a statement may do, so that a client knows whether it may be repeated |
//! | `session` | a session that gives up a server which does not answer, and goes on at the next one |
//! | `timeouts` | how long a client waits, and how the system finds out that a connection is dead |

mod address;
mod connect;
mod divide;
mod effect;
mod hosts;
mod security;
mod session;
mod timeouts;
mod verifier;

pub use address::Address;
pub use connect::{Connected, Wire, connect};
pub use divide::{Divided, divide, find_copy, is_copy};
pub use effect::{Effect, SessionState};
pub use hosts::{Host, SessionAttrs};
pub use security::{Roots, Security, SslMode};
pub use session::{AskError, Limit, Session, Unanswered, answered, connect_next, is_lost};
pub use timeouts::{Keepalives, Timeouts};

use tokio_postgres::error::SqlState;

/// Why there is no connection. [`Self::hint`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for is wrong in itself.
    #[error("{message}")]
    Asked {
        /// What is wrong.
        message: String,
        /// What would be right; it may be empty.
        hint: String,
    },
    /// Nobody answers there.
    #[error("{0}")]
    Unreachable(std::io::Error),
    /// The server has not let the client in within this time.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Late(std::time::Duration),
    /// The connection cannot be as safe as was asked for.
    #[error("{message}")]
    Unsafe {
        /// What is wrong.
        message: String,
        /// What would be right; it may be empty.
        hint: String,
    },
    /// The server lets nobody in, or does not speak the protocol.
    #[error("{}", told(.0))]
    Refused(tokio_postgres::Error),
    /// The server is another one than is wanted.
    #[error("{why}, and target_session_attrs is {}", wanted.name())]
    Unlike {
        /// What it is.
        why: &'static str,
        /// What is wanted.
        wanted: SessionAttrs,
    },
    /// None of several servers takes the session. The last one may have ended the search.
    #[error("none of {} servers takes the session\n{}", .0.len(), each(.0))]
    Nobody(Vec<(Host, Self)>),
}

/// What a server says, or an error and what it comes from.
fn told(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => {
            let detail = said.detail().map_or(String::new(), |detail| format!(" ({detail})"));
            format!("error {}: {}{detail}", said.code().code(), said.message())
        }
        None => std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string),
    }
}

/// A line for each server.
fn each(tried: &[(Host, Error)]) -> String {
    tried.iter().map(|(host, error)| format!("{host}: {error}")).collect::<Vec<_>>().join("\n")
}

impl Error {
    pub(crate) fn asked(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Asked { message: message.into(), hint: hint.into() }
    }

    /// What would be right; empty where the message says it.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self.decisive() {
            Self::Asked { hint, .. } | Self::Unsafe { hint, .. } => hint,
            _ => "",
        }
    }

    /// Of several servers what the one said that ended the search, or the last one.
    #[must_use]
    pub fn decisive(&self) -> &Self {
        match self {
            Self::Nobody(tried) => tried.last().map_or(self, |(_, error)| error),
            _ => self,
        }
    }

    /// Whether another server, or the same one later, may take the session: nobody is there, it takes none now
    /// (`57P03`, `57P01`), it has gone meanwhile, or it is not what is wanted. As libpq has it, a wrong password or a
    /// certificate that is not trusted ends the search.
    #[must_use]
    pub fn is_of_this_server(&self) -> bool {
        match self.decisive() {
            Self::Unreachable(_) | Self::Late(_) | Self::Unlike { .. } => true,
            Self::Refused(error) => match error.code() {
                Some(code) => [SqlState::CANNOT_CONNECT_NOW, SqlState::ADMIN_SHUTDOWN].contains(code),
                None => {
                    let source = std::error::Error::source(error);
                    error.is_closed() || source.is_some_and(|source| source.is::<std::io::Error>())
                }
            },
            Self::Asked { .. } | Self::Unsafe { .. } | Self::Nobody(_) => false,
        }
    }
}
