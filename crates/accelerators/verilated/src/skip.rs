//! Tests that need Verilator: where it is not, they are skipped, and say so.
//!
//! The trade-off: it is compiled into the library, because tests of several crates share it.

/// Whether the calling test has to be skipped because no model can be built here; if so, says it.
///
/// # Panics
/// If it has to, and `LOCKWORK_SKIP` is `never`.
#[must_use]
pub fn skipped() -> bool {
    crate::tools().map_err(|missing| lockwork_skip::skip(&missing)).is_err()
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
