//! A log that several nodes share: one of them, the leader, appends to it, and all others replay it.
//!
//! ```text
//! leader:    engine runs the batch -> record -> message with the hash of the one before -> append -> answers
//! followers: read -> verify -> engine runs the calls in the order of the log -> snapshot reads
//! ```
//!
//! | module | idea |
//! |---|---|
//! | `mod` | what is asked of a log engine, as a trait |
//! | `message` | a record as a message: which database, which epoch, what came before |
//! | [`append`] | appending to a stream, also when answers are lost |
//! | `complete` | before an epoch begins, what a single server has behind the end is appended |
//! | `answers` | what calls answered, as a digest in their record |
//! | `compare` | digests of the whole database: when, and what who differs is told |
//! | `follower` | the thread that reads, until its node leads |
//! | `publisher` | the leader's thread that appends, and tells those who wait |
//! | [`election`] | who leads, by a lease |
//! | [`simulated`] | a journal in memory, shared by the nodes of a test, with faults |
//!
//! Three things keep the nodes together, each by itself enough to notice that something is wrong:
//! - **Appending says where.** Record `n` is message `n`, and is appended on the condition that `n - 1` is the last. A
//!   leader of before can append nothing once another one has appended its first record.
//! - **Messages are a chain.** Each has the hash of the one before, so what was lost, reordered, altered or forked
//!   inside the log engine stops every reader, with a report, before it does anything.
//! - **Epochs.** A leader's first record begins an epoch, the one after the last in the log.
//!
//! That engines do the same with the same log is compared, not believed: a record of calls has a digest of what the
//! leader's calls answered, and now and then a record has the digest of its whole database. Who differs stops.
//!
//! The lease is only about who tries, and about reads: a leader answers what it has not appended, a read, only while
//! no other can have begun to lead. It is the one place where clocks matter: they must run equally fast, within a
//! tenth.

pub(crate) mod answers;
pub mod append;
pub(crate) mod compare;
pub(crate) mod complete;
pub mod election;
pub(crate) mod follower;
pub(crate) mod message;
pub(crate) mod publisher;
pub mod simulated;

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::io::File;
use election::Membership;

/// The fewest bytes that a message must be able to have: the longest call and a little.
pub const MIN_MESSAGE_BYTES: usize = 4 << 20;

/// Why messages were not appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// Another message stands where one was to stand. It, and those behind it, were not appended and never will be.
    Superseded,
    /// The journal is full. They were not appended.
    Full(String),
    /// No answer came: they may be in the journal, now or later.
    Unknown(String),
}

/// The journal did not answer; asking again may help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(pub String);

/// Messages, one behind the other.
pub type Run = Vec<Vec<u8>>;

/// Messages with consecutive numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// The number of the first.
    pub first: u64,
    /// Their bytes.
    pub messages: Vec<Vec<u8>>,
}

/// Which messages there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// The first one; those before were removed.
    pub first: u64,
    /// The number that the next one gets.
    pub next: u64,
}

/// What nodes write down beside the messages, each under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Who leads: its address, and nothing when it has given that up.
    Leader,
    /// A record, and the digest of all rows that the nodes of a part have there, where tables are divided. Parts are
    /// counted from 0.
    Digest(u16),
}

/// What is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Changes whenever it is written.
    pub revision: u64,
    /// What was written last.
    pub text: String,
}

/// A log engine that several nodes reach, where they also write down who leads, and keep checkpoints. Calls return
/// within seconds, and may come from several threads.
pub trait Journal: Send + Sync {
    /// Where it is, for people.
    fn describe(&self) -> String;

    /// The most bytes of a message, at least [`MIN_MESSAGE_BYTES`].
    fn most_bytes(&self) -> usize;

    /// Appends messages with consecutive numbers from `first` on, each on the condition that the one before, which is
    /// one of them, or was there before the call, is the last. Returns how many of them are durable, and why not more.
    /// A message that is there already with the same bytes, because an answer was lost, counts as appended.
    fn append(&self, first: u64, messages: &[Vec<u8>]) -> (usize, Result<(), AppendError>);

    /// Messages from `first` on, about `most_bytes` bytes of them, at least one if there is one; waits for that for
    /// about `wait`. Their first number is another one only if messages are missing.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn read(&self, first: u64, most_bytes: usize, wait: Duration) -> Result<Messages, Unreachable>;

    /// Which messages there are.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn log_range(&self) -> Result<LogRange, Unreachable>;

    /// Asks each server for the messages from `first` on that it has itself, whatever they agree upon, about
    /// `most_bytes` bytes of them at most, and at least one if it has that; none that does not answer soon is waited
    /// for, and most of them have to. What was found at each, never nothing; several may have the same.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn stranded(&self, first: u64, most_bytes: usize) -> Result<Vec<Run>, Unreachable>;

    /// Removes messages before `first`.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn truncate(&self, first: u64) -> Result<(), Unreachable>;

    /// What is written under a key. `None` when nothing ever was.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn entry(&self, key: Key) -> Result<Option<Entry>, Unreachable>;

    /// Writes a text under a key, if what is written there has this revision still; 0 stands for nothing. Returns the
    /// new revision, and `None` when it is another one.
    ///
    /// # Errors
    /// [`Unreachable`]: then it may have been written, now or later.
    fn write(&self, key: Key, revision: u64, text: &str) -> Result<Option<u64>, Unreachable>;

    /// The last records that checkpoints cover which are kept here, ascending.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn checkpoints(&self) -> Result<Vec<u64>, Unreachable>;

    /// Keeps a checkpoint; it is whole when this returns.
    ///
    /// # Errors
    /// [`Unreachable`], or what is wrong with the file; then it is not kept.
    fn keep_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable>;

    /// Writes a checkpoint that is kept into a file.
    ///
    /// # Errors
    /// As [`Self::keep_checkpoint`].
    fn fetch_checkpoint(&self, number: u64, file: &dyn File) -> Result<(), Unreachable>;

    /// Removes the checkpoints of records before `number`, also those of which only some parts were kept.
    ///
    /// # Errors
    /// [`Unreachable`].
    fn drop_checkpoints(&self, number: u64) -> Result<(), Unreachable>;
}

/// Appends the first message of an epoch, if nobody else can have got the lease: who has, and has begun an epoch that
/// was read here meanwhile, answers reads.
///
/// # Errors
/// As [`why_not_begun`]; [`Error::Unreachable`] also if the lease may be another node's.
pub(crate) fn append_first(
    journal: &dyn Journal,
    membership: &Membership,
    number: u64,
    message: Vec<u8>,
) -> Result<(), Error> {
    if membership.may_answer().is_err() {
        return Err(Error::Unreachable("the lease has run out before an epoch began".into()));
    }
    journal.append(number, &[message]).1.map_err(why_not_begun)
}

/// Why an epoch does not begin: [`Error::JournalFull`]; [`Error::Unreachable`] when somebody else was faster, or this
/// very message is there and will be read.
fn why_not_begun(why: AppendError) -> Error {
    match why {
        AppendError::Full(why) => Error::JournalFull(why),
        why => Error::Unreachable(why.to_string()),
    }
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superseded => f.write_str("another node leads"),
            Self::Full(why) => write!(f, "the journal is full: {why}"),
            Self::Unknown(why) => write!(f, "the journal does not answer: {why}"),
        }
    }
}
