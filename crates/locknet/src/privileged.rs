//! Tests that need privileges: where there are none they are skipped, and say so.
//!
//! A test that passes has its output captured, so whoever reads the results would not see that it did nothing;
//! [`skip`] writes past the capture. Where privileges are expected, `LOCKWORK_SKIP=never` makes every skip a failure,
//! so that a broken environment cannot pass for a good one.
//!
//! The trade-off: it is compiled into the library, because tests of several crates share it.

use crate::namespace::{Network, NetworkError};
use std::io::Write;

/// What the variable is called.
const VARIABLE: &str = "LOCKWORK_SKIP";

/// The calling test is skipped because it may not do what it has to. The `None` is for whoever cannot make that.
///
/// # Panics
/// If `LOCKWORK_SKIP` is `never`.
pub fn skip<T>(why: &str) -> Option<T> {
    let never = std::env::var_os(VARIABLE).is_some_and(|value| value == "never");
    assert!(!never, "{VARIABLE} is never, and this test would be skipped: {why}");
    say_skipped(why);
    None
}

/// Says that the calling test is skipped for a reason that privileges do not change, such as a tool that is optional.
pub fn say_skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    // Not eprintln!, which is captured. If nobody can read it, nothing is lost.
    _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// A network of `machines` for a test; `None` where nobody may have one.
///
/// # Panics
/// If it cannot be made for another reason than privileges or a missing `ip`.
#[must_use]
pub fn network(machines: u16) -> Option<Network> {
    match Network::new(machines) {
        Err(error @ (NetworkError::NotPermitted | NetworkError::NoIp)) => skip(&error.to_string()),
        made => Some(made.expect("as root")),
    }
}
