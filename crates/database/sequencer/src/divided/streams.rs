//! Further sequencers: they take calls too, each for a stream of its own, and the node that leads merges those into
//! the order.
//!
//! ```text
//! sequencer of stream 1:  calls -> records -> stream 1 --+
//! sequencer of stream 2:  calls -> records -> stream 2 --+--> "stream 1 up to 57, stream 2 up to 93" --> order
//! node that leads:        calls -> records ---------------------------------------------------------> order
//! ```
//!
//! One node makes so many records a second, and the servers that keep one stream take so many bytes. Sequencers do not
//! know of each other. The node that leads reads what all of them have appended, and as soon as its record before is
//! there appends one that says up to where that goes. Everybody runs then what the streams have up to there, stream by
//! stream, as if all of it stood in that record. So the order is one log still, and what rests on its numbers goes on
//! to: stamps, checkpoints, reads, who leads. A sequencer that is gone keeps nobody waiting, as it would if every
//! stream had to say something in every period of time.
//!
//! Which stream a node stands for follows from its part: the second part's nodes from the first of them on. They do not
//! stand for the order.
//!
//! Invariants: a record names only what its streams have for good. What was merged has one place for all: streams in
//! their order, messages in theirs, behind the stamp of the record.
//!
//! Source: Calvin (Thomson et al., SIGMOD 2012), section 3.1, whose sequencers' epochs are of 10 ms each; that a log
//! which is agreed on says what is merged is Scalog's (Ding et al., NSDI 2020).

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use lockwork_engine::Place;

use super::own::Given;
use super::run::head;
use super::{Ordered, PLACE_BITS, PartitionedOrder, RECORD_COST};
use crate::error::Error;
use crate::format::Cursor;
use crate::format::calls::runs;
use crate::format::frame::RecordKind;
use crate::journal::complete::complete;
use crate::journal::election::{Membership, Role, StreamStatus};
use crate::journal::follower::READ_BYTES;
use crate::journal::message::{Chain, Position};
use crate::journal::{Journal, Messages, Unreachable};
use crate::order::Request;
use crate::shared::Shared;
use crate::threads::{Thread, Threads};

/// What is wrong with a stream that was left over.
const FOREIGN: &str = "the stream is of another database than the order";
/// Of a message that nothing of this kind wrote.
const TOO_MANY: &str = "the message has more calls than a record has places for";
/// How long a read waits for a message.
const WAIT: Duration = Duration::from_millis(100);

/// A message that waits to be merged.
struct Message {
    /// What it says of calls; nothing if a sequencer began with it.
    calls: Option<Vec<u8>>,
    bytes: usize,
    /// The chain that ends with it.
    after: Chain,
}

/// Messages that were read together, and who reads more when all of them are merged.
struct Piece {
    messages: VecDeque<Message>,
    done: SyncSender<()>,
}

/// How far a stream has been read, for the status of a node.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The last message that is merged.
    merged: AtomicU64,
    /// The last one that was read, or that the order has named.
    known: AtomicU64,
}

impl Progress {
    /// Of the stream that the nodes of a part, from 0, stand for.
    pub(crate) fn status(&self, part: u16) -> StreamStatus {
        let merged = self.merged.load(Ordering::Relaxed);
        StreamStatus { part, merged, lag: self.known.load(Ordering::Relaxed).saturating_sub(merged) }
    }
}

struct Stream {
    journal: Arc<dyn Journal>,
    path: PathBuf,
    /// Up to where it was read and verified.
    read: Position,
    /// Up to where it is merged.
    merged: Position,
    waiting: VecDeque<Piece>,
    progress: Arc<Progress>,
}

/// See the module.
pub(super) struct Streams {
    all: Vec<Stream>,
    /// Whether a record is not merged to its end, and calls of it that were run.
    is_underway: bool,
    base: u64,
    /// Whether a record of the order has said that these streams are merged.
    are_merged: bool,
    /// Of a node that leads: whether it has said so, and whether a record that merges is on its way.
    announced: bool,
    is_merging: bool,
    /// Up to where they were merged at records of checkpoints.
    cuts: BTreeMap<u64, Vec<u64>>,
}

/// Up to where a stream is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Until {
    /// The first message that is not.
    next: u64,
    /// The hash of the one before; zeros if there is none.
    hash: [u8; 32],
}

/// What a record of [`RecordKind::Merged`] says.
fn put_until(out: &mut Vec<u8>, until: &[Until]) {
    for Until { next, hash } in until {
        out.extend(next.to_le_bytes());
        out.extend(hash);
    }
}

fn until_of(payload: &[u8]) -> Result<Vec<Until>, String> {
    let mut cursor = Cursor::new(payload);
    let mut until = Vec::new();
    while cursor.left() > 0 {
        let next = cursor.u64("the end of a stream")?;
        let hash = cursor.take(32, "the hash of a message")?.try_into().expect("32 bytes");
        until.push(Until { next, hash });
    }
    Ok(until)
}

/// Calls of a record.
fn count(calls: &[u8], arguments: impl Fn(u32) -> Option<usize>) -> Result<usize, String> {
    let mut count = 0;
    runs(calls, arguments, |run| {
        count += run.count;
        Ok(())
    })?;
    Ok(count)
}

impl Stream {
    /// Verifies messages that were read.
    fn take(&mut self, messages: &Messages, done: SyncSender<()>) -> Result<(), Error> {
        let path = &self.path;
        if messages.first > self.read.next {
            let (next, first) = (self.read.next, messages.first);
            let problem = format!("messages {next} to {} are missing", first - 1);
            return Err(Error::damaged(path, next, problem));
        }
        let due = (self.read.next - messages.first) as usize;
        let mut piece = Piece { messages: VecDeque::new(), done };
        for message in messages.messages.iter().skip(due) {
            let Position { next, chain } = &mut self.read;
            let (frame, payload) = chain.verify(path, *next, message)?;
            let calls = match frame.kind {
                RecordKind::Ordered => Some(payload.to_vec()),
                RecordKind::Epoch => None,
                kind => {
                    let problem = format!("a record of kind {} has no place in a sequencer's stream", kind.name());
                    return Err(Error::damaged(path, *next, problem));
                }
            };
            piece.messages.push_back(Message { calls, bytes: message.len(), after: *chain });
            *next += 1;
        }
        if piece.messages.is_empty() {
            piece.done.send(()).ok();
        } else {
            self.waiting.push_back(piece);
        }
        self.progress.known.fetch_max(self.read.next - 1, Ordering::Relaxed);
        Ok(())
    }

    /// The next message that is merged, and its number.
    fn next(&mut self) -> Option<(u64, Message)> {
        let piece = self.waiting.front_mut()?;
        let message = piece.messages.pop_front()?;
        if piece.messages.is_empty() {
            // Who reads may have ended.
            piece.done.send(()).ok();
            self.waiting.pop_front();
        }
        let number = self.merged.next;
        self.merged = Position { next: number + 1, chain: message.after };
        self.progress.merged.store(number, Ordering::Relaxed);
        Some((number, message))
    }
}

/// Reads a stream from message `next` on, and hands it to the order thread. Two pieces are in memory at a time.
fn read(
    journal: &dyn Journal,
    requests: &SyncSender<Request>,
    (membership, threads): (&Membership, &Threads),
    stream: usize,
    mut next: u64,
) {
    let mut taken: Option<Receiver<()>> = None;
    while membership.role() != Role::Ended && !membership.is_closed() {
        match journal.read(next, READ_BYTES, WAIT) {
            Ok(messages) if messages.messages.is_empty() => {}
            Ok(messages) => {
                next = messages.first + messages.messages.len() as u64;
                if taken.take().is_some_and(|taken| threads.receive(&taken, None).is_err()) {
                    return;
                }
                let (done, merged) = sync_channel(1);
                if threads.send(requests, Request::Streamed { stream, messages, done }).is_err() {
                    return;
                }
                taken = Some(merged);
            }
            Err(error) => {
                membership.reached(Some(error.to_string()));
                threads.sleep(WAIT);
            }
        }
    }
}

impl Streams {
    /// These streams of so many parts, for a node that goes on from a checkpoint of record `number`.
    ///
    /// # Errors
    /// [`Error::Option`]: they are not as many as the checkpoint has, or more than parts can stand for.
    pub(super) fn new(
        journals: Vec<Arc<dyn Journal>>,
        parts: u16,
        positions: &[Position],
        number: u64,
    ) -> Result<Self, Error> {
        let refuse = |expected: String| {
            let value = journals.len().to_string();
            Err(Error::Option { option: "streams", value, expected })
        };
        if journals.len() >= usize::from(parts) {
            return refuse(format!("each is sequenced by a part but the first, so at most {} are possible", parts - 1));
        }
        if !positions.is_empty() && positions.len() != journals.len() {
            return refuse(format!("the checkpoints of this journal have {}", positions.len()));
        }
        let position = |index: usize| positions.get(index).copied().unwrap_or(Position::START);
        let last = |index: usize| AtomicU64::new(position(index).next - 1);
        let cut = (0..journals.len()).map(|index| position(index).next).collect();
        let stream = |(index, journal): (usize, Arc<dyn Journal>)| Stream {
            path: PathBuf::from(journal.describe()),
            journal,
            read: position(index),
            merged: position(index),
            waiting: VecDeque::new(),
            progress: Arc::new(Progress { merged: last(index), known: last(index) }),
        };
        Ok(Self {
            all: journals.into_iter().enumerate().map(stream).collect(),
            is_underway: false,
            base: 0,
            are_merged: !positions.is_empty(),
            announced: false,
            is_merging: false,
            cuts: BTreeMap::from([(number, cut)]),
        })
    }

    /// How far each is.
    pub(super) fn progress(&self) -> Vec<Arc<Progress>> {
        self.all.iter().map(|stream| stream.progress.clone()).collect()
    }

    pub(super) fn journal(&self, index: usize) -> Arc<dyn Journal> {
        self.all[index].journal.clone()
    }

    /// Starts what reads the streams.
    pub(super) fn start(
        &self,
        requests: &SyncSender<Request>,
        membership: &Arc<Membership>,
    ) -> Result<Vec<Thread>, Error> {
        let mut started = Vec::new();
        for (index, stream) in self.all.iter().enumerate() {
            let (journal, requests, membership) = (stream.journal.clone(), requests.clone(), membership.clone());
            let (threads, next) = (membership.threads().clone(), stream.read.next);
            let reader = threads.clone();
            let run = move || read(&*journal, &requests, (&membership, &reader), index, next);
            started.push(threads.start("lockwork-stream", run)?);
        }
        Ok(started)
    }

    /// Where a stream ends, with what only one of its servers has.
    ///
    /// # Errors
    /// As [`complete`]; [`Error::Unreachable`], while no node that leads has said that it merges the streams.
    pub(super) fn end(&self, index: usize, node: (&Shared, &Membership)) -> Result<Position, Error> {
        if !self.are_merged {
            return Err(Error::Unreachable("no node that leads has said yet that it merges these streams".into()));
        }
        let Stream { journal, path, read, .. } = &self.all[index];
        complete(&**journal, node, path, *read)
    }

    /// What the first message of an epoch follows in a stream that ends there.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when more was read by now; [`Error::Damaged`].
    pub(super) fn begins(&self, index: usize, end: Position, database: u64) -> Result<Chain, Error> {
        let Stream { path, read, .. } = &self.all[index];
        if end.next < read.next {
            return Err(Error::Unreachable(format!("{}: more was read than there was", path.display())));
        }
        if end.chain.epoch > 0 && end.chain.database != database {
            return Err(Error::damaged(path, end.next - 1, FOREIGN));
        }
        Ok(Chain { database, ..end.chain })
    }

    /// Whether a part of a record was run.
    pub(super) fn are_underway(&self) -> bool {
        self.is_underway
    }

    /// How far they are merged; nothing if nobody merges them.
    pub(super) fn positions(&self) -> Vec<Position> {
        self.all.iter().filter(|_| self.are_merged).map(|stream| stream.merged).collect()
    }

    /// There is a checkpoint of a record that was just met.
    pub(super) fn cut(&mut self, number: u64) {
        self.cuts.insert(number, self.all.iter().map(|stream| stream.merged.next).collect());
    }

    /// Removes what nobody needs who begins with the checkpoint of record `number`, or a later one, if `removes`.
    pub(super) fn truncate(&mut self, number: u64, removes: bool) -> Result<(), Unreachable> {
        self.cuts = self.cuts.split_off(&number);
        let Some(until) = self.cuts.get(&number).filter(|_| removes) else { return Ok(()) };
        // The last message stays: what a stream that has none goes on with is for servers to remember.
        self.all.iter().zip(until).try_for_each(|(stream, &until)| stream.journal.truncate(until.max(2) - 1))
    }
}

impl PartitionedOrder {
    /// Messages of a stream were read.
    pub(super) fn streamed(&mut self, stream: usize, messages: &Messages, done: SyncSender<()>) -> Result<(), Error> {
        let taken = &mut self.streams.all[stream];
        taken.take(messages, done)?;
        // Before anybody has the order name it.
        if self.node.chain.database > 0 && taken.read.chain.database != self.node.chain.database {
            return Err(Error::damaged(&taken.path, taken.read.next - 1, FOREIGN));
        }
        self.go_on_following()
    }

    /// Appends a record that merges what the streams have, if they have anything.
    pub(super) fn merge_if_due(&mut self) {
        if self.streams.all.is_empty() || self.streams.is_merging {
            return;
        }
        match self.mergeable() {
            Ok(until) => {
                let is_new = |(stream, until): (&Stream, &Until)| stream.merged.next < until.next;
                let are_new = self.streams.all.iter().zip(&until).any(is_new);
                if !are_new && self.streams.announced {
                    return;
                }
                (self.streams.announced, self.streams.is_merging) = (true, true);
                let ((part, parts), given) = (self.engine.part(), until.clone());
                self.give(RecordKind::Merged, Ordered::Merge(until), |out| {
                    out.extend(head(part, parts));
                    put_until(out, &given);
                });
            }
            Err(error) => self.end_if(Err(error)),
        }
    }

    /// Up to where the streams can be merged by one record, which has places for so many calls. They take turns in
    /// having the first of them.
    fn mergeable(&self) -> Result<Vec<Until>, Error> {
        let all = &self.streams.all;
        let mut until: Vec<_> =
            all.iter().map(|Stream { merged, .. }| Until { next: merged.next, hash: merged.chain.hash }).collect();
        // Calls of a procedure may be here before it is known to be in the order, where its definition is for good.
        let are_all_known = !self.pending.iter().any(|ordered| matches!(ordered, Ordered::Definition(..)));
        let mut calls = 0;
        for index in (0..all.len()).map(|at| (at + self.giving as usize) % all.len()) {
            let (Stream { path, waiting, .. }, until) = (&all[index], &mut until[index]);
            for message in waiting.iter().flat_map(|piece| &piece.messages) {
                let damaged = |problem: &str| Error::damaged(path, until.next, problem);
                if message.after.database != self.node.chain.database {
                    return Err(damaged(FOREIGN));
                }
                if let Some(payload) = &message.calls {
                    let (_, payload) = self.home_of(path, payload, until.next)?;
                    match count(payload, |procedure| self.catalogue.arguments(procedure)) {
                        Ok(count) if count >= 1 << PLACE_BITS => return Err(damaged(TOO_MANY)),
                        Ok(count) => calls += count,
                        Err(problem) if are_all_known => return Err(damaged(&problem)),
                        Err(_) => break,
                    }
                }
                if calls >= 1 << PLACE_BITS {
                    break;
                }
                *until = Until { next: until.next + 1, hash: message.after.hash };
            }
        }
        Ok(until)
    }

    /// Merges what a record says; whether all of it was read yet. If not, what was is run, and this is to be called
    /// again.
    pub(super) fn merged(&mut self, payload: &[u8], record: u64) -> Result<bool, Error> {
        let (_, payload) = self.home_of(&self.node.path, payload, record)?;
        let until = until_of(payload).map_err(|problem| Error::damaged(&self.node.path, record, problem))?;
        let count = self.streams.all.len();
        if until.len() != count {
            let expected = format!("the nodes of this journal have {}", until.len());
            return Err(Error::Option { option: "streams", value: count.to_string(), expected });
        }
        self.merge(&until, record)
    }

    pub(super) fn merge(&mut self, until: &[Until], record: u64) -> Result<bool, Error> {
        // Also while it names what is still to be read: who sequences may have to see to it that it can be.
        self.streams.are_merged = true;
        for (stream, until) in self.streams.all.iter().zip(until) {
            stream.progress.known.fetch_max(until.next - 1, Ordering::Relaxed);
        }
        for (index, until) in until.iter().enumerate() {
            while self.streams.all[index].merged.next < until.next {
                let Some((number, message)) = self.streams.all[index].next() else { return Ok(false) };
                self.run_message(index, number, &message, record)?;
            }
            let Stream { path, merged, .. } = &self.streams.all[index];
            if (merged.next, merged.chain.hash) != (until.next, until.hash) {
                let problem = format!("the message is not the one that record {record} of the order has merged");
                return Err(Error::damaged(path, until.next - 1, problem));
            }
        }
        let streams = &mut self.streams;
        (streams.is_underway, streams.base, streams.is_merging) = (false, 0, false);
        Ok(true)
    }

    /// Runs a message of a stream at its place.
    fn run_message(&mut self, index: usize, number: u64, message: &Message, record: u64) -> Result<(), Error> {
        let path = &self.streams.all[index].path;
        if message.after.database != self.node.chain.database {
            return Err(Error::damaged(path, number, FOREIGN));
        }
        self.streams.is_underway = true;
        self.shared.since_checkpoint.fetch_add(RECORD_COST, Ordering::Relaxed);
        let Some(payload) = &message.calls else { return Ok(()) };
        let (home, calls) = self.home_of(path, payload, number)?;
        let place = Place { stamp: (record << PLACE_BITS) + self.streams.base, home };
        let own = self.own.as_mut().filter(|own| own.index == index);
        let count = match own.and_then(|own| own.take(message.after.epoch, number)) {
            Some(Given { batch, places, callers, .. }) => {
                let count = places.len();
                self.run_given(batch, &places, callers, place)?;
                count
            }
            None => {
                // What this node gave was counted when it was.
                self.shared.count_sync(message.bytes, false, Duration::ZERO);
                let path = path.clone();
                self.run_ordered(calls, place, (&path, number))?
            }
        };
        self.streams.base += count as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_merged_can_be_read_again_and_half_of_it_is_refused() {
        let mut payload = Vec::new();
        let until = [Until { next: 57, hash: [1; 32] }, Until { next: 93, hash: [2; 32] }];
        put_until(&mut payload, &until);
        assert_eq!(until_of(&payload), Ok(until.to_vec()));
        for bytes in [9, 70] {
            let refused = until_of(&payload[..bytes]).unwrap_err();
            assert!(refused.contains("the hash of a message"), "{refused}");
        }
    }
}
