//! What is asked of a table, and what it answers.
//!
//! A request never blocks: it is granted, stands, or does not stand, and only damage and misuse are errors. How long to
//! wait is the caller's affair, except for circles, which only the table can see.

use super::Damage;

/// How long a request may wait, as far as the table has a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Not at all.
    Try,
    /// Only for younger sessions (wait-die).
    WaitDie,
    /// For anybody. Safe for who holds nothing; who holds something may wait in a circle.
    Queue,
    /// For anybody while the session holds nothing, else for younger ones: no circle can close. A session that waits
    /// for an older one is refused whatever else it asks for.
    Safe,
}

/// What a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The session holds the lock.
    Granted,
    /// It waits in the line; [`super::Table::poll`] tells when it is granted, [`super::Table::withdraw`] takes the
    /// request back.
    Waiting,
    /// It may wait, but the line has no place. The request does not stand; ask again, when [`super::Table::crowd`]
    /// tells that there may be one.
    Full,
    /// It may not wait. The request does not stand.
    Refused,
}

/// Why a step could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A line contains what nobody wrote.
    #[error(transparent)]
    Damage(#[from] Damage),
    /// The session's list is full.
    #[error(
        "the session holds {0} lines already, the most that the table was created for; release some, or create it with more"
    )]
    TooMany(u32),
    /// A count that is full.
    #[error("the session has acquired line {0} 2^30 times without releasing it, which is the most")]
    TooOften(u32),
    /// There is nothing to release or withdraw.
    #[error("the session does not hold line {0}")]
    NotHeld(u32),
    /// The session's age is to change while others may have decided by it.
    #[error(
        "the session holds or waits for {0} lines; its age can be told only while it has none: release them all first"
    )]
    InUse(u32),
    /// The line is waited for already.
    #[error("the session waits for line {0} already; poll or withdraw that request first")]
    WaitsAlready(u32),
}
