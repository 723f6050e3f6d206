//! What tests of several crates share.
//!
//! | item | purpose |
//! |---|---|
//! | [`skip`], [`skip_optional`], [`or_skip`], [`needs!`] | skip a test that this machine cannot run, and report it |
//! | [`etcd`] | an etcd server for one test |
//! | `nats` (feature `nats`) | a cluster of NATS servers for one test |
//!
//! Product crates have it among their dev-dependencies only. It depends on no crate of the workspace but, with the
//! feature `nats`, on `lockwork-nats`: so the unit tests of every other crate can use it as well.
//!
//! The test harness captures the output of a test that passes, so a reader of the results would not see that a test did
//! nothing: messages of skipped tests bypass the capture. Where every test is expected to run, `LOCKWORK_SKIP=never`
//! makes a skipped test fail, so that a broken environment is not mistaken for a good one.

pub mod etcd;
#[cfg(feature = "nats")]
pub mod nats;

use std::fmt::Display;
use std::io::Write;

/// The environment variable that forbids skipping.
const VARIABLE: &str = "LOCKWORK_SKIP";

/// Skips the calling test because something is missing that root can provide: a privilege, or a program that
/// `scripts/setup`, `scripts/clients`, `scripts/nats` or `scripts/rtl-tools` installs.
///
/// # Panics
/// If `LOCKWORK_SKIP` is `never`.
pub fn skip(why: &str) {
    let never = std::env::var_os(VARIABLE).is_some_and(|value| value == "never");
    assert!(!never, "{VARIABLE} is never, and this test would be skipped: {why}");
    skip_optional(why);
}

/// Skips the calling test because something is missing that none of these scripts can install, such as a second
/// processor or a network. This is never a failure.
pub fn skip_optional(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    // Not eprintln!, which is captured. If nobody can read it, nothing is lost.
    _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// Returns what a test needs, or [skips](skip) the test and returns `None` if `is_missing` holds for the error.
///
/// # Panics
/// On any other error; and as [`skip`] does.
pub fn or_skip<T, E: Display>(made: Result<T, E>, is_missing: impl FnOnce(&E) -> bool) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(error) if is_missing(&error) => {
            skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Evaluates to the value of a `Result`; on an error it [skips](skip) the calling test, which returns nothing.
#[macro_export]
macro_rules! needs {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(missing) => return $crate::skip(&missing.to_string()),
        }
    };
}
