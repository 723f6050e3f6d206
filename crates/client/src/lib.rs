//! How clients reach a server: addresses and URLs as PostgreSQL's users know them, and TLS.
//!
//! | room | idea |
//! |---|---|
//! | `address` | where a server is, who asks, and how it is to be encrypted |
//! | `security` | how much is to be encrypted and verified (`sslmode`), and whom to trust (`sslrootcert`) |
//! | `verifier` | certificates, looked at as closely as was asked for |
//! | `connect` | a connection, or what is wrong and what would be right |

mod address;
mod connect;
mod security;
mod verifier;

pub use address::Address;
pub use connect::{Connected, connect};
pub use security::{Roots, Security, SslMode};

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
    /// Nobody has let it in within so many seconds.
    #[error("no answer within {0} s")]
    Late(u64),
    /// The connection cannot be as safe as was asked for.
    #[error("{message}")]
    Unsafe {
        /// What is wrong.
        message: String,
        /// What would be right; it may be empty.
        hint: String,
    },
    /// The server lets nobody in, or does not speak the protocol.
    #[error("{0}")]
    Refused(tokio_postgres::Error),
}

impl Error {
    pub(crate) fn asked(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Asked { message: message.into(), hint: hint.into() }
    }

    /// What would be right; empty where the message says it.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Asked { hint, .. } | Self::Unsafe { hint, .. } => hint,
            _ => "",
        }
    }
}
