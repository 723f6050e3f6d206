//! The thread that gives everything its order: it owns the engine, and does one thing after the other.
//!
//! | module | idea |
//! |---|---|
//! | `mod` | requests, and the loop that takes them |
//! | `run` | batches: reserve, run, write what ran in its serial order |
//! | `repeat` | calls that have an outcome already |
//! | `together` | transactions of several calls |
//! | `load` | rows that come outside of calls |
//! | `change` | definitions, checkpoints |
//! | `compare` | digests of the whole database, in a journal |
//! | `follow` | a node's part: what the journal has is run, until this node leads |
//!
//! Two batches are in the engine's hands at a time, so that it runs one while the other is encoded; behind it the
//! writer writes a third. Answers go through the writer too, so that they come in order, and none before what it may
//! have seen is durable. Where no log is written there is no writer, and answers go out at once.

mod change;
mod compare;
mod compound;
mod follow;
mod load;
mod repeat;
mod run;

pub(crate) use change::{MAX_DEFINITION_BYTES, ROWS_BYTES, Tables, apply};
pub(crate) use compare::{DigestReply, rows};
pub(crate) use compound::{Look, LookReply, StepsReply};
pub(crate) use follow::Node;
pub(crate) use load::LoadReply;
pub(crate) use repeat::pick;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use lockwork_engine::registry::Registered;
use lockwork_engine::{Engine, SerialOrder};
use lockwork_procedure::block::Batch;
use lockwork_procedure::request::RequestId;

use crate::catalogue::{Catalogue, Definitions};
use crate::checkpoint::snapshot::Snapshot;
use crate::checkpoint::write::CheckpointReport;
use crate::directory::Directory;
use crate::divided::GatherReply;
use crate::error::{Error, Refused};
use crate::format::items::Definition;
use crate::io::Io;
use crate::journal::Messages;
use crate::log::room::Room;
use crate::log::writer::Unit;
use crate::options::Options;
use crate::requests::DedupTable;
use crate::shared::Shared;
use crate::threads::{Thread, Threads};
use crate::transaction::Transaction;

/// Bytes that a group of calls takes at most, unless it is one call.
const GROUP_BYTES: usize = 32 << 20;

/// Batches in the engine's hands.
const DEPTH: usize = 2;

/// Where an answer goes.
pub(crate) type Reply<T> = SyncSender<Result<T, Error>>;

/// What is done with a batch that comes back.
pub(crate) type BatchReply = Box<dyn FnOnce(Result<Batch, Box<Refused>>) + Send>;

/// What is done with the block of a single call that comes back.
pub(crate) type CallReply = Box<dyn FnOnce(Result<Vec<u8>, Error>) + Send>;

/// What is asked of the sequencer.
pub(crate) enum Request {
    Batch(Waiting),
    /// A single call, by its block.
    Call {
        block: Vec<u8>,
        reply: CallReply,
    },
    /// Further calls of a transaction, by their blocks, which then is made for good or not.
    Steps {
        transaction: Transaction,
        blocks: Vec<Vec<u8>>,
        commits: bool,
        reply: StepsReply,
    },
    /// A look at tables as a transaction has made them.
    Look {
        transaction: Transaction,
        tables: Vec<String>,
        look: Look,
        reply: LookReply,
    },
    Define {
        definition: Definition,
        reply: Reply<()>,
    },
    /// Rows of a table, and for each its row in other tables.
    Load {
        tables: Vec<(String, Vec<u8>)>,
        reply: LoadReply,
    },
    /// All rows of some tables whose rows several nodes have, if they are no more than so many bytes.
    Gather {
        tables: Vec<String>,
        most: u64,
        reply: GatherReply,
    },
    /// To be called with the engine, while nothing is in flight.
    Read(Read),
    Checkpoint(Reply<CheckpointReport>),
    /// To append the digest of the database.
    Digest(DigestReply),
    /// Definitions from this one on.
    Definitions(usize, Reply<Vec<Definition>>),
    /// Messages of the journal, for a node that follows; `done` is told that they were run.
    Follow {
        messages: Messages,
        done: SyncSender<()>,
    },
    /// Of a node that has a part: messages of a further sequencer's stream; `done` is told that they were merged.
    Streamed {
        stream: usize,
        messages: Messages,
        done: SyncSender<()>,
    },
    /// Of a node that has a part: the oldest record that it gave to its journal is there, or why not.
    Appended(Result<(), Error>),
    /// Of a node that sequences: this message, which it gave to its stream, is not there.
    NotAppended {
        number: u64,
        error: Error,
    },
    /// Of a node that has a part: its rows are not those that were written down.
    Differs(Error),
    /// To begin an epoch.
    Lead(Reply<()>),
    Close(Reply<()>),
}

/// A batch that nobody has taken yet, and who waits for it. One that is never taken goes back whole.
pub(crate) struct Waiting(pub(crate) Option<(Batch, BatchReply)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((batch, reply)) = self.0.take() {
            reply(Err(Box::new(Refused { batch: Some(batch), error: Error::Closed })));
        }
    }
}

/// What reads, and is told the number of the last record that the database has then.
pub(crate) type Read = Box<dyn FnOnce(&dyn Engine, u64) -> Answered + Send>;

/// What remains to be done for a read when everything that it may have seen is durable.
pub(crate) type Answered = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A call by its block, and who waits for it.
type Single = (Vec<u8>, CallReply);

/// Who waits for a batch.
pub(crate) enum Callers {
    One(BatchReply),
    Many(Vec<CallReply>),
}

/// A batch that the engine has.
struct InFlight {
    callers: Callers,
    /// Bytes of log that were reserved for it.
    reserved: u64,
    /// Whether its callers receive an error if the log write fails; else they only read.
    requires_durability: bool,
    /// Whether some call has a request id.
    requests: bool,
    repeats: Option<repeat::Repeats>,
}

/// A checkpoint under way.
struct Checkpointing {
    begun: Instant,
    snapshot: Option<Snapshot>,
    /// Encoded outcomes of request ids as of the moment, and how many, in pieces.
    requests: Vec<(Vec<u8>, u64)>,
    thread: Thread,
}

/// Waits for a request. Who was answered last often asks again at once: others run before this sleeps, so that they
/// need not wake it, and may have asked for more than one thing by then.
fn patient(threads: &Threads, requests: &Receiver<Request>, most: Option<Duration>) -> Result<Request, TryRecvError> {
    std::thread::yield_now();
    match requests.try_recv() {
        Err(TryRecvError::Empty) => waited(threads, requests, most),
        taken => taken,
    }
}

/// Waits for a request, for so long at most.
fn waited(threads: &Threads, requests: &Receiver<Request>, most: Option<Duration>) -> Result<Request, TryRecvError> {
    threads.receive(requests, most).map_err(|error| match error {
        RecvTimeoutError::Timeout => TryRecvError::Empty,
        RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
    })
}

/// See the module.
pub(crate) struct Order {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) serial_order: SerialOrder,
    pub(crate) options: Options,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) directory: Directory,
    pub(crate) database: u64,
    /// `None` when no log is written.
    pub(crate) space: Option<Room>,
    /// To the writer; `None` as for `space`.
    pub(crate) units: Option<SyncSender<Unit>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) catalogue: Catalogue,
    pub(crate) definitions: Definitions,
    pub(crate) procedures: Vec<Arc<Registered>>,
    pub(crate) dedup: DedupTable,
    /// The number of the next record.
    pub(crate) next: u64,
    /// `None` when the log is this process's own.
    pub(crate) node: Option<Node>,
    work: Work,
}

/// What is under way.
#[derive(Default)]
struct Work {
    in_flight: VecDeque<InFlight>,
    /// Request ids of calls that the engine has.
    running: HashSet<RequestId>,
    checkpointing: Option<Checkpointing>,
    /// For how long the engine has run what a checkpoint does not cover.
    uncovered: Duration,
    /// How long the last checkpoint took.
    checkpoint_took: Duration,
    /// Who waits for a checkpoint that has not begun.
    wanted: Vec<Reply<CheckpointReport>>,
    /// A request that was taken while calls were gathered.
    stashed: Option<Request>,
    indexes: Vec<u32>,
    /// For the calls of transactions, one after the other.
    single: Option<Batch>,
    closing: Option<Reply<()>>,
}

/// What an order thread is made of; see the fields of [`Order`].
pub(crate) struct Parts {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) options: Options,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) directory: Directory,
    pub(crate) database: u64,
    pub(crate) space: Option<Room>,
    pub(crate) units: Option<SyncSender<Unit>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) catalogue: Catalogue,
    pub(crate) definitions: Definitions,
    pub(crate) dedup: DedupTable,
    pub(crate) next: u64,
    pub(crate) node: Option<Node>,
    /// For how long the engine has run what the newest checkpoint does not cover.
    pub(crate) uncovered: Duration,
}

impl Order {
    pub(crate) fn new(parts: Parts) -> Self {
        let count = parts.catalogue.procedures.len() as u32;
        let procedures = (0..count).filter_map(|id| parts.engine.procedure(id)).collect();
        Self {
            serial_order: parts.engine.serial_order(),
            engine: parts.engine,
            options: parts.options,
            io: parts.io,
            directory: parts.directory,
            database: parts.database,
            space: parts.space,
            units: parts.units,
            shared: parts.shared,
            catalogue: parts.catalogue,
            definitions: parts.definitions,
            procedures,
            dedup: parts.dedup,
            next: parts.next,
            node: parts.node,
            work: Work { uncovered: parts.uncovered, ..Work::default() },
        }
    }

    /// Takes requests until there will be no more.
    pub(crate) fn run(mut self, requests: &Receiver<Request>) {
        while self.work.closing.is_none() {
            self.checkpoint_if_due();
            self.digest_if_due();
            let idle = self.work.in_flight.is_empty();
            let copying = self.work.checkpointing.as_ref().is_some_and(|checkpoint| checkpoint.snapshot.is_some());
            if idle {
                self.shared.set_busy(false);
            }
            let request = match self.work.stashed.take() {
                Some(request) => Ok(request),
                None if !idle => requests.try_recv(),
                // While a checkpoint is written there is nothing to do but look again.
                None if self.work.checkpointing.is_some() => {
                    let wait = Duration::from_micros(if copying { 200 } else { 2000 });
                    waited(&self.shared.threads, requests, Some(wait))
                }
                None => patient(&self.shared.threads, requests, self.until_digest()),
            };
            self.shared.set_busy(request.is_ok() || !idle);
            match request {
                Ok(request) => self.take(request, requests),
                Err(TryRecvError::Empty) if !idle => self.complete_one(),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break,
            }
            let depth = if copying { 1 } else { DEPTH };
            while self.work.in_flight.len() >= depth {
                self.complete_one();
            }
            if self.work.in_flight.is_empty() {
                self.copy_slice();
            }
        }
        self.drain();
        self.finish_checkpoint();
        for reply in std::mem::take(&mut self.work.wanted) {
            drop(reply.send(Err(Error::Closed)));
        }
        let kept = match &mut self.space {
            // What a node has is in its journal.
            None if self.node.is_some() => Ok(()),
            None => self.last_checkpoint(),
            // Without room for it a cut is not missed, and nothing else.
            Some(space) => match space.close(self.next, || self.shared.wait_durable(self.next)) {
                Err(Error::Full(_)) => Ok(()),
                closed => closed,
            },
        };
        if let Some(reply) = self.work.closing.take() {
            let done: crate::log::writer::Done = Box::new(move |outcome| drop(reply.send(kept.and(outcome))));
            self.send(Vec::new(), Vec::new(), true, done);
        }
        self.leave();
    }

    fn take(&mut self, request: Request, requests: &Receiver<Request>) {
        if self.follows() {
            return self.take_following(request);
        }
        match request {
            Request::Batch(mut waiting) => {
                if let Some((batch, reply)) = waiting.0.take() {
                    self.start(batch, Callers::One(reply));
                }
            }
            Request::Call { block, reply } => self.gather(block, reply, requests),
            Request::Steps { transaction, blocks, commits, reply } => {
                self.steps(transaction, &blocks, commits, reply);
            }
            Request::Look { transaction, tables, look, reply } => self.look(transaction, &tables, look, reply),
            Request::Define { definition, reply } => self.define(definition, reply),
            Request::Load { tables, reply } => self.load(&tables, reply),
            Request::Gather { .. } => unreachable!("nobody asks who has everything"),
            Request::Read(read) => {
                self.drain();
                let answered = read(&*self.engine, self.next - 1);
                self.send(Vec::new(), Vec::new(), false, answered);
            }
            Request::Checkpoint(reply) => self.work.wanted.push(reply),
            Request::Digest(reply) => self.append_digest(reply),
            Request::Definitions(from, reply) => drop(reply.send(Ok(self.definitions_from(from)))),
            // It leads.
            Request::Follow { .. } => {}
            // It is no node that has a part.
            Request::Appended(_) | Request::NotAppended { .. } | Request::Streamed { .. } | Request::Differs(_) => {}
            Request::Lead(reply) => drop(reply.send(Ok(()))),
            Request::Close(reply) => self.work.closing = Some(reply),
        }
    }

    /// Makes a batch of a call and of those that wait behind it.
    fn gather(&mut self, block: Vec<u8>, reply: CallReply, requests: &Receiver<Request>) {
        // Blocks of a batch have one stride.
        let mut stride = self.block_bytes(&block);
        let mut calls = vec![(block, reply)];
        let threads = &self.shared.threads;
        let until = (!self.options.group_wait.is_zero()).then(|| threads.now() + self.options.group_wait);
        while calls.len() < self.options.group_calls {
            let next = requests.try_recv().or_else(|error| match until {
                Some(until) => {
                    let wait = until.saturating_duration_since(threads.now());
                    threads.receive(requests, Some(wait)).map_err(|_| TryRecvError::Empty)
                }
                None => Err(error),
            });
            match next {
                Ok(Request::Call { block, reply }) => {
                    let wider = stride.max(self.block_bytes(&block));
                    if wider * (calls.len() + 1) > GROUP_BYTES {
                        self.work.stashed = Some(Request::Call { block, reply });
                        break;
                    }
                    stride = wider;
                    calls.push((block, reply));
                }
                Ok(other) => {
                    self.work.stashed = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        self.start_calls(calls, stride);
    }

    /// Hands bytes, whose frames begin at `frames`, and an answer to the writer.
    fn send(&mut self, bytes: Vec<u8>, frames: Vec<usize>, requires_durability: bool, done: crate::log::writer::Done) {
        let Some(units) = &self.units else {
            return done(self.shared.trouble().filter(|_| requires_durability).map_or(Ok(()), Err));
        };
        let segment = self.space.as_ref().filter(|_| !bytes.is_empty()).and_then(|space| space.segment().cloned());
        let unit = Unit { segment, bytes, frames, next: self.next, requires_durability, done };
        if let Err(refused) = self.shared.threads.send(units, unit) {
            (refused.0.done)(Err(self.shared.trouble().unwrap_or(Error::Closed)));
        }
    }

    fn definitions_from(&self, from: usize) -> Vec<Definition> {
        self.definitions.added().get(from..).unwrap_or_default().to_vec()
    }

    /// Waits until the engine has nothing.
    fn drain(&mut self) {
        while !self.work.in_flight.is_empty() {
            self.complete_one();
        }
    }
}
