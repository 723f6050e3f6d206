//! What has to be done before an epoch begins: what any server has behind the end of the journal is appended there.
//!
//! A journal of several servers may come to end before a message that it had: after several of them were lost at once
//! and begun again, for example. As long as one of them has it somebody may have read it, and others may read it yet.
//! To begin an epoch in its place would be a fork. So who begins one asks each server for what it has itself, and
//! appends that first: the same bytes, under the same number, so that whoever has it notices nothing.
//!
//! It is what a new leader does in other protocols with what one of those whom it asks has accepted (Paxos, phase 1:
//! Lamport, The Part-Time Parliament, 1998).

use std::path::Path;
use std::time::Duration;

use super::message::{Chain, Position};
use super::{Journal, Unreachable, append_first};
use crate::error::Error;
use crate::shared::Shared;

/// How long servers have for telling all of them what one of them has.
const PAUSE: Duration = Duration::from_millis(100);

fn failed(error: Unreachable) -> Error {
    Error::Unreachable(error.to_string())
}

/// Where the journal ends, when everything that one of its servers has is appended. `read` is up to where the caller
/// has read it.
///
/// # Errors
/// [`Error::Unreachable`], also while the journal says that it ends before what was read; [`Error::Damaged`];
/// [`Error::JournalFull`].
pub(crate) fn complete(journal: &dyn Journal, shared: &Shared, path: &Path, read: Position) -> Result<Position, Error> {
    let mut end = end(journal, path, read)?;
    while let Some((message, after)) = stranded(journal, path, end)? {
        shared.threads.sleep(PAUSE);
        // The others may only have been late.
        if journal.extent().map_err(failed)?.next <= end.next {
            append_first(journal, end.next, message)?;
            shared.count(|statistics| statistics.recovered += 1);
            end = Position { next: end.next + 1, chain: after };
        } else {
            end = self::end(journal, path, end)?;
        }
    }
    if end.next < read.next {
        let (last, path) = (end.next - 1, path.display());
        let problem = format!("{path}: servers say that it ends with message {last}, and {} was read", read.next - 1);
        return Err(Error::Unreachable(problem));
    }
    Ok(end)
}

/// Where the journal says that it ends.
fn end(journal: &dyn Journal, path: &Path, read: Position) -> Result<Position, Error> {
    let next = journal.extent().map_err(failed)?.next;
    if next == read.next {
        return Ok(read);
    }
    let last = next - 1;
    if last == 0 {
        return Ok(Position::START);
    }
    let found = journal.read(last, 1, Duration::ZERO).map_err(failed)?;
    match &found.messages[..] {
        [message, ..] if found.first == last => Ok(Position { next, chain: Chain::behind(path, last, message)? }),
        _ => Err(Error::Unreachable(format!("{}: message {last} does not come", path.display()))),
    }
}

/// A message that a server has behind the end, and the chain that ends with it; of several that follow what is there,
/// one of the last epoch. What does not follow was never read by anybody who has read this.
fn stranded(journal: &dyn Journal, path: &Path, end: Position) -> Result<Option<(Vec<u8>, Chain)>, Error> {
    let follows = |message: Vec<u8>| {
        let mut chain = end.chain;
        chain.verify(path, end.next, &message).is_ok().then_some((message, chain))
    };
    let found = journal.stranded(end.next).map_err(failed)?;
    Ok(found.into_iter().filter_map(follows).max_by_key(|(_, chain)| chain.epoch))
}
