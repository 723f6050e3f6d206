//! Tests that cannot run on this machine, for want of privileges or of a tool, are skipped, and say so.
//!
//! A test that passes has its output captured, so whoever reads the results would not see that it did nothing: what is
//! said here goes past the capture. Where everything is expected to run, `LOCKWORK_SKIP=never` makes a skip a failure,
//! so that a broken environment cannot pass for a good one.

use std::io::Write;

/// What the variable is called.
const VARIABLE: &str = "LOCKWORK_SKIP";

/// Skips the calling test for want of something that root can have: a privilege, or a program that `scripts/setup`,
/// `scripts/clients`, `scripts/nats` or `scripts/rtl-tools` installs.
///
/// # Panics
/// If `LOCKWORK_SKIP` is `never`.
pub fn skip(why: &str) {
    let never = std::env::var_os(VARIABLE).is_some_and(|value| value == "never");
    assert!(!never, "{VARIABLE} is never, and this test would be skipped: {why}");
    skip_optional(why);
}

/// Skips the calling test for want of something that none of these scripts can give a machine, such as a second
/// processor or a network. That is never a failure.
pub fn skip_optional(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    // Not eprintln!, which is captured. If nobody can read it, nothing is lost.
    _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
