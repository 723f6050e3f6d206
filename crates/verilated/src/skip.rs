//! Tests that need Verilator: where it is not, they are skipped, and say so.
//!
//! A test that passes has its output captured, so [`skipped`] writes past the capture. Where the tools are expected,
//! `LOCKWORK_SKIP=never` makes every skip a failure, so that a broken environment cannot pass for a good one.
//!
//! The trade-off: it is compiled into the library, because tests of several crates share it.

use std::io::Write;
use std::process::Command;

use crate::tool::{VARIABLE, Verilator};

/// What is missing to build models, and how to get it; nothing if nothing is.
#[must_use]
pub fn missing() -> Option<String> {
    if Verilator::find().is_none() {
        return Some(format!("no Verilator: run scripts/rtl-tools, or name one by {VARIABLE}"));
    }
    let compiler = Command::new("c++").arg("--version").output().is_ok_and(|output| output.status.success());
    (!compiler).then(|| "no C++ compiler: install one that is called c++ (Debian: g++)".to_string())
}

/// Whether the calling test has to be skipped because no model can be built here; if so, says it.
///
/// # Panics
/// If it has to, and `LOCKWORK_SKIP` is `never`.
#[must_use]
pub fn skipped() -> bool {
    let Some(why) = missing() else { return false };
    let never = std::env::var_os("LOCKWORK_SKIP").is_some_and(|value| value == "never");
    assert!(!never, "LOCKWORK_SKIP is never, and this test would be skipped: {why}");
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    // Not eprintln!, which is captured. If nobody can read it, nothing is lost.
    _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    true
}

/// Leaves the calling test if no model can be built here, and says so: see [`skipped`].
#[macro_export]
macro_rules! needs_verilator {
    () => {
        if $crate::skipped() {
            return;
        }
    };
}
