//! The state word of a worker in words.

/// What a worker's state word says.
#[must_use]
pub(crate) fn describe(state: u64) -> String {
    format!("stages {state:#018x}")
}
