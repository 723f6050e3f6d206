//! Tests that need privileges: where there are none they are skipped, and say so.
//!
//! The trade-off: it is compiled into the library, because tests of several crates share it.

use lockwork_skip::skip;

use crate::namespace::{Network, NetworkError};

/// A network of `machines` for a test; `None` where nobody may have one.
///
/// # Panics
/// If it cannot be made for another reason than privileges or a missing `ip`.
#[must_use]
pub fn network(machines: u16) -> Option<Network> {
    match Network::new(machines) {
        Err(error @ (NetworkError::NotPermitted | NetworkError::NoIp)) => {
            skip(&error.to_string());
            None
        }
        made => Some(made.expect("as root")),
    }
}
