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
use super::{Journal, Run, Unreachable, why_not_begun};
use crate::error::Error;
use crate::shared::Shared;

/// How long servers have for telling all of them what one of them has.
const PAUSE: Duration = Duration::from_millis(100);
/// How many bytes of messages are asked for at a time.
const RUN_BYTES: usize = 1 << 20;
/// How many messages are appended between two times that it is said that there is progress.
const CHUNK: usize = 16;

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
    membership.completes();
    let mut end = end(journal, path, read)?;
    while let Some((run, chain)) = stranded(journal, path, end)? {
        shared.threads.sleep(PAUSE);
        // The others may only have been late.
        if journal.log_range().map_err(failed)?.next <= end.next {
            for (chunk, number) in run.chunks(CHUNK).zip((end.next..).step_by(CHUNK)) {
                let (appended, outcome) = journal.append(number, chunk);
                shared.count(|statistics| statistics.recovered += appended as u64);
                outcome.map_err(why_not_begun)?;
                membership.completes();
            }
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
    let next = journal.log_range().map_err(failed)?.next;
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
/// that reach into the last epoch, and of these the most, as Raft compares logs (Ongaro and Ousterhout, 2014, 5.4.1),
/// as far as one asks for at a time. What does not follow was never read by anybody who has read this.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frame::{self, RecordKind};
    use crate::journal::message::salt;
    use crate::journal::simulated::SimulatedJournal;
    use crate::threads::Threads;

    /// Records of these lengths, each a message.
    fn records(chain: &mut Chain, first: u64, lengths: &[usize]) -> Run {
        let seal = |(number, length): (u64, &usize)| {
            let mut bytes = Vec::new();
            let put = |out: &mut Vec<u8>| out.resize(out.len() + length, number as u8);
            frame::put(&mut bytes, salt(chain.database), RecordKind::Calls, number, 0, put);
            chain.seal(&bytes)
        };
        (first..).zip(lengths).map(seal).collect()
    }

    fn completed(journal: &SimulatedJournal, read: Position) -> (Result<Position, Error>, u64) {
        let (shared, membership) = (Shared::default(), Membership::new(Threads::default()));
        let end = complete(journal, (&shared, &membership), Path::new("journal"), read);
        (end, shared.statistics().recovered)
    }

    fn all(journal: &SimulatedJournal) -> Run {
        let read = |first| journal.read(first, usize::MAX, Duration::ZERO).unwrap().messages;
        read(1)
    }

    #[test]
    fn a_long_tail_is_appended_in_several_runs() {
        let (journal, mut chain) = (SimulatedJournal::new(1), Chain { database: 7, ..Chain::default() });
        let mut messages = vec![chain.begin_epoch(1, "a")];
        let lengths: Vec<usize> = (0..60).map(|at| if at % 20 == 19 { RUN_BYTES } else { 100 }).collect();
        messages.extend(records(&mut chain, 2, &lengths));
        assert_eq!(journal.append(1, &messages), (61, Ok(())));
        journal.strand(60);
        let (end, recovered) = completed(&journal, Position::START);
        assert_eq!((end.unwrap(), recovered), (Position { next: 62, chain }, 60));
        assert!(all(&journal) == messages);
        // The memory does not hold all of it; as much as it holds is there.
        journal.strand(40);
        journal.set_capacity(messages[..42].iter().map(Vec::len).sum());
        let (full, recovered) = completed(&journal, Position::START);
        assert!(matches!(full, Err(Error::JournalFull(_))), "{full:?}");
        assert_eq!(recovered, 21);
        journal.set_capacity(usize::MAX);
        let (end, recovered) = completed(&journal, Position::START);
        assert_eq!((end.unwrap(), recovered), (Position { next: 62, chain }, 19));
        assert!(all(&journal) == messages);
    }

    #[test]
    fn of_what_servers_have_the_last_epoch_is_gone_on_with_and_of_that_the_most() {
        let (journal, mut first) = (SimulatedJournal::new(2), Chain { database: 7, ..Chain::default() });
        let begin = first.begin_epoch(1, "a");
        let mut second = first;
        let (of_first, of_second) = (records(&mut first, 2, &[10; 5]), {
            let begin = second.begin_epoch(2, "b");
            [vec![begin], records(&mut second, 3, &[10; 2])].concat()
        });
        assert_eq!(journal.append(1, std::slice::from_ref(&begin)), (1, Ok(())));
        // One server has a longer tail of the epoch before, another one a part of this one, and one goes astray.
        for tail in [&of_first[..], &of_second[..2], &of_second[..], &[&of_second[..2], &of_first[2..]].concat()] {
            assert_eq!(journal.append(2, tail).0, tail.len());
            journal.strand(tail.len());
        }
        let (end, recovered) = completed(&journal, Position::START);
        assert_eq!((end.unwrap(), recovered), (Position { next: 5, chain: second }, 3));
        assert!(all(&journal) == [vec![begin], of_second].concat());
    }
}
