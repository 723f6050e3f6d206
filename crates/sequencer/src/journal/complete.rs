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

use super::election::Membership;
use super::message::{Chain, Position};
use super::{Journal, Run, Unreachable, unappended};
use crate::error::Error;
use crate::shared::Shared;

/// How long servers have for telling all of them what one of them has.
const PAUSE: Duration = Duration::from_millis(100);
/// How many bytes of messages are asked for, and appended, at a time.
const RUN_BYTES: usize = 1 << 20;

fn failed(error: Unreachable) -> Error {
    Error::Unreachable(error.to_string())
}

/// Where the journal ends, when everything that one of its servers has is appended. `read` is up to where the caller
/// has read it.
///
/// # Errors
/// [`Error::Unreachable`], also while the journal says that it ends before what was read; [`Error::Damaged`];
/// [`Error::JournalFull`].
pub(crate) fn complete(
    journal: &dyn Journal,
    (shared, membership): (&Shared, &Membership),
    path: &Path,
    read: Position,
) -> Result<Position, Error> {
    let mut end = end(journal, path, read)?;
    while let Some((run, chain)) = stranded(journal, path, end)? {
        membership.completes();
        shared.threads.sleep(PAUSE);
        // The others may only have been late.
        if journal.extent().map_err(failed)?.next <= end.next {
            let (appended, outcome) = journal.append(end.next, &run);
            shared.count(|statistics| statistics.recovered += appended as u64);
            outcome.map_err(unappended)?;
            end = Position { next: end.next + run.len() as u64, chain };
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

/// Messages that a server has behind the end, and the chain that ends with them; of those of several servers the ones
/// that reach into the last epoch, and of these the most. What does not follow was never read by anybody who has read
/// this.
fn stranded(journal: &dyn Journal, path: &Path, end: Position) -> Result<Option<(Run, Chain)>, Error> {
    let following = |mut run: Run| {
        let mut chain = end.chain;
        let follows = |(number, message): &(u64, &Vec<u8>)| chain.verify(path, *number, message).is_ok();
        let count = (end.next..).zip(&run).take_while(follows).count();
        run.truncate(count);
        (count > 0).then_some((run, chain))
    };
    let found = journal.stranded(end.next, RUN_BYTES).map_err(failed)?;
    Ok(found.into_iter().filter_map(following).max_by_key(|(run, chain)| (chain.epoch, run.len())))
}
