//! Digests of the rows of parts: when and where they are made, and who compares.
//!
//! A record of the order says where; one that asks for checkpoints does too. Nobody has all rows, so what stands in
//! that record is not a digest: the node of each part writes down that of its own beside the messages, under the key
//! of its part. Whoever finds there what was written at the same record compares: a node of another set, and one that
//! has begun again, with what it had before. One that catches up passes over the records before the last that was
//! written down, so it makes few.
//!
//! Rows are read between two records, by the order thread. What is written down is had and given by a thread of its
//! own: the servers that keep it may be choosing a leader while those that keep the messages are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use lockwork_storage::Digest;

use super::{Ordered, PartitionedOrder};
use crate::error::Error;
use crate::format::frame::RecordKind;
use crate::journal::election::Membership;
use crate::journal::{Entry, Journal, Key};
use crate::order::{Request, rows};
use crate::threads::Thread;

/// Digests that wait to be written down; one more is not.
const WAITING: usize = 8;
/// How often, and after which time, it is tried again to write one down: when servers do not answer, and when another
/// node writes at the same time.
const ATTEMPTS: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// What is written down of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    database: u64,
    /// A log that has lost its end gives its numbers again, in another epoch.
    epoch: u64,
    record: u64,
    digest: Digest,
}

impl Written {
    fn text(&self) -> String {
        format!("{:016x} {} {} {:032x}", self.database, self.epoch, self.record, self.digest.0)
    }

    fn of(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut word = || words.next();
        let database = u64::from_str_radix(word()?, 16).ok()?;
        let (epoch, record) = (word()?.parse().ok()?, word()?.parse().ok()?);
        let digest = Digest(u128::from_str_radix(word()?, 16).ok()?);
        word().is_none().then_some(Self { database, epoch, record, digest })
    }

    fn place(&self) -> (u64, u64) {
        (self.epoch, self.record)
    }
}

/// What compares the digests of a part with those that are written down.
struct Comparer {
    journal: Arc<dyn Journal>,
    key: Key,
    compares: bool,
    membership: Arc<Membership>,
    requests: SyncSender<Request>,
    last: Arc<AtomicU64>,
}

impl Comparer {
    /// Looks after the digests that are made, until none are any more, or one differs.
    fn run(self, made: &Receiver<Written>) {
        let threads = self.membership.threads();
        while let Ok(mine) = threads.receive(made, None) {
            for _ in 0..ATTEMPTS {
                match self.compare(&mine) {
                    Some(Ok(())) => break,
                    Some(Err(differs)) => {
                        drop(threads.send(&self.requests, Request::Differs(differs)));
                        return;
                    }
                    None if self.membership.is_closed() => return,
                    None => threads.sleep(PAUSE),
                }
            }
        }
    }

    /// Compares a digest with what is written down, or writes it down. Nothing when servers do not answer, or another
    /// node was faster: then it is to be tried again.
    ///
    /// # Errors
    /// [`Error::Differs`].
    fn compare(&self, mine: &Written) -> Option<Result<(), Error>> {
        let entry = self.journal.entry(self.key).ok()?;
        let (revision, text) = entry.map_or((0, String::new()), |Entry { revision, text }| (revision, text));
        // One of a journal that was removed is none.
        let theirs = Written::of(&text).filter(|theirs| theirs.database == mine.database);
        if let Some(theirs) = theirs {
            self.last.store(theirs.record, Ordering::Relaxed);
            if theirs.place() > mine.place() {
                return Some(Ok(()));
            }
        }
        match theirs.filter(|theirs| theirs.place() == mine.place() && self.compares) {
            Some(theirs) if theirs.digest != mine.digest => {
                let problem = format!(
                    "the rows of its part have the digest {} here, and {} at another node, or at this one before it \
                     began again",
                    mine.digest, theirs.digest
                );
                return Some(Err(Error::Differs { record: mine.record, problem }));
            }
            Some(_) => {}
            None => {
                self.journal.write(self.key, revision, &mine.text()).ok().flatten()?;
                self.last.store(mine.record, Ordering::Relaxed);
            }
        }
        self.membership.compared(mine.record, mine.digest);
        Some(Ok(()))
    }
}

/// The way to what compares the digests of this part.
pub(super) struct Digests {
    made: SyncSender<Written>,
    /// The record of the last one that is written down, as far as is known.
    last: Arc<AtomicU64>,
}

impl Digests {
    /// Starts what compares.
    pub(super) fn start(
        (journal, part): (&Arc<dyn Journal>, u16),
        compares: bool,
        membership: &Arc<Membership>,
        requests: &SyncSender<Request>,
    ) -> Result<(Self, Thread), Error> {
        let last = Arc::new(AtomicU64::new(0));
        let comparer = Comparer {
            journal: journal.clone(),
            key: Key::Digest(part),
            compares,
            membership: membership.clone(),
            requests: requests.clone(),
            last: last.clone(),
        };
        let (made, taken) = sync_channel(WAITING);
        let thread = membership.threads().start("lockwork-digest", move || comparer.run(&taken))?;
        Ok((Self { made, last }, thread))
    }
}

impl PartitionedOrder {
    /// Until when the leader may sleep at most, because of the next digests.
    pub(super) fn until_digest(&self) -> Option<Duration> {
        if !self.leads() || !self.has_room() || self.shared.trouble().is_some() {
            return None;
        }
        let at = self.node.comparing.looks_at(self.giving)?;
        Some(at.saturating_duration_since(self.shared.threads.now()))
    }

    /// Gives the journal a record at which the parts make digests, if something has changed, and it is time.
    pub(super) fn compare_if_due(&mut self) {
        if self.until_digest() != Some(Duration::ZERO) {
            return;
        }
        let rows = rows(&*self.engine);
        if self.node.comparing.is_due(rows, self.shared.threads.now()) {
            self.give(RecordKind::Compared, Ordered::Compare(None), |_| ());
        }
    }

    /// Makes the digest of this part where a checkpoint is about to be made, if digests are wanted.
    pub(super) fn compare_before_cut(&mut self, record: u64) -> Result<(), Error> {
        if self.node.comparing.is_short(rows(&*self.engine)) { self.compare(record) } else { Ok(()) }
    }

    /// Makes the digest of this part at a record that was just met, and has it compared: unless there is no time for
    /// it, or a later one was written down.
    pub(super) fn compare(&mut self, record: u64) -> Result<(), Error> {
        let (rows, start) = (rows(&*self.engine), self.shared.threads.now());
        let is_last = record + 1 >= self.node.membership.journal_next();
        let has_time = is_last || self.node.comparing.has_time(start);
        // Parts may have more rows than that of who leads.
        if !has_time || !self.node.comparing.fits(rows) || self.digests.last.load(Ordering::Relaxed) > record {
            return Ok(());
        }
        let digest = self.engine.digest()?;
        let now = self.shared.threads.now();
        let took = now.saturating_duration_since(start);
        self.node.comparing.made(took, rows, now);
        self.shared.count_digest(took);
        let (database, epoch) = (self.node.chain.database, self.node.chain.epoch);
        // When those before wait for servers, so would this one.
        self.digests.made.try_send(Written { database, epoch, record, digest }).ok();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_can_be_read_again_and_nothing_else() {
        let written = Written { database: 7, epoch: 3, record: 4711, digest: Digest(1 << 100 | 5) };
        assert_eq!(Written::of(&written.text()), Some(written));
        for text in ["", "7 4711", "7 1 4711", "7 1 x 5", "7 1 4711 5 6", "7 1  5"] {
            assert_eq!(Written::of(text), None, "{text}");
        }
    }
}
